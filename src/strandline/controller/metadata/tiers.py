"""Tiers of partitions in the metadata (KIP-405): their records, their part of the image, their replay.

The list of the segments in the object store is the truth: an object that it does not name is left over. A topic that
is deleted leaves its objects behind, and so its id and name stay in the image until a broker has deleted them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from strandline.controller.metadata.records import MetadataRecord
from strandline.proto.errors import FatalError
from strandline.proto.ids import Offset, TopicId, TopicIdPartition
from strandline.proto.messages.fields import Int32, Int64
from strandline.proto.tier import NO_TIER, Tier, TieredSegment

REMOTE_STORAGE_ENABLE = "remote.storage.enable"
"""The config of topics whose closed segments are copied."""


@dataclass(frozen=True, slots=True)
class TieredSegmentRecord(MetadataRecord):
    """A segment was copied: it stands at the end of its partition's tier."""

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    segment: Annotated[TieredSegment, 3]


@dataclass(frozen=True, slots=True)
class TierStartRecord(MetadataRecord):
    """The start of a tier is raised, and the segments that lie wholly below are no longer in it."""

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    start_offset: Annotated[Offset, Int64(3)]


@dataclass(frozen=True, slots=True)
class DeletedTierRecord(MetadataRecord):
    """A topic was deleted whose objects may still be in the store. Snapshots alone have it: in the log the record that
    removes the topic says so."""

    topic_id: Annotated[TopicId, 1]
    topic: Annotated[str, 2]


@dataclass(frozen=True, slots=True)
class TierReapedRecord(MetadataRecord):
    """The objects of a deleted topic are gone."""

    topic_id: Annotated[TopicId, 1]


@dataclass(frozen=True, slots=True)
class TiersImage:
    """All tiers.

    Attributes:
        tiers: of the partitions that have one. The mapping is another one whenever one of them is.
        deleted: id -> name of the deleted topics whose objects may still be in the store, in the order of deletion.
    """

    tiers: Mapping[TopicIdPartition, Tier] = field(default_factory=dict)
    deleted: Mapping[TopicId, str] = field(default_factory=dict)

    def records(self) -> Iterator[TieredSegmentRecord | TierStartRecord | DeletedTierRecord]:
        """The records that add up to it, after those of the topics; equal images give equal records."""
        for key in sorted(self.tiers):
            yield from tier_records(key, self.tiers[key])
        for topic_id in sorted(self.deleted):
            yield DeletedTierRecord(topic_id, self.deleted[topic_id])


NO_TIERS = TiersImage()


def tier_records(key: TopicIdPartition, tier: Tier) -> Iterator[TieredSegmentRecord | TierStartRecord]:
    """The records that add up to one tier. Its start comes last: the first segment may begin below it."""
    for segment in tier.segments:
        yield TieredSegmentRecord(*key, segment)
    if tier.start_offset > NO_TIER.start_offset:
        yield TierStartRecord(*key, tier.start_offset)


class TiersDelta:
    """A copy-on-write overlay of the tiers of an image.

    Attributes:
        changed: the partitions whose tier is another, in the order of first change; those of deleted topics are not in
            it.
        changed_deleted: the topics that were added to the deleted ones, or taken off.
    """

    __slots__ = ("_base", "_deleted", "_own", "_removed", "changed", "changed_deleted")

    def __init__(self, base: TiersImage) -> None:
        self._base = base
        self._own: dict[TopicIdPartition, _OwnTier] = {}
        self._removed: dict[TopicIdPartition, None] = {}
        self._deleted: dict[TopicId, str] | None = None
        self.changed: dict[TopicIdPartition, None] = {}
        self.changed_deleted: dict[TopicId, None] = {}

    def image(self) -> TiersImage:
        """The tiers after all records so far."""
        if not self._own and not self._removed and self._deleted is None:
            return self._base
        tiers = self._base.tiers
        if self._own or self._removed:
            tiers = {key: tier for key, tier in tiers.items() if key not in self._removed}
            tiers.update((key, own.tier()) for key, own in self._own.items())
        return TiersImage(tiers, self._base.deleted if self._deleted is None else self._deleted)

    def add(self, record: TieredSegmentRecord) -> None:
        """Raises FatalError: a segment that does not continue the tier, or cannot be."""
        key, segment = TopicIdPartition(record.topic_id, record.partition), record.segment
        own = self._writable(key)
        fault = segment_fault(segment) or own.place_fault(segment)
        if fault:
            words = f"A record adds a segment to the tier of partition {key.partition} of topic {key.topic_id}"
            raise FatalError(f"{words}, {segment}: {fault}. The metadata is damaged.")
        own.segments.append(segment)
        self.changed[key] = None

    def raise_start(self, record: TierStartRecord) -> None:
        """Raises FatalError: a start that is not raised."""
        key = TopicIdPartition(record.topic_id, record.partition)
        own = self._writable(key)
        if record.start_offset <= own.start_offset:
            raise FatalError(
                f"A record raises the start of the tier of partition {key.partition} of topic {key.topic_id} to "
                f"{record.start_offset}, but it is {own.start_offset}: the metadata is damaged."
            )
        own.raise_start(record.start_offset)
        self.changed[key] = None

    def topic_removed(self, topic_id: TopicId, name: str, partitions: Iterable[int], *, enabled: bool) -> None:
        """A topic is deleted: its tiers go, and where it had any, or was to have one, its objects are yet to be."""
        had = False
        for number in partitions:
            key = TopicIdPartition(topic_id, number)
            own = self._own.pop(key, None)
            if key in self._base.tiers:
                self._removed[key] = None
            had = had or own is not None or key in self._base.tiers
            self.changed.pop(key, None)
        if had or enabled:  # rule B21/deleted-topics-leave-their-objects, rule B21/first-copies-of-deleted-topics-stay
            self._writable_deleted()[topic_id] = name
            self.changed_deleted[topic_id] = None

    def set_deleted(self, record: DeletedTierRecord) -> None:
        """Raises FatalError: it is there already."""
        deleted = self._writable_deleted()
        if record.topic_id in deleted:
            raise FatalError(f"A record names deleted topic {record.topic_id} a second time: the metadata is damaged.")
        deleted[record.topic_id] = record.topic
        self.changed_deleted[record.topic_id] = None

    def reaped(self, record: TierReapedRecord) -> None:
        """Raises FatalError: no deleted topic has this id."""
        if self._writable_deleted().pop(record.topic_id, None) is None:
            raise FatalError(
                f"A record says that the objects of deleted topic {record.topic_id} are gone, which is not among those "
                "that may have some: the metadata is damaged."
            )
        self.changed_deleted[record.topic_id] = None

    def _writable(self, key: TopicIdPartition) -> _OwnTier:
        own = self._own.get(key)
        if own is None:
            own = self._own[key] = _OwnTier(NO_TIER if key in self._removed else self._base.tiers.get(key, NO_TIER))
        return own

    def _writable_deleted(self) -> dict[TopicId, str]:
        if self._deleted is None:
            self._deleted = dict(self._base.deleted)
        return self._deleted


class _OwnTier:
    """A tier that is being changed: a snapshot adds thousands of segments, one at a time."""

    __slots__ = ("segments", "start_offset")

    def __init__(self, base: Tier) -> None:
        self.start_offset = base.start_offset
        self.segments = list(base.segments)

    def tier(self) -> Tier:
        return Tier(self.start_offset, tuple(self.segments))

    def place_fault(self, segment: TieredSegment) -> str:
        return place_fault(segment, self.start_offset, self.segments[-1].end_offset if self.segments else None)

    def raise_start(self, start_offset: Offset) -> None:
        gone = bisect_right(self.segments, start_offset, key=lambda segment: segment.end_offset)
        self.start_offset, self.segments = start_offset, self.segments[gone:]  # rule B21/segments-below-the-start-stay


def segment_fault(segment: TieredSegment) -> str:
    """Why no segment can be so; empty: it may be."""
    if not 0 <= segment.base_offset < segment.end_offset:
        return f"offsets from {segment.base_offset} to {segment.end_offset} hold no record"
    if segment.size_bytes < 0 or segment.copied_ms < 0 or segment.max_timestamp_ms < -1:
        return "its size or a time of it is negative"
    if not segment.epochs or segment.epochs[0].start_offset > segment.base_offset:
        return "its first record has no leader epoch"
    epochs = [start.epoch for start in segment.epochs]
    starts = [start.start_offset for start in segment.epochs]
    if epochs[0] < 0 or not (_rises(epochs) and _rises(starts)) or starts[-1] >= segment.end_offset:
        return f"its leader epochs {epochs} from {starts} on cannot be"
    return ""


def _rises(numbers: Sequence[int]) -> bool:
    return all(number < after for number, after in pairwise(numbers))


def place_fault(segment: TieredSegment, start_offset: Offset, end_offset: Offset | None) -> str:
    """Why a segment cannot come next, where the tier ends at `end_offset` (None: it is empty); empty: it can."""
    if end_offset is None:
        below = segment.base_offset < start_offset  # rule B21/what-was-deleted-is-added-again
        return f"it begins below the tier's start, {start_offset}" if below else ""
    # rule B21/gaps-in-a-tier, rule B21/overlaps-in-a-tier
    return "" if segment.base_offset == end_offset else f"the tier ends at {end_offset}"


def changed_tiers(old: TiersImage, new: TiersImage, topics: Mapping[TopicId, object]) -> dict[TopicIdPartition, None]:
    """The partitions of `topics` whose tiers differ between two images."""
    keys = {**old.tiers, **new.tiers}
    return {key: None for key in keys if key.topic_id in topics and old.tiers.get(key) != new.tiers.get(key)}


def changed_deletions(old: TiersImage, new: TiersImage) -> dict[TopicId, None]:
    """The deleted topics that are in one of two images alone."""
    return dict.fromkeys(
        topic_id
        for topic_id in {**old.deleted, **new.deleted}
        if (topic_id in old.deleted) != (topic_id in new.deleted)
    )
