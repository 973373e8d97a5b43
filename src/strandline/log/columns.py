"""Records as columns: buffers in Arrow's layout, filled by the codec without an object for each record."""

from __future__ import annotations

from typing import NamedTuple, Self


class RecordColumns(NamedTuple):
    """Growing buffers. `*_valid` are bitmaps (1: not null), `*_ends` int32 with a 0 before them, the others data.

    A record's headers are one list; a record without headers has a null one, as in Spark's own Kafka source.
    """

    offsets: bytearray
    """int64"""
    timestamps: bytearray
    """int64, milliseconds"""
    key_valid: bytearray
    key_ends: bytearray
    keys: bytearray
    value_valid: bytearray
    value_ends: bytearray
    values: bytearray
    list_valid: bytearray
    list_ends: bytearray
    name_ends: bytearray
    """Headers' names, never null"""
    names: bytearray
    header_valid: bytearray
    header_ends: bytearray
    headers: bytearray

    @classmethod
    def empty(cls) -> Self:
        """Columns without rows."""
        return cls(*(bytearray(4 if name.endswith("_ends") else 0) for name in cls._fields))

    @property
    def rows(self) -> int:
        """Records so far."""
        return len(self.offsets) // 8

    @property
    def last_offset(self) -> int:
        """The offset of the last record. Raises IndexError without rows."""
        return int(memoryview(self.offsets).cast("q")[-1])

    @property
    def header_count(self) -> int:
        """Headers of all records so far."""
        return len(self.name_ends) // 4 - 1

    @property
    def size_bytes(self) -> int:
        """Keys, values and headers so far, in bytes."""
        return len(self.keys) + len(self.values) + len(self.names) + len(self.headers)
