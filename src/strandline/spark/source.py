"""`spark.read.format("strandline")`: committed records of Strandline or Apache Kafka, without a JVM connector.

    df = (spark.read.format("strandline")
          .option("kafka.bootstrap.servers", "127.0.0.1:9092")
          .option("subscribe", "orders")
          .load())

Spark finds the format by itself when the package is installed (module `pyspark_strandline`); where
it does not look, `spark.dataSource.register(StrandlineDataSource)` does it.

What pickles: the data source (its options) travels to the planning process, the reader and its ranges to the executors.
Neither holds a connection; each task opens its own, straight to the leader.

Spark starts a new Python for each streaming query and for many of its questions. So this module imports no client at
its top: a process that checks options, plans, reads or writes pays for its own part alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from strandline.spark.arrow import check_schema, read_schema
from strandline.spark.options import SourceOptions, parse_options
from strandline.spark.planner import Narrowing, plan
from strandline.spark.reader import RangePartition, read_range
from strandline.spark.stream_source import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from strandline.spark.sink import BatchSink, StreamSink


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
        """A batch read with its options checked. Raises ConfigError."""
        options = parse_options(self.options)
        check_schema(schema, options.include_headers)
        return FilteringReader(options, schema) if options.push_filters else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """A streaming read with its options checked. Raises ConfigError."""
        options = parse_options(self.options, streaming=True)
        check_schema(schema, options.include_headers)
        return StreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """The sink of a streaming query; output mode "complete" appends its rows, as Spark's own Kafka sink."""
        from strandline.spark.sink import stream_sink

        return stream_sink(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """The sink of a batch write."""
        from strandline.spark.sink import batch_sink

        return batch_sink(dict(self.options), schema, overwrite)


class BatchReader(DataSourceReader):
    """Plans once on the driver, then reads range by range on the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrow: Narrowing | None = None

    def partitions(self) -> list[InputPartition]:
        """The ranges, with their ends fixed at the end of what may be read at this moment.

        Raises:
            ConfigError, DataLossError: see `strandline.spark.planner.plan`.
        """
        from strandline.spark.lookup import ClusterOffsets

        with ClusterOffsets(self._options.bootstrap, self._options.client_settings) as lookup:
            return [RangePartition(part) for part in plan(self._options, lookup, self._narrow)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range, in the order of offsets.

        Raises:
            OffsetOutOfRange: records were deleted after planning, with failOnDataLoss.
        """
        if not isinstance(partition, RangePartition):
            return  # Spark's stand-in for a plan without ranges
        yield from read_range(self._options, partition.range, self._schema)


class FilteringReader(BatchReader):
    """A batch read whose plan is shortened by filters. A class of its own: Spark refuses it where the push is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what the filters say of offsets; Spark applies all of them again."""
        from strandline.spark.filters import narrowing

        self._narrow = narrowing(filters)
        return filters
