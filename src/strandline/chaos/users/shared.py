"""State that the users of a run share: what was promised to them, what they draw, and whether it is time to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from strandline.chaos.checkers.handled import HandledRecords
from strandline.chaos.checkers.history import History, Partition, Poll
from strandline.chaos.checkers.users import ConsumedRecord, ConsumerPosition, UserRecords
from strandline.chaos.users.options import LATEST, ORDERS, UserOptions
from strandline.client.polled import PolledRecords
from strandline.client.types import ConsumerRecord
from strandline.proto.errors import KafkaError

COMPACTED_ID = UUID(int=1)
"""Id of `latest` in the checks, of which there is one."""


class Shared:
    """State over all incarnations of the users' process.

    Attributes:
        calm: nothing is cut short any more, nobody pauses or seeks.
        over: there are no more records to send.
        errors: what went wrong in clients' eyes, counted: for the figures of a run.
        cut: calls that were cut short, by the names of the methods.
        acts: what was done, counted.
        broken: what must not be, seen where nobody could be told.
    """

    def __init__(
        self, bootstrap: str, options: UserOptions, history: History, now_ms: Callable[[], float],
        login: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.bootstrap = bootstrap
        self.options = options
        self.history = history
        self.now_ms = now_ms
        self.login = login
        self.ledger = UserRecords()
        self.latest = HandledRecords()
        self.calm = False
        self.over = False
        self.errors: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self.acts: Counter[str] = Counter()
        self.broken: list[BaseException] = []
        self.values = 0
        self.stands: dict[str, ConsumerPosition] = {}
        """Positions of the consumers that name their partitions, and live."""

    def cut_share(self) -> float:
        """Share of the calls made now that are cut short."""
        return 0.0 if self.calm else self.options.cut_share

    @property
    def partitions(self) -> list[Partition]:
        """Partitions of `orders`."""
        return [Partition(ORDERS, number) for number in range(self.options.partitions)]

    def failed(self, error: BaseException) -> None:
        """Count an error of a client."""
        self.errors[error.code.name if isinstance(error, KafkaError) else type(error).__name__] += 1

    def note_poll(
        self, who: str, records: list[ConsumedRecord], generation: int, *, invoked_ms: float, subscribed: bool = False,
        final: bool = False,
    ) -> None:  # fmt: skip
        """Into the history."""
        places = [(one.partition, one.offset, one.value) for one in records if one.partition.topic != LATEST]
        if not places:
            return
        poll = Poll(who, places, generation, invoked_ms=invoked_ms, final=final, subscribed=subscribed)
        poll.completed_ms = self.now_ms()
        self.history.poll(poll)


def shown(record: ConsumerRecord) -> ConsumedRecord:
    """A record that a call returned; its value may be deserialized."""
    value = record.value.decode() if isinstance(record.value, bytes) else (record.value or "")
    where = Partition(record.topic, record.partition)
    return ConsumedRecord(where, record.offset, record.timestamp_ms, record.key, value, tuple(record.headers))


def shown_columns(polled: PolledRecords) -> list[ConsumedRecord]:
    """Records of `poll_columns`, taken out of the buffers by code of our own."""
    found: list[ConsumedRecord] = []
    for part in polled.parts:
        columns = part.columns
        offsets, times = (memoryview(one).cast("q") for one in (columns.offsets, columns.timestamps))
        lists = memoryview(columns.list_ends).cast("i")
        for row in range(columns.rows):
            pairs = range(lists[row], lists[row + 1]) if _valid(columns.list_valid, row) else ()
            headers = tuple(
                (
                    _piece(columns.names, columns.name_ends, pair).decode(),
                    _nullable(columns.headers, columns.header_ends, columns.header_valid, pair),
                )
                for pair in pairs
            )
            key = _nullable(columns.keys, columns.key_ends, columns.key_valid, row)
            value = _nullable(columns.values, columns.value_ends, columns.value_valid, row)
            where = Partition(*part.partition)
            found.append(ConsumedRecord(where, offsets[row], times[row], key, (value or b"").decode(), headers))
    return found


def _valid(bits: bytearray, at: int) -> bool:
    return bool(bits[at >> 3] >> (at & 7) & 1)


def _piece(data: bytearray, ends: bytearray, at: int) -> bytes:
    places = memoryview(ends).cast("i")
    return bytes(data[places[at] : places[at + 1]])


def _nullable(data: bytearray, ends: bytearray, bits: bytearray, at: int) -> bytes | None:
    return _piece(data, ends, at) if _valid(bits, at) else None
