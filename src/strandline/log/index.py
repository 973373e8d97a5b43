"""The two sparse indexes of a segment, in Kafka's formats.

`.index`: 8-byte entries (last offset of a batch minus base offset, position of that batch), both unsigned 32 bits.
`.timeindex`: 12-byte entries (largest timestamp so far, offset minus base offset of the last record of its batch).

They are hints: everything in them can be had from the log again, so they are written lazily, loaded on first use,
judged when loaded, and rebuilt when they are missing or wrong.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import lt

ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
_MUST_SWAP = sys.byteorder == "little"


class IndexDamaged(Exception):
    """The index file's bytes cannot be an index of this segment; build it anew from the log."""


class OffsetIndex:
    """Entries of one segment, strictly rising in offset and position."""

    __slots__ = ("offsets", "positions", "written")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self.written = 0
        """Entries that the file holds already."""

    @classmethod
    def parse(cls, data: bytes, segment_bytes: int) -> OffsetIndex:
        """Entries of an index file; `segment_bytes` bounds the positions. Raises IndexDamaged."""
        if len(data) % ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes are not whole entries of {ENTRY_BYTES}")
        both = array("I")
        both.frombytes(data)
        if _MUST_SWAP:
            both.byteswap()
        index = cls()
        index.offsets = both[0::2]
        index.positions = both[1::2]
        for column, name in ((index.offsets, "offset"), (index.positions, "position")):
            if not all(map(lt, column, islice(column, 1, None))):
                raise IndexDamaged(f"the {name}s do not rise")
        if index.positions and index.positions[-1] >= segment_bytes:
            raise IndexDamaged(f"position {index.positions[-1]} lies beyond the segment's {segment_bytes} bytes")
        index.written = len(index.offsets)
        return index

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        """The batch at `position` ends with `relative_offset`."""
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def entry_before(self, relative_offset: int) -> tuple[int, int]:
        """A batch boundary at or before the batch that holds `relative_offset`, and the last relative offset of the
        batch that stands there: -1 for the segment's first batch."""
        i = bisect_right(self.offsets, relative_offset) - 1
        return (self.positions[i], self.offsets[i]) if i >= 0 else (0, -1)

    def position_at_most(self, position: int, relative_offset: int) -> int:
        """A batch boundary not beyond `position`, with nothing before it at or after `relative_offset`."""
        i = min(bisect_right(self.positions, position), bisect_left(self.offsets, relative_offset)) - 1
        return self.positions[i] if i >= 0 else 0

    def truncate(self, segment_bytes: int) -> None:
        """Forget entries of batches at or beyond this position."""
        keep = bisect_left(self.positions, segment_bytes)
        del self.offsets[keep:]
        del self.positions[keep:]
        self.written = min(self.written, keep)

    def tail_bytes(self) -> tuple[int, bytes]:
        """Where the file ends and what must be written there."""
        start = self.written
        parts = [_ENTRY.pack(self.offsets[i], self.positions[i]) for i in range(start, len(self.offsets))]
        return start * ENTRY_BYTES, b"".join(parts)


class TimeIndex:
    """Entries of one segment, strictly rising in timestamp, rising in offset."""

    __slots__ = ("offsets", "timestamps", "written")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("I")
        self.written = 0

    @classmethod
    def parse(cls, data: bytes) -> TimeIndex:
        """Entries of a time index file. Raises IndexDamaged."""
        if len(data) % TIME_ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes are not whole entries of {TIME_ENTRY_BYTES}")
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            if index.timestamps and (timestamp <= index.timestamps[-1] or offset < index.offsets[-1]):
                raise IndexDamaged("the timestamps do not rise")
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        index.written = len(index.offsets)
        return index

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """`timestamp` is the largest up to the batch that ends with `relative_offset`; ignored unless it is a new
        largest.
        """
        if not self.timestamps or timestamp > self.timestamps[-1]:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def last(self) -> tuple[int, int] | None:
        """The largest (timestamp, relative offset) noted."""
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def offset_before(self, timestamp: int) -> int:
        """A relative offset before which no record is as young as `timestamp`."""
        i = bisect_left(self.timestamps, timestamp) - 1
        return self.offsets[i] if i >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Forget entries of records at or after this relative offset."""
        keep = bisect_left(self.offsets, relative_offset)
        del self.offsets[keep:]
        del self.timestamps[keep:]
        self.written = min(self.written, keep)

    def tail_bytes(self) -> tuple[int, bytes]:
        """Where the file ends and what must be written there."""
        start = self.written
        parts = [_TIME_ENTRY.pack(self.timestamps[i], self.offsets[i]) for i in range(start, len(self.offsets))]
        return start * TIME_ENTRY_BYTES, b"".join(parts)
