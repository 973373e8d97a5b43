"""Records as Arrow record batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from strandline.client import ConsumerRecord

COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
HEADERS_COLUMN = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def read_schema(include_headers: bool) -> str:
    """The DDL of a read: the columns, names and types of Spark's own Kafka source."""
    return f"{COLUMNS}, {HEADERS_COLUMN}" if include_headers else COLUMNS


def to_arrow(
    topic: str,
    partition: int,
    records: Sequence[ConsumerRecord],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """One Arrow batch of records of one partition.

    Args:
        schema: the Arrow form of `read_schema` as Spark expects it (timestamps in microseconds, UTC).
    """
    count = len(records)
    columns: list[Any] = [
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.timestamp_ms * 1000 for record in records], pa.int64()).cast(schema.field("timestamp").type),
        pa.array([record.timestamp_type for record in records], pa.int32()),
    ]
    if "headers" in schema.names:
        # Spark's source gives null, not an empty list, where a record has no headers.
        headers = [
            [{"key": key, "value": value} for key, value in record.headers] if record.headers else None
            for record in records
        ]
        columns.append(pa.array(headers, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
