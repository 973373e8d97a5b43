"""What of a partition lies in the object store: its tier (KIP-405).

The closed segments that a leader has copied there, as the metadata log has them. The list of the metadata log is the
truth: an object that it does not name is left over from an attempt, and nothing is read from it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import LeaderEpoch, Offset, ProducerId, TopicId
from strandline.proto.messages.fields import Int32, Int64, SInt64

_FROM_THE_FIRST = Offset(0)
_FIRST_PRODUCER_ID = ProducerId(0)
AS_IT_IS = Offset(-1)
"""In a change: the tier's start is left where it is."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A leader epoch, and the offset of its first record."""

    epoch: Annotated[LeaderEpoch, Int32(1)]
    start_offset: Annotated[Offset, Int64(2)]


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """The producer ids from `first` up to, not including, `end`."""

    first: Annotated[ProducerId, Int64(1)]
    end: Annotated[ProducerId, Int64(2)]

    def __contains__(self, producer_id: object) -> bool:
        return isinstance(producer_id, int) and self.first <= producer_id < self.end


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """One segment in the object store.

    Attributes:
        segment_id: drawn anew for each attempt to copy it; the object's key has it (`strandline.log.tier.names`).
        base_offset: of its first batch that counts. The object may begin before it: it is a whole segment of a leader
            whose segments begin elsewhere than those of the one before.
        end_offset: one past its last record.
        size_bytes: of its batches.
        max_timestamp_ms: the largest of its records; -1: none has a time.
        epochs: the leader epochs of its records, in order; the first one from `base_offset` on.
        copied_ms: wall time at which its leader had copied it.
        producers: of a segment that a lost cluster has written: the ids that this cluster has given to nobody, and
            never will. Under any other id somebody else writes here. None: this cluster has written it.
    """

    segment_id: Annotated[UUID, 1]
    base_offset: Annotated[Offset, Int64(2)]
    end_offset: Annotated[Offset, Int64(3)]
    size_bytes: Annotated[int, Int64(4)]
    max_timestamp_ms: Annotated[int, SInt64(5)]
    epochs: Annotated[tuple[EpochStart, ...], 6]
    copied_ms: Annotated[int, Int64(7)]
    producers: Annotated[ProducerIds | None, 8] = None

    @property
    def first_epoch(self) -> LeaderEpoch:
        """Leader epoch of the segment's first record."""
        return self.epochs[0].epoch

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Leader epoch of the segment's last record."""
        return self.epochs[-1].epoch


@dataclass(frozen=True, slots=True)
class Tier:
    """The part of one partition that lies in the object store.

    Invariants:
    - each segment begins where the one before it ends;
    - the first one reaches beyond `start_offset`.

    Attributes:
        start_offset: what lies below was deleted: the log start, as long as there are segments.
        segments: in the order of their offsets.
    """

    start_offset: Offset = _FROM_THE_FIRST
    segments: tuple[TieredSegment, ...] = ()

    @property
    def end_offset(self) -> Offset:
        """One past the last record that was copied; `start_offset` where nothing is."""
        return self.segments[-1].end_offset if self.segments else self.start_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments together."""
        return sum(segment.size_bytes for segment in self.segments)

    def find(self, offset: int) -> TieredSegment | None:
        """The segment that holds `offset`; None: it is not in the tier."""
        if not self.segments or not self.start_offset <= offset < self.end_offset:
            return None
        return self.segments[bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1]

    def log_start(self, local_start: int) -> int:
        """Log start offset of a partition whose log on disk begins at `local_start`: the start of the tier, if the tier
        reaches from below `local_start` up to it."""
        reaches = self.segments and self.start_offset < local_start <= self.end_offset
        return self.start_offset if reaches else local_start

    def epoch_end(self, epoch: int) -> EpochStart | None:
        """The largest leader epoch here that is not above `epoch`, and where it ends, if it ends below the tier's end,
        else the tier's end; None: there is none."""
        end = self.end_offset
        for start in (start for segment in reversed(self.segments) for start in reversed(segment.epochs)):
            if start.epoch <= epoch:
                return EpochStart(start.epoch, end)
            end = start.start_offset
        return None


NO_TIER = Tier()
"""Tier of a partition from which nothing was ever copied."""


@dataclass(frozen=True, slots=True)
class AdoptedTier:
    """What a partition of a topic that is restored finds in the object store.

    Attributes:
        segments: each begins where the one before it ends; at least one.
        producer_ids_end: one past the highest id that the producers of its records had.
        producer_ids_first: the lowest of them.
    """

    partition: Annotated[int, Int32(1)]
    segments: Annotated[tuple[TieredSegment, ...], 2]
    producer_ids_end: Annotated[ProducerId, Int64(3)] = _FIRST_PRODUCER_ID
    producer_ids_first: Annotated[ProducerId, Int64(4)] = _FIRST_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class TierChange:
    """What a leader asks of the controller; see `strandline.controller.machine.tiers`.

    Attributes:
        add: segments that are in the store now, the first of them where the tier ends (anywhere, where it is empty).
        start_offset: raise the tier's start to it, and forget the segments that lie wholly below; AS_IT_IS: leave it.
    """

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    leader_epoch: Annotated[LeaderEpoch, Int32(3)]
    add: Annotated[tuple[TieredSegment, ...], 4] = ()
    start_offset: Annotated[Offset, SInt64(5)] = AS_IT_IS


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """Outcome of one change of a tier."""

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    error: Annotated[ErrorCode, 3]
    message: Annotated[str, 4] = ""
