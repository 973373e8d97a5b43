"""Which records age and size take from the front of a log (Kafka's `retention.ms` and `retention.bytes`), and how much
of it waits for compaction.

Whole segments go, oldest first, never one that reaches beyond the high watermark. The active segment goes too once
all of it may: a quiet topic keeps nothing for ever. The size is that of what lies below the high watermark: what is
not committed may be cut by the next leader, and the topic would keep less than it shall (schedule 79).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import structlog

from strandline.log.config import INT64_MAX
from strandline.log.disk import Disk, read_file
from strandline.log.log_state import LogState
from strandline.log.segment import LOG_SUFFIX, Pread, Segment
from strandline.proto.believed import BelievedClock, Now
from strandline.proto.ids import Offset
from strandline.proto.marks import mark
from strandline.proto.ports import Clock

logger = structlog.get_logger("strandline.log")

T = TypeVar("T")

PROVEN_AT_ONCE = 8
"""Batches whose headers are read in one turn of the event loop. Each may wait for the disk."""

CLOCK_FILE = ".retention-clock"
"""File in a log directory: the time that its last life went by, in milliseconds."""

_TIME = re.compile(rb"\d{13}\n")


def believed_clock(clock: Clock, disk: Disk, directory: str) -> BelievedClock:
    """A node's, that goes on from its last life, or is told by others. Raises DiskError."""
    return BelievedClock(clock, last_time(disk, directory), is_told=True)


def last_time(disk: Disk, directory: str) -> int | None:
    """The time that the last life of a log directory went by; None: nobody knows. Raises DiskError."""
    try:
        text = read_file(disk, f"{directory}/{CLOCK_FILE}")
    except FileNotFoundError:
        return None
    # It is not synced: of a torn one the first digits would be a time long ago (schedule 83).
    return int(text) if _TIME.fullmatch(text) else None  # schedule 83/a-torn-time-is-believed


def note_time(disk: Disk, directory: str, now_ms: int) -> None:
    """Write down the time to go by, not durably. Raises DiskError."""
    file = disk.open(f"{directory}/{CLOCK_FILE}", create=True)
    try:
        file.pwrite(b"%013d\n" % now_ms, 0)
    finally:
        file.close()


class Expired(NamedTuple):
    """Segments that are to go from the front of a log."""

    offset: Offset
    """The new log start."""
    segments: int
    size_bytes: int
    by: str
    """The setting that the newest of them goes by: `retention.ms`, `retention.bytes`, or the same with `local.`."""


class Cold(Protocol):
    """Reads without waiting for a cold disk on the event loop (`LogReader.cold`)."""

    def __call__(self, read: Callable[[Pread], T], /) -> Awaitable[T]:
        """Result of `read`."""


class Unproven(Exception):
    """A segment looks old enough to go, but nobody has held that against its batches: `prove_newest`, then again."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.file.path)
        self.segment = segment


class Keep(NamedTuple):
    """Bounds of what is kept of a log.

    Attributes:
        age_ms: segments whose newest record is older go; -1: none.
        size_bytes: the oldest segments beyond it go; -1: none.
        prefix: of the settings that say so.
        copied_to: only what lies below goes: what is not in the object store yet stays on the disk.
    """

    age_ms: int
    size_bytes: int
    prefix: str = ""
    copied_to: int | None = None


def find_expired(log: LogState, now: Now, limit_offset: int, keep: Keep, pread: Pread) -> Expired | None:
    """Segments that retention takes now, below `limit_offset` (the high watermark); None: nothing.

    Raises Unproven; ColdRead, DiskError, FileNotFoundError and KafkaError as reading does.
    """
    excess = -1
    if 0 <= keep.size_bytes < log.size_bytes:
        # schedule 79/retention-counts-what-is-not-committed
        excess = log.size_bytes - _bytes_from(log, limit_offset, pread) - keep.size_bytes
    end_max = limit_offset if keep.copied_to is None else min(limit_offset, keep.copied_to)
    ends = [*log.bases[1:], log.log_end_offset]
    found, size_bytes = None, 0
    for i, (segment, end) in enumerate(zip(log.segments, ends, strict=True)):
        if end > end_max or not segment.size:  # schedule 16/retention-passes-the-high-watermark
            break
        if keep.age_ms >= 0 and now.earliest_ms - newest_ms(log, segment, now, pread) > keep.age_ms:
            if segment.proven_to < segment.size:  # rule B31/time-indexes-are-believed
                raise Unproven(segment)
            by = f"{keep.prefix}retention.ms"
        elif excess >= segment.size:  # schedule 16/retention-keeps-less-than-it-may
            by = f"{keep.prefix}retention.bytes"
        else:
            break
        excess -= segment.size
        size_bytes += segment.size
        found = Expired(Offset(end), i + 1, size_bytes, by)
    return found


async def prove_newest(log: LogState, segment: Segment, cold: Cold) -> None:
    """Walk a segment's batches, which alone can say how old its newest record is (rule B31). A time index that says
    less is built anew. Ends early where the segment has left the log meanwhile.

    Raises as reading does.
    """
    held = True
    while log.failure is None and segment in log.segments and segment.proven_to < segment.size:
        held &= await cold(partial(segment.prove_newest, PROVEN_AT_ONCE))
        await asyncio.sleep(0)
    if not held and log.failure is None and segment in log.segments:  # rule B31/a-time-index-stays-wrong
        mark("time-index-rotten")
        logger.warning(
            "a time index says less than its segment's batches, and is built anew", segment=segment.file.path
        )
        segment.rebuild_indexes(log.config.index_interval_bytes)


def _bytes_from(log: LogState, offset: int, pread: Pread) -> int:
    """The size of the batches that reach `offset` or lie after it."""
    size_bytes = 0
    for segment in reversed(log.segments):
        if segment.base_offset < offset:
            found = segment.find(offset, pread) if offset < log.log_end_offset else None
            return size_bytes + (0 if found is None else segment.size - found[0])
        size_bytes += segment.size
    return size_bytes


def newest_ms(log: LogState, segment: Segment, now: Now, pread: Pread) -> int:
    """The time of the segment's newest record, in milliseconds.

    A timestamp of the future, which would hold the disk for as long, counts from when the segment was last written; so
    does a record without one. The file's own time alone does not say when that was, for the clock that it was written
    by may have been days behind: it counts no further back than this process has seen the segment as it is.
    """
    newest, _ = segment.newest(pread)
    if segment is not log.segments[-1]:
        log.cache.touch(segment)
    if 0 <= newest <= now.earliest_ms:
        return newest
    mark("timestamp-of-the-future")
    seen_ms = int(now.monotonic_ms - segment.unchanged_since(now.monotonic_ms))
    # rule B32/a-file-is-as-old-as-it-says
    written_ms = max(log.disk.modified_ms(segment.path(LOG_SUFFIX)), now.earliest_ms - seen_ms)
    return written_ms if newest < 0 else min(newest, written_ms)  # schedule 72/the-future-holds-the-disk


class Cleanable(NamedTuple):
    """Bytes that a pass of compaction over a log would find."""

    first_dirty: int
    """Offset up to which it has been compacted."""
    end: int
    """A pass goes no further: the base of a segment that must stay as it is."""
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """Milliseconds that a record waits beyond `max.compaction.lag.ms`; 0: none does."""

    @property
    def ratio(self) -> float:
        """Share of the bytes that was not compacted yet, from 0 to 1."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    def is_due(self, min_ratio: float) -> bool:
        """Whether it is to be compacted now."""
        return self.dirty_bytes > 0 and (self.ratio > min_ratio or self.overdue_ms > 0)


def find_cleanable(log: LogState, now: Now, limit_offset: int, pread: Pread) -> Cleanable:
    """Bytes that may be compacted below `limit_offset`, the last stable offset: closed segments whose records are
    durable here (schedule 73), and old enough for `min.compaction.lag.ms`.

    Raises ColdRead, DiskError, FileNotFoundError and KafkaError as reading does.
    """
    config, now_ms = log.config, now.earliest_ms
    # schedule 73/what-is-not-synced-supersedes, rule B20/what-is-not-committed-supersedes
    limit = min(limit_offset, log.durable_offset)
    end = first_dirty = max(log.cleaned_to, log.bases[0])
    clean_bytes = dirty_bytes = overdue_ms = 0
    for segment, following in zip(log.segments, log.bases[1:], strict=False):
        if following <= first_dirty:
            clean_bytes += segment.size
            continue
        if following > limit:
            break
        lag_ms = config.min_compaction_lag_ms
        if lag_ms and now_ms - newest_ms(log, segment, now, pread) < lag_ms:
            break
        if config.max_compaction_lag_ms < INT64_MAX and not overdue_ms:
            oldest_ms = _oldest_ms(segment, first_dirty, now_ms, pread)
            overdue_ms = max(0, now_ms - oldest_ms - config.max_compaction_lag_ms)
        dirty_bytes += segment.size
        end = following
    return Cleanable(first_dirty, end, clean_bytes, dirty_bytes, overdue_ms)


def _oldest_ms(segment: Segment, first_dirty: int, now_ms: int, pread: Pread) -> int:
    """The time of the first record that waits, by its batch; now where the segment has none with a time."""
    found = segment.find(first_dirty, pread) if first_dirty > segment.base_offset else (0, None)
    for _, header in segment.headers(found[0], pread) if found is not None else ():
        if header.max_timestamp >= 0 and not header.has_delete_horizon:
            return header.max_timestamp
    return now_ms
