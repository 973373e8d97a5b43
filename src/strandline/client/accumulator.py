"""Where records wait to be sent, in batches that travel and are retried as one: per partition a queue of them, over all
of them one bound of memory.

Any thread may append, and most records never come here: a topic's lanes write them straight into the open batch of
their partition. `append` opens batches. Everything else runs on the sender's loop. One lock guards the queues, held for
microseconds and never across I/O.

A signal's handler may run after any call in `append`, there raise or itself use the producer: what is there then holds,
and nobody is in between of plain statements (rule B37).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

from strandline.client.config import ProducerConfig
from strandline.client.futures import Answer, FutureKind, MadeResults, Results
from strandline.client.lanes import Lanes, Memory, OpenBatch
from strandline.client.types import Ack, Header
from strandline.log.batch import RECORD_OVERHEAD_BYTES, RecordBatchBuilder, decode_records, finish_batch, with_producer
from strandline.log.compression import Codec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock

NO_SEQUENCE = -1


class OpenRecords(OpenBatch):
    """Records that come one by one."""

    __slots__ = ("_codec",)

    _codec: Codec

    @classmethod
    def of(cls, memory: Memory, results: Results, codec: Codec) -> OpenRecords:
        """None yet."""
        records = cls(memory, results, results.make, results.futures, results.timestamps)
        records._codec = codec
        return records

    def build(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
        """The batch's bytes with these numbers, once, when it is sealed."""
        return finish_batch(
            self.take(),
            count=self.count,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


class ProducerBatch:
    """Records with their futures, and where they stand on the way.

    Invariants:
    - The sequence range, once given, stays with the records through retries, under one (producer id, epoch); only a
      bump of the epoch gives them another (KIP-360).
    - The futures complete exactly once, each half's of a split batch with its own answer: a record keeps its number in
      `results`, which halves share; the first here is number `first`.
    - Records are added until `seal`, and not after.
    """

    __slots__ = (
        "announced", "attempts", "base_sequence", "builder", "created_ms", "done", "encoded", "first", "last_error",
        "numbers_of", "order", "partition", "producer_epoch", "producer_id", "reserved_bytes", "resolved", "results",
        "retry_at_ms", "sealed",
    )  # fmt: skip

    def __init__(
        self,
        order: tuple[int, ...],
        partition: TopicPartition,
        records: OpenRecords | RecordBatchBuilder,
        results: Results,
        now_ms: float,
        *,
        first: int = 0,
    ) -> None:
        self.order = order
        self.partition = partition
        self.builder = records
        self.results = results
        self.first = first
        self.created_ms = now_ms
        self.reserved_bytes = 0
        """Of `buffer.memory`, once it is sealed."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        self.retry_at_ms = 0.0
        self.sealed = False
        self.announced = False
        """The sender was woken for it."""
        self.done = False
        self.resolved = False
        self.encoded: bytearray | None = None
        self.numbers_of: tuple[int, int, int] | None = None
        """The producer id, epoch and sequence that stand in `encoded`."""
        self.last_error: Exception | None = None

    @property
    def id(self) -> int:
        """The number of the batch as it was first made: the halves of a split batch share it."""
        return self.order[0]

    @property
    def count(self) -> int:
        """Records inside."""
        return self.builder.count

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
    ) -> Any | None:
        """Add a record; its future, or None where it has no place (`lanes_python.OpenBatch.append`)."""
        builder = self.builder
        return builder.append(timestamp_ms, key, value, headers) if isinstance(builder, OpenBatch) else None

    def grow(self, size_max: int) -> bool:
        """Take records up to so many bytes; false where it takes no more."""
        return isinstance(self.builder, OpenBatch) and self.builder.grow(size_max)

    def seal(self) -> None:
        """Take no more records. Idempotent."""
        if isinstance(self.builder, OpenBatch):
            self.builder.seal()
            self.reserved_bytes = self.builder.reserved_bytes
        self.sealed = True

    def give_sequence(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Number the records for the broker's check against duplicates and gaps."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence

    def encode(self) -> bytearray:
        """The batch's bytes; built once. Another sequence makes a copy: what had the first may still be on its way."""
        numbers = (self.producer_id, self.producer_epoch, self.base_sequence)
        if self.encoded is None:
            producer_id, producer_epoch, base_sequence = numbers
            self.encoded = self.builder.build(
                producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
            )
        elif self.numbers_of != numbers:
            self.encoded = with_producer(self.encoded, *numbers)
        self.numbers_of = numbers
        return self.encoded

    def finish(self, base_offset: int, log_append_time_ms: int, replicas: tuple[int, ...] | None) -> None:
        """Acknowledge every record. -1 as base offset: the broker has them and does not say where."""
        self.done = True
        after = self.first + self.count
        self.results.settle(Answer(self.first, after, base_offset, log_append_time_ms, replicas))

    def fail(self, error: Exception) -> None:
        """End every record's future with `error`."""
        self.done = True
        self.results.settle(Answer(self.first, self.first + self.count, error=error))

    def split(self, codec: Codec) -> list[ProducerBatch]:
        """Two halves of a batch that the broker found too large, with the sequences and the futures they had."""
        records = decode_records(self.encode())
        middle = len(records) // 2
        halves = []
        for place, (start, end) in enumerate(((0, middle), (middle, len(records)))):
            builder = RecordBatchBuilder(codec)
            for record in records[start:end]:
                builder.append(record.timestamp_ms, record.key, record.value, record.headers)
            order, first = (*self.order, place), self.first + start
            half = ProducerBatch(order, self.partition, builder, self.results, self.created_ms, first=first)
            half.reserved_bytes = self.reserved_bytes * (end - start) // len(records)
            half.attempts = self.attempts
            half.last_error = self.last_error
            if self.base_sequence != NO_SEQUENCE:
                sequence = (self.base_sequence + start) & 0x7FFFFFFF
                half.give_sequence(self.producer_id, self.producer_epoch, sequence)
            halves.append(half)
        halves[0].reserved_bytes = self.reserved_bytes - halves[1].reserved_bytes
        return halves


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
        """Nothing of it has to be sent, answered or settled."""
        return not (self.waiting or self.on_wire or self.numbered)

    def goes_to(self, topic_id: UUID | None) -> None:
        """What is sent next goes to the topic with this id; the log of another one than before holds nothing yet."""
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

    def __init__(self, config: ProducerConfig, kind: FutureKind, clock: Clock, wake: Callable[[], None]) -> None:
        self.codec = Codec[config.compression_type.upper()]
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        max_record = min(config.max_request_size, config.buffer_memory)
        self.memory = Memory(config.buffer_memory, max_record, config.batch_size)
        self.lock = threading.RLock()
        self.closed: Exception | None = None
        self._batch_size = config.batch_size
        self._batch_size_max = config.largest_batch
        self._max_record = max_record
        self._kind = kind
        self._clock = clock
        self._wake = wake
        self._memory_waiters: deque[Callable[[], None]] = deque()
        self._last_number = 0
        self._incomplete: dict[int, int] = {}
        self._flushes: list[tuple[int, Callable[[], None]]] = []
        self._flush_up_to = 0

    # -- any thread -------------------------------------------------------------------------------------------------

    def record_size(self, key: bytes | None, value: bytes | None, headers: Any) -> int:
        """Upper bound of a record's bytes, as it counts towards `buffer.memory`.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE above `max.request.size` or `buffer.memory`.
        """
        size = RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            for name, content in headers:
                size += len(name) * 4 + 10 + (0 if content is None else len(content))
        if size > self._max_record:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                "the record is larger than max.request.size or buffer.memory allows",
                record_bytes=size,
                allowed_bytes=self._max_record,
            )
        return size

    def append(
        self,
        partition: TopicPartition | Callable[[], TopicPartition],
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: tuple[Header, ...],
        lanes: Lanes | None = None,
    ) -> Any | None:
        """Queue one record that `lanes` did not take; its future, or None while the memory is full (see `when_memory`).

        `partition` may be a function, which is then called under the lock. A batch that is opened for the record goes
        into `lanes`, so that the next one finds it there.
        """
        with self.lock:
            if self.closed is not None:
                raise self.closed
            if not isinstance(partition, tuple):
                partition = partition()
            queue = self._queue(partition)
            waiting = queue.waiting
            batch = waiting[-1] if waiting else None
            future = None if batch is None else batch.append(timestamp_ms, key, value, headers)
            if batch is not None and future is None:
                behind = queue.on_wire or len(waiting) > 1
                if behind and queue.may_grow and batch.grow(self._batch_size_max):
                    batch.announced = False
                    future = batch.append(timestamp_ms, key, value, headers)
            if batch is None or future is None:
                batch = self._opened(queue)
                future = batch.append(timestamp_ms, key, value, headers)
                if future is None:
                    return None
        records = batch.builder
        if not batch.announced or records.size_bytes >= self._batch_size:
            self._wake()
            batch.announced = True
        if lanes is not None and isinstance(records, OpenRecords) and partition.partition < lanes.partitions:
            lanes.open(partition.partition, records)  # not before it is announced: lanes announce nothing
        return future

    def _opened(self, queue: PartitionQueue) -> ProducerBatch:
        """A new batch, the last of the queue. It has its number and its place at once, before any record: what is
        interrupted in between would leave a record without them, or two batches of one number."""
        results = self._kind.results(queue.partition)  # rule B37/a-batch-has-its-number-before-its-place
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
        return batch

    def append_made(
        self, partition: TopicPartition, made: RecordBatchBuilder, max_timestamp: int
    ) -> asyncio.Future[Ack] | None:
        """Queue a batch that was made before; the future of its first record's ack, or None while the memory is full.

        A queue takes such batches or records, not both.
        """
        with self.lock:
            if self.closed is not None:
                raise self.closed
            if not self.memory.take(made.size_bytes):
                return None
            self._last_number = number = self._last_number + 1
            results = MadeResults(partition, made.count, max_timestamp)
            batch = ProducerBatch((number,), partition, made, results, self._clock.monotonic_ms())
            batch.reserved_bytes = made.size_bytes
            self._queue(partition).waiting.append(batch)
            self._incomplete[number] = 1
        self._wake()
        return results.future

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
        """Take nothing more, in lanes neither: `append` raises `error` from now on. Waiters for memory are woken."""
        with self.lock:
            self.closed = error
            self.memory.close()  # rule C1/closed-producer-takes-records
            waiters, self._memory_waiters = self._memory_waiters, deque()
        for notify in waiters:
            notify()
