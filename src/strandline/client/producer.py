"""The blocking producer: shared by threads, safe across `fork`."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from strandline.client.aio.producer import Headers, Payload, ProducerCore
from strandline.client.config import ProducerConfig, parse_bootstrap
from strandline.client.errors import BufferExhausted, ClientTimeout, ClosedError
from strandline.client.logs import log
from strandline.client.loop_thread import OF_THE_PARENT, Gate, LoopThread, SteppedOut, end_unless, of_parents
from strandline.client.metadata import TopicView
from strandline.client.open_batches import OpenBatches
from strandline.client.prepared import PreparedTransaction
from strandline.client.producer_batch import Answer, ThreadFutures, ThreadResults
from strandline.client.session import Session
from strandline.client.settings import ProducerSettings
from strandline.client.transactions import BlockingTransaction, Transactions, TransactionState
from strandline.client.types import Ack, GroupMetadata
from strandline.client.unclosed import FLUSH_S, nothing, watch

if TYPE_CHECKING:
    from strandline.client.aio.consumer import Offsets
    from strandline.client.consumer import Consumer
    from strandline.client.groups.commits import HandedOut

T = TypeVar("T")


class _Running:
    """The thread and the core of a producer in use."""

    def __init__(self, bootstrap: Sequence[str] | str, config: ProducerConfig, made: list[LoopThread]) -> None:
        self.thread = LoopThread("strandline-producer", made)
        self.futures = ThreadFutures(lambda: self.thread.is_current, self._leave)
        self.core = self.thread.call(
            lambda: ProducerCore(
                config, Session(bootstrap, config, allow_auto_create=True), self.futures.results, threaded=True
            )
        )
        self.thread.at_end = self.core.end
        memory_lock = getattr(self.core.accumulator.memory, "lock", None)  # the compiled one has none
        self.thread.locks = (self.core.accumulator.lock, *(() if memory_lock is None else (memory_lock,)))
        self.futures.locks = self.thread.locks

    def _leave(self, error: BaseException) -> None:
        """Keep an error for `send` to raise; until then no record takes the fast path, which does not look for one."""
        self.thread.leave(error)
        self.core.open_batches.clear()

    def flush(self, timeout_s: float | None) -> None:
        """Wait until all records are acknowledged or have failed. Raises ClientTimeout."""
        done = Gate()
        self.core.accumulator.start_flush(done.open)
        with SteppedOut(self.thread.locks):
            done.wait(timeout_s)
        if self.thread.orphaned:
            raise ClosedError(OF_THE_PARENT)
        if not done.is_open:
            raise ClientTimeout(
                f"not everything was acknowledged within {timeout_s} s", self.core.sender.current_trouble()
            )

    def end(self) -> None:
        """End a producer that was not closed: queued records are sent, if that does not take long."""
        try:
            self.flush(FLUSH_S)
        except ClientTimeout as error:
            count = sum(batch.count for _, batch in self.core.accumulator.all_batches())
            text = f"{count} records of a Producer that was not closed are lost: {error}"
            log.error(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self.thread.stop(self.core.close)


class Producer:
    """Sends records; `send` returns at once with a future. Share one among threads: each thread's order is kept.

    After `fork` the child starts anew on its first send, with connections and a producer id of its own; what the
    parent had not sent yet stay the parent's, and their futures end in the child with ClosedError.

    Raises at construction:
        ConfigError: an unknown setting, a value that cannot stand, or settings that exclude one another.
    """

    def __init__(self, bootstrap: str | Sequence[str] = "127.0.0.1:9092", **settings: Unpack[ProducerSettings]) -> None:
        self._config = ProducerConfig(settings)
        self._bootstrap = bootstrap
        parse_bootstrap(bootstrap)
        self._start_lock = threading.RLock()
        self._running: _Running | None = None
        self._open_batches: dict[str, OpenBatches] = {}
        """Open batches of the core that runs, by topic: the fast path of a record."""
        self._handed: list[tuple[Consumer, HandedOut]] = []
        """Offsets of the open transaction, and whose they are."""
        self._watched: Callable[[], None] = nothing
        self._closed = False
        _producers.add(self)

    def send(
        self,
        topic: str,
        value: Payload | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[Ack]:
        """Queue one record and return at once; the future gives its `Ack`.

        Blocks up to `max.block.ms` only for the first metadata of a topic, or while the buffer is full.

        Raises:
            BufferExhausted: the buffer stayed full for `max.block.ms`.
            ClientTimeout: no metadata within `max.block.ms`.
            UnknownTopic: there is no such topic.
            KafkaError: MESSAGE_TOO_LARGE, or a partition that the topic does not have.
            ClosedError: the producer was closed.
            TypeError: key, value or a header is not bytes.
            BaseException: SystemExit and alike that a callback of a future has raised (`flush` and `close`, too).
        """
        open_batches = self._open_batches.get(topic)
        if open_batches is not None:
            short: Future[Ack] | None = open_batches.append(value, key, headers, partition, timestamp_ms)
            if short is not None:
                return short
        running = self._running or self._start()
        running.thread.raise_left()
        core = running.core
        deadline_ms = core.clock.monotonic_ms() + core.config.max_block_ms
        view = core.metadata.topics.get(topic)
        if view is None or not view.partitions or partition is not None:
            view = self._view(running, topic, partition, deadline_ms)
        future: Future[Ack] | None = core.try_send(
            view, value, key, headers, partition=partition, timestamp_ms=timestamp_ms
        )
        if future is None:
            again = partial(core.try_send, view, value, key, headers, partition=partition, timestamp_ms=timestamp_ms)
            return self._send_when_room(running, again, deadline_ms)
        return future

    def flush(self, timeout_s: float | None = None) -> None:
        """Return once everything sent before this call is acknowledged or has failed; nothing lingers meanwhile.

        Raises:
            ClientTimeout: it takes longer than `timeout_s`.
            ClientError: called by a callback of this producer, for which it would wait.
        """
        running = self._running
        if running is None:
            return
        running.futures.may_wait("flush")
        running.flush(timeout_s)
        running.thread.raise_left()

    # -- transactions -------------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Fence whoever had this transactional.id before, and abort what it left open. The first transaction does it.

        Raises:
            ConfigError: no `transactional.id`.
            KafkaError: the cluster refuses it.
            ClientTimeout: it takes longer than `max.block.ms`.
        """
        self._in_transaction("init_transactions", Transactions.init)

    def begin_transaction(self) -> None:
        """Begin a transaction: what any thread sends from now on is part of it. Raises as `init_transactions`, and
        ClientError while one is open."""
        self._in_transaction("begin_transaction", Transactions.begin)
        self._handed.clear()

    def commit_transaction(self) -> None:
        """Send what is left, and commit the transaction. An interrupt (Ctrl-C) does not stop it: call it again.

        Raises:
            TransactionAbortable: something of it failed: abort it. It is not committed.
            ProducerFenced, TransactionFatal: this producer can do nothing more. A transaction that it was just
                committing may be committed.
            OutcomeUnknown: it takes longer than `max.block.ms`, and goes on; call it again.
            ClientError: no transaction is open.
        """
        self._in_transaction("commit_transaction", Transactions.commit)
        while self._handed:
            consumer, handed = self._handed.pop()
            consumer.committed_with_transaction(handed)

    def abort_transaction(self) -> None:
        """Drop what was not sent yet, and abort the transaction. Raises as `commit_transaction`."""
        self._in_transaction("abort_transaction", Transactions.abort)

    def send_offsets(self, consumer: Consumer) -> None:
        """Commit with the transaction that everything which this consumer has handed out is done.

        The consumer has `enable.auto.commit=false`. After an abort it goes on behind what it has handed out, unless it
        is told to `seek`.

        Raises:
            CommitFailed: its group has moved on.
            ConfigError: it has no group, or commits by itself.
            Exception: as `commit_transaction`.
        """
        handed = consumer.handed_out()
        self._in_transaction("send_offsets", Transactions.send_offsets, handed.offsets, handed.group)
        self._handed.append((consumer, handed))

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit these offsets (of the next record to read) with the transaction, for the group and under the
        membership that `Consumer.group_metadata` tells. Raises as `commit_transaction`."""
        from strandline.client.aio.consumer import plain_offsets

        self._in_transaction("send_offsets", Transactions.send_offsets, plain_offsets(offsets) or {}, group)

    def transaction(self) -> BlockingTransaction[Self]:
        """``with producer.transaction():`` begins a transaction, and commits it at the end of the block, or aborts it
        where the block ends by an exception.

        Raises as `begin_transaction` and `commit_transaction`; what was TransactionAbortable is aborted by then.
        """
        return BlockingTransaction(self)

    def prepare_transaction(self) -> PreparedTransaction:
        """Let go of the open transaction once all of its records are acknowledged; see `strandline.client.prepared`."""
        return self._in_transaction("prepare_transaction", Transactions.prepare)

    @property
    def transaction_state(self) -> TransactionState:
        """State of its transactions."""
        running = self._running
        return TransactionState.UNINITIALIZED if running is None else running.core.transactions.state

    def _in_transaction(self, name: str, call: Callable[..., Awaitable[T]], *given: object) -> T:
        running = self._running or self._start()
        running.futures.may_wait(name)
        return running.thread.wait(partial(call, running.core.transactions, *given))

    def producer_id(self) -> int:
        """The id that stands in the batches of this producer in the log (KIP-98); -1 when it is not idempotent.

        A broker that refuses it makes the producer take a new one; that happens to producers idle for days alone.

        Raises:
            KafkaError: the cluster gives none.
            ClientTimeout: none within `max.block.ms`.
        """
        running = self._running or self._start()
        return running.thread.wait(running.core.producer_id)

    def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Raises as `send` does."""
        running = self._running or self._start()
        running.thread.raise_left()
        deadline_ms = running.core.clock.monotonic_ms() + self._config.max_block_ms
        return self._view(running, topic, None, deadline_ms).partition_count

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, at most `timeout_s`, then close. What is not acknowledged by then fails with ClosedError. Idempotent.

        Raises:
            ClientTimeout: the flush took longer than `timeout_s`; the producer is closed all the same.
        """
        if self._running is not None:
            self._running.futures.may_wait("close")
        with self._start_lock:
            self._closed = True
        running = self._running
        if running is None:
            return
        try:
            if not running.thread.closed:  # else an earlier call, which was interrupted, ends it just now
                if self._config.transactional_id is not None:
                    running.thread.wait(partial(running.core.close_transaction, timeout_s))
                self.flush(timeout_s)
        finally:
            running.thread.stop(running.core.close)  # rule B43/closed-before-every-record-has-its-answer
            self._watched()
        running.thread.raise_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _start(self) -> _Running:
        with self._start_lock:
            if self._closed:
                raise ClosedError("the producer is closed")
            if self._running is None:
                made: list[LoopThread] = []
                try:
                    running = _Running(self._bootstrap, self._config, made)
                    watched = watch(self, "a Producer", running.thread, running.end)
                    # A signal's handler may have used, or closed, the producer meanwhile.
                    if self._running is None and not self._closed:
                        self._running, self._watched = running, watched
                        self._open_batches = running.core.open_batches
                finally:
                    end_unless(made, None if self._running is None else self._running.thread)
                return self._start()
            return self._running

    @staticmethod
    def _view(running: _Running, topic: str, partition: int | None, deadline_ms: float) -> TopicView:
        """The topic's partitions; asks the cluster for a topic, or a partition, that is not known yet."""
        core = running.core
        view = core.metadata.topics.get(topic)
        if view is not None and view.partitions and (partition is None or partition in view.partitions):
            return view
        if running.thread.is_current:
            raise ClientTimeout(
                f"topic {topic!r} is not known yet, and a callback of the producer must not wait for it"
            )
        return running.thread.wait(partial(core.fetched_view, topic, deadline_ms))

    @staticmethod
    def _send_when_room(
        running: _Running, try_send: Callable[[], Future[Ack] | None], deadline_ms: float
    ) -> Future[Ack]:
        core = running.core
        if running.thread.is_current:
            raise BufferExhausted("buffer.memory is full, and a callback of the producer must not wait for room")
        while True:
            room = Gate()
            core.accumulator.when_memory(room.open)
            left_ms = deadline_ms - core.clock.monotonic_ms()
            if left_ms > 0:
                with SteppedOut(running.thread.locks):
                    room.wait(left_ms / 1000)
            if not room.is_open:
                raise core.exhausted()
            future = try_send()
            if future is not None:
                return future

    def _forget_parent(self) -> None:
        """In the child of a fork: let go of the parent's thread, sockets and locks."""
        self._start_lock = threading.RLock()
        running, self._running = self._running, None
        self._open_batches = {}
        if running is not None:
            error = ClosedError("the record was sent by the parent of this process, and its acknowledgement goes there")
            running.futures.after_fork()
            running.core.accumulator.disown(error)
            for queue in running.core.accumulator.queues.values():
                for batch in (*queue.on_wire, *queue.waiting):
                    if isinstance(batch.results, ThreadResults):
                        batch.results.disown(Answer(batch.first, batch.first + batch.count, error=error))
            of_parents.append(running)


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork() -> None:
    for producer in list(_producers):
        producer._forget_parent()


os.register_at_fork(after_in_child=_after_fork)
