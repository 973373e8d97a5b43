"""`spark.read.format("strandline")`: committed records of Strandline or Apache Kafka, without a JVM connector.

    df = (spark.read.format("strandline")
          .option("kafka.bootstrap.servers", "127.0.0.1:9092")
          .option("subscribe", "orders")
          .load())

Spark finds the format by itself when the package is installed (module `pyspark_strandline`); where
it does not look, `spark.dataSource.register(StrandlineDataSource)` does it.

What pickles: the data source (its options) travels to the planning process, the reader and its ranges to the executors.
Neither holds a connection; each task opens its own, straight to the leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from strandline.client import ConsumerRecord
from strandline.client.errors import OffsetOutOfRange
from strandline.client.fetching import RangeReader
from strandline.proto.ids import TopicPartition
from strandline.spark.arrow import read_schema, to_arrow
from strandline.spark.lookup import ClusterOffsets
from strandline.spark.options import SourceOptions, parse_options
from strandline.spark.planner import OffsetRange, plan

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_ARROW_BATCH = 10_000
"""Spark's own spark.sql.execution.arrow.maxRecordsPerBatch."""

BYTES_PER_ARROW_BATCH = 16 * 1024 * 1024
"""Keys and values of one Arrow batch: bounds a task's memory where records are large."""


class RangePartition(InputPartition):
    """One task: a range of offsets of one partition."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__((part.partition.topic, part.partition.partition, part.start, part.end))

    @property
    def range(self) -> OffsetRange:
        """The range to read."""
        topic, partition, start, end = self.value
        return OffsetRange(TopicPartition(topic, partition), start, end)


class StrandlineDataSource(DataSource):
    """The data source; Spark makes one for each read, with the options as the user gave them."""

    @classmethod
    def name(cls) -> str:
        """The word after `format`."""
        return "strandline"

    def schema(self) -> str:
        """The columns of Spark's own Kafka source; `headers` where includeHeaders is set."""
        return read_schema(parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read with its options checked."""
        return BatchReader(parse_options(self.options), schema)


class BatchReader(DataSourceReader):
    """Plans once on the driver, then reads range by range on the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The ranges, with their ends fixed at the high watermark of this moment.

        Raises:
            ConfigError, DataLossError: see `strandline.spark.planner.plan`.
        """
        with ClusterOffsets(self._options.bootstrap, self._options.client_settings) as lookup:
            return [RangePartition(part) for part in plan(self._options, lookup)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range, in the order of offsets.

        Raises:
            OffsetOutOfRange: records were deleted after planning, with failOnDataLoss.
        """
        if not isinstance(partition, RangePartition):
            return  # Spark's stand-in for a plan without ranges
        yield from read_range(self._options, partition.range, self._schema)


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
