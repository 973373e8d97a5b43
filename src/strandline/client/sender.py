"""The way of a producer's records from `append` to the broker's answer, in batches: per partition a queue of them.

`Accumulator`: where records wait, bounded by `buffer.memory`. Any thread may append, and most records never come here:
they are written straight into the open batch of their partition (`open_batches`), which `append` opens. One lock guards
the queues, held for microseconds and never across I/O. A signal's handler may run after any call in `append`, there
raise or itself use the producer: what is there then holds, and nobody is in between of plain statements (rule B37).

`Sequencer`: the sequence numbers of the idempotent producer (KIP-98, KIP-360): each record once and in order, in spite
of retries.

`Sender`: to whom batches go, when, how many at once, and what becomes of each answer. Driven by `run`, which the event
loop calls when something may have changed (a batch is full, an answer came, a timer rang); it does all there is to do.
No task, timer or lock per partition or request. All but `append` runs on that loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from strandline.client import logs
from strandline.client.config import ProducerConfig
from strandline.client.errors import ClientTimeout, ClosedError, DeliveryTimeout, Disconnected
from strandline.client.metadata import TopicView
from strandline.client.network import DATA, Connection
from strandline.client.open_batches import Memory, OpenBatches
from strandline.client.producer_batch import (
    SEQUENCE_MASK,
    OpenRecords,
    ProducerBatch,
    Results,
    SequenceNumbers,
)
from strandline.client.producer_ids import producer_id_of_its_own
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.types import Header, NodeInfo
from strandline.log.batch import RECORD_OVERHEAD_BYTES, RecordBatchBuilder
from strandline.log.compression import Codec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.produce import PartitionResult, ProduceRequest, ProduceTopic, read_response, write_request
from strandline.proto.ports import Clock


class PartitionQueue:
    """The batches of one partition, oldest first, and its place in the producer's sequences.

    Invariants:
    - Only the last batch of `waiting` is open for records; one that was taken off it, or has another one behind it, is
      sealed for good. It is due at `batch.size`, and grows on while others of its partition keep it waiting. One whose
      first record found no room, or was interrupted, is empty, and dropped by the sender.
    - `numbered` holds, in the order of their sequences, the batches from the first without a final answer on; those of
      them that are not on the wire and have no answer stand at the head of `waiting`, in the same order.
    - What is on the wire is on its way to one broker, `wire_node`, sent while it led in `wire_epoch`.
    - `known`: the log of the topic with `topic_id` holds a batch of this producer id, so its leader refuses what is out
      of order.
    - The epoch is bumped only while nothing is on the wire.
    - `may_grow`: no batch of it was found too large so far.
    """

    __slots__ = (
        "bump_needed", "known", "may_grow", "new_id_needed", "next_sequence", "numbered", "on_wire", "partition",
        "producer_epoch", "producer_id", "topic_id", "waiting", "wire_epoch", "wire_node",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.waiting: deque[ProducerBatch] = deque()
        self.numbered: list[ProducerBatch] = []
        self.on_wire: list[ProducerBatch] = []
        self.wire_node = -1
        self.wire_epoch = -1
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.known = False
        self.may_grow = True
        self.topic_id: UUID | None = None
        self.bump_needed = False
        self.new_id_needed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it has to be sent, answered or settled."""
        return not (self.waiting or self.on_wire or self.numbered)

    def goes_to(self, topic_id: UUID | None) -> None:
        """Note the id of the topic that is sent to next; the log of another one than before holds nothing yet."""
        if topic_id is not None and topic_id != self.topic_id:
            self.known = self.known and self.topic_id is None
            self.topic_id = topic_id

    def requeue(self, batch: ProducerBatch) -> None:
        """Put a batch back, in the order in which its records were sent."""
        place = 0
        for item in self.waiting:
            if item.order > batch.order:
                break
            place += 1
        self.waiting.insert(place, batch)


class Accumulator:
    """Every record that was sent and has no acknowledgement yet.

    Invariant: `memory`, which is `buffer.memory`, holds what all batches reserve that have no answer yet.
    """

    def __init__(
        self,
        config: ProducerConfig,
        results: Callable[[TopicPartition], Results],
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self.codec = Codec[config.compression_type.upper()]
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        max_record = min(config.max_request_size, config.buffer_memory)
        self.memory = Memory(config.buffer_memory, max_record, config.batch_size)
        self.lock = threading.RLock()
        self.closed: Exception | None = None
        self._barred: Exception | None = None  # said to records that are sent while no transaction is open
        self._batch_size = config.batch_size
        self._batch_size_max = config.largest_batch
        self._max_record = max_record
        self._results = results
        self._clock = clock
        self._wake = wake
        self._memory_waiters: deque[Callable[[], None]] = deque()
        self._last_number = 0
        self._incomplete: dict[int, int] = {}
        self._flushes: list[tuple[int, Callable[[], None]]] = []
        self._flush_up_to = 0

    # -- any thread -------------------------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition | Callable[[], TopicPartition],
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: tuple[Header, ...],
        open_batches: OpenBatches | None = None,
    ) -> Any | None:
        """Queue one record that `open_batches` did not take; its future, or None while the memory is full.

        A batch that is opened for the record goes into `open_batches`, so that the next one finds it there.

        Args:
            partition: or, for a record without a key, the function that chooses one, called under the lock.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE above `max.request.size` or `buffer.memory`.
        """
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")  # as `open_batches_python.bound_of`
        if headers:
            size += sum(len(name) * 4 + 10 + len(content or b"") for name, content in headers)
        if size > self._max_record:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                "the record is larger than max.request.size or buffer.memory allows",
                record_bytes=size,
                allowed_bytes=self._max_record,
            )
        sticks = not isinstance(partition, tuple)
        with self.lock:
            if self.closed is not None:
                raise self.closed
            if self._barred is not None:  # schedule 132/a-record-comes-between-transactions
                raise self._barred
            if not isinstance(partition, tuple):
                partition = partition()
            queue = self._queue(partition)
            waiting = queue.waiting
            batch = waiting[-1] if waiting else None
            records = None if batch is None else batch.records
            future = None if records is None else records.append(timestamp_ms, key, value, headers)
            if batch is not None and records is not None and future is None:
                behind = queue.on_wire or len(waiting) > 1
                if behind and queue.may_grow and records.grow(self._batch_size_max):
                    batch.announced = False
                    future = records.append(timestamp_ms, key, value, headers)
            if batch is None or records is None or future is None:
                batch, records = self._opened(queue)
                future = records.append(timestamp_ms, key, value, headers)
                if future is None:
                    return None
        if not batch.announced or records.size_bytes >= self._batch_size:
            self._wake()
            batch.announced = True
        if open_batches is not None and partition.partition < open_batches.partitions:
            open_batches.open(
                partition.partition, records
            )  # not before it is announced: appends there announce nothing
        if open_batches is not None and sticks:
            open_batches.spend(size)
        return future

    def _opened(self, queue: PartitionQueue) -> tuple[ProducerBatch, OpenRecords]:
        """A new batch, the last of the queue. It has its number and its place at once, before any record: what is
        interrupted in between would leave a record without them, or two batches of one number."""
        results = self._results(queue.partition)  # rule B37/a-batch-has-its-number-before-its-place
        records = OpenRecords.of(self.memory, results, self.codec)
        batch = ProducerBatch((0,), queue.partition, records, results, self._clock.monotonic_ms())
        waiting = queue.waiting
        while waiting and not waiting[-1].sealed:
            waiting[-1].seal()  # rule C1/two-open-batches-of-a-partition
        # rule B37/a-batch-has-its-number-before-its-place/2
        self._last_number = number = self._last_number + 1  # from here on no call
        batch.order = (number,)
        self._incomplete[number] = 1
        waiting += (batch,)
        return batch, records

    def append_made(self, partition: TopicPartition, made: RecordBatchBuilder, results: Results) -> bool:
        """Queue a batch that was made before; false while the memory is full (see `when_memory`).

        A queue takes such batches or records, not both.
        """
        with self.lock:
            if self.closed is not None:
                raise self.closed
            if not self.memory.take(made.size_bytes):
                return False
            self._last_number = number = self._last_number + 1
            batch = ProducerBatch((number,), partition, made, results, self._clock.monotonic_ms())
            batch.reserved_bytes = made.size_bytes
            self._queue(partition).waiting.append(batch)
            self._incomplete[number] = 1
        self._wake()
        return True

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues.setdefault(partition, PartitionQueue(partition))
        return queue

    def when_memory(self, notify: Callable[[], None]) -> None:
        """Call `notify` once, when memory was given back or the producer closed; from the sender's thread."""
        with self.lock:
            notify_now = self.closed is not None or not self.memory.used
            if not notify_now:
                self._memory_waiters.append(notify)
        self._wake()
        if notify_now:
            notify()

    def start_flush(self, done: Callable[[], None]) -> None:
        """Send everything queued so far without lingering; call `done` once all of it has its answer."""
        with self.lock:
            self._flush_up_to = self._last_number
            done_now = not self._incomplete  # schedule 109/flush-ends-at-once
            if not done_now:
                self._flushes.append((self._last_number, done))
        if done_now:
            done()
        else:
            self._wake()

    # -- the sender's loop ------------------------------------------------------------------------------------------

    def is_due(self, queue: PartitionQueue, linger_ms: float, now_ms: float) -> float:
        """Milliseconds until the oldest batch of a queue should go; 0 when it is full, flushed or old enough. An empty
        one never goes.

        Nothing lingers while somebody waits for memory: that would only make it worse.
        """
        batch = queue.waiting[0]
        if not batch.count:
            return float("inf")
        if batch.attempts:
            return max(0.0, batch.retry_at_ms - now_ms)
        if (
            len(queue.waiting) > 1
            or batch.builder.size_bytes >= self._batch_size
            or batch.id <= self._flush_up_to
            or self._memory_waiters
            or self.closed is not None
        ):
            return 0.0
        return max(0.0, batch.created_ms + linger_ms - now_ms)

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Take the oldest batch off a queue; nothing is appended to it from now on."""
        with self.lock:
            batch = queue.waiting.popleft()
            batch.seal()  # rule C1/taken-batch-takes-records
        return batch

    def put_back(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Queue a batch again, for a retry."""
        with self.lock:
            queue.requeue(batch)

    def replace_by_halves(self, queue: PartitionQueue, batch: ProducerBatch, halves: list[ProducerBatch]) -> None:
        """Queue the halves of a batch in its place."""
        with self.lock:
            if batch in queue.numbered:
                place = queue.numbered.index(batch)
                queue.numbered[place : place + 1] = halves
            self._incomplete[batch.id] += len(halves) - 1
            for half in halves:
                queue.requeue(half)

    def release(self, batch: ProducerBatch) -> None:
        """A batch, taken or dropped before, has its answer: give its memory back and wake those who wait for memory.
        Its futures come next, whose callbacks may send; then `complete`."""
        with self.lock:
            self.memory.give_back(batch.reserved_bytes)
            waiters, self._memory_waiters = self._memory_waiters, deque()
        for notify in waiters:
            notify()

    def complete(self, batch: ProducerBatch) -> None:
        """The futures of a batch are complete: wake those whose flush waited for it."""
        with self.lock:
            left = self._incomplete[batch.id] - 1
            if left:
                self._incomplete[batch.id] = left
            else:
                del self._incomplete[batch.id]
            oldest = next(iter(self._incomplete), self._last_number + 1) if self._flushes else 0
            finished = [done for upto, done in self._flushes if oldest > upto]
            if finished:
                self._flushes = [item for item in self._flushes if oldest <= item[0]]
        for done in finished:
            done()

    def busy_queues(self) -> list[PartitionQueue]:
        """The queues that hold something to send or have something on the wire. Empty batches are dropped."""
        empty: list[ProducerBatch] = []
        with self.lock:
            for queue in self.queues.values():
                waiting = queue.waiting
                while waiting and not waiting[0].count:
                    waiting[0].seal()
                    empty.append(waiting.popleft())
            busy = [queue for queue in self.queues.values() if queue.waiting or queue.on_wire]
        for batch in empty:
            self.complete(batch)
        return busy

    def forget_idle(self, is_gone: Callable[[TopicPartition], bool]) -> list[PartitionQueue]:
        """Take out the queues that hold nothing, of partitions that are gone."""
        with self.lock:
            idle = [queue for queue in self.queues.values() if queue.is_idle and is_gone(queue.partition)]
            for queue in idle:
                del self.queues[queue.partition]
        return idle

    def all_batches(self) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Every batch without an answer, queued or on the wire."""
        with self.lock:
            return [
                (queue, batch)
                for queue in self.queues.values()
                for batch in (*queue.on_wire, *queue.waiting)
                if batch.count and not batch.done
            ]

    def drop(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Take a batch that has failed out of the queue, wherever it stands; nothing is appended to it from now on."""
        with self.lock:
            batch.seal()  # rule C1/failed-batch-takes-records
            if batch in queue.waiting:
                queue.waiting.remove(batch)

    def bar(self, error: Exception | None) -> None:
        """Take no more records, nor let open batches, and raise `error` for them; None: a transaction is open."""
        with self.lock:
            self._barred = error
            for waiting in (queue.waiting for queue in self.queues.values() if queue.waiting):
                waiting[-1].seal()  # schedule 132/a-record-comes-between-transactions/2

    def disown(self, error: Exception) -> None:
        """In the child of a fork: what is here is the parent's, whose thread may have held the lock. Who waits is
        woken, and takes `error` for its answer."""
        self.lock = threading.RLock()
        self.closed = error
        waiters, self._memory_waiters = self._memory_waiters, deque()
        flushes, self._flushes = self._flushes, []
        for notify in (*waiters, *(done for _, done in flushes)):
            notify()

    def close(self, error: Exception) -> None:
        """Take no more records, nor let open batches: `append` raises `error`. Waiters for memory are woken."""
        with self.lock:
            self.closed = error
            self.memory.close()  # rule C1/closed-producer-takes-records
            waiters, self._memory_waiters = self._memory_waiters, deque()
        for notify in waiters:
            notify()


REMEMBERED_BATCHES = 5
"""Batches of a producer that a broker remembers per partition (Kafka's ProducerStateEntry)."""

EPOCH_MAX = 32_767


class Sequencer:
    """Gives batches their numbers. Invariant: a number is given once per (producer id, epoch, partition).

    A broker knows the last five batches of (producer id, epoch) per partition. It answers a batch that it already has
    with the old offset, takes the one that comes next, and refuses any other with OUT_OF_ORDER_SEQUENCE_NUMBER. So a
    retry keeps its sequence, and nothing new is sent five batches ahead of it: the broker would forget it. Until a
    first batch is known to be in the log it travels alone: a leader without a trace of a producer id takes any
    sequence, and of two batches on their way during an election the second may find it first.

    A batch that has failed may or may not be in the log. What is behind it is sent on under its old numbers: if the
    broker takes the first in line, nothing is missing; if it refuses it, none of them was written, and all get new
    numbers from 0 under the next epoch. The epoch is bumped per partition, for brokers keep this state per partition;
    a bump fences what is still under way under the old one.
    """

    forgets_queues = True
    """Whether the queue of a partition that is not sent to any more may be forgotten (`retire`)."""
    produce_version_max: int | None = None
    gives_up = False  # whether what is not acknowledged at once fails: nobody wants it any more

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        wake: Callable[[], None],
        on_fatal: Callable[[StrandlineError], None],
    ) -> None:
        self.producer_id = -1
        self.last_error: StrandlineError | None = None
        self._config = config
        self._session = session
        self._wake = wake
        self._on_fatal = on_fatal
        self._fetching: asyncio.Task[None] | None = None
        self._first_epoch = 0
        """Epoch of new queues: no log can have records of this producer id in it."""

    def retire(self, queue: PartitionQueue) -> None:
        """A queue is forgotten, and where it was in its sequences. Its log may still be there, and know them: the next
        queue of that partition must not begin at a sequence that was used (it would pass for a repetition)."""
        if queue.producer_id == self.producer_id:  # rule C1/forgotten-queue-begins-at-an-old-sequence
            self._first_epoch = max(self._first_epoch, queue.producer_epoch + 1)

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether the batch at the head may go out now; bumps the epoch where that is due and possible."""
        if queue.bump_needed and (queue.on_wire or not self._bump(queue)):
            return False
        if queue.producer_id < 0:
            if self.producer_id < 0:
                self._fetch_producer_id()
                return False
            if self._first_epoch > EPOCH_MAX:
                self.producer_id = -1
                self._fetch_producer_id()
                return False
            queue.producer_id, queue.producer_epoch = self.producer_id, self._first_epoch
        head = queue.waiting[0]
        if head.numbers is not None:
            return queue.known or queue.numbered[0] is head
        ahead = len(queue.numbered)
        return ahead < REMEMBERED_BATCHES and (queue.known or not ahead)

    def number(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Give a batch that is about to be sent its sequence, unless it has one."""
        if batch.numbers is None:
            batch.numbers = SequenceNumbers(queue.producer_id, queue.producer_epoch, queue.next_sequence)
            queue.next_sequence = (queue.next_sequence + batch.count) & SEQUENCE_MASK
            queue.numbered.append(batch)

    def resolve(self, queue: PartitionQueue, batch: ProducerBatch, *, written: bool) -> None:
        """A batch has its final answer; `written` is false unless it is known to be in the log."""
        if batch in queue.numbered and not batch.resolved:
            batch.resolved = True
            queue.known = queue.known or written
            while queue.numbered and queue.numbered[0].resolved:
                queue.numbered.pop(0)

    def failed(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        """A batch has failed for good: it may be in the log all the same."""
        self.resolve(queue, batch, written=False)

    def refused(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        """Take note of an error about sequences; true when `code` is one (the batch is then to be sent again)."""
        if batch.numbers is None:
            return False
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            if queue.numbered and queue.numbered[0] is batch:
                queue.bump_needed = True
            return True
        if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            queue.bump_needed = True
            queue.new_id_needed = True
            return True
        return False

    async def assigned(self) -> int:
        """The producer id, asked for where there is none yet.

        Raises:
            KafkaError: the cluster gives none.
        """
        while self.producer_id < 0:
            self._fetch_producer_id()
            if self._fetching is not None:
                await asyncio.wait([self._fetching])
            if self.producer_id < 0 and isinstance(self.last_error, KafkaError) and not self.last_error.retriable:
                raise self.last_error
        return self.producer_id

    async def close(self) -> None:
        """Stop asking for a producer id."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _bump(self, queue: PartitionQueue) -> bool:
        """Next epoch, or a new producer id where epochs are used up or refused; false while that id is on its way."""
        if queue.new_id_needed or queue.producer_epoch >= EPOCH_MAX:
            if self.producer_id == queue.producer_id:
                self.producer_id = -1
            if self.producer_id < 0:
                self._fetch_producer_id()
                return False
            queue.producer_id, queue.producer_epoch, queue.known = self.producer_id, 0, False
        else:
            queue.producer_epoch += 1
        sequence = 0
        queue.numbered = [batch for batch in queue.numbered if not batch.resolved]
        for batch in queue.numbered:
            batch.numbers = SequenceNumbers(queue.producer_id, queue.producer_epoch, sequence)
            sequence += batch.count
        queue.next_sequence = sequence
        queue.bump_needed = queue.new_id_needed = False
        return True

    def _fetch_producer_id(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    async def _fetch(self) -> None:
        try:
            given = await producer_id_of_its_own(self._session, self._config, self._note)
            self.producer_id, self._first_epoch = given.number, 0
            self._wake()
        except KafkaError as error:
            self._on_fatal(error)
        finally:
            self._fetching = None

    def _note(self, error: StrandlineError | None) -> None:
        self.last_error = error


Sent = list[tuple[PartitionQueue, ProducerBatch]]

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
"""A batch of several records is split: max.message.bytes or segment.bytes of the topic may hold one half of it."""

_SWEEP_MS_MAX = 1_000.0
"""Expired batches are looked for at least this often while any is open."""


class Sender:
    """Sends the batches of one producer. Runs on one event loop."""

    def __init__(
        self, config: ProducerConfig, session: Session, accumulator: Accumulator, wake: Callable[[], None]
    ) -> None:
        self._config = config
        self._session = session
        self._network = session.network
        self._metadata = session.metadata
        self._clock = session.clock
        self._accumulator = accumulator
        self._wake = wake
        self._acks = config.acks_number
        self._sequencer: Sequencer | None = None
        if config.idempotent and config.transactional_id is None:
            self.take_sequencer(Sequencer)
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._reached: dict[int, None] = {}
        self._answer_ms: dict[int, float] = {}
        """Broker -> how long its answers to Produce took lately."""
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_ms = 0.0
        self._topics_seen: Mapping[str, TopicView] = self._metadata.topics
        self._last_error: StrandlineError | None = None
        self._metadata.subscribe(wake)

    def take_sequencer(self, make: Callable[..., Sequencer]) -> None:
        """Number batches by this one, from the first one on. `make` takes what `Sequencer` takes."""
        self._sequencer = make(self._config, self._session, self._wake, self.fail_everything)

    # -- the engine -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send what is due and set the timer for what is not."""
        now = self._clock.monotonic_ms()
        self._sweep(now)
        if self._metadata.topics is not self._topics_seen:
            self._topics_seen = self._metadata.topics
            self._forget_idle_queues()
        accumulator = self._accumulator
        linger_ms, wait = self._config.linger_ms, float("inf")
        by_leader: dict[int, list[PartitionQueue]] = {}
        nodes: dict[int, NodeInfo] = {}
        busy = accumulator.busy_queues()
        for queue in busy:
            leader = self._metadata.leader_of(queue.partition)
            if leader is not None and queue.on_wire and leader[1] > queue.wire_epoch:
                self._give_up_old_leader(queue, leader[0])
            if not queue.waiting:
                continue
            delay = accumulator.is_due(queue, linger_ms, now)
            if delay > 0:
                wait = min(wait, delay)
                continue
            if leader is None:
                self._metadata.want((queue.partition.topic,))
                self._metadata.request_update()
                wait = min(wait, self._config.retry_backoff_ms + 1.0)
                continue
            node = leader[0]
            nodes[node.node_id] = node
            by_leader.setdefault(node.node_id, []).append(queue)
        for node_id, queues in by_leader.items():
            queues.sort(key=lambda queue: queue.waiting[0].order)
            wait = min(wait, self._send_to(nodes[node_id], queues, now))
        if accumulator.memory.used:
            wait = min(wait, max(self._next_sweep_ms - now, 0.0) + 1.0)
        self._set_timer(wait)

    def _send_to(self, node: NodeInfo, queues: list[PartitionQueue], now: float) -> float:
        """Fill a broker's connection up to the requests it may have; milliseconds until another look is due."""
        connection = self._network.ready(node, DATA)
        if connection is None:
            return self._connect(node)
        if connection.throttled_ms > 0:
            return connection.throttled_ms
        limit = self._config.max_in_flight_requests_per_connection
        while connection.in_flight < limit:
            if self._acks == 0 and not connection.writable:
                connection.on_writable = self._wake
                break
            sent = self._take_due(node, queues, now)
            if not sent:
                break
            self._send(node, connection, sent)
        return float("inf")

    def _take_due(self, node: NodeInfo, queues: list[PartitionQueue], now: float) -> Sent:
        """One batch per partition (a rule of Produce), as many as fit into `max.request.size`.

        A partition with something on its way to another broker waits: the new leader could get the later batch first.
        """
        accumulator, sequencer = self._accumulator, self._sequencer
        sent: Sent = []
        size = 0
        for queue in queues:
            if queue.on_wire and queue.wire_node != node.node_id:
                continue
            self._drop_late(queue, node, now)
            if not queue.waiting or accumulator.is_due(queue, self._config.linger_ms, now) > 0:
                continue
            queue.goes_to(self._metadata.topic_id(queue.partition.topic))
            if sequencer is not None and not sequencer.may_send(queue):
                continue
            queue.waiting[0].seal()
            needed = queue.waiting[0].builder.size_bytes
            if sent and size + needed > self._config.max_request_size:
                break
            batch = accumulator.take(queue)
            if sequencer is not None:
                sequencer.number(queue, batch)
            size += needed
            sent.append((queue, batch))
        return sent

    def _drop_late(self, queue: PartitionQueue, node: NodeInfo, now: float) -> None:
        """Fail what was never sent, and would be answered too late. Where records come faster than a broker takes them,
        each would else go out just before its time is over, and none would be acknowledged. Half of the time is never
        taken away: answers may be faster by now."""
        timeout_ms = self._config.delivery_timeout_ms
        needed_ms = min(2 * self._answer_ms.get(node.node_id, 0.0), timeout_ms / 2)
        while queue.waiting and not queue.waiting[0].attempts and queue.waiting[0].count:
            if now - queue.waiting[0].created_ms < timeout_ms - needed_ms:  # rule C23/what-comes-too-late-is-sent
                return
            self._expire(queue, queue.waiting[0])

    def _send(self, node: NodeInfo, connection: Connection, sent: Sent) -> None:
        topics: dict[str, list[tuple[int, memoryview]]] = {}
        now = self._clock.monotonic_ms()
        for queue, batch in sent:
            batch.attempts += 1
            batch.sent_ms = now
            queue.on_wire.append(batch)
            leader = self._metadata.leader_of(queue.partition)
            queue.wire_node, queue.wire_epoch = node.node_id, -1 if leader is None else leader[1]
            topics.setdefault(queue.partition.topic, []).append((queue.partition.partition, memoryview(batch.encode())))
        self._metadata.want(list(topics))
        ids = {name: view.topic_id for name in topics if (view := self._metadata.topics.get(name)) is not None}
        all_named = all(ids.get(name) is not None for name in topics)
        at_most = None if self._sequencer is None else self._sequencer.produce_version_max
        try:
            version = connection.version(Api.PRODUCE, at_most if all_named else at_most or 12)
        except KafkaError as error:
            for queue, batch in sent:
                queue.on_wire.remove(batch)
                self._fail(queue, batch, error)
            return
        wanted = [ProduceTopic(name, ids.get(name), batches) for name, batches in topics.items()]
        request = ProduceRequest(self._acks, self._config.request_timeout_ms, self._config.transactional_id, wanted)
        body = write_request(version, request)
        answer = connection.send(Api.PRODUCE, version, body, self._config.request_timeout_ms, self._acks != 0)
        if self._acks == 0:
            self._finish_unanswered(sent, answer)
        else:
            read = partial(_read, connection, version)
            attempts = [batch.attempts for _, batch in sent]
            answer.add_done_callback(partial(self._answered, node, read, sent, attempts))

    def _finish_unanswered(self, sent: Sent, answer: asyncio.Future[memoryview]) -> None:
        error = answer.exception()
        for queue, batch in sent:
            queue.on_wire.remove(batch)
            if isinstance(error, StrandlineError):
                self._fail(queue, batch, error)
            else:
                self._accumulator.release(batch)
                batch.finish(-1, -1, ())
                self._accumulator.complete(batch)

    def _connect(self, node: NodeInfo) -> float:
        if self._acks == 0 and node.node_id in self._reached:
            # The connection was lost, which is all that a broker can say to acks=0 when it leads no more.
            del self._reached[node.node_id]
            self._metadata.request_update()
        if node.node_id not in self._connecting:
            if (wait := self._network.backoff_ms(node)) > 0:
                return wait
            self._connecting[node.node_id] = asyncio.get_running_loop().create_task(self._open(node))
        return float("inf")

    async def _open(self, node: NodeInfo) -> None:
        try:
            await self._network.to_node(node, DATA)
            self._last_error = None
            self._reached[node.node_id] = None
        except StrandlineError as error:
            self._last_error = error
            self._metadata.request_update()
        finally:
            self._connecting.pop(node.node_id, None)
            self._wake()

    def _set_timer(self, wait_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if wait_ms == float("inf") else loop.call_later(wait_ms / 1000, self._wake)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _give_up_old_leader(self, queue: PartitionQueue, leader: NodeInfo) -> None:
        """Send anew, to the new leader, what the old one has not answered: it may be silent for long.

        Only sequences make that safe: the new leader answers what the old one had replicated as a duplicate.
        """
        if self._sequencer is None or queue.wire_node == leader.node_id:
            return
        given_up, queue.on_wire = queue.on_wire, []
        for batch in given_up:
            if not batch.done:
                batch.last_error = lost = Disconnected(f"broker {queue.wire_node} no longer leads {queue.partition}")
                if self._sequencer.gives_up:  # rule C19/an-abort-waits-for-what-the-old-leader-has
                    self._fail(queue, batch, lost)
                else:
                    self._accumulator.put_back(queue, batch)

    def _answered(
        self,
        node: NodeInfo,
        read: Callable[[memoryview], list[tuple[str | UUID, list[PartitionResult]]]],
        everything: Sent,
        attempts: list[int],
        answer: asyncio.Future[memoryview],
    ) -> None:
        sent = [
            (queue, batch)
            for (queue, batch), attempt in zip(everything, attempts, strict=True)
            if batch.attempts == attempt and batch in queue.on_wire
        ]
        for queue, batch in sent:
            queue.on_wire.remove(batch)
        error = Disconnected("the producer was closed") if answer.cancelled() else answer.exception()
        told: dict[tuple[str | UUID, int], PartitionResult] = {}
        if error is None:
            try:
                topics = read(answer.result())
                told = {(topic, result.index): result for topic, results in topics for result in results}
            except ProtocolError as broken:
                error = broken
        now = self._clock.monotonic_ms()
        if error is None and sent:
            known_ms = self._answer_ms.get(node.node_id, 0.0)
            self._answer_ms[node.node_id] = known_ms + (now - sent[0][1].sent_ms - known_ms) / 4
        retries: Sent = []
        for queue, batch in sent:
            if error is not None:
                again = self._retry_or_fail(queue, batch, error, now)
            else:
                again = self._settle(queue, batch, self._find(told, queue), node, now)
            if again:
                retries.append((queue, batch))
        for queue, batch in reversed(retries):
            self._accumulator.put_back(queue, batch)
        if error is not None:
            if isinstance(error, ClientTimeout):
                self._metadata.suspect(node.node_id)
            self._metadata.request_update()
        self._wake()

    def _find(
        self, told: dict[tuple[str | UUID, int], PartitionResult], queue: PartitionQueue
    ) -> PartitionResult | None:
        name, number = queue.partition
        found = told.get((name, number))
        if found is None:
            view = self._metadata.topics.get(name)
            if view is not None and view.topic_id is not None:
                found = told.get((view.topic_id, number))
        return found

    def _settle(
        self, queue: PartitionQueue, batch: ProducerBatch, told: PartitionResult | None, node: NodeInfo, now: float
    ) -> bool:
        """Judge one partition's answer; true when the batch is to be sent again."""
        if told is None:
            lost = Disconnected(f"broker {node} did not answer for {queue.partition}")
            return self._retry_or_fail(queue, batch, lost, now)
        code = told.error
        if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            replicas = told.synced_replicas
            if replicas is None and self._acks == 1:
                replicas = (node.node_id,)
            self._finish(queue, batch, told.base_offset if code is ErrorCode.NONE else -1, told, replicas)
            return False
        where: dict[str, Any] = {"of": queue.partition.topic, "partition": str(queue.partition), "broker": node.node_id}
        error = answered(self._config, Api.PRODUCE, code, told.message, **where)
        if batch.done:
            return False
        if code in _TOO_LARGE and batch.count > 1:
            queue.may_grow = False
            self._accumulator.replace_by_halves(queue, batch, batch.split(self._accumulator.codec))
            return False
        if self._sequencer is not None and self._sequencer.refused(queue, batch, code):
            return self._retry_or_fail(queue, batch, error, now)
        if not code.retriable:
            self._fail(queue, batch, error)
            return False
        moved = told.leader_id >= 0 and self._metadata.apply_leader(queue.partition, told.leader_id, told.leader_epoch)
        if code is ErrorCode.REQUEST_TIMED_OUT:
            self._metadata.suspect(node.node_id)
            self._metadata.request_update()
        elif code.refresh_metadata and not moved:
            self._metadata.request_update()
        return self._retry_or_fail(queue, batch, error, now, at_once=moved)

    def _finish(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        base_offset: int,
        told: PartitionResult,
        replicas: tuple[int, ...] | None,
    ) -> None:
        if self._sequencer is not None:
            self._sequencer.resolve(queue, batch, written=True)
        if not batch.done:
            self._accumulator.release(batch)
            # rule B37/a-flush-returns-before-the-futures-are-done
            batch.finish(base_offset, told.log_append_time_ms, replicas)
            self._accumulator.complete(batch)  # rule B37/a-flush-returns-before-the-futures-are-done/2

    def _retry_or_fail(
        self, queue: PartitionQueue, batch: ProducerBatch, error: BaseException, now: float, *, at_once: bool = False
    ) -> bool:
        if batch.done:
            return False
        failure = error if isinstance(error, StrandlineError) else Disconnected(str(error))
        batch.last_error = failure
        if batch.attempts > self._config.retries or (self._sequencer is not None and self._sequencer.gives_up):
            self._fail(queue, batch, failure)
            return False
        told = logs.records_of(queue.partition, batch.count)
        level = logging.INFO if batch.attempts == 1 else logging.DEBUG
        logs.producer.log(level, "%s not acknowledged, and sent again: %s", told, failure)
        batch.retry_at_ms = now + (0.0 if at_once else self._session.backoff_ms(batch.attempts))
        return True

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        if self._sequencer is not None:
            self._sequencer.failed(queue, batch, error)
        self._accumulator.drop(queue, batch)
        self._accumulator.release(batch)
        logs.not_written(queue.partition, batch.count, error)
        batch.fail(error)
        self._accumulator.complete(batch)

    def fail_unsent(self, error: StrandlineError) -> None:
        """Fail what is queued and not on the wire."""
        for queue, batch in self._accumulator.all_batches():
            if batch not in queue.on_wire:
                self._fail(queue, batch, error)

    # -- ends -------------------------------------------------------------------------------------------------------

    def _sweep(self, now: float) -> None:
        """Fail batches that are older than `delivery.timeout.ms`, and those of topics that are gone."""
        if now < self._next_sweep_ms:
            return
        timeout_ms = self._config.delivery_timeout_ms
        next_ms = now + _SWEEP_MS_MAX
        for queue, batch in self._accumulator.all_batches():
            if now - batch.created_ms >= timeout_ms:
                self._expire(queue, batch)
            elif batch not in queue.on_wire and (gone := self._metadata.absence(queue.partition)) is not None:
                self._fail(queue, batch, gone)
            else:
                next_ms = min(next_ms, batch.created_ms + timeout_ms)
        self._next_sweep_ms = next_ms

    def _expire(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        what = "had no acknowledgement within" if batch.attempts else "could not be sent in time for"
        known = "whether they are in the log is unknown" if batch.attempts else "they are not in the log"
        text = (
            f"{batch.count} records of {queue.partition} {what} delivery.timeout.ms={self._config.delivery_timeout_ms}"
        )
        self._fail(queue, batch, DeliveryTimeout(f"{text}; {known}", batch.last_error or self.current_trouble()))

    def _forget_idle_queues(self) -> None:
        """Forget the queues of topics that are deleted, or were not sent to for `metadata.max.idle.ms`."""
        sequencer = self._sequencer
        if sequencer is not None and not sequencer.forgets_queues:
            return
        for queue in self._accumulator.forget_idle(lambda item: self._metadata.is_forgotten(item.topic)):
            if sequencer is not None:
                sequencer.retire(queue)

    async def producer_id(self) -> int:
        """The producer id; requested first if there is none yet. -1 without idempotence."""
        return -1 if self._sequencer is None else await self._sequencer.assigned()

    def current_trouble(self) -> StrandlineError | None:
        """The last failure on the way to the brokers, if the trouble lasts."""
        waiting_for_id = None if self._sequencer is None else self._sequencer.last_error
        return self._last_error or self._metadata.last_error or waiting_for_id

    def fail_everything(self, error: StrandlineError) -> None:
        """End every record with `error` and take no more."""
        self._accumulator.close(error)
        for queue, batch in self._accumulator.all_batches():
            self._fail(queue, batch, error)

    def end(self) -> None:
        """Stop sending; what has no answer yet fails with ClosedError. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._connecting.values():
            task.cancel()
        self.fail_everything(ClosedError("the producer was closed before the record was acknowledged"))

    async def close(self) -> None:
        """Stop sending. Returns once all tasks have ended."""
        self.end()
        if tasks := list(self._connecting.values()):
            await asyncio.wait(tasks)
        if self._sequencer is not None:
            await self._sequencer.close()


def _read(connection: Connection, version: int, body: memoryview) -> list[tuple[str | UUID, list[PartitionResult]]]:
    """Decode a response, and obey its throttle time. Raises ProtocolError."""
    response = connection.read(read_response, body, version)
    connection.throttle(response.throttle_ms)
    return response.topics
