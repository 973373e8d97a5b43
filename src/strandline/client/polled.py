"""Records that a consumer has polled as columns: one table, without a Python object for each record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from strandline.client.types import OffsetAndMetadata
from strandline.log.columns import RecordColumns
from strandline.proto.errors import MissingExtra
from strandline.proto.ids import TopicPartition

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

PART_BYTES_MAX = 64 << 20
"""Bytes of keys, values and headers at which a part gets no further batch. Compressed batches may unpack to much more
than was fetched."""


class Place(NamedTuple):
    """Place of a record in the log of its partition."""

    topic: str
    partition: int
    offset: int


class Part(NamedTuple):
    """Records of one partition, one after the other, of one timestamp type and leader epoch."""

    partition: TopicPartition
    timestamp_type: int
    leader_epoch: int
    columns: RecordColumns

    @property
    def first(self) -> Place:
        """Place of its first record."""
        return Place(*self.partition, int(memoryview(self.columns.offsets).cast("q")[0]))

    @property
    def behind(self) -> OffsetAndMetadata:
        """Offset to be committed once its records are done."""
        return OffsetAndMetadata(self.columns.last_offset + 1, "", self.leader_epoch)


class PolledRecords:
    """Records of one poll, by partition and in order. False if there is none.

    `to_arrow` and `to_pandas` lay a table over the bytes that were decoded once: columns topic, partition, offset,
    timestamp (milliseconds, UTC), timestamp_type, leader_epoch, key, value, and headers, which are null for a record
    without any; else as in ConsumerRecord.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(part.columns.rows for part in self.parts)

    def to_arrow(self) -> pa.Table:
        """The records as a table of pyarrow. Raises MissingExtra."""
        try:
            import pyarrow as pa

            from strandline.client import arrow
        except ImportError as error:
            raise MissingExtra.of("to_arrow", "arrow", error) from error
        pairs = pa.list_(pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]))
        schema = pa.schema(
            {
                "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
                "timestamp": pa.timestamp("ms", "UTC"), "timestamp_type": pa.int32(), "leader_epoch": pa.int32(),
                "key": pa.binary(), "value": pa.binary(), "headers": pairs,
            }
        )  # fmt: skip
        batches = []
        for (topic, partition), timestamp_type, leader_epoch, columns in self.parts:
            rows = columns.rows
            arrays = [
                pa.repeat(pa.scalar(topic, pa.string()), rows),
                pa.repeat(pa.scalar(partition, pa.int32()), rows),
                arrow.numbers(pa.int64(), rows, columns.offsets),
                arrow.numbers(pa.timestamp("ms", "UTC"), rows, columns.timestamps),
                pa.repeat(pa.scalar(timestamp_type, pa.int32()), rows),
                pa.repeat(pa.scalar(leader_epoch, pa.int32()), rows),
                arrow.keys(columns),
                arrow.values(columns),
                arrow.headers(columns, pairs),
            ]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema=schema)

    def to_pandas(self) -> pd.DataFrame:
        """The records as a data frame whose columns stay Arrow's (`pandas.ArrowDtype`). Raises MissingExtra."""
        try:
            import pandas as pd
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingExtra.of("to_pandas", "pandas", error) from error
        return self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
