"""The columns of a lake, and which records do not fit them. Needs pyarrow.

Every table has topic, partition, offset, timestamp (microseconds, UTC), key and headers. The value is bytes, or the
columns of a schema; a record that fits no row goes to a table of its own, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.client import arrow
from strandline.log.columns import RecordColumns

PAIRS = pa.list_(pa.field("element", pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())])))
"""The headers of a record: (name, value) in their order; null for a record without any."""

TIME = pa.timestamp("us", "UTC")

_PLACE = [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]
_HEAD = [*_PLACE, pa.field("timestamp", TIME), pa.field("key", pa.binary()), pa.field("headers", PAIRS)]

BAD_SCHEMA = pa.schema(
    [*_PLACE, pa.field("timestamp_ms", pa.int64()), pa.field("key", pa.binary()), pa.field("headers", PAIRS),
     pa.field("value", pa.binary()), pa.field("reason", pa.string())]
)  # fmt: skip
"""Columns of the table of records that fit no row."""

TAKEN = frozenset({"date", *(one.name for one in _HEAD)})
"""A field of a value that has one of these names gets `value_` before it."""

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: of another time there is no day. A record's timestamp is its producer's to choose."""

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Typed:
    """Conversion of values to columns.

    Attributes:
        struct: the columns.
        read: bytes to a mapping of their names; whatever it raises is the reason why a record does not fit.
        required: names that must have a value.
    """

    struct: pa.StructType
    read: Callable[[bytes], Fields]
    required: frozenset[str] = frozenset()


class Rows(NamedTuple):
    """A table of the lake's rows, and one of those that did not fit (`BAD_SCHEMA`)."""

    good: pa.Table
    bad: pa.Table


class Shape:
    """The columns of one lake's rows; `typed` None: the value stays bytes."""

    def __init__(self, typed: Typed | None = None) -> None:
        self.typed = typed
        values = [pa.field("value", pa.binary())]
        if typed is not None:
            values = [one.with_name(f"value_{one.name}") if one.name in TAKEN else one for one in typed.struct]
        self.schema = pa.schema([*_HEAD, *values])

    def rows(self, topic: str, partition: int, columns: RecordColumns) -> Rows:
        """The records of one partition, each in one of the two tables; keys and bytes are not copied where all fit."""
        count = columns.rows
        times = arrow.numbers(pa.int64(), count, columns.timestamps)
        place = [
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            arrow.numbers(pa.int64(), count, columns.offsets),
        ]
        keys, values, headers = arrow.keys(columns), arrow.values(columns), arrow.headers(columns, PAIRS)
        reasons: dict[int, str] = {}
        if pc.min(times).as_py() < FIRST_MS or pc.max(times).as_py() > LAST_MS:
            for row, time_ms in enumerate(times.to_pylist()):
                if not FIRST_MS <= time_ms <= LAST_MS:
                    reasons[row] = f"a timestamp of {time_ms} ms since 1970 lies in none of the years 1 to 9999"
            kept = [None if row in reasons else time_ms for row, time_ms in enumerate(times.to_pylist())]
            stamps = pa.array(kept, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(TIME)
        else:
            stamps = arrow.numbers(pa.timestamp("ms", "UTC"), count, columns.timestamps).cast(TIME)
        read = [values]
        if self.typed is not None:
            read = _typed(self.typed, values, reasons).flatten()
        good = pa.table([*place, stamps, keys, headers, *read], schema=self.schema)
        if not reasons:
            return Rows(good, BAD_SCHEMA.empty_table())
        wrong = pa.array(sorted(reasons), pa.int64())
        right = pa.array([row for row in range(count) if row not in reasons], pa.int64())
        why = pa.array([reasons.get(row) for row in range(count)], pa.string())
        bad = pa.table([*place, times, keys, headers, values, why], schema=BAD_SCHEMA)
        return Rows(good.take(right), bad.take(wrong))


def _typed(typed: Typed, values: pa.Array, reasons: dict[int, str]) -> pa.StructArray:
    """The columns of values; null where there is no value (a tombstone), and where one has a reason not to fit."""
    rows: list[Fields | None] = []
    for row, value in enumerate(values.to_pylist()):
        fields = None
        if value is not None and row not in reasons:
            try:
                fields = typed.read(value)
                lacking = [name for name in typed.required if fields.get(name) is None]
                if lacking:
                    raise ValueError(f"{min(lacking)} is required and not there")
            except Exception as error:  # bytes that mean nothing make a parser raise whatever it likes
                fields, reasons[row] = None, _reason(error)
        rows.append(fields)
    _drop_unfit(typed.struct, rows, 0, len(rows), reasons)
    return pa.array(rows, typed.struct)


def _drop_unfit(
    struct: pa.StructType, rows: list[Fields | None], start: int, end: int, reasons: dict[int, str]
) -> None:
    """Make rows null that pyarrow does not take, each half of a run that it refuses by itself."""
    try:
        pa.array(rows[start:end], struct)
    except Exception as error:
        if end - start > 1:
            middle = (start + end) // 2
            _drop_unfit(struct, rows, start, middle, reasons)
            _drop_unfit(struct, rows, middle, end, reasons)
            return
        reasons[start] = _culprit(struct, rows[start] or {}) or _reason(error)
        rows[start] = None


def _culprit(struct: pa.StructType, fields: Fields) -> str | None:
    for one in struct:
        try:
            pa.array([fields.get(one.name)], one.type)
        except Exception as error:
            return f"{one.name}: {_reason(error)}"
    return None


def _reason(error: Exception) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
