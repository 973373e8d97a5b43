"""Chains: which of a partition's segments in the object store follow on each other, if the metadata are lost.

The metadata log of a cluster names them, each beginning where the one before it ends (rule B21). If it is lost, only
the store can tell. There are more segments in it: those of failed copies and, after an unclean election, records that
the new leader did not have. Sidecars have the leader epoch of every record, which decides: a leader that cut others'
records wrote its own under a higher epoch, and records of the same offset and epoch are the same (rule B25).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.log.epochs import LeaderEpochs
from strandline.log.tier.inspection import StoredSegment
from strandline.log.tier.sidecar import SidecarHeader
from strandline.proto.ids import LeaderEpoch, Offset
from strandline.proto.tier import EpochStart, TieredSegment

_PARTED = "its records gave way to those of a later leader epoch (an unclean election)"
_REPEATED = "its records are in the others: an attempt that was given up"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A segment that is not part of the chain.

    Attributes:
        is_loss: True if it has records that the chain lacks.
    """

    segment: StoredSegment
    why: str
    is_loss: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Segments of one partition that can be restored.

    Invariants:
    - each segment begins where the one before it ends;
    - the leader epochs of their records never fall.
    """

    segments: tuple[StoredSegment, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def start_offset(self) -> int:
        """Offset of the first record; 0 if there are no segments."""
        return self.segments[0].name.base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        """Offset after the last record; 0 if there are no segments."""
        return _header(self.segments[-1]).end_offset if self.segments else 0

    @property
    def size_bytes(self) -> int:
        """Size of the log objects in bytes."""
        return sum(segment.log_bytes for segment in self.segments)

    @property
    def losses(self) -> tuple[LeftOut, ...]:
        """Segments left out with records that the chain lacks."""
        return tuple(one for one in self.left_out if one.is_loss)

    def tiered(self, now_ms: int) -> tuple[TieredSegment, ...]:
        """Return the segments as the metadata will name them. The time of copying is not in the store: `now_ms`
        replaces it, from which the age of records without a timestamp counts."""
        return tuple(_tiered(segment, now_ms) for segment in self.segments)


def chain_of(segments: Iterable[StoredSegment], damaged: Iterable[tuple[StoredSegment, str]]) -> Chain:
    """Return the newest run of one partition's segments without a gap.

    `segments` are intact, with their headers; `damaged` are the others, each with its flaw. If the store holds all
    segments that the metadata named, the run is these; others are left out, with the reason.
    """
    whole = sorted(segments, key=_place)
    epochs = _lineage(whole)
    joined = [segment for segment in whole if _is_of(segment, epochs)]
    run = _newest_run(joined)
    chain = Chain(tuple(run), ())
    start, end = chain.start_offset, chain.end_offset
    chosen, of_the_log = {segment.name for segment in run}, {segment.name for segment in joined}
    left_out = []
    for segment in whole:
        before = segment.name.base_offset < start
        if segment.name not in of_the_log:
            left_out.append(LeftOut(segment, _PARTED, is_loss=False))
        elif segment.name not in chosen:
            gap = f"it ends at offset {_header(segment).end_offset}, and what is whole behind it begins at {start}"
            left_out.append(LeftOut(segment, gap if before else _REPEATED, is_loss=before))
    for segment, why in damaged:
        inside = start <= segment.name.base_offset < end
        left_out.append(LeftOut(segment, why, is_loss=not inside))
    return Chain(chain.segments, tuple(sorted(left_out, key=lambda one: _place(one.segment))))


def _lineage(segments: Sequence[StoredSegment]) -> LeaderEpochs:
    """Return the leader epochs of the log: at each offset, the highest that any segment has there or before."""
    starts = sorted((start, epoch) for segment in segments for epoch, start in _epochs_of(segment).entries())
    lineage = LeaderEpochs()
    for start, epoch in starts:
        if epoch > lineage.latest:
            lineage.assign(epoch, start)
    return lineage


def _is_of(segment: StoredSegment, lineage: LeaderEpochs) -> bool:
    epochs = LeaderEpochs(lineage.entries())
    epochs.bound(segment.name.base_offset, _header(segment).end_offset)
    return epochs.entries() == _epochs_of(segment).entries()  # rule B25/what-parted-is-restored


def _newest_run(segments: Sequence[StoredSegment]) -> list[StoredSegment]:
    """Return, of the runs that end with the newest record, one that begins with the oldest. Two such runs have the same
    records."""
    best: dict[int, StoredSegment] = {}
    """For each base offset, the segment from which a run reaches furthest."""
    reach: dict[int, int] = {}
    for segment in reversed(segments):
        base, end = segment.name.base_offset, _header(segment).end_offset
        reached = reach.get(end, end)
        if reached > reach.get(base, base):
            best[base], reach[base] = segment, reached
    if not best:
        return []
    newest = max(reach.values())
    base = min(base for base, reached in reach.items() if reached == newest)
    run = []
    while base in best:
        run.append(best[base])
        base = _header(best[base]).end_offset
    return run


def _epochs_of(segment: StoredSegment) -> LeaderEpochs:
    """Return the leader epochs of the segment's records that count; its object may begin with earlier records."""
    epochs = LeaderEpochs(list(_header(segment).epochs))
    epochs.bound(segment.name.base_offset, _header(segment).end_offset)
    return epochs


def _tiered(segment: StoredSegment, now_ms: int) -> TieredSegment:
    header = _header(segment)
    return TieredSegment(
        segment_id=segment.name.segment_id,
        base_offset=Offset(segment.name.base_offset),
        end_offset=Offset(header.end_offset),
        size_bytes=header.size_bytes,
        max_timestamp_ms=header.max_timestamp_ms,
        epochs=tuple(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in _epochs_of(segment).entries()),
        copied_ms=now_ms,
    )


def _place(segment: StoredSegment) -> tuple[int, int, str]:
    end = segment.header.end_offset if segment.header is not None else 0
    return segment.name.base_offset, end, str(segment.name.segment_id)


def _header(segment: StoredSegment) -> SidecarHeader:
    if segment.header is None:
        raise ValueError(f"the sidecar of {segment.log_key} was not read")
    return segment.header
