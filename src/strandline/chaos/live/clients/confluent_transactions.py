"""librdkafka as part of the load, in transactions: writers, pipelines from one topic to another one with the offsets of
their group, and a reader of committed records."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from strandline.chaos.checkers.history import Commit, Partition, Poll, Send, Status, Transaction
from strandline.chaos.checkers.journal import Recorder
from strandline.chaos.live.clients.confluent import login_settings
from strandline.chaos.live.clients.foreign import ForeignClient, now_ms, run_process
from strandline.chaos.live.clients.options import (
    BILLS,
    FINAL_S,
    FLUSH_S,
    ORDERS,
    SWEEP_S,
    TRANSACTIONAL_TOPICS,
    ClientOptions,
    InputEnd,
    partitions_of,
)
from strandline.chaos.live.target import pause

WRITERS, PIPELINES = 2, 2
GROUP = "chaos-pipelines"

TIMEOUT_MS = 10_000
"""transaction.timeout.ms. A transaction that a killed producer leaves open blocks read_committed consumers for about
this long."""

CALL_S = 15.0
"""Seconds of one call; one that is over is repeated, as librdkafka asks for it."""

BURST_MAX = 6
READ_MAX = 50
ABORTED = 0.25
"""Share of the transactions that are aborted by the draw."""

LEFT = 0.02
"""Share of the transactions after which a producer is left as it is, its transaction open: the next one fences it."""


class _Left(Exception):
    """The producer and its consumer, if it has one, are replaced."""


class TransactionalClient(ForeignClient):
    """Writers and pipelines are threads, each with producers of an id of its own, one after the other; the reader and
    the journal are the main thread's."""

    def __init__(self, options: ClientOptions, recorder: Recorder) -> None:
        super().__init__(options, recorder)
        self._lock = threading.Lock()
        self._over = threading.Event()

    # Threads

    def run(self) -> None:
        """Write, copy and read until standard input ends."""
        over = InputEnd()
        workers = [self._worker(self._write, f"writer-{number}") for number in range(WRITERS)]
        workers += [self._worker(self._pipe, f"pipeline-{number}") for number in range(PIPELINES)]
        consumer = self._reader()
        while not over():
            self._read(consumer, SWEEP_S)
            with self._lock:
                self._recorder.sweep()
            for worker in workers:
                if not worker.is_alive():
                    raise SystemExit(f"{worker.name} has ended by itself")
        self._over.set()
        deadline = time.monotonic() + FLUSH_S
        while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
            self._read(consumer, SWEEP_S)
        consumer.close()
        with self._lock:
            self._recorder.errors(self.errors)

    def _worker(self, work: Callable[[str, random.Random], None], name: str) -> threading.Thread:
        rng = random.Random(f"{self.options.seed}-{name}")
        thread = threading.Thread(target=work, args=(f"{self.options.name}-{name}", rng), name=name, daemon=True)
        thread.start()
        return thread

    def _met(self, error: Any) -> None:
        with self._lock:
            self._failed(error.name())

    def _settings(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.options.bootstrap,
            **login_settings(self.options),
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": 6000,
            "error_cb": self._met,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    # Transactions

    def _producer(self, name: str) -> Any:
        """A producer of that transactional id, which fences the one before. Raises KafkaException, _Left."""
        producer = confluent_kafka.Producer(
            self._settings(
                transactional_id=name, transaction_timeout_ms=TIMEOUT_MS, linger_ms=2, retry_backoff_ms=50,
                request_timeout_ms=3000, message_timeout_ms=TIMEOUT_MS,
            )
        )  # fmt: skip
        self._repeated(partial(producer.init_transactions, CALL_S))
        return producer

    def _repeated(self, call: Callable[[], Any]) -> int:
        """Call until it succeeds, as often as librdkafka says that it may be repeated; how often it had to be. Raises
        KafkaException; _Left: it may be, but nobody waits for it any more."""
        deadline = time.monotonic() + FLUSH_S / 2
        for repeats in range(10_000):
            try:
                call()
            except KafkaException as error:
                self._met(error.args[0])
                if not error.args[0].retriable():
                    raise
                if time.monotonic() > deadline:
                    raise _Left from error
                pause(0.05)
            else:
                return repeats
        raise _Left

    def _begin(self, producer: Any, name: str, invoked_ms: float, steps: Iterable[Poll] = ()) -> Transaction:
        producer.begin_transaction()
        with self._lock:
            return self._recorder.transaction(Transaction(name, list(steps), invoked_ms=invoked_ms))

    def _produce(self, producer: Any, transaction: Transaction, send: Send) -> None:
        """One record of a transaction. Raises KafkaException, BufferError."""
        transaction.steps.append(send)
        topic, number = send.partition
        producer.produce(topic, str(send.value).encode(), partition=number, on_delivery=partial(self._settled, send))
        producer.poll(0)

    def _settled(self, send: Send, error: Any, message: Any) -> None:
        if error is None:
            self._end(send, Status.OK, message.offset())
        else:
            self._met(error)
            self._end(send, Status.INFO)

    def _finish(self, producer: Any, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort. Raises KafkaException, _Left: the producer is of no use any more."""
        status = Status.FAIL  # nobody commits what its producer has not begun to commit
        try:
            if commit:
                status = Status.INFO
                self._repeated(partial(producer.commit_transaction, CALL_S))
                status = Status.OK
            else:
                self._repeated(partial(producer.abort_transaction, CALL_S))
        except KafkaException as error:
            if not (commit and error.args[0].txn_requires_abort()):
                raise
            self._repeated(partial(producer.abort_transaction, CALL_S))
        finally:
            self._ended(transaction, status)

    def _ended(self, transaction: Transaction, status: Status) -> None:
        transaction.completed_ms = now_ms()
        transaction.status = status

    # Writers

    def _write(self, name: str, rng: random.Random) -> None:
        """Transactions over the partitions of ORDERS, one after the other."""
        life = values = 0
        while not self._over.is_set():
            life += 1
            try:
                producer = self._producer(name)
                while not self._over.is_set():
                    pause(rng.uniform(0, 4 * self.options.gap_ms) / 1000)
                    values = self._write_some(producer, f"{name}-{life}", rng, values)
            except (KafkaException, BufferError, _Left):
                pause(0.1)  # what it was has been counted

    def _write_some(self, producer: Any, name: str, rng: random.Random, values: int) -> int:
        """One transaction; so many values have been given away. Raises KafkaException, BufferError, _Left."""
        transaction = self._begin(producer, name, now_ms())
        try:
            for _ in range(rng.randint(1, BURST_MAX)):
                values += 1
                where = Partition(ORDERS, rng.randrange(TRANSACTIONAL_TOPICS[ORDERS]))
                self._produce(producer, transaction, Send(name, where, f"{name}.{values}", invoked_ms=now_ms()))
                if rng.random() < LEFT:
                    producer.flush(1)
                    raise _Left
        except (KafkaException, BufferError, _Left):
            self._ended(transaction, Status.FAIL)
            raise
        self._finish(producer, transaction, commit=rng.random() >= ABORTED)
        return values

    # Pipelines

    def _pipe(self, name: str, rng: random.Random) -> None:
        """Read, transform and write in transactions until the run ends: the result of each record is committed once,
        with its offset, whichever member of the group makes it."""
        life = 0
        while not self._over.is_set():
            life += 1
            consumer = confluent_kafka.Consumer(
                self._settings(
                    group_id=GROUP, enable_auto_commit=False, auto_offset_reset="earliest", session_timeout_ms=6000,
                    isolation_level="read_committed",
                )
            )  # fmt: skip
            try:
                producer = self._producer(name)
                consumer.subscribe([ORDERS])
                while not self._over.is_set():
                    self._pipe_some(producer, consumer, f"{name}-{life}", rng)
            except (KafkaException, BufferError, _Left):
                pause(0.1)
            finally:
                consumer.close()

    def _pipe_some(self, producer: Any, consumer: Any, name: str, rng: random.Random) -> None:
        """One transaction. Raises KafkaException, BufferError, _Left: what was read is read again."""
        invoked_ms = now_ms()
        messages = consumer.consume(READ_MAX, 0.5)
        for message in messages:
            if message.error() is not None:
                self._met(message.error())
                raise _Left
        if not messages:
            return
        found = [(Partition(one.topic(), one.partition()), one.offset(), one.value().decode()) for one in messages]
        poll = Poll(name, found, subscribed=True, invoked_ms=invoked_ms, completed_ms=now_ms())
        transaction = self._begin(producer, name, invoked_ms, (poll,))
        ends = {where: offset + 1 for where, offset, _ in found}
        try:
            for where, _, source in found:
                made = Send(name, Partition(BILLS, where.number), f"{source}.{name}", source=source)
                made.invoked_ms = now_ms()
                self._produce(producer, transaction, made)
            places = [confluent_kafka.TopicPartition(*where, offset) for where, offset in ends.items()]
            group = consumer.consumer_group_metadata()
            self._repeated(partial(producer.send_offsets_to_transaction, places, group, CALL_S))
        except (KafkaException, BufferError, _Left) as error:
            self._ended(transaction, Status.FAIL)
            if isinstance(error, KafkaException):
                self._met(error.args[0])
            raise
        transaction.steps += [
            Commit(name, GROUP, where, offset, status=Status.OK, invoked_ms=invoked_ms)
            for where, offset in ends.items()
        ]
        self._finish(producer, transaction, commit=rng.random() >= ABORTED)
        if transaction.status is not Status.OK:
            raise _Left

    # Readers

    def _reader(self) -> Any:
        """A consumer of committed records that tells where they end."""
        consumer = confluent_kafka.Consumer(
            self._settings(
                group_id=f"chaos-{self.options.name}", enable_auto_commit=False, auto_offset_reset="error",
                isolation_level="read_committed", enable_partition_eof=True,
            )
        )  # fmt: skip
        consumer.assign([confluent_kafka.TopicPartition(*where, 0) for where in partitions_of(TRANSACTIONAL_TOPICS)])
        return consumer

    def _read(self, consumer: Any, timeout_s: float, *, final: bool = False) -> dict[Partition, int]:
        """One poll; partitions whose end was reached, and where that is."""
        invoked_ms = now_ms()
        ends: dict[Partition, int] = {}
        found = []
        for message in consumer.consume(500, timeout_s):
            where = Partition(message.topic(), message.partition())
            if message.error() is None:
                found.append((where, message.offset(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends[where] = message.offset()
            else:
                self._met(message.error())
        with self._lock:
            self._saw(found, invoked_ms, final=final)
        return ends

    def run_final(self) -> int:
        """Read all that is committed, once no transaction is open any more. Returns the exit code."""
        deadline = time.monotonic() + FINAL_S
        consumer = self._reader()
        reached: dict[Partition, int] = dict.fromkeys(partitions_of(TRANSACTIONAL_TOPICS), -1)
        while time.monotonic() < deadline:
            reached |= self._read(consumer, 0.5, final=True)
            behind = [where for where, end in reached.items() if end < self._end_of(consumer, where)]
            if not behind:
                consumer.close()
                return 0
        sys.stderr.write(f"transactions are open, or records are missing: read up to {reached}\n")
        return 1

    def _end_of(self, consumer: Any, where: Partition) -> int:
        """High watermark of a partition; an offset above all others if no broker reports it."""
        try:
            _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(*where), timeout=5)
        except KafkaException as error:
            self._met(error.args[0])
            return sys.maxsize
        return int(end)


if __name__ == "__main__":
    sys.exit(run_process(TransactionalClient))
