"""`df.write` and `writeStream` with format("strandline"): each row once per (query, epoch, task).

A task notes in the ledger who writes and from where on, then sends its rows and waits until all are acknowledged by
every in-sync replica. A task that is repeated (a killed executor, a driver that starts anew from its checkpoint) leaves
out the rows that lie in the log already: see `strandline.spark.ledger`, and docs/spark.md for what may repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.client import Ack, Admin, Producer
from strandline.client.types import LATEST
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.system import system_rng
from strandline.spark.ledger import Ledger, TaskKey, Written, find_written, row_digest
from strandline.spark.sink_options import SinkOptions, check_columns, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark gives the tasks of a streaming query."""


class SinkError(StrandlineError):
    """A row cannot be written, or was not acknowledged. Records before it may lie in the log; see the ledger's rule.

    The error of a task names query, epoch and task; its cause is the client's own error, where there is one.
    """


@dataclass
class TaskReport(WriterCommitMessage):
    """What one task did: rows sent, and rows that an earlier run of it had written."""

    query: str
    epoch: int
    task: int
    sent: int
    found: int


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task of a micro-batch. Raises as `write_rows`."""
        context = TaskContext.get()
        assert context is not None
        query, epoch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or epoch is None:
            raise SinkError(f"Spark gives this task no {_QUERY_ID} and {_BATCH_ID}: not the task of a streaming query")
        return write_rows(self._options, TaskKey(query, int(epoch), context.partitionId()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has written its rows: note that the epoch is whole."""
        reports = [message for message in messages if isinstance(message, TaskReport)]
        if any(report.sent or report.found for report in reports):
            with _Connections(self._options) as connections:
                connections.ledger.committed(connections.producer, reports[0].query, batchId)


class BatchSink(DataSourceArrowWriter):
    """The sink of a batch write: its tasks may be repeated, another `save` writes its rows again."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_columns(schema, options)
        if overwrite:
            raise SinkError('a log is written at its end alone: use mode("append")')
        self._options = options
        self._job = f"batch-{system_rng().getrandbits(64):016x}"
        with _Connections(options) as connections:
            connections.ledger.ensure()
            self._ledger_floor = connections.ledger.end()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task. Raises as `write_rows`."""
        context = TaskContext.get()
        assert context is not None
        return write_rows(self._options, TaskKey(self._job, 0, context.partitionId()), iterator, self._ledger_floor)


def stream_sink(options: dict[str, str], schema: StructType) -> StreamSink:
    """The sink of `writeStream`. Raises ConfigError."""
    return StreamSink(parse_sink_options(options), schema)


def batch_sink(options: dict[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """The sink of `write`. Raises ConfigError, SinkError."""
    return BatchSink(parse_sink_options(options), schema, overwrite)


class _Connections:
    """A task's producer, admin client and ledger; closed together."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.admin = Admin(options.bootstrap, **options.admin_settings)
        self.producer = Producer(options.bootstrap, **options.producer_settings)
        self.ledger = Ledger(options.ledger_topic, options.bootstrap, options.reader_settings, self.admin)

    def __enter__(self) -> _Connections:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.producer.close()
        finally:
            self.admin.close()


def write_rows(
    options: SinkOptions, key: TaskKey, batches: Iterator[pa.RecordBatch], ledger_floor: int = 0
) -> TaskReport:
    """Write the rows that no earlier run of this task has written; returns once all are acknowledged.

    Args:
        ledger_floor: the ledger's entries before this offset are of no concern.

    Raises:
        SinkError: a row that cannot be written (no topic, or one that does not exist, a partition that it has not, too
            large), a record that was not acknowledged, or brokers that cannot be reached.
    """
    report = TaskReport(*key, sent=0, found=0)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return report
    try:
        _write(options, report, itertools.chain([first], batches), ledger_floor)
    except StrandlineError as error:
        raise SinkError(
            f"query {key.query}, epoch {key.epoch}, task {key.task}: {error}. The batch fails; started again, it "
            f"writes what is missing."
        ) from error
    return report


def _write(options: SinkOptions, report: TaskReport, batches: Iterator[pa.RecordBatch], ledger_floor: int) -> None:
    key = TaskKey(report.query, report.epoch, report.task)
    with _Connections(options) as connections:
        connections.ledger.ensure()
        earlier = connections.ledger.earlier(key, ledger_floor)
        written = find_written(earlier, options.bootstrap, options.reader_settings, connections.admin)
        task = _Task(connections, key, written, report)
        for batch in batches:
            task.write(batch)
        task.finish()


class _Task:
    """One run of a task."""

    def __init__(self, connections: _Connections, key: TaskKey, written: Written, report: TaskReport) -> None:
        self._connections = connections
        self._producer = connections.producer
        self._topic = connections.options.topic
        self._key = key
        self._written = written
        self._report = report
        self._begun: set[str] = set()
        self._failure: BaseException | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Send one Arrow batch's rows."""
        self._raise_failure()
        count = batch.num_rows
        nothing = [None] * count
        columns = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
        keys, values = _bytes_of(columns.get("key"), count), _bytes_of(columns["value"], count)
        topics = [self._topic] * count if self._topic is not None else columns["topic"].to_pylist()
        partitions = columns["partition"].to_pylist() if "partition" in columns else nothing
        headers = (
            [_headers_of(told) for told in columns["headers"].to_pylist()] if "headers" in columns else [()] * count
        )
        for topic, key, value, partition, fields in zip(topics, keys, values, partitions, headers, strict=True):
            if topic is None:
                raise SinkError("a row has no topic: its column `topic` is null and the option `topic` is not set")
            if len(self._written) and self._written.take(row_digest(topic, key, value, fields), partition):
                self._report.found += 1
                continue
            if topic not in self._begun:
                self._begin(topic)
            future = self._producer.send(topic, value, key=key, partition=partition, headers=fields)
            future.add_done_callback(self._done)
            self._report.sent += 1

    def finish(self) -> None:
        """Wait until every record is acknowledged."""
        self._producer.flush()
        self._raise_failure()

    def _begin(self, topic: str) -> None:
        admin = self._connections.admin
        [described] = admin.describe_topics([topic])
        partitions = [TopicPartition(topic, index) for index in range(len(described.partitions))]
        ends = {item: listed.offset for item, listed in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()}
        self._connections.ledger.begin(self._producer, self._key, ends)
        self._begun.add(topic)

    def _done(self, future: Future[Ack]) -> None:
        error = future.exception()
        if error is not None and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise SinkError(f"a record was not acknowledged: {self._failure}") from self._failure


def _bytes_of(column: Any, count: int) -> list[bytes | None]:
    if column is None:
        return [None] * count
    import pyarrow as pa

    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def _headers_of(told: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    if not told:
        return ()
    if any(item is None or item["key"] is None for item in told):
        raise SinkError("a header has no name: an element of the column `headers`, or its `key`, is null")
    return tuple((item["key"], item["value"]) for item in told)
