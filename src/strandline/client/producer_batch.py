"""A batch of a producer: its records, the numbers it is sent under, and the futures that `send` returned for them.

A batch travels and is retried as one, and its futures are completed together. A record's future is the producer's
hottest object. For threads it is a place among the results of its batch: the batch keeps no list of them, and
completing it costs nothing for those that nobody waits for. Coroutines get futures of their event loop.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right, insort
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, NamedTuple, Protocol

from strandline.client.logs import log
from strandline.client.loop_thread import Gate, SteppedOut, end_where_forked, interrupted, refused
from strandline.client.open_batches import Memory, OpenBatch, RecordSlot
from strandline.client.types import Ack
from strandline.log.batch import RecordBatchBuilder, decode_records, finish_batch, with_producer
from strandline.log.compression import Codec
from strandline.proto.ids import TopicPartition

SEQUENCE_MASK = 0x7FFFFFFF
"""Sequence numbers wrap to 0 after 2^31 - 1."""


class SequenceNumbers(NamedTuple):
    """Numbers by which a broker finds duplicates and gaps; -1 each: a producer without idempotence."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    """Sequence number of the batch's first record."""
    transactional: bool = False
    """Whether the batch is part of a transaction of this producer."""


class Answer(NamedTuple):
    """Outcome of the records [first, after) of a batch. A batch that was split gets several."""

    first: int
    after: int
    base_offset: int = -1
    """Offset of the first of them; -1: the broker has them and does not say where."""
    append_time_ms: int = -1
    """Timestamp (ms) that the broker gave them all; -1: they keep their own."""
    replicas: tuple[int, ...] | None = None
    error: Exception | None = None

    def ack(self, partition: TopicPartition, index: int, timestamp_ms: int) -> Ack:
        """The acknowledgement of the record with this number in the batch."""
        offset = -1 if self.base_offset < 0 else self.base_offset + index - self.first
        time_ms = timestamp_ms if self.append_time_ms < 0 else self.append_time_ms
        return Ack(*partition, offset, time_ms, self.replicas)


class Results(Protocol):
    """Outcomes of the records of one batch, those of its halves among them if it was split."""

    @property
    def make(self) -> Callable[[], Any]:
        """Maker of the records' futures; see `open_batches_python.OpenBatch`, as for the two lists."""

    @property
    def futures(self) -> list[Any] | None:
        """Futures that `make` has made, by the records' numbers."""

    @property
    def timestamps(self) -> list[int] | None:
        """Timestamps (ms) of the records, by their numbers."""

    def settle(self, answer: Answer) -> None:
        """Complete these records' futures, in order. Once for each record."""


class RecordFuture(RecordSlot, Future[Ack]):
    """The acknowledgement of one record to come. It cannot be cancelled: the record may be on its way."""

    _results: ThreadResults

    def result(self, timeout: float | None = None) -> Ack:
        """The ack, waiting at most `timeout` seconds. Raises what the record failed with, TimeoutError, or ClientError
        where a callback of the producer would wait for itself."""
        answer = self._results.answer(self, timeout)
        if answer.error is not None:
            raise answer.error
        return answer.ack(self._results.partition, self._index, self._timestamp_ms)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the record, or None, waiting at most `timeout` seconds. Raises TimeoutError, ClientError."""
        return self._results.answer(self, timeout).error

    def done(self) -> bool:
        """Whether it is acknowledged or has failed."""
        return self._results.find(self._index) is not None

    def running(self) -> bool:
        """Whether it is neither."""
        return not self.done()

    # -- what concurrent.futures looks at: wait, as_completed, add_done_callback, repr ---------------------------------

    @property
    def _condition(self) -> Any:  # type: ignore[override]
        return self._results.lock

    @property
    def _state(self) -> str:  # type: ignore[override]
        return FINISHED if self.done() else RUNNING

    @property
    def _result(self) -> Ack | None:  # type: ignore[override]
        answer = self._results.find(self._index)
        if answer is None or answer.error is not None:
            return None
        return answer.ack(self._results.partition, self._index, self._timestamp_ms)

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        answer = self._results.find(self._index)
        return None if answer is None else answer.error

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._listeners("waiters")

    @property
    def _done_callbacks(self) -> list[Any]:
        return self._listeners("callbacks")

    def _listeners(self, kind: str) -> list[Any]:
        """The listeners of this kind, told when it is done; asked for under `_condition`."""
        found: list[Any] = self.__dict__.setdefault(kind, [])
        self._results.listen(self)
        return found

    def wake(self, answer: Answer) -> None:
        """Tell those who wait, under `_condition`."""
        for waiter in self.__dict__.get("waiters", ()):
            if answer.error is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)
        self.open_gates()

    def open_gates(self) -> None:
        """Let pass who waits for the result."""
        for gate in list(self.__dict__.pop("gates", ())):
            gate.open()

    def call_back(self, leave: Callable[[BaseException], None]) -> None:
        """Run the callbacks. An exception is logged; SystemExit and the like are also passed to `leave`."""
        for callback in self.__dict__.get("callbacks", ()):
            try:
                callback(self)
            except Exception:
                log.exception("a callback of a record's future failed")
            except BaseException as error:
                leave(error)
            end_where_forked()


class ThreadResults:
    """Outcomes of the records of one batch, for threads. Invariant: a record has one answer, which stays."""

    __slots__ = ("_answers", "_kind", "_listening", "partition")

    make = RecordFuture
    futures = None
    timestamps = None

    def __init__(self, kind: ThreadFutures, partition: TopicPartition) -> None:
        self.partition = partition
        self._kind = kind
        self._answers: list[Answer] = []
        self._listening: dict[int, RecordFuture] = {}

    @property
    def lock(self) -> Any:
        """Lock that is held while futures are completed, and while a thread begins to wait for one."""
        return self._kind.lock

    def find(self, index: int) -> Answer | None:
        """The answer that holds for this record, if there is one yet."""
        answers = self._answers
        if not answers:
            return None
        if len(answers) == 1:
            answer = answers[0]
        else:
            place = bisect_right(answers, index, key=_first) - 1
            answer = answers[max(place, 0)]
        return answer if answer.first <= index < answer.after else None  # rule C1/an-answer-for-both-halves

    def answer(self, future: RecordFuture, timeout: float | None) -> Answer:
        """Wait for what becomes of a record. Raises TimeoutError, ClientError (see `refused`)."""
        answer = self.find(future._index)
        if answer is not None:
            return answer
        self._kind.may_wait("a future's result")
        told = Gate()
        gates = future.__dict__.setdefault("gates", {})
        gates[told] = None
        self._listening[future._index] = future
        try:
            if self.find(future._index) is None:  # else nobody saw the gate, perhaps
                with SteppedOut(self._kind.locks):
                    told.wait(timeout)
        finally:
            gates.pop(told, None)
        answer = self.find(future._index)
        if answer is None:
            raise TimeoutError
        return answer

    def listen(self, future: RecordFuture) -> None:
        """Note that a thread waits for this future; call under `lock`."""
        if self.find(future._index) is None:
            self._listening[future._index] = future

    def settle(self, answer: Answer) -> None:
        """Complete the futures of these records, then wake all waiting threads, then run the callbacks."""
        with self.lock:
            insort(self._answers, answer, key=_first)
            told = self._leave(answer)
            for future in told:
                future.wake(answer)
        for future in told:
            future.call_back(self._kind.leave)

    def disown(self, answer: Answer) -> None:
        """In the child of a fork: drop these records, which belong to the parent, without calling callbacks."""
        if self.find(answer.first) is None:
            insort(self._answers, answer, key=_first)
            for future in self._leave(answer):
                future.open_gates()

    def _leave(self, answer: Answer) -> list[RecordFuture]:
        listening = self._listening
        if not listening:
            return []
        indexes = sorted(index for index in list(listening) if answer.first <= index < answer.after)
        return [listening.pop(index) for index in indexes]


def _first(answer: Answer) -> int:
    return answer.first


class ThreadFutures:
    """Futures for threads.

    Args:
        on_sender: whether the caller runs on the thread that completes them, which must not wait for itself.
        leave: told of a callback's SystemExit, KeyboardInterrupt and alike, which are not that thread's to end on.
    """

    def __init__(
        self, on_sender: Callable[[], bool] = lambda: False, leave: Callable[[BaseException], None] = log.critical
    ) -> None:
        self.on_sender = on_sender
        self.leave = leave
        self.lock = threading.RLock()
        """One for all: concurrent.futures takes those of several futures at once, and may run callbacks within."""
        self.locks: tuple[Any, ...] = ()
        """Locks that a calling thread leaves while it waits, see `SteppedOut`."""

    def may_wait(self, call: str) -> None:
        """Check that a call may block. Raises ClientError in a callback or a signal handler, where the caller would
        wait for itself."""
        if self.on_sender():
            raise refused(call)
        if self.lock._is_owned():  # type: ignore[attr-defined]
            raise interrupted(call)

    def results(self, partition: TopicPartition) -> ThreadResults:
        """The results of a new batch."""
        return ThreadResults(self, partition)

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock."""
        self.lock = threading.RLock()


class LoopResults:
    """Outcomes of the records of one batch, for coroutines of the running loop."""

    __slots__ = ("futures", "make", "partition", "timestamps")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.make: Callable[[], Any] = asyncio.get_running_loop().create_future
        self.futures: list[asyncio.Future[Ack]] = []
        self.timestamps: list[int] = []

    def settle(self, answer: Answer) -> None:
        """Complete the futures that were not cancelled."""
        for index in range(answer.first, answer.after):
            future = self.futures[index]
            if future.done():
                continue
            if answer.error is None:
                future.set_result(answer.ack(self.partition, index, self.timestamps[index]))
            else:
                future.set_exception(answer.error)
                # A caller of acks=all that never looks at its futures learns of failures by flush() and close().
                future.exception()


class OpenRecords(OpenBatch):
    """Records that are appended one by one, and encoded as they come."""

    __slots__ = ("_codec",)

    _codec: Codec

    @classmethod
    def of(cls, memory: Memory, results: Results, codec: Codec) -> OpenRecords:
        """An open batch without records."""
        records = cls(memory, results, results.make, results.futures, results.timestamps)
        records._codec = codec
        return records

    def build(self, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> bytearray:
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
            transactional=transactional,
        )


class ProducerBatch:
    """Records with their futures, and where they stand on the way.

    Invariants:
    - `numbers`, once given, stay with the records through retries; a bump of the epoch alone changes them (KIP-360).
    - The futures complete exactly once, each half's of a split batch with its own answer: a record keeps its number in
      `results`, which halves share; the first here is number `first`.
    - Records are added until `seal`, and not after.
    """

    __slots__ = (
        "announced", "attempts", "builder", "created_ms", "done", "encoded", "encoded_numbers", "first", "last_error",
        "numbers", "order", "partition", "reserved_bytes", "resolved", "results", "retry_at_ms", "sealed", "sent_ms",
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
        """Bytes of `buffer.memory`, once it is sealed."""
        self.numbers: SequenceNumbers | None = None
        """Numbers that it is sent under; None: it has not been sent yet, or its producer gives none."""
        self.attempts = 0
        self.sent_ms = 0.0
        """Time of the last send, in monotonic milliseconds."""
        self.retry_at_ms = 0.0
        self.sealed = False
        self.announced = False
        """Whether the sender was woken for it."""
        self.done = False
        self.resolved = False
        self.encoded: bytearray | None = None
        self.encoded_numbers: SequenceNumbers | None = None
        """The numbers that stand in `encoded`."""
        self.last_error: Exception | None = None

    @property
    def id(self) -> int:
        """The number of the batch as it was first made: the halves of a split batch share it."""
        return self.order[0]

    @property
    def count(self) -> int:
        """Records inside."""
        return self.builder.count

    @property
    def records(self) -> OpenRecords | None:
        """The open batch that records are appended to; None: it was made whole (half of another batch, say)."""
        return self.builder if isinstance(self.builder, OpenRecords) else None

    def seal(self) -> None:
        """Take no more records. Idempotent."""
        if isinstance(self.builder, OpenBatch):
            self.builder.seal()
            self.reserved_bytes = self.builder.reserved_bytes
        self.sealed = True

    def encode(self) -> bytearray:
        """The batch's bytes; built once. Other numbers make a copy: what had the first may still be on its way."""
        numbers = self.numbers or SequenceNumbers()
        if self.encoded is None:
            self.encoded = self.builder.build(**numbers._asdict())
        elif self.encoded_numbers != numbers:
            self.encoded = with_producer(self.encoded, *numbers)
        self.encoded_numbers = numbers
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
            if self.numbers is not None:
                sequence = (self.numbers.base_sequence + start) & SEQUENCE_MASK
                half.numbers = self.numbers._replace(base_sequence=sequence)
            halves.append(half)
        halves[0].reserved_bytes = self.reserved_bytes - halves[1].reserved_bytes
        return halves
