"""Checks of users: consumers are given what they asked for, and records are what was sent.

| violation | says |
|---|---|
| ReadInTurn | a consumer was given another record than the next one from where it stood |
| PausedIsSilent | a record of a paused partition came |
| RecordIsWhole | a record has another key, other headers or another time than it was sent with, or shown with |
| KeyHasItsPartition | a record is in another partition than the one named, or that Kafka's rule gives its key |
| PositionIsTold | a consumer says that it stands elsewhere than where it does |
| EndIsBehindAcks | the end of a partition lies before a record that was acknowledged when it was asked for |
| FirstAtTime | a look-up by time passed over a record of that time or later |
| SettledIsAnswered | `flush` or `close` has ended well, and a record sent before has no answer |
| MemoryComesBack | all records have their answers, and a part of `buffer.memory` is still taken |
| CommittedUndone | a group has committed past a record that none of its members was given, and done with |
| CommitIsWhatWasSaid | a member reads back another offset than it has committed |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.chaos.checkers.history import Partition
from strandline.chaos.checkers.invariant import InvariantViolated

SHOWN_MAX = 10
"""Maximum offsets listed per violation."""

Headers = tuple[tuple[str, bytes | None], ...]

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_MASK = 0xFFFFFFFF


def place_of_key(key: bytes, partitions: int) -> int:
    """Kafka's partition of a key (murmur2 as in its Java client), by code of the checkers' own."""
    mixed = (_SEED ^ len(key)) & _MASK
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        four = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        four = (four ^ four >> _R) * _M & _MASK
        mixed = (mixed * _M & _MASK) ^ four
    if rest := key[whole:]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _M & _MASK
    mixed = (mixed ^ mixed >> 13) * _M & _MASK
    return ((mixed ^ mixed >> 15) & 0x7FFFFFFF) % partitions


class ConsumedRecord(NamedTuple):
    """A record as a consumer got it, however it asked."""

    partition: Partition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: str
    headers: Headers


@dataclass
class Content:
    """A record as it was sent."""

    key: bytes | None
    headers: Headers
    timestamp_ms: int | None
    """Milliseconds; None if the producer's clock sets it: then all readers must be shown the same."""


@dataclass
class UserRecords:
    """Promises to users and what they were given, over all incarnations of their process."""

    contents: dict[str, Content] = field(default_factory=dict)
    """Contents by value."""
    acked: dict[Partition, dict[int, str]] = field(default_factory=dict)
    """Partition -> offset -> value."""
    done: dict[Partition, set[int]] = field(default_factory=dict)
    """Offsets that members of the group were given, and are done with."""
    lookups: list[tuple[Partition, int, int]] = field(default_factory=list)
    """(partition, time, offset that was told to be the first of that time)."""
    deposed: Callable[[Partition], bool] = lambda _partition: False
    """True for a partition that a node leads in its own eyes alone."""

    def ack(self, partition: Partition, offset: int, value: str) -> None:
        """Note that a record was acknowledged by all in-sync replicas."""
        self.acked.setdefault(partition, {})[offset] = value

    def end(self, partition: Partition) -> int:
        """End behind the last record that was acknowledged; 0 as long as a deposed leader may answer, which does not
        know of those that its successor has acknowledged."""
        return 0 if self.deposed(partition) else max(self.acked.get(partition, ()), default=-1) + 1

    def check_whole(self, who: str, shown: Iterable[ConsumedRecord]) -> None:
        """Check that records have the key, headers and time that they were sent with. Raises InvariantViolated."""
        for record in shown:
            sent = self.contents.get(record.value)
            if sent is None:
                facts = {"who": who, "offset": record.offset, "value": record.value[:40]}
                raise InvariantViolated("RecordIsWhole", f"{record.partition} has what nobody sent", **facts)
            if sent.timestamp_ms is None:
                sent.timestamp_ms = record.timestamp_ms
            wanted = (sent.key, sent.headers, sent.timestamp_ms)
            found = (record.key, record.headers, record.timestamp_ms)
            if wanted != found:
                facts = {"who": who, "offset": record.offset, "sent": wanted, "shown": found}
                raise InvariantViolated("RecordIsWhole", f"{record.value[:40]} in {record.partition}", **facts)

    def finish(self, shown: Iterable[ConsumedRecord]) -> None:
        """Note that a member of the group has processed these records."""
        for record in shown:
            self.done.setdefault(record.partition, set()).add(record.offset)

    def check_committed(self, partition: Partition, offset: int) -> None:
        """Check an offset that the group has committed, read now, against the records that its members have processed.
        Raises InvariantViolated."""
        done = self.done.get(partition, set())
        passed = [at for at in range(offset) if at not in done]
        if passed:
            facts = {"partition": str(partition), "committed": offset, "count": len(passed)}
            raise InvariantViolated("CommittedUndone", "nobody is done with these", offsets=passed[:SHOWN_MAX], **facts)

    def check_end(self, who: str, partition: Partition, end: int, acked_end: int) -> None:
        """Check the end offset that a client was told. Raises InvariantViolated.

        `acked_end`: end behind the last acknowledged record when the client asked.
        """
        if end < acked_end:
            facts = {"who": who, "partition": str(partition), "end": end, "acked_end": acked_end}
            raise InvariantViolated("EndIsBehindAcks", "an acknowledged record lies behind the end", **facts)

    def check_lookups(self, stored: Sequence[ConsumedRecord]) -> None:
        """Check all look-ups by time against the records of the log. Raises InvariantViolated.

        `stored`: every record, read to the end.
        """
        times: dict[Partition, list[tuple[int, int]]] = {}
        for record in stored:
            times.setdefault(record.partition, []).append((record.offset, record.timestamp_ms))
        for partition, wanted_ms, told in self.lookups:
            passed = [at for at, time_ms in times.get(partition, ()) if at < told and time_ms >= wanted_ms]
            if passed:
                facts = {"partition": str(partition), "time": wanted_ms, "told": told, "passed": passed[:SHOWN_MAX]}
                raise InvariantViolated("FirstAtTime", "a look-up by time passed over records", **facts)


class ConsumerPosition:
    """Position of one consumer, computed from its calls and the records it got. Offsets must follow each other, because
    no record of its topics is deleted or compacted."""

    def __init__(self, who: str, ledger: UserRecords) -> None:
        self.who = who
        self.generation = 0
        """Counts up with every assignment and seek."""
        self.next: dict[Partition, int | None] = {}
        """Next offset by assigned partition; None: it is for the consumer to find out."""
        self.paused: set[Partition] = set()
        self.begins: Callable[[Partition, int], None] = lambda _partition, _offset: None
        """Check of the position from which a consumer starts to read a partition that its group assigned. Raises
        InvariantViolated."""
        self._ledger = ledger
        self._at_least: dict[Partition, int] = {}
        self._asked_time: dict[Partition, int] = {}

    def hold(self, partitions: Iterable[Partition]) -> None:
        """Note partitions that are assigned, and begin where the consumer finds out."""
        self.generation += 1
        for one in partitions:
            self._move(one, None)
            self.paused.discard(one)

    def lose(self, partitions: Iterable[Partition]) -> None:
        """Note partitions that are assigned no more."""
        self.generation += 1
        for one in partitions:
            self.next.pop(one, None)
            self.paused.discard(one)

    def seek(self, partition: Partition, offset: int) -> None:
        """Note that the consumer was told to go on there."""
        self.generation += 1
        self._move(partition, offset)

    def seek_end(self, partition: Partition) -> None:
        """Move to the end as it is now, or later."""
        self.generation += 1
        self._move(partition, None)
        self._at_least[partition] = self._ledger.end(partition)

    def seek_time(self, partition: Partition, timestamp_ms: int) -> None:
        """Move to the first record of that time or later."""
        self.generation += 1
        self._move(partition, None)
        self._asked_time[partition] = timestamp_ms

    def _move(self, partition: Partition, offset: int | None) -> None:
        self.next[partition] = offset
        self._at_least.pop(partition, None)
        self._asked_time.pop(partition, None)

    def given(self, records: Sequence[ConsumedRecord]) -> None:
        """Check the records that one call returned, and move behind them. Raises InvariantViolated."""
        self._ledger.check_whole(self.who, records)
        for record in records:
            where, offset = record.partition, record.offset
            facts = {"who": self.who, "partition": str(where), "offset": offset}
            if where in self.paused:
                raise InvariantViolated("PausedIsSilent", "a paused partition speaks", **facts)
            if where not in self.next:
                raise InvariantViolated("ReadInTurn", "the partition is not assigned", **facts)
            self._stands(where, offset, "ReadInTurn", "another record comes than the next one")
            self.next[where] = offset + 1

    def told(self, partition: Partition, position: int) -> None:
        """Check what `position()` has returned. Raises InvariantViolated."""
        self._stands(partition, position, "PositionIsTold", "the consumer stands elsewhere than it says")

    def _stands(self, partition: Partition, offset: int, name: str, message: str) -> None:
        known = self.next.get(partition)
        if known is None:
            self._found(partition, offset)
        elif offset != known:
            facts = {"who": self.who, "partition": str(partition), "offset": offset, "expected": known}
            raise InvariantViolated(name, message, **facts)

    def _found(self, partition: Partition, offset: int) -> None:
        """Note that the consumer has found out where to go on."""
        self.next[partition] = offset
        acked_end = self._at_least.pop(partition, None)
        if acked_end is not None:
            self._ledger.check_end(self.who, partition, offset, acked_end)
        timestamp_ms = self._asked_time.pop(partition, None)
        if timestamp_ms is not None:
            self._ledger.lookups.append((partition, timestamp_ms, offset))
        if acked_end is None and timestamp_ms is None:
            self.begins(partition, offset)


def check_answered(who: str, call: str, answered: Mapping[str, bool]) -> None:
    """Check that a `flush` or `close` which has ended left no record without an answer. Raises InvariantViolated.

    `answered`: by value sent before that call, whether it has an answer.
    """
    waiting = [value for value, done in answered.items() if not done]
    if waiting:
        facts = {"who": who, "call": call, "count": len(waiting), "values": [one[:20] for one in waiting[:SHOWN_MAX]]}
        raise InvariantViolated("SettledIsAnswered", "records have no answer", **facts)


def check_memory(who: str, used: int) -> None:
    """Check the memory of a producer all of whose records have their answers. Raises InvariantViolated."""
    if used:
        raise InvariantViolated("MemoryComesBack", "nothing waits, and memory is taken", who=who, bytes=used)
