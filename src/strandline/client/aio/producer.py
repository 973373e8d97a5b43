"""The producer for coroutines. Runs on the loop that first uses it, whatever loop that is; makes no thread."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from strandline.client.config import ProducerConfig
from strandline.client.errors import BufferExhausted, ClientTimeout, ClosedError
from strandline.client.limits import Limit
from strandline.client.logs import log
from strandline.client.metadata import TopicView
from strandline.client.open_batches import OpenBatches
from strandline.client.partitioner import StickyPartitioner, partition_of_key
from strandline.client.producer_batch import LoopResults, Results
from strandline.client.sender import Accumulator, Sender
from strandline.client.session import Session
from strandline.client.settings import ProducerSettings
from strandline.client.transactions import AsyncTransaction, Transactions, TransactionState
from strandline.client.types import Ack, GroupMetadata, Header
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock, Rng
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.aio.consumer import Consumer, Offsets
    from strandline.client.groups.commits import HandedOut

Payload = bytes | bytearray | memoryview
Headers = Sequence[Header] | Mapping[str, bytes | None]


class ProducerCore:
    """Metadata, partitioning, accumulator and sender of one producer. Made on, and bound to, one event loop.

    A record takes the fast path where it can: `open_batches[topic].append`. Where that gives None, `try_send` looks at
    it anew: it opens batches, chooses partitions, and says what is wrong with a record.
    """

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        results: Callable[[TopicPartition], Results],
        *,
        threaded: bool,
    ) -> None:
        self.config = config
        self._partitioner = config.partitioner
        self.clock = session.clock
        self.metadata = session.metadata
        self.metadata.drop_idle_topics_after(config.metadata_max_idle_ms)
        loop = asyncio.get_running_loop()
        self._call_soon: Callable[..., Any] = loop.call_soon
        self._call_soon_from_append: Callable[..., Any] = loop.call_soon_threadsafe if threaded else loop.call_soon
        self._runs = 0
        self._woken_at = -1
        """Value of `_runs` when the next run was asked for; another number: none is asked for."""
        self.accumulator = Accumulator(config, results, self.clock, self._wake_from_append)
        self.sender = Sender(config, session, self.accumulator, self._wake)
        self._transactions: Transactions | None = None
        if config.transactional_id is not None:
            self._transactions = Transactions(config, session, self.accumulator, self.sender, self._wake)
        self._session = session
        self.open_batches: dict[str, OpenBatches] = {}
        """OpenBatches of the topics that were sent to, by name."""
        self._wall_ms = None if isinstance(self.clock, SystemClock) else self.clock.wall_ms
        self._sticky: dict[str, StickyPartitioner] = {}
        self.metadata.subscribe(self._forget_topics)

    def try_send(
        self,
        view: TopicView,
        value: Payload | None,
        key: Payload | None,
        headers: Headers,
        *,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Any | None:
        """Queue a record; its future, or None while the memory is full.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE; UNKNOWN_TOPIC_OR_PARTITION for a partition that the topic does not have.
            TypeError: a key, value or header that is not bytes.
            ClosedError: the producer was closed.
        """
        if value is not None and type(value) is not bytes:
            value = _as_bytes("value", value)
        if key is not None and type(key) is not bytes:
            key = _as_bytes("key", key)
        pairs = _as_headers(headers) if headers else ()
        open_batches = None if self._partitioner is not None else self._open_batches_of(view)
        target: TopicPartition | Callable[[], TopicPartition]
        if partition is not None:
            target = self._checked(view, partition, None)
        elif open_batches is None:  # a partitioner is asked for every record
            target = self._checked(view, self._chosen(view, key, value), self._partitioner)
        elif key is not None:
            target = TopicPartition(view.name, partition_of_key(key, view.partition_count))
        else:
            target = partial(self._stuck_to, view, open_batches)
        if timestamp_ms is None:
            timestamp_ms = self.clock.wall_ms()
        elif timestamp_ms < 0:
            raise ConfigError("timestamp_ms", timestamp_ms, "milliseconds since 1970, not negative")
        return self.accumulator.append(target, timestamp_ms, key, value, headers=pairs, open_batches=open_batches)

    def _chosen(self, view: TopicView, key: bytes | None, value: bytes | None) -> int:
        assert self._partitioner is not None
        return self._partitioner(view.name, key, value, view.partition_count)

    def _open_batches_of(self, view: TopicView) -> OpenBatches:
        open_batches = self.open_batches.get(view.name)
        if open_batches is None or open_batches.partitions != view.partition_count:
            open_batches = self.open_batches[view.name] = OpenBatches(view.partition_count, self._wall_ms)
        return open_batches

    def _stuck_to(self, view: TopicView, open_batches: OpenBatches) -> TopicPartition:
        sticky = self._sticky.get(view.name)
        if sticky is None:
            sticky = self._sticky[view.name] = StickyPartitioner(self.config.batch_size, self._session.rng)
        return TopicPartition(view.name, sticky.choose(view, open_batches))

    async def fetched_view(self, topic: str, deadline_ms: float) -> TopicView:
        """A topic's partitions, asked for anew where they are known, by then (monotonic ms). Raises as `send`."""
        left_ms = deadline_ms - self.clock.monotonic_ms()
        view = self.metadata.topics.get(topic)
        if view is not None and view.partitions:
            await self.metadata.update(left_ms)
            left_ms = deadline_ms - self.clock.monotonic_ms()
        return await self.metadata.wait_for_topic(topic, left_ms)

    async def producer_id(self) -> int:
        """The producer id, -1 without idempotence. Raises KafkaError or ClientTimeout (`max.block.ms`)."""
        max_block_ms = self.config.max_block_ms
        try:
            async with asyncio.timeout(max_block_ms / 1000):
                return await self.sender.producer_id()
        except TimeoutError:
            trouble = self.sender.current_trouble()
            raise ClientTimeout(f"no producer id within max.block.ms={max_block_ms}", trouble) from None

    @property
    def transactions(self) -> Transactions:
        """Its transactions. Raises ConfigError: it makes none."""
        if self._transactions is None:
            raise ConfigError("transactional.id", None, "a name that outlives restarts: transactions need one")
        return self._transactions

    async def close_transaction(self, timeout_s: float | None) -> None:
        """Abort a transaction that is open still. Raises ClientTimeout, and as `Transactions.commit`."""
        if self._transactions is None:
            return
        leave = self._transactions.leave()
        if timeout_s is None:
            await leave
        else:
            await Limit(timeout_s * 1000, f"the open transaction was not ended within {timeout_s} s").keep(leave)

    def exhausted(self) -> BufferExhausted:
        """The error of a send that found no room in time."""
        return BufferExhausted(
            f"buffer.memory={self.config.buffer_memory} bytes stayed full for max.block.ms={self.config.max_block_ms}; "
            "the record was not queued",
            self.sender.current_trouble(),
        )

    async def wait_for_room(self, deadline_ms: float) -> None:
        """Return when memory was given back, or the producer closed, by then (monotonic ms). Raises BufferExhausted."""
        room = asyncio.Event()
        self.accumulator.when_memory(room.set)
        left_ms = deadline_ms - self.clock.monotonic_ms()
        try:
            async with asyncio.timeout(max(left_ms, 0.0) / 1000):
                await room.wait()
        except TimeoutError:
            raise self.exhausted() from None

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return once everything sent before is acknowledged or has failed. Raises ClientTimeout."""
        done = asyncio.Event()
        self.accumulator.start_flush(done.set)
        try:
            async with asyncio.timeout(timeout_s):
                await done.wait()
        except TimeoutError:
            trouble = self.sender.current_trouble()
            raise ClientTimeout(f"not everything was acknowledged within {timeout_s} s", trouble) from None

    async def close(self) -> None:
        """Stop at once; what has no acknowledgement yet fails with ClosedError, though the caller is cancelled."""
        self.end()  # rule B43/a-cancelled-close-answers-nobody
        await self.sender.close()
        await self._session.close()

    def end(self) -> None:
        """Fail what has no acknowledgement, and close the connections, without a wait. Idempotent."""
        self.sender.end()
        self._session.drop()

    @staticmethod
    def _checked(view: TopicView, partition: int, chosen_by: object) -> TopicPartition:
        if partition not in view.partitions:
            who = "" if chosen_by is None else f"the partitioner {chosen_by!r} chose it: "
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{who}topic {view.name!r} has partitions 0 to {view.partition_count - 1}",
                partition=partition,
            )
        return TopicPartition(view.name, partition)

    def _forget_topics(self) -> None:
        for name, open_batches in list(self.open_batches.items()):
            view = self.metadata.topics.get(name)
            if view is None or view.partition_count != open_batches.partitions:
                self.open_batches.pop(name, None)
        for name in [name for name in list(self._sticky) if self.metadata.is_forgotten(name)]:
            self._sticky.pop(name, None)

    def _wake(self) -> None:
        runs = self._runs
        if self._woken_at != runs:
            self._call_soon(self._run)
            self._woken_at = runs

    def _wake_from_append(self) -> None:
        runs = self._runs
        if self._woken_at != runs:
            self._call_soon_from_append(self._run)  # rule B37/an-interrupted-wake-stays-pending
            self._woken_at = runs  # not before: a signal's handler in the middle of that call counts on no run to come

    def _run(self) -> None:
        self._runs += 1
        self.sender.run()


def _as_bytes(what: str, given: Any) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise TypeError(f"{what} must be bytes or None, not {type(given).__name__}; encode text with .encode()")


def _as_headers(headers: Headers) -> tuple[Header, ...]:
    pairs: Iterable[tuple[str, Any]] = headers.items() if isinstance(headers, Mapping) else headers
    checked = []
    for name, content in pairs:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        checked.append((name, None if content is None else _as_bytes(f"header {name!r}", content)))
    return tuple(checked)


class Producer:
    """The asynchronous twin of `strandline.client.Producer`; `send` is awaited until the record is queued.

    Args:
        bootstrap: ``"host:port,..."`` or a sequence of them.
        clock, rng: the world; the machine's own when left out.
        settings: see docs/client-settings.md.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._config = ProducerConfig(settings)
        self.session = Session(bootstrap, self._config, clock=clock, rng=rng, allow_auto_create=True)
        self._core: ProducerCore | None = None
        self._handed: list[tuple[Consumer, HandedOut]] = []
        """Offsets of the open transaction, and whose they are."""
        self._closed = False

    async def send(
        self,
        topic: str,
        value: Payload | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Ack]:
        """Queue one record; the returned future gives its `Ack`. Waits and raises as the blocking producer's `send`."""
        core = self._started()
        open_batches = core.open_batches.get(topic)
        if open_batches is not None:
            short: asyncio.Future[Ack] | None = open_batches.append(value, key, headers, partition, timestamp_ms)
            if short is not None:
                return short
        deadline_ms = self.session.clock.monotonic_ms() + self._config.max_block_ms
        view = await self._view(core, topic, partition, deadline_ms)
        future: asyncio.Future[Ack] | None = core.try_send(
            view, value, key, headers, partition=partition, timestamp_ms=timestamp_ms
        )
        while future is None:
            await core.wait_for_room(deadline_ms)
            future = core.try_send(view, value, key, headers, partition=partition, timestamp_ms=timestamp_ms)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Payload | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Ack:
        """Send one record and return its acknowledgement, within `max.block.ms` and `delivery.timeout.ms`."""
        return await (
            await self.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return once everything sent before is acknowledged or has failed. Raises ClientTimeout."""
        if self._core is not None:
            self.session.check()
            await self._core.flush(timeout_s)

    # -- transactions -------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Fence whoever had this transactional.id before, and abort what it left open. The first transaction does it.

        Raises:
            ConfigError: no `transactional.id`.
            KafkaError: the cluster refuses it.
            ClientTimeout: it takes longer than `max.block.ms`.
        """
        await self._started().transactions.init()

    async def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from now on is part of it. Raises as `init_transactions`, and ClientError
        while one is open."""
        await self._started().transactions.begin()
        self._handed.clear()

    async def commit_transaction(self) -> None:
        """Send what is left, and commit the transaction.

        Raises:
            TransactionAbortable: something of it failed: abort it. It is not committed.
            ProducerFenced, TransactionFatal: this producer can do nothing more. A transaction that it was just
                committing may be committed.
            OutcomeUnknown: it takes longer than `max.block.ms`, and goes on; call it again.
            ClientError: no transaction is open.
        """
        await self._started().transactions.commit()
        while self._handed:
            consumer, handed = self._handed.pop()
            consumer.committed_with_transaction(handed)

    async def abort_transaction(self) -> None:
        """Drop what was not sent yet, and abort the transaction. Raises as `commit_transaction`."""
        await self._started().transactions.abort()

    async def send_offsets(self, consumer: Consumer) -> None:
        """Commit with the transaction that everything which this consumer has handed out is done.

        The consumer has `enable.auto.commit=false`. After an abort it goes on behind what it has handed out, unless it
        is told to `seek`.

        Raises:
            CommitFailed: its group has moved on.
            ConfigError: it has no group, or commits by itself.
            Exception: as `commit_transaction`.
        """
        core = self._started()
        handed = await consumer.handed_out()
        await core.transactions.send_offsets(handed.offsets, handed.group)
        self._handed.append((consumer, handed))

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit these offsets (of the next record to read) with the transaction, for the group and under the
        membership that `Consumer.group_metadata` tells. Raises as `commit_transaction`."""
        from strandline.client.aio.consumer import plain_offsets

        await self._started().transactions.send_offsets(plain_offsets(offsets) or {}, group)

    def transaction(self) -> AsyncTransaction[Self]:
        """``async with producer.transaction():`` begins a transaction, and commits it at the end of the block, or
        aborts it where the block ends by an exception.

        Raises as `begin_transaction` and `commit_transaction`; what was TransactionAbortable is aborted by then.
        """
        self.session.check()
        return AsyncTransaction(self)

    @property
    def transaction_state(self) -> TransactionState:
        """State of its transactions."""
        return TransactionState.UNINITIALIZED if self._core is None else self._core.transactions.state

    async def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Raises as `send` does."""
        deadline_ms = self.session.clock.monotonic_ms() + self._config.max_block_ms
        return (await self._view(self._started(), topic, None, deadline_ms)).partition_count

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, at most `timeout_s`, then close; the rest fails with ClosedError. Idempotent. Raises ClientTimeout."""
        core = self._core
        if core is not None and not self.session.orphaned:
            self.session.check()
        already, self._closed = self._closed, True
        if already or core is None or self.session.orphaned:
            return
        try:
            await core.close_transaction(timeout_s)
            await self.flush(timeout_s)
        finally:
            await core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Say what is lost: nobody can wait for it here."""
        core = getattr(self, "_core", None)
        if core is None or self._closed or self.session.orphaned:
            return
        _warn(f"{self!r} was not closed: await close(), or use `async with`", ResourceWarning, source=self)
        count = sum(batch.count for _, batch in core.accumulator.all_batches())
        if count:
            text = f"{count} records of an aio.Producer that was not closed are lost"
            log.error(text)
            _warn(text, RuntimeWarning, source=self)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _started(self) -> ProducerCore:
        self.session.check()
        if self._closed:
            raise ClosedError("the producer is closed")
        if self._core is None:
            self._core = ProducerCore(self._config, self.session, LoopResults, threaded=False)
        return self._core

    async def _view(self, core: ProducerCore, topic: str, partition: int | None, deadline_ms: float) -> TopicView:
        view = core.metadata.topics.get(topic)
        if view is not None and view.partitions and (partition is None or partition in view.partitions):
            return view
        return await core.fetched_view(topic, deadline_ms)
