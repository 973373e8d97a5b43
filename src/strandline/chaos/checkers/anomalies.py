"""The anomaly table of correctness E (after Jepsen's `kafka.clj`) over a history of plain produce and consume."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status

ALLOWED = frozenset({"int-send-skip"})
"""Legal by Kafka's contract: other producers' records may lie between two of one operation."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding."""

    name: str
    partition: Partition | None
    facts: dict[str, Any]

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.facts.items())
        return f"{self.name} in {self.partition}: {facts}"


@dataclass
class PartitionOrder:
    """What is known about one partition: the version order from proven sends (acked under acks=all: under acks=1 the
    offset may be given away again) and all polls, failed ones too.

    Offsets with gaps are legal (control records); positions in `index` are what counts.
    """

    values: dict[int, dict[str, None]] = field(default_factory=dict)
    """offset -> the values seen there."""
    offsets: dict[str, dict[int, None]] = field(default_factory=dict)
    """value -> the offsets it was seen at."""
    read: dict[str, None] = field(default_factory=dict)
    """Values that some poll returned."""
    read_finally: dict[str, None] = field(default_factory=dict)
    """Values that the final read returned."""
    highest_read: int = -1
    highest_read_finally: int = -1
    index: dict[int, int] = field(default_factory=dict)
    """offset -> place in the version order."""

    def note(self, offset: int, value: str) -> None:
        self.values.setdefault(offset, {})[value] = None
        self.offsets.setdefault(value, {})[offset] = None

    def close(self) -> None:
        self.index = {offset: place for place, offset in enumerate(sorted(self.values))}


class Analysis:
    """A history with its version orders."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.partitions: dict[Partition, PartitionOrder] = {}
        for send in history.sends:
            if send.offset is not None and send.acked:
                self.of(send.partition).note(send.offset, send.value)
        for poll in history.polls:
            for partition, offset, value in poll.records:
                order = self.of(partition)
                order.note(offset, value)
                order.read[value] = None
                order.highest_read = max(order.highest_read, offset)
                if poll.final:
                    order.read_finally[value] = None
                    order.highest_read_finally = max(order.highest_read_finally, offset)
        for order in self.partitions.values():
            order.close()

    def of(self, partition: Partition) -> PartitionOrder:
        return self.partitions.setdefault(partition, PartitionOrder())

    def polls_by_consumer(self) -> Iterator[list[Poll]]:
        """The polls of each consumer within one generation, in order."""
        runs: dict[tuple[str, int], list[Poll]] = {}
        for poll in self.history.polls:
            runs.setdefault((poll.process, poll.generation), []).append(poll)
        yield from runs.values()


def inconsistent_offsets(analysis: Analysis) -> Iterator[Anomaly]:
    """One (partition, offset) with two values."""
    for partition, order in analysis.partitions.items():
        for offset, values in order.values.items():
            if len(values) > 1:
                yield Anomaly("inconsistent-offsets", partition, {"offset": offset, "values": list(values)})


def duplicates(analysis: Analysis) -> Iterator[Anomaly]:
    """One value at more than one offset."""
    for partition, order in analysis.partitions.items():
        for value, offsets in order.offsets.items():
            if len(offsets) > 1:
                yield Anomaly("duplicate", partition, {"value": value, "offsets": sorted(offsets)})


def lost_writes(analysis: Analysis) -> Iterator[Anomaly]:
    """A value acked under acks=all, at or below the highest offset read, that no poll ever returned."""
    for send in analysis.history.sends:
        order = analysis.of(send.partition)
        if not send.acked or send.value in order.read:
            continue
        if send.offset is not None and send.offset <= order.highest_read:
            facts = {"value": send.value, "offset": send.offset, "highest_read": order.highest_read}
            yield Anomaly("lost-write", send.partition, facts)


def shown_then_lost(analysis: Analysis) -> Iterator[Anomaly]:
    """A value that a poll returned, and that the final read, past its offset, does not hold. Whatever the acks were."""
    for partition, order in analysis.partitions.items():
        if order.highest_read_finally < 0:
            continue
        for value in order.read:
            if value not in order.read_finally and min(order.offsets[value]) <= order.highest_read_finally:
                yield Anomaly("shown-then-lost", partition, {"value": value, "offsets": sorted(order.offsets[value])})


def aborted_reads(analysis: Analysis) -> Iterator[Anomaly]:
    """G1a: the value of a failed send seen by an ok poll."""
    failed = {send.value: send for send in analysis.history.sends if send.status is Status.FAIL}
    for poll in analysis.history.polls:
        if poll.status is not Status.OK:
            continue
        for partition, offset, value in poll.records:
            if value in failed:
                yield Anomaly("G1a", partition, {"value": value, "offset": offset, "consumer": poll.process})


def _steps(
    analysis: Analysis, places: Iterable[tuple[Partition, int]], names: tuple[str, str], who: str
) -> Iterator[Anomaly]:
    """Skips and steps back between consecutive offsets of each partition."""
    by_partition: dict[Partition, list[int]] = {}
    for partition, offset in places:
        by_partition.setdefault(partition, []).append(offset)
    for partition, offsets in by_partition.items():
        index = analysis.of(partition).index
        for before, after in pairwise(offsets):
            step = index[after] - index[before]
            facts = {"from_offset": before, "to_offset": after, "process": who}
            if step > 1:
                yield Anomaly(names[0], partition, facts)
            elif step < 1:
                yield Anomaly(names[1], partition, facts)


def internal_poll_order(analysis: Analysis) -> Iterator[Anomaly]:
    """int-poll-skip, int-nonmonotonic-poll: within one poll, records of a partition that skip or step back."""
    for poll in analysis.history.polls:
        places = ((partition, offset) for partition, offset, _ in poll.records)
        yield from _steps(analysis, places, ("int-poll-skip", "int-nonmonotonic-poll"), poll.process)


def external_poll_order(analysis: Analysis) -> Iterator[Anomaly]:
    """poll-skip, nonmonotonic-poll: the same from one poll of a consumer to its next, unless it was reassigned."""
    for polls in analysis.polls_by_consumer():
        last: dict[Partition, int] = {}
        for poll in polls:
            first: dict[Partition, int] = {}
            for partition, offset, _ in poll.records:
                first.setdefault(partition, offset)
            for partition, offset in first.items():
                if partition in last:
                    pair = [(partition, last[partition]), (partition, offset)]
                    yield from _steps(analysis, pair, ("poll-skip", "nonmonotonic-poll"), poll.process)
            for partition, offset, _ in poll.records:
                last[partition] = offset


def internal_send_order(analysis: Analysis) -> Iterator[Anomaly]:
    """int-send-skip: within one operation, acked sends to a partition with something in between (legal, reported)."""
    groups: dict[tuple[str, int], list[Send]] = {}
    for send in analysis.history.sends:
        if send.group is not None and send.acked and send.offset is not None:
            groups.setdefault((send.process, send.group), []).append(send)
    for (process, _), sends in groups.items():
        places = [(send.partition, send.offset) for send in sends if send.offset is not None]
        for anomaly in _steps(analysis, places, ("int-send-skip", "nonmonotonic-send"), process):
            if anomaly.name == "int-send-skip":
                yield anomaly


def external_send_order(analysis: Analysis) -> Iterator[Anomaly]:
    """nonmonotonic-send: of one producer, a later send to the same partition at a smaller offset."""
    last: dict[tuple[str, Partition], Send] = {}
    for send in analysis.history.sends:
        if not send.acked or send.offset is None:
            continue
        before = last.get((send.process, send.partition))
        if before is not None and before.offset is not None and send.offset <= before.offset:
            facts = {"values": [before.value, send.value], "offsets": [before.offset, send.offset]}
            yield Anomaly("nonmonotonic-send", send.partition, facts | {"process": send.process})
        last[send.process, send.partition] = send


def unseen(analysis: Analysis) -> Iterator[Anomaly]:
    """Acked under acks=all, beyond the highest offset read: must be empty once everything healed and was read."""
    for send in analysis.history.sends:
        order = analysis.of(send.partition)
        if send.acked and send.value not in order.read and (send.offset is None or send.offset > order.highest_read):
            yield Anomaly("unseen", send.partition, {"value": send.value, "offset": send.offset})


CHECKS: tuple[Callable[[Analysis], Iterator[Anomaly]], ...] = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    shown_then_lost,
    aborted_reads,
    internal_poll_order,
    external_poll_order,
    internal_send_order,
    external_send_order,
    unseen,
)


def find_anomalies(history: History) -> list[Anomaly]:
    """Every anomaly of the table in `history`, the legal ones too (`ALLOWED`)."""
    analysis = Analysis(history)
    return [anomaly for check in CHECKS for anomaly in check(analysis)]


def judge(history: History) -> list[Anomaly]:
    """The anomalies that must not be."""
    return [anomaly for anomaly in find_anomalies(history) if anomaly.name not in ALLOWED]


def realtime_lag_ms(history: History) -> float:
    """A lower bound on staleness, milliseconds: how long a value beyond a consumer's position had been acked, at most,
    when one of its ok polls of that partition was invoked."""
    acked: dict[Partition, list[tuple[int, float]]] = {}
    for send in history.sends:
        if send.acked and send.offset is not None:
            acked.setdefault(send.partition, []).append((send.offset, send.completed_ms))
    earliest: dict[Partition, tuple[list[int], list[float]]] = {}
    for partition, pairs in acked.items():
        pairs.sort()
        times = list(accumulate((at for _, at in reversed(pairs)), min))
        earliest[partition] = ([offset for offset, _ in pairs], times[::-1])
    worst = 0.0
    positions: dict[tuple[str, int], dict[Partition, int]] = {}
    for poll in history.polls:
        if poll.status is not Status.OK or poll.final or poll.generation:
            continue  # one that went back to the beginning is behind by its own will
        mine = positions.setdefault((poll.process, poll.generation), {})
        for partition, offset, _ in poll.records:
            mine[partition] = offset + 1
        for partition, position in mine.items():
            offsets, times = earliest.get(partition, ([], []))
            place = bisect_left(offsets, position)
            if place < len(offsets):
                worst = max(worst, poll.invoked_ms - times[place])
    return worst
