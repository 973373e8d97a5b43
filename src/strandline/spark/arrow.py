"""Records as Arrow record batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.client import arrow
from strandline.proto.errors import ConfigError, StrandlineError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from strandline.log.columns import RecordColumns

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
"""Spark's timestamps are microseconds in 64 bits; a record's are milliseconds, and the producer's to choose."""


class TimeOutOfRange(StrandlineError):
    """A record's timestamp is none that Spark's type can hold. Spark's own source ends in "long overflow" there."""


COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns of Spark's own Kafka source with their types, in its order; `headers` with includeHeaders alone."""


def read_schema(include_headers: bool) -> str:
    """The DDL of a read: the columns, names and types of Spark's own Kafka source.

    TIMESTAMP alone would be what `spark.sql.timestampType` says, and a time without a zone is not when a record came.
    """
    return _columns(include_headers).replace(" timestamp,", " timestamp_ltz,")


def _columns(include_headers: bool) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "headers" or include_headers)


def check_schema(schema: StructType, include_headers: bool) -> None:
    """Refuse a schema of one's own, as Spark's own source does: the columns that it left out would be missed later.

    Raises:
        ConfigError: says the columns that there are.
    """
    given = ", ".join(f"{item.name} {item.dataType.simpleString()}" for item in schema.fields)
    fixed = _columns(include_headers)
    if given != fixed:
        raise ConfigError("schema", given, f"none of one's own; select from the columns that there are: {fixed}")


def to_arrow(
    topic: str, partition: int, columns: RecordColumns, timestamp_type: int, schema: pa.Schema
) -> pa.RecordBatch:
    """One Arrow batch of records of one partition, on the very buffers of `columns`.

    Args:
        schema: the Arrow form of `read_schema` as Spark expects it (timestamps in microseconds, UTC).

    Raises:
        TimeOutOfRange: names the first record whose timestamp is too large or too small.
    """
    count = columns.rows
    arrays: list[Any] = [
        arrow.keys(columns),
        arrow.values(columns),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        arrow.numbers(pa.int64(), count, columns.offsets),
        _microseconds(topic, partition, columns, schema.field("timestamp").type),
        pa.repeat(pa.scalar(timestamp_type, pa.int32()), count),
    ]
    if "headers" in schema.names:
        arrays.append(arrow.headers(columns, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _microseconds(topic: str, partition: int, columns: RecordColumns, kind: pa.DataType) -> pa.Array:
    milliseconds = arrow.numbers(pa.timestamp("ms", "UTC"), columns.rows, columns.timestamps)
    try:
        return milliseconds.cast(kind)
    except pa.ArrowInvalid:
        offsets, times = (memoryview(buffer).cast("q") for buffer in (columns.offsets, columns.timestamps))
        offset, time_ms = next(each for each in zip(offsets, times, strict=True) if abs(each[1]) > TIMESTAMP_MS_MAX)
        raise TimeOutOfRange(
            f"{topic}-{partition}, offset {offset}: a timestamp of {time_ms} ms since 1970, and Spark's type holds at "
            f"most {TIMESTAMP_MS_MAX}. Its producer has set it. A batch that begins at offset {offset + 1} does "
            f"without it; a query does with failOnDataLoss=false, once the records before that offset are deleted"
        ) from None
