"""Micro-batches: where a streaming query starts, how far each goes, and which ranges its tasks read.

A batch's ranges follow from two offsets of the checkpoint alone, so a batch that is repeated after a restart reads the
same records, each in the task that had it before. What is in the way of that (records deleted, a topic deleted or
created anew, a log that ends before the checkpoint) is a DataLossError that says what is gone, or with
failOnDataLoss=false left out: a range that has lost its records stays a task, an empty one (schedule 66).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock
from strandline.spark.options import SourceOptions
from strandline.spark.planner import (
    LogEnd,
    OffsetLookup,
    OffsetRange,
    TopicShape,
    check_named,
    report_loss,
    resolve_start,
    select_partitions,
    split,
    still_there,
)
from strandline.spark.sink_options import is_ledger
from strandline.spark.stream_offsets import StreamOffset, Tasks

_log = logging.getLogger("strandline.spark")


class StreamPlanner:
    """Plans the micro-batches of one query."""

    def __init__(self, options: SourceOptions, lookup: OffsetLookup, clock: Clock) -> None:
        self._options = options
        self._lookup = lookup
        self._clock = clock
        self._target: StreamOffset | None = None
        self._last_batch_ms: float | None = None
        self.newest: StreamOffset | None = None
        """The ends of the log at the last look, for the query's progress."""
        self.lag: dict[TopicPartition, int] = {}
        """Offsets of each partition that lay there at the last look and are in no batch that was planned."""
        for topic in sorted({*(options.topics or ()), *(partition.topic for partition in options.assignment or ())}):
            if is_ledger(topic):
                _log.warning(
                    "topic %s is a ledger of strandline's sinks, and this query reads it by name: if it writes by "
                    "format strandline with that ledger, each of its batches brings forth the next, without end",
                    topic,
                )

    def initial(self) -> StreamOffset:
        """Where a query without a checkpoint starts.

        Raises:
            ConfigError, DataLossError: as `strandline.spark.planner.plan`.
        """
        topics = self._lookup.topics()
        partitions = select_partitions(self._options, topics)
        check_named(self._options, partitions)
        earliest = self._lookup.earliest(partitions)
        told = self._lookup.ends(partitions)
        latest = {partition: end.offset for partition, end in told.items()}
        there = still_there(self._options, partitions, earliest, latest)
        found = resolve_start(self._options, there, earliest, latest, self._lookup)
        starts = {partition: found[partition] for partition in still_there(self._options, there, found)}
        for partition, start in starts.items():
            if not earliest[partition] <= start <= latest[partition]:
                self._lost(partition, start, earliest[partition], latest[partition])
                starts[partition] = min(max(start, earliest[partition]), latest[partition])
        first = StreamOffset(starts, _ids(topics, starts), epochs=_epochs(told, starts))
        return replace(first, since=first)

    def stop_at_present(self) -> None:
        """Trigger.AvailableNow: what is written from now on is not for this run."""
        self._target = self._ends()

    def next_end(self, start: StreamOffset, *, unlimited: bool) -> StreamOffset:
        """Where the batch that begins at `start` ends; `start` itself where there is nothing to read, or not enough.

        A partition or a matching topic that is new begins at offset 0.

        Args:
            unlimited: the trigger wants all there is (Trigger.Once), whatever the limits.

        Raises:
            DataLossError: with failOnDataLoss, a topic is gone or another one, or its log ends before `start`, or was
                cut there and has grown since.
        """
        now = self._ends()
        parted = self._parted(start, now)
        begins = self._begins(start, now, parted)
        self.newest = replace(now, offsets=dict(now.offsets), epochs=dict(now.epochs))
        self.lag = {partition: last - begins[partition] for partition, last in now.offsets.items()}
        ends = dict(now.offsets)
        if self._target is not None:
            goals = self._target.offsets
            ends = {
                partition: max(begins[partition], min(end, goals.get(partition, 0)))
                for partition, end in ends.items()
                if partition in goals or partition in start.offsets
            }
        if not unlimited:
            if self._hold_back(sum(end - begins[partition] for partition, end in ends.items())):
                return start
            ends = self._limited(begins, ends)
        # A query's first offset says where it began; so does the end of its first range.
        since = start.since if start.since is not None and start.same_place(start.since) else None
        if parted:  # what lies behind the cut was never read
            since = replace(start, offsets={**start.offsets, **parted}, since=None, tasks=None)
        ids = {name: now.ids[name] for name in _names(ends) if name in now.ids}
        epochs = {partition: epoch for partition, epoch in now.epochs.items() if partition in ends}
        end = StreamOffset(ends, ids, since, epochs=epochs)
        if end.same_place(start) and not parted:
            return start
        options = self._options
        tasks = Tasks(0, options.min_partitions, options.max_records_per_partition)
        end = replace(end, tasks=replace(tasks, count=len(self._cut(start, replace(end, tasks=tasks)))))
        self._last_batch_ms = self._clock.monotonic_ms()
        self.lag.update({partition: now.offsets[partition] - offset for partition, offset in ends.items()})
        return end

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """The ranges that the tasks of one batch read, one task each: the same ones each time, but for what is lost.

        Raises:
            DataLossError: with failOnDataLoss, records of the batch no longer exist.
            ConfigError: the batch was cut into another number of tasks when it was planned.
        """
        if start == end:
            return []  # a batch without data, for a watermark's sake
        planned = self._cut(start, end)
        # schedule 66/number-of-tasks-is-not-held-against-the-plan
        if end.tasks is not None and len(planned) != end.tasks.count:
            raise ConfigError(
                "checkpoint",
                f"a batch of {len(planned)} tasks",
                f"{end.tasks.count}, as the checkpoint has it: another release of strandline has planned this batch, "
                f"or the checkpoint was changed by hand; finish the batch with the release that planned it",
            )
        topics = self._lookup.topics()
        partitions = sorted({part.partition for part in planned})
        earliest = self._lookup.earliest([each for each in partitions if self._named(each, end, topics)])
        for partition in partitions:
            whole = [part for part in planned if part.partition == partition]
            first, last = whole[0].start, whole[-1].end
            if partition not in earliest:
                self._lost(partition, last)
            elif first < earliest[partition]:
                self._lost(partition, first, earliest[partition], last)
        # schedule 66/emptied-range-leaves-the-plan
        return [part.without(earliest.get(part.partition, part.end)) for part in planned]

    # -- inside -----------------------------------------------------------------------------------------------------

    def _cut(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """The tasks of a batch as its offsets say, whatever has become of the records."""
        begin = end.since or start
        ranges = []
        for partition, last in sorted(end.offsets.items()):
            first = begin.offsets.get(partition, 0) if self._same_topic(partition, begin, end) else 0
            if first < last:
                ranges.append(OffsetRange(partition, first, last, end.ids.get(partition.topic)))
        # schedule 66/options-cut-a-repeated-batch
        by = end.tasks or Tasks(0, self._options.min_partitions, self._options.max_records_per_partition)
        return split(ranges, by.min_partitions, by.max_records_per_partition)

    def _ends(self) -> StreamOffset:
        topics = self._lookup.topics()
        told = self._lookup.ends(select_partitions(self._options, topics, missing_ok=True))
        latest = {partition: end.offset for partition, end in told.items()}
        return StreamOffset(latest, _ids(topics, latest), epochs=_epochs(told, latest))

    def _parted(self, start: StreamOffset, now: StreamOffset) -> dict[TopicPartition, int]:
        """Where logs part from what the query has read before `start`. It is asked of leaders that are new since.

        Raises:
            DataLossError: one does, with failOnDataLoss.
        """
        asked = {
            partition: epoch
            for partition, epoch in start.epochs.items()
            if epoch < now.epochs.get(partition, -1) and self._same_topic(partition, start, now)
        }
        found: dict[TopicPartition, int] = {}
        for partition, end in (self._lookup.epoch_ends(asked) if asked else {}).items():
            offset = start.offsets.get(partition, 0)
            if end.is_before(offset):  # rule B39/streams-pass-over-a-cut
                found[partition] = end.end_offset
                report_loss(self._options, partition, offset, latest=now.offsets[partition], parted=end.end_offset)
        return found

    def _begins(
        self, start: StreamOffset, now: StreamOffset, parted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Start offset of each partition's range. Corrects the ends in `now` accordingly. Raises DataLossError if
        records are lost, unless loss is accepted."""
        ends = now.offsets
        begins = dict.fromkeys(ends, 0)
        for partition, offset in start.offsets.items():
            if partition not in ends or not self._same_topic(partition, start, now):
                self._lost(partition, offset, 0, ends.get(partition, 0))
                continue
            if partition in parted:
                begins[partition] = parted[partition]
                ends[partition] = max(ends[partition], parted[partition])
                continue
            end: int | None = ends[partition]
            if ends[partition] < offset:
                # A new leader learns its high watermark after its election; what was committed cannot be missing.
                end = self._lookup.settled_end(partition, offset)
                now.epochs.pop(partition, None)  # another leader may have told this end
            if end is None:
                self._lost(partition, offset)
                del ends[partition], begins[partition]
                continue
            if end < offset:
                self._lost(partition, offset, self._lookup.earliest([partition]).get(partition, 0), end)
            begins[partition], ends[partition] = min(offset, end), end
        return begins

    def _same_topic(self, partition: TopicPartition, one: StreamOffset, other: StreamOffset) -> bool:
        """Unless both have an id and these differ: a checkpoint of Spark's own form has none."""
        first, second = one.ids.get(partition.topic), other.ids.get(partition.topic)
        return first is None or second is None or first == second

    def _named(self, partition: TopicPartition, end: StreamOffset, topics: Mapping[str, TopicShape]) -> bool:
        """Whether this is the partition that the plan knows."""
        shape = topics.get(partition.topic)
        planned = end.ids.get(partition.topic)
        if shape is None or partition.partition >= shape.partitions:
            return False
        return planned is None or shape.topic_id is None or shape.topic_id == planned

    def _lost(self, partition: TopicPartition, wanted: int, earliest: int = 0, latest: int = 0) -> None:
        report_loss(self._options, partition, wanted, earliest, latest)

    def _hold_back(self, available: int) -> bool:
        """Whether minOffsetsPerTrigger waits for more; never with Trigger.AvailableNow, which would wait for ever."""
        minimum = self._options.min_offsets_per_trigger
        if minimum is None or self._target is not None or available >= minimum or self._last_batch_ms is None:
            return False
        return self._clock.monotonic_ms() - self._last_batch_ms < self._options.max_trigger_delay_ms

    def _limited(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The ends by maxOffsetsPerTrigger and maxBytesPerTrigger; a partition with records goes on by one at least."""
        limited = dict(ends)
        most, most_bytes = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        sizes = {partition: end - begins[partition] for partition, end in ends.items() if end > begins[partition]}
        if most is None and most_bytes is None:
            return limited
        if most is not None and sum(sizes.values()) > most:
            # Offsets that are gone take no share: a query that is far behind would go through them batch by batch.
            lows = self._first_left(begins, ends, sizes)
            sizes = {partition: ends[partition] - low for partition, low in lows.items()}
            total = sum(sizes.values())
            if total > most:
                for partition, size in sizes.items():
                    limited[partition] = lows[partition] + min(size, _share(most * size / total))
        if most_bytes is not None and sizes:
            lows = self._first_left(begins, limited, sizes)
            wanted = {partition: (low, limited[partition]) for partition, low in lows.items()}
            each = self._lookup.bytes_per_offset(wanted)
            total_bytes = sum(each[partition] * (high - low) for partition, (low, high) in wanted.items())
            if total_bytes > most_bytes:
                for partition, (low, high) in wanted.items():
                    limited[partition] = low + min(high - low, _share((high - low) * most_bytes / total_bytes))
        return limited

    def _first_left(
        self,
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """The first offset of each range that is still there; for a partition that is gone by now, where it begins."""
        earliest = self._lookup.earliest(list(partitions))
        return {
            partition: min(max(begins[partition], earliest.get(partition, 0)), ends[partition])
            for partition in partitions
        }


def _share(part: float) -> int:
    return max(1, math.floor(part))


def _epochs(told: Mapping[TopicPartition, LogEnd], offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {partition: told[partition].leader_epoch for partition in offsets if told[partition].leader_epoch >= 0}


def _names(offsets: Mapping[TopicPartition, int]) -> list[str]:
    return sorted({partition.topic for partition in offsets})


def _ids(topics: Mapping[str, TopicShape], offsets: Mapping[TopicPartition, int]) -> dict[str, str]:
    found = {name: topics[name].topic_id for name in _names(offsets)}
    return {name: topic_id for name, topic_id in found.items() if topic_id is not None}
