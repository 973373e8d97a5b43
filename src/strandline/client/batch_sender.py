"""An idempotent producer of batches that were made before: each once and in order, whoever leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from strandline.client.aio.producer import ProducerCore
from strandline.client.config import ProducerConfig
from strandline.client.futures import LoopFutures
from strandline.client.idempotence import SequencesBefore
from strandline.client.session import Session
from strandline.client.types import Ack
from strandline.log.batch import Buffer, RecordBatchBuilder, parse_header, with_producer
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
        self._core = ProducerCore(self._config, self._session, LoopFutures(), threaded=False, before=before)

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
        while True:
            future: asyncio.Future[Ack] | None = self._core.accumulator.append_made(partition, made, made.max_timestamp)
            if future is not None:
                return future
            await self._core.wait_for_room(deadline_ms)

    async def flush(self) -> None:
        """Return once every batch is acknowledged or has failed (`delivery.timeout.ms`)."""
        self._session.check()
        await self._core.flush()
