"""Checks of order: what one poll, one consumer, one operation, one producer saw in steps of the version order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from strandline.chaos.checkers.columns import ACKED, FINAL, MAY_REPEAT, NONE, OK, SUBSCRIBED, UNCOMMITTED
from strandline.chaos.checkers.invariant import Anomaly
from strandline.chaos.checkers.order import Analysis
from strandline.chaos.checkers.pages import PAGE_BITS, PAGE_MASK, Pages

SUBSCRIBED_MAY = "its partitions come from a group"


def poll_order(analysis: Analysis) -> Iterator[Anomaly]:
    """int-poll-skip, int-nonmonotonic-poll: within one poll, records of a partition that skip or step back, unless it
    was rebalanced meanwhile. poll-skip, nonmonotonic-poll: from one poll of a consumer to its next, unless it was
    assigned anew; legal under subscribe. A poll that did not end well promises nothing, nor does the next one."""
    columns, polls = analysis.columns, analysis.columns.polls
    partitions, offsets = polls.partition, polls.offset
    last: dict[tuple[int, int, int], tuple[int, int]] = {}
    """(consumer, generation, partition) -> (offset, the poll it came from)."""
    for poll, status in enumerate(polls.status):
        who, generation, flags = polls.process[poll], polls.generation[poll], polls.flags[poll]
        rebalanced = polls.rebalanced.get(poll, frozenset())
        for row in range(polls.start[poll], polls.start[poll + 1]):
            partition, offset = partitions[row], offsets[row]
            key = (who, generation, partition)
            before = last.get(key)
            last[key] = (offset, poll)
            if status != OK:
                last.pop(key, None)
                continue
            if before is None or offset == before[0] + 1:
                continue
            order = analysis.orders[partition]
            places = order.place if flags & UNCOMMITTED else order.visible
            step = places.get(offset) - places.get(before[0])
            inside = before[1] == poll
            if step == 1 or (inside and partition in rebalanced):
                continue
            name = ("int-" if inside else "") + ("poll-skip" if step > 1 else "nonmonotonic-poll")
            legal = SUBSCRIBED_MAY if not inside and flags & SUBSCRIBED else ""
            facts = {"from_offset": before[0], "to_offset": offset, "process": columns.process_name(who)}
            yield Anomaly(name, columns.partitions[partition], facts, legal)


def send_order(analysis: Analysis) -> Iterator[Anomaly]:
    """nonmonotonic-send: of one producer, a later send to the same partition at a smaller offset. int-send-skip: within
    one operation, something of another in between (always legal)."""
    columns, sends = analysis.columns, analysis.columns.sends
    last: dict[tuple[int, int], int] = {}
    """(producer, partition) -> row."""
    for row, flags in enumerate(sends.flags):
        offset = sends.offset[row]
        if not flags & ACKED or offset == NONE:
            continue
        key = (sends.process[row], sends.partition[row])
        before = last.get(key)
        last[key] = row
        if before is None:
            continue
        if offset <= sends.offset[before]:
            facts = {
                "values": [columns.values[sends.value[before]], columns.values[sends.value[row]]],
                "offsets": [sends.offset[before], offset],
                "process": columns.process_name(sends.process[row]),
            }
            legal = "retried without idempotence" if flags & MAY_REPEAT else ""
            yield Anomaly("nonmonotonic-send", columns.partitions[sends.partition[row]], facts, legal)
        elif offset != sends.offset[before] + 1 and _one_operation(analysis, before, row):
            order = analysis.orders[sends.partition[row]]
            if order.place.get(offset) - order.place.get(sends.offset[before]) > 1:
                facts = {
                    "from_offset": sends.offset[before],
                    "to_offset": offset,
                    "process": columns.process_name(sends.process[row]),
                }
                legal = "other producers' records may lie between"
                yield Anomaly("int-send-skip", columns.partitions[sends.partition[row]], facts, legal)


def _one_operation(analysis: Analysis, first: int, second: int) -> bool:
    sends = analysis.columns.sends
    if sends.transaction[first] != NONE or sends.transaction[second] != NONE:
        return sends.transaction[first] == sends.transaction[second]
    return sends.group[first] == sends.group[second] != NONE


def realtime_lag(analysis: Analysis) -> tuple[float, int, int, int]:
    """(milliseconds, consumer, partition, position): how long a value beyond a consumer's position had been acked, at
    most, when one of its ok polls was invoked. A lower bound on staleness; consumer -1 if nothing lagged.

    Consumers that went back to the beginning are behind by their own will, and the last phase reads the past: neither
    counts.
    """
    polls = analysis.columns.polls
    earliest = _earliest_acks(analysis)
    positions: dict[int, dict[int, int]] = {}
    worst = (0.0, NONE, NONE, NONE)
    for poll, status in enumerate(polls.status):
        if status != OK or polls.flags[poll] & FINAL or polls.generation[poll]:
            continue
        mine = positions.setdefault(polls.process[poll], {})
        for row in range(polls.start[poll], polls.start[poll + 1]):
            mine[polls.partition[row]] = polls.offset[row] + 1
        for partition, position in mine.items():
            acked_us = earliest[partition].at_or_beyond(position)
            lag_ms = polls.invoked_ms[poll] - acked_us / 1000 if acked_us != NONE else 0.0
            if lag_ms > worst[0]:
                worst = (lag_ms, polls.process[poll], partition, position)
    return worst


class _EarliestAcks:
    """Times of the earliest acks in one partition at or beyond an offset, in microseconds."""

    def __init__(self) -> None:
        self.acks = Pages(NONE)
        self._keys: list[int] = []

    def close(self) -> None:
        """Close the table: all acks are in."""
        self._keys = sorted(self.acks.pages)
        best = NONE
        for key in reversed(self._keys):
            page = self.acks.pages[key]
            for slot in range(len(page) - 1, -1, -1):
                if page[slot] != NONE and (best == NONE or page[slot] < best):
                    best = page[slot]
                page[slot] = best

    def at_or_beyond(self, offset: int) -> int:
        page = self.acks.pages.get(offset >> PAGE_BITS)
        if page is not None:
            return page[offset & PAGE_MASK]
        following = bisect_left(self._keys, offset >> PAGE_BITS)
        return self.acks.pages[self._keys[following]][0] if following < len(self._keys) else NONE


def _earliest_acks(analysis: Analysis) -> list[_EarliestAcks]:
    sends = analysis.columns.sends
    earliest = [_EarliestAcks() for _ in analysis.orders]
    for row, flags in enumerate(sends.flags):
        if flags & ACKED and sends.offset[row] != NONE:
            earliest[sends.partition[row]].acks.put(sends.offset[row], round(sends.completed_ms[row] * 1000))
    for one in earliest:
        one.close()
    return earliest
