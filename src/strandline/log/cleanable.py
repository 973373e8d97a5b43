"""How much of a log waits for compaction, and how far that may go."""

from __future__ import annotations

from typing import NamedTuple

from strandline.log.config import INT64_MAX
from strandline.log.log_state import LogState
from strandline.log.retention import newest_ms
from strandline.log.segment import Pread, Segment


class Cleanable(NamedTuple):
    """What a pass over a log would find."""

    first_dirty: int
    """Up to here it has been compacted."""
    end: int
    """A pass goes no further: the base of a segment that must stay as it is."""
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """How much longer than `max.compaction.lag.ms` a record waits; 0: none does."""

    @property
    def ratio(self) -> float:
        """How much of it was not compacted yet, from 0 to 1."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    def is_due(self, min_ratio: float) -> bool:
        """Whether it is to be compacted now."""
        return self.dirty_bytes > 0 and (self.ratio > min_ratio or self.overdue_ms > 0)


def find_cleanable(log: LogState, now_ms: int, limit_offset: int, pread: Pread) -> Cleanable:
    """What may be compacted below `limit_offset`, the high watermark: closed segments whose records are durable here
    (schedule 73), and old enough for `min.compaction.lag.ms`.

    Raises ColdRead, DiskError, FileNotFoundError and KafkaError as reading does.
    """
    config = log.config
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
        if lag_ms and now_ms - newest_ms(log, segment, now_ms, pread) < lag_ms:
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
