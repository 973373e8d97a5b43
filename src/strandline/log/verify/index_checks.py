"""Holding the indexes of a segment against its batches, as these go by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.log.batch import BatchHeader
from strandline.log.disk import File
from strandline.log.index import ENTRY_BYTES, TIME_ENTRY_BYTES, IndexDamaged, OffsetIndex, TimeIndex

_BATCH_BYTES_MIN = 61


class Range(Protocol):
    """A damaged part of the segment: entries that name a batch in it cannot be judged."""

    @property
    def position(self) -> int: ...
    @property
    def next_position(self) -> int: ...


def read_entries(file: File, segment_bytes: int, entry_bytes: int) -> bytes:
    """What an index file holds. Raises IndexDamaged where it is longer than an index of this segment can be."""
    size = file.size()
    if size > entry_bytes * (segment_bytes // _BATCH_BYTES_MIN + 1):
        raise IndexDamaged(f"{size} bytes are more than an index of {segment_bytes} bytes of log can have")
    return file.pread(size, 0)


class OffsetIndexCheck:
    """Every entry names a batch, and the offset of its last record."""

    def __init__(self, file: File, base_offset: int, segment_bytes: int) -> None:
        """Raises IndexDamaged for bytes that are no index."""
        index = OffsetIndex.parse(read_entries(file, segment_bytes, ENTRY_BYTES), max(1, segment_bytes))
        self._entries = list(zip(index.positions, index.offsets, strict=True))
        self._base_offset = base_offset
        self._next = 0
        self._unmatched: list[int] = []
        self.reason = ""

    def batch(self, position: int, header: BatchHeader) -> None:
        """The next batch that holds."""
        entries = self._entries
        while self._next < len(entries) and entries[self._next][0] <= position:
            at, relative = entries[self._next]
            self._next += 1
            if at < position:
                self._unmatched.append(at)
            elif relative != header.last_offset - self._base_offset and not self.reason:
                named = self._base_offset + relative
                self.reason = f"it names offset {named} for the batch at byte {at}, whose last is {header.last_offset}"

    def end(self, damaged: Sequence[Range]) -> None:
        """No batch follows."""
        self._unmatched += [at for at, _ in self._entries[self._next :]]
        for at in self._unmatched:
            if not self.reason and not any(part.position <= at < part.next_position for part in damaged):
                self.reason = f"it names a batch at byte {at}, where none begins"


class TimeIndexCheck:
    """Every entry names the largest timestamp up to a batch."""

    def __init__(self, file: File, base_offset: int, segment_bytes: int) -> None:
        """Raises IndexDamaged for bytes that are no time index."""
        index = TimeIndex.parse(read_entries(file, segment_bytes, TIME_ENTRY_BYTES))
        self._entries = list(zip(index.timestamps, index.offsets, strict=True))
        self._base_offset = base_offset
        self._next = 0
        self._newest = -1
        self.last = index.last()
        """The newest timestamp that it knows, and the relative offset."""
        self.reason = ""

    def batch(self, header: BatchHeader) -> None:
        """The next batch that holds."""
        entries = self._entries
        while self._next < len(entries) and self._base_offset + entries[self._next][1] <= header.last_offset:
            timestamp, relative = entries[self._next]
            self._next += 1
            offset = self._base_offset + relative
            if offset < header.base_offset:
                continue  # of a batch that is damaged
            if (timestamp != header.max_timestamp or timestamp < self._newest) and not self.reason:
                self.reason = (
                    f"it has timestamp {timestamp} for offset {offset}, whose batch has {header.max_timestamp}"
                )
        self._newest = max(self._newest, header.max_timestamp)

    def end(self) -> None:
        """No batch follows."""
        if self._next < len(self._entries) and not self.reason:
            named = self._base_offset + self._entries[self._next][1]
            self.reason = f"it names offset {named}, which the segment does not reach"
