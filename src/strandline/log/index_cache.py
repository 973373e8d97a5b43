"""Indexes of closed segments in memory, over all logs of a directory."""

from __future__ import annotations

from collections import OrderedDict

from strandline.log.segment import Segment

INDEX_CACHE_BYTES = 64 << 20
"""Memory for loaded indexes of closed segments, over all logs of a directory (a full 1 GiB segment's take 5 MB)."""


class IndexCache:
    """Which closed segments have their indexes in memory; the least recently used drop theirs beyond the bound."""

    def __init__(self, max_bytes: int = INDEX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._segments: OrderedDict[Segment, int] = OrderedDict()

    def touch(self, segment: Segment) -> None:
        """`segment` was read from just now."""
        self._bytes += segment.index_bytes - self._segments.pop(segment, 0)
        self._segments[segment] = segment.index_bytes
        while self._bytes > self._max_bytes and len(self._segments) > 1:
            old, size = self._segments.popitem(last=False)
            old.drop_indexes()
            self._bytes -= size

    def forget(self, segment: Segment) -> None:
        """`segment` is gone, or is appended to again."""
        self._bytes -= self._segments.pop(segment, 0)
