"""What a task of the sink does: note in the ledger who writes, leave out what is in the log, send the rest.

One attempt at a task, in the order that its promise hangs on:

1. It begins in the ledger: attempts that began before it stop when they come past its entry.
2. It looks for these. Are there any, it keeps its rows until it has seen the last one, waits until they have stopped,
   and reads what they have written.
3. It sends what is missing, and looks into the ledger meanwhile: where a newer attempt has begun, it stops.
4. It ends once every record is acknowledged by every in-sync replica.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from strandline.client import Ack, Admin, Producer
from strandline.client.errors import ClientTimeout
from strandline.client.types import LATEST
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock, system_rng
from strandline.spark.epochs import Epoch, records_of_transactions
from strandline.spark.ledger import Attempt, Entries, Ledger, LogRecord, TaskKey, attempts_of, records_of
from strandline.spark.repeats import Feed, Found, Row, RowsChanged, SinkError, Spool, may_share, same_rows
from strandline.spark.sink_options import SinkOptions
from strandline.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("strandline.spark")

_WATCH_MS = 250
"""Milliseconds between two checks of a sending attempt for newer attempts."""

_SETTLE_MS = 1_000
"""Milliseconds to wait for attempts of an earlier run: by then the requests of a killed one have reached the leader."""

_QUIET_MS = 10_000
"""Milliseconds to wait for an earlier attempt of the same run, unless it notes its end. It may still be running (a slow
one beside a speculative one, an executor cut off). This is forty times its interval of checks."""

PREFIX = "strandline-spark-"
"""Transactional ids of the sink begin with it."""

_AS_IT_BEGAN = "give the option `transactions` as it was then until this epoch is whole"

_LOOK_AGAIN_S = 0.2

_ROWS_PER_LOOK = 256
"""Rows between two looks at the clock."""


class Superseded(SinkError):
    """A newer attempt at this task has begun; this one has stopped, and the newer one writes what is missing."""


@dataclass
class TaskReport(WriterCommitMessage):
    """Report of a task: rows sent, and rows that an earlier run had written."""

    query: str
    epoch: int
    task: int
    sent: int
    found: int
    run: str = ""
    attempt: str = ""
    """The name under which its transaction stands in the ledger; empty: it has none."""


class Connections:
    """A task's producer, admin client and ledger; closed together."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.admin = Admin(options.bootstrap, **options.admin_settings)
        self.producer = Producer(options.bootstrap, **options.producer_settings)
        self.ledger = Ledger(options.ledger_topic, options.bootstrap, options.reader_settings, self.admin)

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.producer.close()
        finally:
            self.ledger.close()
            self.admin.close()


def write_rows(
    options: SinkOptions,
    key: TaskKey,
    batches: Iterator[pa.RecordBatch],
    ledger_floor: int = 0,
    feed: Feed = Feed(),  # noqa: B008 (frozen)
) -> TaskReport:
    """Write the rows that no earlier run of this task has written; returns once all are acknowledged.

    Args:
        ledger_floor: the ledger's entries before this offset are of no concern.
        feed: what is known of where the rows come from; by default the key alone says which they are.

    Raises:
        SinkError: a row that cannot be written (no topic, or one that does not exist, a partition that it has not, too
            large), a record that was not acknowledged, or brokers that cannot be reached.
        RowsChanged: the task is run again, and its rows are not those of its earlier runs.
        Superseded: a newer attempt has begun.
    """
    report = TaskReport(*key, sent=0, found=0, run=feed.run)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return report
    who = f"query {key.query}, epoch {key.epoch}, task {key.task}"
    try:
        with Connections(options) as connections:
            connections.ledger.ensure()
            kind = TransactionRun if options.transactions else TaskRun
            kind(connections, key, feed, report).write(first, batches, ledger_floor)
        settle()
    except (RowsChanged, Superseded) as error:
        raise type(error)(f"{who}: {error}") from error
    except StrandlineError as error:
        raise SinkError(f"{who}: {error}. The batch fails; started again, it writes what is missing.") from error
    return report


class TaskRun:
    """One attempt at a task."""

    def __init__(self, connections: Connections, key: TaskKey, feed: Feed, report: TaskReport) -> None:
        self._connections = connections
        self._producer = self._writer = connections.producer
        self._ledger = connections.ledger
        self._topic = connections.options.topic
        self._key = key
        self._feed = feed
        self._report = report
        self._clock = SystemClock()
        self._attempt = Attempt(f"{system_rng().getrandbits(64):016x}", feed.run, key.task, feed.notes())
        self._entries: Entries = ()
        """The ledger's, of this epoch, when this attempt had begun."""
        self._before: list[Attempt] = []
        """Attempts at tasks of this epoch that began before this one."""
        self._begun: set[str] = set()
        self._seen = 0
        """Offset up to which the ledger was searched for newer attempts."""
        self._looked_ms = self._begun_ms = 0.0
        self._sent: deque[Future[Ack]] = deque()
        """Records not yet seen acknowledged, in the order in which they were sent."""

    def write(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], ledger_floor: int) -> None:
        """All of the task."""
        rows = itertools.chain([first], batches)
        self._begin(self._topics_of(first), ledger_floor)
        try:
            if any(each.transaction for each in self._before):
                raise SinkError(f"an earlier run of this epoch wrote in transactions; {_AS_IT_BEGAN}")
            self._write(rows)
        except Superseded:
            with suppress(ClientTimeout):
                self._producer.close(0)  # what is not under way yet is the newer attempt's
            with Producer(self._connections.options.bootstrap, **self._connections.options.producer_settings) as other:
                self._note_end(other)
            raise
        except BaseException:
            if not self._has_failed():  # else the brokers may be out of reach
                self._note_end(self._producer)
            raise

    def _write(self, rows: Iterator[pa.RecordBatch]) -> None:
        if self._may_be_repeated():
            self._repeat(rows)
        else:
            for batch in rows:
                self._note_ranges()  # schedule 66/joined-range-not-in-the-ledger
                self._send(self._rows(batch))
        self._finish()

    # -- the ledger ---------------------------------------------------------------------------------------------------

    def _begin(self, topics: Iterable[str], ledger_floor: int) -> None:
        end = self._say(topics)
        self._begun_ms = self._clock.monotonic_ms()
        self._entries = self._ledger.entries(self._key.query, self._key.epoch, ledger_floor, end)
        attempts = attempts_of(self._entries)
        mine = next((each for each in attempts if each.name == self._attempt.name), None)
        if mine is None:
            raise SinkError("the ledger does not show the entry of this attempt yet, which its leader has acknowledged")
        self._before = [each for each in attempts if each.offset < mine.offset]
        self._seen = mine.offset + 1

    def _say(self, topics: Iterable[str]) -> int:
        """An entry: who writes, fed by what, and where the partitions of topics not yet written to end."""
        new = sorted(set(topics) - self._begun)
        admin = self._connections.admin
        described = admin.describe_topics(new) if new else []
        partitions = [
            TopicPartition(topic.name, index) for topic in described for index in range(len(topic.partitions))
        ]
        ends = {item: listed.offset for item, listed in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()}
        ids = {topic.name: str(topic.topic_id) for topic in described if topic.topic_id is not None}
        end = self._ledger.begin(self._producer, self._key, self._attempt, ends, ids)
        self._begun.update(new)
        return end

    def _note_ranges(self) -> None:
        """One task may read several ranges, one after the other (coalesce): before rows of the next one are sent, the
        ledger says so."""
        fed, known = self._feed.notes(), self._attempt.fed
        if fed is None or (known is not None and fed.ranges == known.ranges):
            return
        self._attempt.fed = fed
        if self._may_be_repeated():
            raise SinkError("an earlier run has begun to write a range that comes to this task behind others")
        self._say(())

    def _note_end(self, producer: Producer) -> None:
        try:
            producer.flush()
            self._ledger.ended(producer, self._key, self._attempt)
        except StrandlineError as error:
            _log.warning("the end of an attempt was not noted (%s): the next one waits up to %s ms", error, _QUIET_MS)

    def _watch(self) -> None:
        """Stop if a newer attempt has begun."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < _WATCH_MS:
            return
        entries, self._seen = self._ledger.since(self._key.query, self._seen)
        self._looked_ms = self._clock.monotonic_ms()
        older = {each.name for each in self._before} | {self._attempt.name}
        for entry in entries:
            later = entry["epoch"] > self._key.epoch
            whole = entry["epoch"] == self._key.epoch and ("committed" in entry or "decided" in entry)
            begun = entry["epoch"] == self._key.epoch and entry.get("attempt", self._attempt.name) not in older
            # schedule 66/older-attempt-goes-on
            if later or whole or (begun and self._concerns(entry["run"], entry["task"])):
                raise Superseded("a newer attempt has begun and writes what is missing; this one has stopped")

    def _concerns(self, run: str, task: int) -> bool:
        """Whether of two attempts in one epoch the older one gives way: another run replaces every task of the last."""
        return run != self._feed.run or task == self._key.task

    # -- a task that is run again -------------------------------------------------------------------------------------

    def _may_be_repeated(self) -> bool:
        """Whether rows of this task may be in the log, by what is known of it before its rows have been read."""
        return any(
            each.task == self._key.task if each.run == self._feed.run else may_share(each, self._attempt)
            for each in self._before
        )

    def _repeat(self, batches: Iterator[pa.RecordBatch]) -> None:
        options, run = self._connections.options, self._feed.run
        spool = Spool(batches)
        try:
            fed, known = self._feed.notes(), self._attempt.fed
            self._attempt.fed = fed
            if fed is not None and (known is None or fed.ranges != known.ranges):
                self._say(())
            tolerated = not (self._feed.strict and options.fail_on_repeats)
            own = [each for each in self._before if same_rows(each, self._attempt, tolerated=tolerated)]
            # What fed them is not known, or feeds this task too: a union of one stream with itself, or other tasks.
            others = [
                each for each in self._before if each.run != run and each not in own and may_share(each, self._attempt)
            ]
            self._wait_for([*own, *others])
            found = Found(self._records([*own, *others]), own)
            missing = [bytes(not found.has(row) for row in self._rows(batch)) for batch in spool.batches()]
            # schedule 66/rows-are-sent-before-the-last-is-seen
            found.judge(lost=fed is not None and fed.lost, tolerated=tolerated)
            self._report.found = found.found
            for batch, wanted in zip(spool.batches(), missing, strict=True):
                self._send(itertools.compress(self._rows(batch), wanted))
        finally:
            spool.close()

    def _records(self, attempts: Sequence[Attempt]) -> Iterator[LogRecord]:
        """Records that these attempts have written."""
        options = self._connections.options
        return records_of(attempts, options.bootstrap, options.reader_settings, self._connections.admin)

    def _wait_for(self, attempts: Sequence[Attempt]) -> None:
        """Return once these attempts write no more, by their own word or by the time since this one has begun."""
        going_on = {each.name: each.run for each in attempts if not each.ended}
        seen, pause = self._seen, threading.Event()
        while going_on:
            perhaps_alive = self._feed.run != "" and self._feed.run in going_on.values()
            if self._clock.monotonic_ms() - self._begun_ms >= (_QUIET_MS if perhaps_alive else _SETTLE_MS):
                return
            pause.wait(_LOOK_AGAIN_S)
            entries, seen = self._ledger.since(self._key.query, seen)
            for entry in entries:
                if entry.get("ended"):
                    going_on.pop(entry["attempt"], None)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _topics_of(self, batch: pa.RecordBatch) -> set[str]:
        return {self._topic} if self._topic is not None else {row.topic for row in self._rows(batch)}

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        return rows_of(batch, self._topic)

    def _send(self, rows: Iterable[Row]) -> None:
        send, sent, begun = self._writer.send, self._sent, self._begun
        for number, (topic, key, value, partition, headers) in enumerate(rows):
            if number % _ROWS_PER_LOOK == 0:
                self._look_at_acks()
                # In a transaction before its first record, too: an id that the driver has fenced may be in use again.
                self._watch()  # rule C24/decided-epoch-gets-a-transaction
            if topic not in begun:
                self._say([topic])
            sent.append(send(topic, value, key=key, partition=partition, headers=headers))
            self._report.sent += 1

    def _finish(self) -> None:
        """Wait until every record is acknowledged."""
        while True:
            try:
                self._writer.flush(_WATCH_MS / 1000)
                break
            except ClientTimeout:
                self._watch()
        self._look_at_acks()

    def _look_at_acks(self) -> None:
        """Forget the records that are acknowledged, from the oldest on. Raises SinkError: one was not.

        A callback of each future would cost more than sending the record."""
        sent = self._sent
        while sent and sent[0].done():
            error = sent[0].exception()
            if error is not None:
                raise SinkError(f"a record was not acknowledged: {error}") from error
            sent.popleft()

    def _has_failed(self) -> bool:
        """Whether some record is known not to be acknowledged."""
        return any(future.done() and future.exception() is not None for future in self._sent)


class TransactionRun(TaskRun):
    """One attempt at a task, in a transaction of its own, which it leaves open: the driver ends it.

    Its transactional.id names the query, the task and the number of the attempt in Spark: ids are few, and no attempt
    of a run aborts another one's transaction. An attempt of an earlier run may have the same id, and is aborted as this
    one begins: its epoch is not decided.
    """

    def __init__(self, connections: Connections, key: TaskKey, feed: Feed, report: TaskReport) -> None:
        super().__init__(connections, key, feed, report)
        self._attempt.transaction = f"{PREFIX}{key.query}-{key.task}-{_number_of_the_attempt()}"
        self._runs: Collection[str] = ()
        self._ends: dict[TopicPartition, int] = {}
        self._untold: set[TopicPartition] = set()
        """Partitions of which a broker has not said where a record lies: it came to it twice."""
        self._let_go = False

    def write(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], ledger_floor: int) -> None:
        """All of the task."""
        rows = itertools.chain([first], batches)
        self._begin(self._topics_of(first), ledger_floor)
        try:
            if not all(each.transaction for each in self._before):
                raise SinkError(f"an earlier run of this epoch wrote outside of transactions; {_AS_IT_BEGAN}")
            epoch = Epoch.of(self._entries)
            self._runs = epoch.runs
            if epoch.runs[-1] != self._feed.run:
                raise Superseded("a newer run of the query has begun this epoch; this attempt has written nothing")
            if any(each.transaction == self._attempt.transaction for each in self._rivals()):
                raise SinkError(
                    f"an attempt of an earlier try at this stage may write under {self._attempt.transaction}; the next "
                    f"attempt has another number"
                )
            if epoch.decision is None:  # rule C24/decided-epoch-is-written-again
                self._before = epoch.kept()
                self._in_transaction(rows)
            else:
                self._report.found = sum(batch.num_rows for batch in rows)
            if not self._report.attempt:
                self._note_end(self._producer)
        except BaseException:
            if not self._let_go and self._writer is self._producer:
                self._note_end(self._producer)
            raise

    def _rivals(self) -> list[Attempt]:
        """Attempts of this run that began before this one, and may go on."""
        return [each for each in self._before if each.run == self._feed.run and not each.ended]

    def _in_transaction(self, rows: Iterator[pa.RecordBatch]) -> None:
        options = self._connections.options
        settings = {**options.producer_settings, "transactional.id": self._attempt.transaction}
        writer = self._writer = Producer(options.bootstrap, **settings)
        try:
            writer.begin_transaction()
            self._write(rows)
            if self._report.sent:
                prepared = writer.prepare_transaction()
                self._let_go = True
                self._ledger.prepared(self._producer, self._key, self._attempt, prepared, self._where_it_ends())
                self._report.attempt = self._attempt.name
        finally:
            writer.close()  # aborts what was not let go of
            self._writer = self._producer

    def _concerns(self, run: str, task: int) -> bool:
        """Another run replaces every task of the last; of two attempts of one run the driver takes one."""
        return run not in self._runs

    def _look_at_acks(self) -> None:
        sent, ends = self._sent, self._ends
        while sent and sent[0].done():
            error = sent[0].exception()
            if error is not None:
                raise SinkError(f"a record was not acknowledged: {error}") from error
            ack = sent.popleft().result()
            partition = TopicPartition(ack.topic, ack.partition)
            if ack.offset < 0:
                self._untold.add(partition)
            ends[partition] = max(ack.offset + 1, ends.get(partition, 0))

    def _where_it_ends(self) -> dict[TopicPartition, int]:
        if self._untold:
            listed = self._connections.admin.list_offsets(dict.fromkeys(self._untold, LATEST))
            return self._ends | {partition: one.offset for partition, one in listed.items()}
        return self._ends

    def _records(self, attempts: Sequence[Attempt]) -> Iterator[LogRecord]:
        return records_of_transactions(
            attempts, self._connections.options.bootstrap, self._connections.options.reader_settings
        )


def _number_of_the_attempt() -> str:
    """Its number among the attempts at its task in this attempt at its stage: Spark tells Python no other."""
    context = TaskContext.get()
    return "0" if context is None else str(context.attemptNumber())


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """The rows of an Arrow batch, as they are written; `topic` stands for the column of that name.

    Raises:
        SinkError: a row has no topic, or a header no name.
    """
    count = batch.num_rows
    nothing = [None] * count
    columns = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
    keys, values = _bytes_of(columns.get("key"), count), _bytes_of(columns["value"], count)
    topics = [topic] * count if topic is not None else columns["topic"].to_pylist()
    partitions = columns["partition"].to_pylist() if "partition" in columns else nothing
    headers = [_headers_of(told) for told in columns["headers"].to_pylist()] if "headers" in columns else [()] * count
    for name, key, value, partition, fields in zip(topics, keys, values, partitions, headers, strict=True):
        if name is None:
            raise SinkError("a row has no topic: its column `topic` is null and the option `topic` is not set")
        yield Row(name, key, value, partition, fields)


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
