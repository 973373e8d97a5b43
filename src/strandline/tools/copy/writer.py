"""Into the target: batches, in order, each at the offset that is expected; and what earlier runs have brought there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from strandline.client.batch_sender import BatchSender
from strandline.client.errors import ClientError
from strandline.client.fetcher import consumer_records
from strandline.client.partitioner import partition_of_key
from strandline.client.range_reader import AsyncRangeReader, RawBatch
from strandline.client.types import Ack, ConsumerRecord
from strandline.log.batch import RecordBatchBuilder
from strandline.log.compression import Codec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.tools.copy.errors import CopyChanged, ForeignRecords
from strandline.tools.copy.plan import Round

_OUT_OF_TURN = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class SequenceMismatch(ClientError):
    """A leader has had records under these sequences, or lacks those before them: look again what is there."""


def partition_for(record: ConsumerRecord, partitions: int) -> int:
    """A record's partition in the target: by its key as Kafka's clients do it; one without a key goes round by its
    offset, so that it comes to the same place whenever it is sent."""
    key = record.key
    if key is None:
        return (record.partition + record.offset) % partitions
    return partition_of_key(key, partitions)


class Writer:
    """Sends a round's records. Runs on one event loop.

    Invariants:
    - the batches of a partition follow from the records alone, those after an interruption too: a batch ends where it
      would have ended;
    - `ends` are the offsets that the next batches get, if nobody else writes.
    """

    def __init__(
        self,
        sender: BatchSender,
        topic: str,
        group: str,
        *,
        ends: Sequence[int],
        batch_bytes: int,
        codec: Codec | None,
    ) -> None:
        self.ends = list(ends)
        self.records = 0
        self._sender = sender
        self._topic = topic
        self._group = group
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._open: list[RecordBatchBuilder | None] = [None] * len(ends)
        self._failure: Exception | None = None

    async def write(self, records: Sequence[ConsumerRecord], codec: Codec) -> None:
        """Send records, in order; what does not fill a batch waits for more, or for `finish`.

        Args:
            codec: of the batches that begin with one of these, unless one was asked for.

        Raises:
            SequenceMismatch, ForeignRecords, KafkaError, ClientTimeout: what has failed by now.
        """
        for number, batch in self._place(records, self._codec or codec):
            await self._send(number, batch)

    async def finish(self) -> None:
        """Send what waits; return once everything is acknowledged. Raises as `write`."""
        for number, batch in enumerate(self._open):
            if batch is not None:
                self._open[number] = None
                await self._send(number, batch)
        await self._sender.flush()
        self._raise_if_failed()

    def _place(self, records: Sequence[ConsumerRecord], codec: Codec) -> list[tuple[int, RecordBatchBuilder]]:
        """Put records into their partitions' batches; the batches that are full."""
        full: list[tuple[int, RecordBatchBuilder]] = []
        batches, limit, count = self._open, self._batch_bytes, len(self._open)
        few = limit // 4
        for record in records:
            number = partition_for(record, count)
            _, _, _, timestamp_ms, _, key, value, headers, _ = record
            batch = batches[number]
            # What most records are is seen at a glance; `_weight` is for the others.
            light = not headers and (value is None or len(value) <= few) and (key is None or len(key) <= few)
            if batch is not None and not light and _weight(key, value, headers) > limit:
                full.append((number, batch))  # a large one travels alone: with others before it, it may be too large
                batch = None
            if batch is None:
                batch = batches[number] = RecordBatchBuilder(codec)
            batch.append(timestamp_ms, key, value, headers)
            if batch.size_bytes >= limit:
                full.append((number, batch))
                batches[number] = None
        return full

    async def _send(self, number: int, batch: RecordBatchBuilder) -> None:
        self._raise_if_failed()
        future = await self._sender.send(TopicPartition(self._topic, number), batch.build())
        future.add_done_callback(partial(self._settled, number, self.ends[number]))
        self.ends[number] += batch.count
        self.records += batch.count

    def _settled(self, number: int, expected: int, future: asyncio.Future[Ack]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if self._failure is not None:
            return
        if isinstance(error, KafkaError) and error.code in _OUT_OF_TURN:
            self._failure = SequenceMismatch(str(error))
        elif isinstance(error, Exception):
            self._failure = error
        elif error is None and future.result().offset not in (expected, -1):  # -1: it has it, and does not say where
            self._failure = ForeignRecords(TopicPartition(self._topic, number), expected, self._group)

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure


def _weight(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    weight = (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    if headers:
        weight += sum(4 * len(name) + len(content or b"") for name, content in headers)
    return weight


class Written:
    """Records in one target partition behind the start of a round: an earlier run has written them.

    Args:
        end: where it ends; what comes behind has been written since.
        log_start: nothing is left before it.
        lenient: the source has lost records of the round, which may lie here.
    """

    def __init__(
        self, reader: AsyncRangeReader, place: TopicPartition, group: str, planned: Round,
        *, end: int, log_start: int, lenient: bool,
    ) -> None:  # fmt: skip
        self.place = place
        self.end = end
        self.records = 0
        self._group = group
        self._producer_id = planned.producer_id
        self._offset = planned.ends[place.partition]
        self._lenient = lenient
        self._read: deque[ConsumerRecord] = deque()
        self._first = min(max(self._offset, log_start), end)
        self._answers: AsyncGenerator[list[RawBatch], None] = reader.answers(place, self._first, end)

    @property
    def is_over(self) -> bool:
        """True if every record was met."""
        return self._offset >= self.end

    async def has(self, record: ConsumerRecord) -> bool:
        """Whether the next record of the round lies here; call in the round's order, until it is False.

        Raises:
            ForeignRecords: a record of another producer lies here.
            CopyChanged: another record lies in its place.
        """
        while not self.is_over:
            there = await self._next()
            if there is None or _same(there, record):
                self.records += 1
                return True
            if not self._lenient:
                raise CopyChanged(self.place, there.offset, self._group)
        return False

    async def rest(self) -> int | None:
        """Offset of a record that lies behind the end of the round; None where there is none, or where the source has
        lost some. Raises ForeignRecords."""
        while not self.is_over:
            there = await self._next()
            if there is not None and not self._lenient:
                return there.offset
        return None

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        await self._answers.aclose()

    async def _next(self) -> ConsumerRecord | None:
        """The record at the next offset; None where the target has deleted it since."""
        offset, self._offset = self._offset, self._offset + 1
        while not self._read and offset >= self._first:
            batches = await anext(self._answers, None)
            if batches is None:
                break
            for batch in batches:
                if batch.header.producer_id != self._producer_id:
                    raise ForeignRecords(self.place, max(batch.base_offset, self._first), self._group)
                records = consumer_records(self.place, batch.header, batch.data, self._first, check_crcs=False)
                self._read.extend(one for one in records if one.offset < self.end)
        if self._read and self._read[0].offset == offset:
            return self._read.popleft()
        return None


def _same(one: ConsumerRecord, other: ConsumerRecord) -> bool:
    return (one.key, one.value, one.timestamp_ms, tuple(one.headers)) == (
        other.key, other.value, other.timestamp_ms, tuple(other.headers),
    )  # fmt: skip
