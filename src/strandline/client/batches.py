"""One batch of a producer: records of one partition that travel, are retried and are acknowledged together."""

from __future__ import annotations

from typing import Any

from strandline.client.futures import FutureKind
from strandline.client.types import Ack
from strandline.log.batch import Buffer, parse_header, with_producer
from strandline.log.compression import Codec
from strandline.log.records import RecordBatchBuilder, decode_records
from strandline.proto.ids import TopicPartition

NO_SEQUENCE = -1


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


class MadeAck:
    """The one answer of a batch that was made before, however often it is split: acknowledged once all of its parts
    are, at the offset of the first; it fails with the first part that does."""

    __slots__ = ("_ack", "_done", "_future", "_kind", "_parts", "_shared")

    def __init__(self, kind: FutureKind, shared: Any, future: Any) -> None:
        self._kind = kind
        self._shared = shared
        self._future = future
        self._parts = 1
        self._ack: Ack | None = None
        self._done = False

    def split(self, parts: int) -> None:
        """One of the parts has become so many."""
        self._parts += parts - 1

    def written(self, ack: Ack, *, first: bool) -> None:
        """A part is in the log."""
        self._parts -= 1
        if first:
            self._ack = ack
        if not self._parts and not self._done:
            assert self._ack is not None
            self._done = True
            self._kind.finish(self._shared, [self._future], [self._ack])

    def failed(self, error: Exception) -> None:
        """A part is not, or nobody knows."""
        if not self._done:
            self._done = True
            self._kind.fail(self._shared, [self._future], error)


class ProducerBatch:
    """Records with their futures, and where they stand on the way.

    Invariants:
    - The sequence range, once given, stays with the records through retries, under one (producer id, epoch); only a
      bump of the epoch gives them another (KIP-360).
    - The futures complete exactly once, each half's of a split batch with its own answer.
    """

    __slots__ = (
        "attempts", "base_sequence", "builder", "created_ms", "done", "encoded", "futures", "kind", "last_error",
        "made", "order", "partition", "producer_epoch", "producer_id", "reserved_bytes", "resolved", "retry_at_ms",
        "shared", "timestamps",
    )  # fmt: skip

    def __init__(
        self, order: tuple[int, ...], partition: TopicPartition, codec: Codec, kind: FutureKind, now_ms: float
    ) -> None:
        self.order = order
        self.partition = partition
        self.builder = RecordBatchBuilder(codec)
        self.kind = kind
        self.shared: Any = kind.shared()
        self.futures: list[Any] = []
        self.timestamps: list[int] = []
        self.created_ms = now_ms
        self.reserved_bytes = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        self.retry_at_ms = 0.0
        self.done = False
        self.resolved = False
        self.encoded: bytearray | None = None
        self.last_error: Exception | None = None
        self.made: MadeAck | None = None
        """Of a batch that was made before, or of a part of one: it has no futures of its own."""

    @property
    def id(self) -> int:
        """The number of the batch as it was first made: the halves of a split batch share it."""
        return self.order[0]

    @property
    def count(self) -> int:
        """Records inside."""
        return self.builder.count

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Any, size: int) -> Any:
        """Add a record; its future."""
        self.builder.append(timestamp_ms, key, value, headers)
        self.reserved_bytes += size
        future = self.kind.new(self.shared)
        self.futures.append(future)
        self.timestamps.append(timestamp_ms)
        return future

    def take_made(self, made: MadeRecords) -> Any:
        """Carry a batch that was made before, and nothing else; one future for it all: its first record's ack."""
        self.builder = made
        self.reserved_bytes = made.size_bytes
        future = self.kind.new(self.shared)
        self.made = MadeAck(self.kind, self.shared, future)
        self.timestamps.append(made.max_timestamp)
        return future

    def give_sequence(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Number the records for the broker's check against duplicates and gaps."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.encoded = None

    def encode(self) -> bytearray:
        """The batch's bytes; built once, and anew after another sequence was given."""
        if self.encoded is None:
            self.encoded = self.builder.build(
                producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=self.base_sequence
            )
        return self.encoded

    def finish(self, base_offset: int, log_append_time_ms: int, replicas: tuple[int, ...] | None) -> None:
        """Acknowledge every record. -1 as base offset: the broker has them and does not say where."""
        self.done = True
        topic, partition = self.partition
        step = 0 if base_offset < 0 else 1
        new = tuple.__new__
        offset = base_offset
        acks = []
        for timestamp in self.timestamps:
            time_ms = timestamp if log_append_time_ms < 0 else log_append_time_ms
            acks.append(new(Ack, (topic, partition, offset, time_ms, replicas)))
            offset += step
        if self.made is not None:
            self.made.written(acks[0], first=not any(self.order[1:]))
        else:
            self.kind.finish(self.shared, self.futures, acks)

    def fail(self, error: Exception) -> None:
        """End every record's future with `error`."""
        self.done = True
        if self.made is not None:
            self.made.failed(error)
        else:
            self.kind.fail(self.shared, self.futures, error)

    def split(self, codec: Codec) -> list[ProducerBatch]:
        """Two halves of a batch that the broker found too large, with the sequences and the futures they had."""
        records = decode_records(self.encode())
        middle = len(records) // 2
        halves = []
        for place, (start, end) in enumerate(((0, middle), (middle, len(records)))):
            half = ProducerBatch((*self.order, place), self.partition, codec, self.kind, self.created_ms)
            half.shared = self.shared
            for record in records[start:end]:
                half.builder.append(record.timestamp_ms, record.key, record.value, record.headers)
            half.made = self.made
            half.futures = self.futures[start:end]
            half.timestamps = self.timestamps[start:end] if self.made is None else list(self.timestamps)
            half.reserved_bytes = self.reserved_bytes * (end - start) // len(records)
            half.attempts = self.attempts
            half.last_error = self.last_error
            if self.base_sequence != NO_SEQUENCE:
                sequence = (self.base_sequence + start) & 0x7FFFFFFF
                half.give_sequence(self.producer_id, self.producer_epoch, sequence)
            halves.append(half)
        if self.made is not None:
            self.made.split(len(halves))
        halves[0].reserved_bytes = self.reserved_bytes - halves[1].reserved_bytes
        return halves
