"""The version order of each partition, and what is known of each value: the ground on which all checks stand.

The order comes from proven sends (answered under acks=all: under acks=1 the offset may be given away again) and all
polls, failed ones too. Offsets with gaps are legal (control records): places in the order are what counts.
"""

from __future__ import annotations

from array import array

from strandline.chaos.checkers.columns import (
    ACKED,
    ANSWERED,
    FAIL,
    FINAL,
    INFO,
    INVOKED,
    NONE,
    OK,
    UNCOMMITTED,
    Columns,
)
from strandline.chaos.checkers.pages import PAGE_BITS, PAGE_MASK, PAGE_SIZE, Pages

READ, READ_COMMITTED, READ_FINALLY = 1, 2, 4
"""Bits of a value: some poll returned it; an ok poll that sees committed data alone did; the final read did."""


class PartitionOrder:
    """One partition.

    Attributes:
        values: offset -> the first value seen there.
        conflicts: offset -> further values seen there.
        place: offset -> place in the version order.
        visible: the same for consumers that see committed data alone; `place` itself unless something is hidden.
    """

    def __init__(self) -> None:
        self.values = Pages(NONE)
        self.conflicts: dict[int, list[int]] = {}
        self.place = Pages(NONE)
        self.visible = self.place
        self.highest_read = -1
        self.highest_read_finally = -1

    def close(self, hidden: set[int]) -> None:
        """All is noted: number the places."""
        self.place = _numbered(self.values, frozenset())
        self.visible = self.place
        if hidden and any(value in hidden for _, value in self.values.items()):
            self.visible = _numbered(self.values, hidden)


def _numbered(values: Pages, hidden: set[int] | frozenset[int]) -> Pages:
    """Each offset's place; a hidden value takes none of its own (it shares that of the one before)."""
    places = Pages(NONE)
    place = -1
    for key in sorted(values.pages):
        page = array("q", [NONE]) * PAGE_SIZE
        for slot, value in enumerate(values.pages[key]):
            if value != NONE:
                place += value not in hidden
                page[slot] = place
        places.pages[key] = page
    return places


class Analysis:
    """A history's columns, with the order of every partition and the bits of every value."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.orders = [PartitionOrder() for _ in columns.partitions]
        self.seen = bytearray(len(columns.values))
        """Bits of each value."""
        self.where: array[int] = array("q", [NONE]) * len(columns.values)
        """The first offset of each value."""
        self.home: array[int] = array("i", [NONE]) * len(columns.values)
        """The partition of that."""
        self.elsewhere: dict[int, list[tuple[int, int]]] = {}
        """Value -> further (partition, offset)."""
        self._note_sends()
        self._note_polls()
        self.proven = self._proven_transactions()
        """Transactions of unknown end of which a committed read showed something: they have committed."""
        if self.proven:
            self._promote()
        hidden = self._hidden()
        for order in self.orders:
            order.close(hidden)

    def _note(self, partition: int, offset: int, value: int) -> None:
        order = self.orders[partition]
        known = order.values.get(offset)
        if known == NONE:
            order.values.put(offset, value)
        elif known != value and value not in order.conflicts.setdefault(offset, []):
            order.conflicts[offset].append(value)
        if self.where[value] == NONE:
            self.where[value] = offset
            self.home[value] = partition
        elif self.where[value] != offset or self.home[value] != partition:
            others = self.elsewhere.setdefault(value, [])
            if (partition, offset) not in others:
                others.append((partition, offset))

    def _note_sends(self) -> None:
        sends = self.columns.sends
        for flags, partition, offset, value in zip(
            sends.flags, sends.partition, sends.offset, sends.value, strict=True
        ):
            if flags & ANSWERED and offset != NONE:
                self._note(partition, offset, value)

    def _note_polls(self) -> None:
        """The loop over every record read: what was noted already costs two lookups."""
        polls, seen, where, home = self.columns.polls, self.seen, self.where, self.home
        partitions, offsets, values = polls.partition, polls.offset, polls.value
        pages = [order.values.pages for order in self.orders]
        highest = [-1] * len(self.orders)
        highest_finally = [-1] * len(self.orders)
        for poll, flags in enumerate(polls.flags):
            bits = READ
            if polls.status[poll] == OK and not flags & UNCOMMITTED:
                bits |= READ_COMMITTED
            if flags & FINAL:
                bits |= READ_FINALLY
            for row in range(polls.start[poll], polls.start[poll + 1]):
                partition, offset, value = partitions[row], offsets[row], values[row]
                seen[value] |= bits
                highest[partition] = max(highest[partition], offset)
                if flags & FINAL:
                    highest_finally[partition] = max(highest_finally[partition], offset)
                page = pages[partition].get(offset >> PAGE_BITS)
                known = NONE if page is None else page[offset & PAGE_MASK]
                if known != value or where[value] != offset or home[value] != partition:
                    self._note(partition, offset, value)
        for partition, order in enumerate(self.orders):
            order.highest_read, order.highest_read_finally = highest[partition], highest_finally[partition]

    def _proven_transactions(self) -> set[int]:
        sends = self.columns.sends
        status = self.columns.transactions
        return {
            transaction
            for transaction, value in zip(sends.transaction, sends.value, strict=True)
            if transaction != NONE and status[transaction] in (INFO, INVOKED) and self.seen[value] & READ_COMMITTED
        }

    def _promote(self) -> None:
        """A transaction takes place whole or not at all: the siblings of what was read are promised too."""
        sends = self.columns.sends
        for row, transaction in enumerate(sends.transaction):
            if transaction in self.proven and sends.flags[row] & ANSWERED:
                sends.status[row] = OK
                sends.flags[row] |= ACKED

    def _hidden(self) -> set[int]:
        """Values that a consumer of committed data passes over: of transactions that aborted or may have."""
        sends = self.columns.sends
        return {
            value
            for transaction, status, value in zip(sends.transaction, sends.status, sends.value, strict=True)
            if transaction != NONE and status in (FAIL, INFO, INVOKED) and not self.seen[value] & READ_COMMITTED
        }

    def committed(self, transaction: int) -> bool:
        """Whether a transaction took place for certain."""
        return self.columns.transactions[transaction] == OK or transaction in self.proven
