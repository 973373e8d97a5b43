"""Records as Arrow record batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from strandline.log.columns import RecordColumns

COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
HEADERS_COLUMN = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def read_schema(include_headers: bool) -> str:
    """The DDL of a read: the columns, names and types of Spark's own Kafka source."""
    return f"{COLUMNS}, {HEADERS_COLUMN}" if include_headers else COLUMNS


def to_arrow(
    topic: str, partition: int, columns: RecordColumns, timestamp_type: int, schema: pa.Schema
) -> pa.RecordBatch:
    """One Arrow batch of records of one partition, on the very buffers of `columns`.

    Args:
        schema: the Arrow form of `read_schema` as Spark expects it (timestamps in microseconds, UTC).
    """
    count = columns.rows
    milliseconds = pa.Array.from_buffers(pa.timestamp("ms", "UTC"), count, _buffers(None, columns.timestamps))
    arrays: list[Any] = [
        pa.Array.from_buffers(pa.binary(), count, _buffers(columns.key_valid, columns.key_ends, columns.keys)),
        pa.Array.from_buffers(pa.binary(), count, _buffers(columns.value_valid, columns.value_ends, columns.values)),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.Array.from_buffers(pa.int64(), count, _buffers(None, columns.offsets)),
        milliseconds.cast(schema.field("timestamp").type),
        pa.repeat(pa.scalar(timestamp_type, pa.int32()), count),
    ]
    if "headers" in schema.names:
        arrays.append(_headers(columns, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(columns: RecordColumns, kind: pa.DataType) -> pa.Array:
    """Spark's source gives null, not an empty list, where a record has no headers."""
    count = columns.header_count
    names = pa.Array.from_buffers(pa.string(), count, _buffers(None, columns.name_ends, columns.names))
    contents = pa.Array.from_buffers(
        pa.binary(), count, _buffers(columns.header_valid, columns.header_ends, columns.headers)
    )
    pairs = pa.StructArray.from_arrays([names, contents], fields=list(kind.value_type))
    return pa.Array.from_buffers(kind, columns.rows, _buffers(columns.list_valid, columns.list_ends), children=[pairs])


def _buffers(*given: bytearray | None) -> list[pa.Buffer | None]:
    return [None if item is None else pa.py_buffer(item) for item in given]
