"""From options to ranges of offsets: which partitions, from where to where, split into how many tasks.

The end is fixed here, once, at the last stable offset (with `kafka.isolation.level=read_uncommitted` at the high
watermark): a task reads committed data only, and two runs over one plan read the same records. A partition's start and
end are half open, [start, end).

The cluster is asked several times, and a topic may be deleted between two of the answers: that is a loss as any other,
by failOnDataLoss an error or a warning. Offsets of a topic that was created anew in between are never read as those of
the old one: each range carries the topic's id as the first answer had it, and its task holds the topic against it.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from strandline.client.types import EpochEnd
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.internal_topics import how_to_make
from strandline.spark.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    Earliest,
    GlobalTimestamp,
    Latest,
    SpecificOffsets,
    SpecificTimestamps,
)
from strandline.spark.options import SourceOptions
from strandline.spark.sink_options import is_ledger

_log = logging.getLogger("strandline.spark")
"""Spark passes what its Python processes write to standard error on to its own: warnings go there unless configured."""


class DataLossError(StrandlineError):
    """Records that the read asked for no longer exist. `failOnDataLoss=false` reads what is left instead.

    `earliest` and `latest` are what the partition holds; both 0 where it is gone. `parted`: from this offset on the
    log has other records than those that were read.
    """

    def __init__(
        self, partition: TopicPartition, wanted: int, earliest: int, latest: int, parted: int | None = None
    ) -> None:
        self.partition = partition
        self.wanted = wanted
        self.earliest = earliest
        self.latest = latest
        self.parted = parted
        if parted is not None:
            self.loss = (
                f"{partition}: the query has read up to offset {wanted}, but the log was cut at offset {parted} since, "
                f"and has other records from there on: by an unclean election, or a restore that lost its newest."
            )
        else:
            holds = f"the partition holds [{earliest}, {latest})" if latest else "the partition is empty, or gone"
            self.loss = (
                f"{partition}: offset {wanted} was asked for, but {holds}. Records have been deleted, the topic was "
                f"deleted or created anew, or the options name it no longer."
            )
        super().__init__(f"{self.loss} Set failOnDataLoss=false to read what is left.")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.partition, self.wanted, self.earliest, self.latest, self.parted))


def report_loss(
    options: SourceOptions,
    partition: TopicPartition,
    wanted: int,
    earliest: int = 0,
    latest: int = 0,
    *,
    parted: int | None = None,
) -> None:
    """Say that records are gone: as an error, or where the options accept it as a warning.

    Raises:
        DataLossError: with failOnDataLoss.
    """
    loss = DataLossError(partition, wanted, earliest, latest, parted)
    if options.fail_on_data_loss:
        raise loss
    _log.warning("%s The read goes on with what is left: failOnDataLoss=false", loss.loss)


@dataclass(frozen=True)
class OffsetRange:
    """Records [start, end) of a partition, for one task."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: str | None = None
    """The topic as it was planned: records of another one of that name are not read."""
    lost: int = 0
    """Offsets before `start` that were planned for this task and are gone. The range's name is what was planned."""

    @property
    def size(self) -> int:
        """Offsets in the range: an upper bound of its records."""
        return self.end - self.start

    def without(self, earliest: int) -> OffsetRange:
        """The range without the offsets below `earliest`, the log's start. An empty range is kept as a task."""
        start = min(max(self.start, earliest), self.end)
        return replace(self, start=start, lost=self.lost + start - self.start)


class TopicShape(NamedTuple):
    """The planner's knowledge of a topic. `topic_id` is None if the brokers are older than Kafka 2.8."""

    partitions: int
    topic_id: str | None = None
    internal: bool = False
    """Read where it is named, but matched by no pattern, as in Spark's own source: `__consumer_offsets`."""


class LogEnd(NamedTuple):
    """End offset of a log, and the leader epoch there; -1 if the broker does not report it."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True)
class Narrowing:
    """Restriction of a batch read by filters; a field of None does not restrict it."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0
    high: int | None = None
    since_ms: int | None = None
    """Time (ms since 1970); records before the first one of this time or later are not needed."""


class OffsetLookup(Protocol):
    """Requests of the planner to the cluster. Answers leave out partitions that were deleted."""

    def topics(self) -> Mapping[str, TopicShape]:
        """Every topic with its number of partitions and its id."""

    def earliest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Log start offsets."""

    def latest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """High watermarks; with read_committed the last stable offsets."""

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        """As `latest`, each with the leader epoch that told it."""

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        """End offset of these leader epochs in each partition's log (KIP-320)."""

    def for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The first offset at or after the time; None where no record is as late."""

    def settled_end(self, partition: TopicPartition, at_least: int) -> int | None:
        """The end of a partition's log once it has reached `at_least`, or after 45 s in which it did not; None where it
        is gone."""

    def bytes_per_offset(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, float]:
        """Average bytes of an offset in each range, estimated from a sample; 0 if there is none."""


def plan(options: SourceOptions, lookup: OffsetLookup, narrow: Narrowing | None = None) -> list[OffsetRange]:
    """The ranges that the tasks of one batch read will read; none for a partition without records.

    Raises:
        ConfigError: a topic or partition that does not exist, offsets for other partitions than are read, or a start
            behind its end.
        DataLossError: with failOnDataLoss, a start or end that the partition does not hold.
    """
    topics = lookup.topics()
    partitions = select_partitions(options, topics)
    check_named(options, partitions)
    # Earliest before latest: a partition that grows in between yields a longer range, never a start past its end.
    earliest = lookup.earliest(partitions)
    latest = lookup.latest(partitions)
    there = still_there(options, partitions, earliest, latest)
    starts = resolve_start(options, there, earliest, latest, lookup)
    ends = _resolve_end(options.end, there, latest, lookup)
    ranges = []
    for partition in still_there(options, there, starts, ends):
        start, end = starts[partition], ends[partition]
        if earliest[partition] <= end < start <= latest[partition]:
            raise ConfigError(
                "startingOffsets", start, f"at most where {partition} ends: {end}, by the options or by their times"
            )
        for wanted in (start, end):
            if not earliest[partition] <= wanted <= latest[partition]:
                report_loss(options, partition, wanted, earliest[partition], latest[partition])
        start = max(start, earliest[partition])
        end = min(end, latest[partition])
        if start < end:
            ranges.append(OffsetRange(partition, start, end, topics[partition.topic].topic_id))
    if narrow is not None:
        ranges = _narrowed(options, ranges, narrow, lookup)
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def still_there(
    options: SourceOptions, partitions: Sequence[TopicPartition], *answers: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """The partitions that are in all of these answers; for the others, see `report_loss`."""
    left = []
    for partition in partitions:
        if all(partition in told for told in answers):
            left.append(partition)
        else:
            report_loss(options, partition, min((told[partition] for told in answers if partition in told), default=0))
    return left


def _narrowed(
    options: SourceOptions, ranges: Sequence[OffsetRange], narrow: Narrowing, lookup: OffsetLookup
) -> list[OffsetRange]:
    left = []
    for part in ranges:
        topic, number = part.partition
        if narrow.topics is not None and topic not in narrow.topics:
            continue
        if narrow.partitions is not None and number not in narrow.partitions:
            continue
        end = part.end if narrow.high is None else min(part.end, narrow.high)
        left.append(replace(part, start=max(part.start, narrow.low), end=end))
    if narrow.since_ms is not None and left:
        first = lookup.for_timestamps({part.partition: narrow.since_ms for part in left})
        since = {item: 2**63 - 1 if offset is None else offset for item, offset in first.items()}
        still_there(options, [part.partition for part in left], since)
        left = [replace(part, start=max(part.start, since[part.partition])) for part in left if part.partition in since]
    return [part for part in left if part.start < part.end]


def select_partitions(
    options: SourceOptions, shapes: Mapping[str, TopicShape], *, missing_ok: bool = False
) -> list[TopicPartition]:
    """The partitions named by subscribe, subscribePattern or assign, sorted.

    Raises:
        ConfigError: a topic or partition does not exist; with `missing_ok` such are left out.
    """
    counts = {name: shape.partitions for name, shape in shapes.items()}
    if options.assignment and missing_ok:
        return [item for item in options.assignment if item.partition < counts.get(item.topic, 0)]
    if options.assignment:
        for partition in options.assignment:
            if partition.partition >= counts.get(partition.topic, 0):
                held = f"it has {counts[partition.topic]}" if partition.topic in counts else "there is no such topic"
                raise ConfigError("assign", str(partition), f"partitions that exist: {held}")
        return list(options.assignment)
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        # Found anywhere in the name, as Spark's own source does it. A query that writes must not read its own ledger.
        topics: Iterable[str] = sorted(
            name for name in counts if pattern.search(name) and not is_ledger(name) and not shapes[name].internal
        )
    else:
        missing = [topic for topic in options.topics or () if topic not in counts]
        if missing and not missing_ok:
            raise ConfigError("subscribe", ",".join(missing), f"topics that exist; {how_to_make(missing[0])}")
        topics = [topic for topic in options.topics or () if topic in counts]
    return [TopicPartition(topic, index) for topic in topics for index in range(counts[topic])]


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records_per_partition: int | None
) -> list[OffsetRange]:
    """Split ranges so that no task has more than the maximum and there are `min_partitions` tasks at least.

    Each range gets tasks in proportion to its size, rounded up (Spark's KafkaOffsetRangeCalculator rounds to nearest,
    and may stay below the minimum); none is split finer than one offset a task.
    """
    parts = list(ranges)
    if max_records_per_partition is not None:
        parts = [piece for part in parts for piece in _cut(part, -(-part.size // max_records_per_partition))]
    if min_partitions is not None and parts and len(parts) < min_partitions:
        total = sum(part.size for part in parts)
        parts = [piece for part in parts for piece in _cut(part, -(-part.size * min_partitions // total))]
    return parts


def _cut(part: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = min(pieces, part.size)
    edges = [part.start + part.size * index // pieces for index in range(pieces + 1)]
    return [replace(part, start=low, end=high) for low, high in itertools.pairwise(edges)]


def resolve_start(
    options: SourceOptions,
    partitions: Sequence[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    lookup: OffsetLookup,
) -> Mapping[TopicPartition, int]:
    """Start offset of each partition, by the given option with the highest priority; see `check_named`."""
    bound = options.start
    if isinstance(bound, Earliest):
        return earliest
    if isinstance(bound, Latest):
        return latest
    if isinstance(bound, SpecificOffsets):
        words = {EARLIEST: earliest, LATEST: latest}
        return {
            partition: words[wanted][partition] if (wanted := bound.offsets[partition]) in words else wanted
            for partition in partitions
        }
    starts = {}
    for partition, offset in _by_timestamp(bound, partitions, lookup).items():
        if offset is None and not options.late_start_is_latest:
            raise ConfigError(
                "startingOffsetsByTimestamp",
                str(partition),
                "a time at or before the last record; startingOffsetsByTimestampStrategy=latest starts at the end",
            )
        # A record may be appended between the two look-ups; the range must not begin past its fixed end.
        starts[partition] = latest[partition] if offset is None else min(offset, latest[partition])
    return starts


def _resolve_end(
    bound: Bound,
    partitions: Sequence[TopicPartition],
    latest: Mapping[TopicPartition, int],
    lookup: OffsetLookup,
) -> Mapping[TopicPartition, int]:
    if isinstance(bound, Latest):
        return latest
    if isinstance(bound, SpecificOffsets):
        return {
            partition: latest[partition] if bound.offsets[partition] == LATEST else bound.offsets[partition]
            for partition in partitions
        }
    return {
        partition: latest[partition] if offset is None else min(offset, latest[partition])
        for partition, offset in _by_timestamp(bound, partitions, lookup).items()
    }


def _by_timestamp(
    bound: Bound, partitions: Sequence[TopicPartition], lookup: OffsetLookup
) -> Mapping[TopicPartition, int | None]:
    if isinstance(bound, GlobalTimestamp):
        return lookup.for_timestamps(dict.fromkeys(partitions, bound.timestamp_ms))
    assert isinstance(bound, SpecificTimestamps), bound
    return lookup.for_timestamps({partition: bound.timestamps_ms[partition] for partition in partitions})


def check_named(options: SourceOptions, partitions: Sequence[TopicPartition]) -> None:
    """Spark's rule: JSON that says where to start or end names exactly the partitions that are read.

    Raises:
        ConfigError: says which are missing and which are too many.
    """
    for side, bound in (("starting", options.start), ("ending", options.end)):
        if isinstance(bound, SpecificOffsets):
            _check_same_partitions(f"{side}Offsets", bound.offsets, partitions)
        elif isinstance(bound, SpecificTimestamps):
            _check_same_partitions(f"{side}OffsetsByTimestamp", bound.timestamps_ms, partitions)


def _check_same_partitions(key: str, given: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]) -> None:
    missing = sorted(set(partitions) - set(given))
    surplus = sorted(set(given) - set(partitions))
    if missing or surplus:
        words = [f"add {', '.join(map(str, missing))}"] if missing else []
        words += [f"leave out {', '.join(map(str, surplus))}"] if surplus else []
        raise ConfigError(
            key, {str(k): v for k, v in given.items()}, "every partition that is read: " + "; ".join(words)
        )
