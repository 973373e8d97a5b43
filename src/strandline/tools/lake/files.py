"""The Parquet files that are being written, one a day at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from strandline.lake.stores import Writing

OPEN_MAX = 16
"""Files open at a time: records of many days take turns, and a day that comes again begins a new file."""

_HARDLY_REPEATED = frozenset({"offset", "timestamp", "value"})
"""Columns without a dictionary, which would only be given up again."""


@dataclass
class _File:
    name: str
    file: Writing
    out: parquet.ParquetWriter
    rows: int = 0
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0


class DayFiles:
    """Files of one table, by the day of its column `timestamp`, or all in one.

    What waits to become a row group holds `batch_bytes` in all; a file ends once it has `file_bytes`.

    Args:
        open_: gives a file its place; the name is relative to the table.
    """

    def __init__(
        self, schema: pa.Schema, open_: Callable[[str], Writing], *, by_day: bool, batch_bytes: int, file_bytes: int
    ) -> None:
        self._schema = schema
        self._open = open_
        self._by_day = by_day
        self._batch_bytes = batch_bytes
        self._file_bytes = file_bytes
        self._files: dict[str, _File] = {}
        self._done: dict[str, int] = {}
        self._waiting_bytes = 0
        self.size_bytes = 0
        """Size of the finished files, in bytes."""

    def write(self, rows: pa.Table) -> None:
        """Add rows. Raises what the store raises."""
        if rows.num_rows == 0:
            return
        if not self._by_day:
            self._add("", rows)
            return
        days = rows["timestamp"].cast(pa.date32())
        low, high = pc.min(days).as_py(), pc.max(days).as_py()
        if low == high:
            self._add(_folder(low), rows)
            return
        for day in pc.unique(days.combine_chunks() if isinstance(days, pa.ChunkedArray) else days).to_pylist():
            self._add(_folder(day), rows.filter(pc.equal(days, pa.scalar(day, pa.date32()))))

    def finish(self) -> dict[str, int]:
        """End all files; the rows of each that has appeared since the last call."""
        for folder in list(self._files):
            self._end(folder)
        done, self._done = self._done, {}
        return done

    def _add(self, folder: str, rows: pa.Table) -> None:
        one = self._files.pop(folder, None)
        if one is None:
            if len(self._files) >= OPEN_MAX:
                self._end(next(iter(self._files)))
            name = f"{folder}{uuid4().hex[:16]}.parquet"
            file = self._open(name)
            dictionary = [name for name in self._schema.names if name not in _HARDLY_REPEATED]
            out = parquet.ParquetWriter(file, self._schema, compression="zstd", use_dictionary=dictionary)
            one = _File(name, file, out)
        self._files[folder] = one  # the last one is the one that was written last
        one.waiting.append(rows)
        one.waiting_bytes += rows.nbytes
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._batch_bytes:
            for each in list(self._files.values()):
                self._flush(each)
        if one.file.size_bytes >= self._file_bytes:
            self._end(folder)

    def _flush(self, one: _File) -> None:
        if one.waiting:
            rows = pa.concat_tables(one.waiting)
            one.out.write_table(rows)
            one.rows += rows.num_rows
            self._waiting_bytes -= one.waiting_bytes
            one.waiting, one.waiting_bytes = [], 0

    def _end(self, folder: str) -> None:
        one = self._files.pop(folder)
        self._flush(one)
        one.out.close()
        one.file.publish()
        self.size_bytes += one.file.size_bytes
        self._done[one.name] = one.rows


def _folder(day: date) -> str:
    return f"date={day.isoformat()}/"
