"""`df.write` and `writeStream` with format("strandline"): each row once per (query, epoch, task).

A task notes in the ledger who writes and from where on, then sends its rows and waits until all are acknowledged by
every in-sync replica. A task that is repeated (a killed executor, a driver that starts anew from its checkpoint) leaves
out the rows that lie in the log already: see `strandline.spark.ledger`, `writing` and `repeats`, and docs/spark.md for
what is promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.proto.system import system_rng
from strandline.spark.handover import BATCH_ID, QUERY_ID, RUN_ID, read_notes
from strandline.spark.ledger import TaskKey
from strandline.spark.repeats import Feed, RowsChanged, SinkError
from strandline.spark.sink_options import SinkOptions, check_columns, parse_sink_options
from strandline.spark.writer import Connections, Superseded, TaskReport, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchSink", "RowsChanged", "SinkError", "StreamSink", "Superseded", "TaskReport", "write_rows"]


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task of a micro-batch. Raises as `write_rows`."""
        context = TaskContext.get()
        assert context is not None
        query, epoch, run = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
        if query is None or epoch is None or run is None:
            raise SinkError(
                f"Spark gives this task no {QUERY_ID}, {BATCH_ID} and {RUN_ID}: not the task of a streaming query"
            )
        key = TaskKey(query, int(epoch), context.partitionId())
        return write_rows(self._options, key, iterator, feed=Feed(run, strict=True, notes=read_notes))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has written its rows: note that the epoch is whole."""
        reports = [message for message in messages if isinstance(message, TaskReport)]
        if any(report.sent or report.found for report in reports):
            with Connections(self._options) as connections:
                connections.ledger.committed(connections.producer, reports[0].query, batchId)


class BatchSink(DataSourceArrowWriter):
    """The sink of a batch write: its tasks may be repeated, another `save` writes its rows again."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_columns(schema, options)
        if overwrite:
            raise SinkError('a log is written at its end alone: use mode("append")')
        self._options = options
        self._job = f"batch-{system_rng().getrandbits(64):016x}"
        with Connections(options) as connections:
            connections.ledger.ensure()
            self._ledger_floor = connections.ledger.end()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task. Raises as `write_rows`."""
        context = TaskContext.get()
        assert context is not None
        key = TaskKey(self._job, 0, context.partitionId())
        return write_rows(self._options, key, iterator, self._ledger_floor, Feed(self._job, strict=True))


def stream_sink(options: dict[str, str], schema: StructType) -> StreamSink:
    """The sink of `writeStream`. Raises ConfigError."""
    return StreamSink(parse_sink_options(options), schema)


def batch_sink(options: dict[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """The sink of `write`. Raises ConfigError, SinkError."""
    return BatchSink(parse_sink_options(options), schema, overwrite)
