"""Records that age and size allow to delete from the front of a log (Kafka's `retention.ms` and `retention.bytes`), and
bytes that wait for compaction.

Whole segments are deleted, oldest first, and never one that reaches beyond the high watermark. The active segment is
deleted, too, once all of it may be, so that a quiet topic does not keep records for ever. Only bytes below the high
watermark count as size: the next leader may cut uncommitted records, and then the topic would keep too little
(schedule 79).
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
"""Batches whose headers are read in one turn of the event loop; each may wait for the disk."""

CLOCK_FILE = ".retention-clock"
"""File in a log directory with the last life's believed time, in milliseconds."""

_TIME = re.compile(rb"\d{13}\n")


def believed_clock(clock: Clock, disk: Disk, directory: str) -> BelievedClock:
    """Return a node's clock, which goes on from its last life, or is set by other nodes. Raises DiskError."""
    return BelievedClock(clock, last_time(disk, directory), is_told=True)


def last_time(disk: Disk, directory: str) -> int | None:
    """Return the believed time of a log directory's last life; None if it is not known. Raises DiskError."""
    try:
        text = read_file(disk, f"{directory}/{CLOCK_FILE}")
    except FileNotFoundError:
        return None
    # The file is not synced: the first digits of a torn one would be a time long ago (schedule 83).
    return int(text) if _TIME.fullmatch(text) else None  # schedule 83/a-torn-time-is-believed


def note_time(disk: Disk, directory: str, now_ms: int) -> None:
    """Write the believed time, not durably. Raises DiskError."""
    file = disk.open(f"{directory}/{CLOCK_FILE}", create=True)
    try:
        file.pwrite(b"%013d\n" % now_ms, 0)
    finally:
        file.close()


class Expired(NamedTuple):
    """Segments that are to be deleted from the front of a log."""

    offset: Offset
    """New log start."""
    segments: int
    size_bytes: int
    by: str
    """Setting that expires the newest of them: `retention.ms`, `retention.bytes`, or the same with `local.`."""


class Cold(Protocol):
    """Function that reads without blocking the event loop on a cold disk (`LogReader.cold`)."""

    def __call__(self, read: Callable[[Pread], T], /) -> Awaitable[T]:
        """Return the result of `read`."""


class Unproven(Exception):
    """A segment looks old enough, but that was not checked against its batches: call `prove_newest`, then try again."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.file.path)
        self.segment = segment


class Keep(NamedTuple):
    """Limits on what a log keeps.

    Attributes:
        age_ms: segments whose newest record is older are deleted; -1: no limit.
        size_bytes: the oldest segments beyond this size are deleted; -1: no limit.
        prefix: prefix of the names of these settings.
        copied_to: end of the object store's copy; records beyond it stay on the disk. None: no such limit.
    """

    age_ms: int
    size_bytes: int
    prefix: str = ""
    copied_to: int | None = None


def find_expired(log: LogState, now: Now, limit_offset: int, keep: Keep, pread: Pread) -> Expired | None:
    """Return the segments that retention deletes now, below `limit_offset` (the high watermark); None if there are
    none.

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
    """Walk a segment's batches to find the age of its newest record, which they alone prove (rule B31). A time index
    that says less is built anew. Ends early if the segment leaves the log meanwhile.

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
    """Return the size of the batches that reach `offset` or lie after it."""
    size_bytes = 0
    for segment in reversed(log.segments):
        if segment.base_offset < offset:
            found = segment.find(offset, pread) if offset < log.log_end_offset else None
            return size_bytes + (0 if found is None else segment.size - found[0])
        size_bytes += segment.size
    return size_bytes


def newest_ms(log: LogState, segment: Segment, now: Now, pread: Pread) -> int:
    """Return the time of the segment's newest record, in milliseconds.

    A timestamp in the future, which would keep the segment as long, counts as the time of the segment's last write; so
    does a missing timestamp. The file's mtime alone does not tell that time, as the clock may have been days behind
    when it was set: it counts as no earlier than this process first saw the segment at its present size.
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
    """Bytes of a log that a pass of compaction would find."""

    first_dirty: int
    """Offset up to which the log was compacted."""
    end: int
    """Offset at which a pass must end: the base of a segment that must stay as it is."""
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """Milliseconds by which a record exceeds `max.compaction.lag.ms`; 0 if none does."""

    @property
    def ratio(self) -> float:
        """Share of the bytes that is not compacted yet, from 0 to 1."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    def is_due(self, min_ratio: float) -> bool:
        """True if the log should be compacted now."""
        return self.dirty_bytes > 0 and (self.ratio > min_ratio or self.overdue_ms > 0)


def find_cleanable(log: LogState, now: Now, limit_offset: int, pread: Pread) -> Cleanable:
    """Return the bytes that may be compacted below `limit_offset`, the last stable offset: closed segments whose
    records are durable here (schedule 73), and old enough for `min.compaction.lag.ms`.

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
    """Return the time of the first uncompacted record, by its batch; `now_ms` if the segment has none with a time."""
    found = segment.find(first_dirty, pread) if first_dirty > segment.base_offset else (0, None)
    for _, header in segment.headers(found[0], pread) if found is not None else ():
        if header.max_timestamp >= 0 and not header.has_delete_horizon:
            return header.max_timestamp
    return now_ms
