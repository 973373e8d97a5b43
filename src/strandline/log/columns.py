"""Records as columns: buffers in Arrow's layout, filled by the codec without an object for each record."""

from __future__ import annotations

from typing import NamedTuple, Self


class RecordColumns(NamedTuple):
    """Growing buffers. `*_valid` are bitmaps (1: not null), `*_ends` int32 that begin with a 0, the others data.

    A record's headers are one list; a record without headers has a null list, as in Spark's own Kafka source.
    """

    offsets: bytearray
    """Offsets, as int64."""
    timestamps: bytearray
    """Timestamps in milliseconds, as int64."""
    key_valid: bytearray
    key_ends: bytearray
    keys: bytearray
    value_valid: bytearray
    value_ends: bytearray
    values: bytearray
    list_valid: bytearray
    list_ends: bytearray
    name_ends: bytearray
    """Ends of the headers' names, which are never null."""
    names: bytearray
    header_valid: bytearray
    header_ends: bytearray
    headers: bytearray

    @classmethod
    def empty(cls) -> Self:
        """Return columns without rows."""
        return cls(*(bytearray(4 if name.endswith("_ends") else 0) for name in cls._fields))

    @property
    def rows(self) -> int:
        """Number of records so far."""
        return len(self.offsets) // 8

    @property
    def last_offset(self) -> int:
        """Offset of the last record. Raises IndexError without rows."""
        return int(memoryview(self.offsets).cast("q")[-1])

    @property
    def header_count(self) -> int:
        """Number of headers of all records so far."""
        return len(self.name_ends) // 4 - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of keys, values and headers so far."""
        return len(self.keys) + len(self.values) + len(self.names) + len(self.headers)
