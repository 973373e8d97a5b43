"""Idempotent producer of complete batches: each is stored once and in order, across changes of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from strandline.client.aio.producer import ProducerCore
from strandline.client.config import ProducerConfig
from strandline.client.producer_batch import Answer, LoopResults, ProducerBatch
from strandline.client.sender import PartitionQueue, Sequencer
from strandline.client.session import Session
from strandline.client.types import Ack
from strandline.log.batch import Buffer, RecordBatchBuilder, parse_header, with_producer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock, Rng

BUFFER_BYTES = 32 << 20


class MadeRecords(RecordBatchBuilder):
    """A batch that was made before, by whomever: sent as it is, under the numbers of the producer that sends it."""

    __slots__ = ("_made", "max_timestamp")

    def __init__(self, made: Buffer) -> None:
        super().__init__()
        header = parse_header(made)
        self._made = made
        self.count = header.count
        self.size_bytes = len(made)
        self.max_timestamp = header.max_timestamp

    def build(
        self, *, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1, **_others: Any
    ) -> bytearray:
        """The batch's bytes with these numbers."""
        return with_producer(self._made, producer_id, producer_epoch, base_sequence)


class MadeResults:
    """The one answer of a batch that was made before, however often it is split: acknowledged once all of its parts
    are, at the offset of the first; it fails with the first part that does.

    Args:
        records: how many the batch has.
        timestamp_ms: what the ack says.
    """

    __slots__ = ("_ack", "_left", "_timestamp_ms", "future", "futures", "make", "partition", "timestamps")

    def __init__(self, partition: TopicPartition, records: int, timestamp_ms: int) -> None:
        self.partition = partition
        self.make: Callable[[], Any] = asyncio.get_running_loop().create_future
        self.futures: list[Any] | None = None
        self.timestamps: list[int] | None = None
        self.future: asyncio.Future[Ack] = self.make()
        self._left = records
        self._timestamp_ms = timestamp_ms
        self._ack: Ack | None = None

    def settle(self, answer: Answer) -> None:
        """Complete a part: it is in the log, or not, or that is unknown."""
        if self.future.done():
            return
        if answer.error is not None:
            self.future.set_exception(answer.error)
            self.future.exception()
            return
        self._left -= answer.after - answer.first
        if answer.first == 0:
            self._ack = answer.ack(self.partition, 0, self._timestamp_ms)
        if self._left <= 0 and self._ack is not None:
            self.future.set_result(self._ack)


class SequencesBefore(NamedTuple):
    """Place of an earlier producer, perhaps of a process that was killed, in its sequences: its id and epoch, and the
    next sequence number of each partition (0 in those that are not named)."""

    producer_id: int
    producer_epoch: int
    next_sequence: Mapping[TopicPartition, int]


class ContinuedSequencer(Sequencer):
    """Goes on with the sequences of a producer of before, which may still have batches under way, or live.

    The same records sent under the same numbers are written once: of two batches that begin at one sequence
    a leader takes the first that comes. So, other than a producer's own, these numbers are never changed: a batch that
    is refused at its turn fails, and its sender has to look what is in the log.
    """

    forgets_queues = False
    """False: the sender that goes on after this one reads its place in the sequences."""

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        wake: Callable[[], None],
        on_fatal: Callable[[StrandlineError], None],
        before: SequencesBefore,
    ) -> None:
        super().__init__(config, session, wake, on_fatal)
        self.producer_id = before.producer_id
        self._before = before

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether the batch at the head may go out now."""
        if queue.producer_id < 0:
            queue.producer_id, queue.producer_epoch = self._before.producer_id, self._before.producer_epoch
            queue.next_sequence = self._before.next_sequence.get(queue.partition, 0)
        return super().may_send(queue)

    def refused(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        """True when a batch came before its turn (leadership has moved) and is to be sent again."""
        return code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.numbered[:1] != [batch]


class BatchSender:
    """Sends whole batches. Made on, and bound to, the running event loop; an asynchronous context manager.

    Args:
        largest_bytes: no batch is larger.
        settings: a producer's.
        before: the sequences of an earlier sender, to go on with; None: a producer id of its own.
        clock, rng: the world; the machine's own when left out.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        largest_bytes: int,
        settings: Mapping[str, object],
        before: SequencesBefore | None = None,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        memory = max(BUFFER_BYTES, 2 * largest_bytes)
        self._config = ProducerConfig(
            {**settings, "acks": "all", "enable_idempotence": True, "linger_ms": 0, "buffer_memory": memory}
        )
        self._session = Session(bootstrap, self._config, clock=clock, rng=rng)
        self._session.check()
        self._clock = self._session.clock
        self._core = ProducerCore(self._config, self._session, LoopResults, threaded=False)
        if before is not None:
            self._core.sender.take_sequencer(partial(ContinuedSequencer, before=before))

    async def __aenter__(self) -> BatchSender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._core.close()

    async def know(self, topic: str, topic_id: str = "") -> None:
        """Return once the topic is known. Batches go to the one with this id alone: where another one has the name,
        they fail with TopicReplaced.

        Raises:
            UnknownTopic, ClientTimeout (`max.block.ms`).
        """
        self._session.check()
        if topic_id:  # schedule 63/copy-follows-into-another-topic/5
            self._core.metadata.expect(topic, UUID(topic_id))
        await self._core.metadata.wait_for_topic(topic, self._config.max_block_ms)

    async def producer_id(self) -> int:
        """The id in the batches of this sender. Raises KafkaError, ClientTimeout (`max.block.ms`)."""
        self._session.check()
        return await self._core.producer_id()

    async def send(self, partition: TopicPartition, batch: Buffer) -> asyncio.Future[Ack]:
        """Queue one batch; the future gives the ack of its first record.

        Raises:
            BufferExhausted: for `max.block.ms` there was no room, for the cluster took nothing.
        """
        self._session.check()
        made = MadeRecords(batch)
        deadline_ms = self._clock.monotonic_ms() + self._config.max_block_ms
        results = MadeResults(partition, made.count, made.max_timestamp)
        while not self._core.accumulator.append_made(partition, made, results):
            await self._core.wait_for_room(deadline_ms)
        return results.future

    async def flush(self) -> None:
        """Return once every batch is acknowledged or has failed (`delivery.timeout.ms`)."""
        self._session.check()
        await self._core.flush()
