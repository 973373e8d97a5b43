"""What a task does: one range of offsets, fetched from its leader, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from strandline.client import ConsumerRecord
from strandline.client.errors import OffsetOutOfRange
from strandline.client.fetching import RangeReader
from strandline.proto.ids import TopicPartition
from strandline.spark.arrow import to_arrow
from strandline.spark.options import SourceOptions
from strandline.spark.planner import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_ARROW_BATCH = 10_000
"""Spark's own spark.sql.execution.arrow.maxRecordsPerBatch."""

BYTES_PER_ARROW_BATCH = 16 * 1024 * 1024
"""Keys and values of one Arrow batch: bounds a task's memory where records are large."""


class RangePartition(InputPartition):
    """One task: a range of offsets of one partition."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__((part.partition.topic, part.partition.partition, part.start, part.end, part.topic_id))

    @property
    def range(self) -> OffsetRange:
        """The range to read."""
        topic, partition, start, end, topic_id = self.value
        return OffsetRange(TopicPartition(topic, partition), start, end, topic_id)


def read_range(options: SourceOptions, part: OffsetRange, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Fetch a range from its leader as Arrow batches of bounded size."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    rows: list[ConsumerRecord] = []
    size = 0
    with RangeReader(options.bootstrap, **options.client_settings) as reader:
        for record in _records(reader, part, options.fail_on_data_loss):
            rows.append(record)
            size += len(record.key or b"") + len(record.value or b"")
            if len(rows) >= ROWS_PER_ARROW_BATCH or size >= BYTES_PER_ARROW_BATCH:
                yield to_arrow(*part.partition, rows, arrow_schema)
                rows, size = [], 0
    if rows:
        yield to_arrow(*part.partition, rows, arrow_schema)


def _records(reader: RangeReader, part: OffsetRange, fail_on_data_loss: bool) -> Iterator[ConsumerRecord]:
    """The records of a range; without failOnDataLoss, what was deleted since planning is left out."""
    position = part.start
    while position < part.end:
        try:
            for record in reader.read_records(*part.partition, start=position, end=part.end):
                yield record
                position = record.offset + 1
            return
        except OffsetOutOfRange as gone:
            if fail_on_data_loss:
                raise
            if gone.log_start <= position:
                return  # the log ends before the range: the topic was created anew
            position = gone.log_start
