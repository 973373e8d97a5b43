"""`df.write` and `writeStream` with format("strandline"): each row once per (query, epoch, task).

With `transactions` the driver decides which tasks' transactions are the epoch, and ends them:
`strandline.spark.epochs`.

A task notes in the ledger who writes and from where on, then sends its rows and waits until all are acknowledged by
every in-sync replica. A task that is repeated (a killed executor, a driver that starts anew from its checkpoint)
leaves out the rows that lie in the log already: see `strandline.spark.ledger`, `writing` and `repeats`, and
docs/spark.md for what is promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.client import Admin
from strandline.client.prepared import end_prepared
from strandline.proto.system import system_rng
from strandline.spark.epochs import Decision, Epoch
from strandline.spark.handover import BATCH_ID, QUERY_ID, RUN_ID, read_notes
from strandline.spark.ledger import Attempt, TaskKey
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
        """Every task has written its rows: commit their transactions, if there are any, and note that the epoch is
        whole.

        Raises:
            SinkError: a transaction of a task was aborted meanwhile.
        """
        reports = _reports(messages)
        if self._options.transactions:
            commit_transactions(self._options, reports)
        elif any(report.sent or report.found for report in reports):
            with Connections(self._options) as connections:
                connections.ledger.committed(connections.producer, reports[0].query, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed for good: abort the transactions of the others."""
        if self._options.transactions:
            abort_transactions(self._options, _reports(messages))


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

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task has written its rows: commit their transactions, if there are any. Raises SinkError."""
        if self._options.transactions:
            commit_transactions(self._options, _reports(messages), self._ledger_floor)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good: abort every transaction of this write."""
        if self._options.transactions:
            abort_transactions(self._options, [TaskReport(self._job, 0, 0, 0, 0, self._job)], self._ledger_floor)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


def commit_transactions(options: SinkOptions, reports: Sequence[TaskReport], floor: int = 0) -> None:
    """Decide an epoch, unless an earlier run has, and commit its transactions; abort those of all other attempts.

    Raises:
        SinkError: a transaction was ended otherwise: the epoch is not whole, and is run again.
        Superseded: another run of the query has this epoch.
    """
    if not reports:
        return
    query, number, run = reports[0].query, reports[0].epoch, reports[0].run
    with Connections(options) as connections:
        ledger, admin, producer = connections.ledger, connections.admin, connections.producer
        ledger.ensure()
        epoch = Epoch.of(ledger.entries(query, number, floor))
        names = sorted(report.attempt for report in reports if report.attempt)
        if epoch.decision is None and names:
            _check_open(admin, [epoch.attempts[name] for name in names])
            end = ledger.decided(producer, query, number, run, names)
            epoch = Epoch.of(ledger.entries(query, number, floor, end))
            if epoch.decision is None or epoch.decision.attempts != tuple(names):
                raise Superseded(f"query {query}, epoch {number}: a newer run of the query has begun this epoch")
        if epoch.decision is not None:
            _carry_out(connections, query, number, epoch, epoch.decision)
        if epoch.attempts:
            ledger.committed(producer, query, number)


def abort_transactions(options: SinkOptions, reports: Sequence[TaskReport], floor: int = 0) -> None:
    """Abort the transactions of an epoch that has failed. One that is decided is left to the next run."""
    if not reports:
        return
    query, number, run = reports[0].query, reports[0].epoch, reports[0].run
    with Connections(options) as connections:
        connections.ledger.ensure()
        epoch = Epoch.of(connections.ledger.entries(query, number, floor))
        if epoch.decision is None and epoch.runs[-1:] == (run,) and (ids := epoch.open()):
            connections.admin.fence_producers(sorted(ids))


def _carry_out(connections: Connections, query: str, number: int, epoch: Epoch, decision: Decision) -> None:
    ledger, admin = connections.ledger, connections.admin
    names = {each.prepared: name for name in decision.attempts if (each := epoch.attempts[name]).prepared is not None}
    ended = admin.wait(partial(end_prepared, admin.session, admin.config, names, committed=True))
    others = epoch.open()
    if others:
        admin.fence_producers(sorted(others))  # rule C24/transactions-of-losers-stay-open
    lost = {names[transaction]: error for transaction, error in ended.items() if error is not None}
    if lost:
        # rule C24/torn-epoch-is-whole
        ledger.torn(connections.producer, query, number, decision.offset, sorted(lost))
        raise SinkError(
            f"query {query}, epoch {number}: {len(lost)} of {len(ended)} transactions were aborted before this driver, "
            f"or the one before it, could commit them: they were open for longer than transaction.timeout.ms="
            f"{connections.options.producer_settings['transaction.timeout.ms']}, or an operator ended them "
            f"({next(iter(lost.values()))}). Start the query again: it writes what is missing"
        )


def _check_open(admin: Admin, attempts: Sequence[Attempt]) -> None:
    """Check that all transactions which are to be decided are still open, before any is committed. Raises SinkError if
    one has ended."""
    described = admin.describe_transactions([each.transaction for each in attempts])
    for each in attempts:
        now = described[each.transaction]
        told = (now.transactional_id, now.producer_id, now.producer_epoch)
        if now.state != "Ongoing" or each.prepared is None or told != each.prepared[:3]:
            raise SinkError(
                f"the transaction of task {each.task} ({each.transaction}) is over, and nothing of this epoch is "
                f"committed: it was open for longer than its transaction.timeout.ms={now.timeout_ms}, an operator has "
                f"ended it, or another run of the query has begun. Shorter epochs (maxOffsetsPerTrigger), or a longer "
                f"time-out here and on the brokers (transaction.max.timeout.ms), mend it"
            )


def stream_sink(options: dict[str, str], schema: StructType) -> StreamSink:
    """The sink of `writeStream`. Raises ConfigError."""
    return StreamSink(parse_sink_options(options), schema)


def batch_sink(options: dict[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """The sink of `write`. Raises ConfigError, SinkError."""
    return BatchSink(parse_sink_options(options), schema, overwrite)
