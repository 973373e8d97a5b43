"""Tiers of partitions in the metadata (KIP-405): their records, their part of the image, their replay.

The list of the segments in the object store is the truth: an object that it does not name is left over. A topic that
is deleted leaves its objects behind, and so its id and name stay in the image until a broker has deleted them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from strandline.controller.metadata.maps import DraftedMap, MapDeltas, MapOf
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


class _TierDraft:
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


TIERS = DraftedMap[TopicIdPartition, Tier, _TierDraft](
    "tiers", empty=NO_TIER, draft=_TierDraft, made=lambda _, draft: draft.tier()
)

DELETED_TIERS = MapOf[TopicId, DeletedTierRecord]("deleted_tiers")


def tier_records(tiers: Mapping[TopicIdPartition, Tier]) -> Iterator[TieredSegmentRecord | TierStartRecord]:
    """The records that add up to the tiers. A start comes last: the first segment may begin below it."""
    for key in sorted(tiers):
        for segment in tiers[key].segments:
            yield TieredSegmentRecord(*key, segment)
        if tiers[key].start_offset > NO_TIER.start_offset:
            yield TierStartRecord(*key, tiers[key].start_offset)


def replay_segment(deltas: MapDeltas, record: TieredSegmentRecord) -> None:
    """Add a segment to a tier. Raises FatalError if the segment does not continue the tier, or is not valid."""
    key, segment = TopicIdPartition(record.topic_id, record.partition), record.segment
    draft = deltas[TIERS].open(key).draft
    fault = segment_fault(segment) or draft.place_fault(segment)
    if fault:
        words = f"A record adds a segment to the tier of partition {key.partition} of topic {key.topic_id}"
        raise FatalError(f"{words}, {segment}: {fault}. The metadata is damaged.")
    draft.segments.append(segment)


def replay_start(deltas: MapDeltas, record: TierStartRecord) -> None:
    """Raise the start of a tier. Raises FatalError if the new start is not higher."""
    key = TopicIdPartition(record.topic_id, record.partition)
    draft = deltas[TIERS].open(key).draft
    if record.start_offset <= draft.start_offset:
        raise FatalError(
            f"A record raises the start of the tier of partition {key.partition} of topic {key.topic_id} to "
            f"{record.start_offset}, but it is {draft.start_offset}: the metadata is damaged."
        )
    draft.raise_start(record.start_offset)


def topic_removed(deltas: MapDeltas, topic_id: TopicId, name: str, partitions: Iterable[int], *, enabled: bool) -> None:
    """A topic is deleted: its tiers go, and where it had any, or was to have one, its objects are yet to be."""
    tiers, had = deltas[TIERS], False
    for number in partitions:
        key = TopicIdPartition(topic_id, number)
        if tiers.has(key):
            tiers.remove(key)
            had = True
    if had or enabled:  # rule B21/deleted-topics-leave-their-objects, rule B21/first-copies-of-deleted-topics-stay
        deltas[DELETED_TIERS].put(topic_id, DeletedTierRecord(topic_id, name))


def segment_fault(segment: TieredSegment) -> str:
    """Reason the segment is invalid, or ""."""
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
    """Reason the segment cannot come next in a tier that ends at `end_offset` (None if it is empty), or ""."""
    if end_offset is None:
        below = segment.base_offset < start_offset  # rule B21/what-was-deleted-is-added-again
        return f"it begins below the tier's start, {start_offset}" if below else ""
    # rule B21/gaps-in-a-tier, rule B21/overlaps-in-a-tier
    return "" if segment.base_offset == end_offset else f"the tier ends at {end_offset}"
