"""One batch of a producer: records of one partition that travel, are retried and are acknowledged together."""

from __future__ import annotations

from typing import Any, Protocol

from strandline.client.futures import Answer, Results
from strandline.client.lanes import Memory, OpenBatch
from strandline.log.batch import Buffer, finish_batch, parse_header, with_producer
from strandline.log.compression import Codec
from strandline.log.records import RecordBatchBuilder, decode_records
from strandline.proto.ids import TopicPartition

NO_SEQUENCE = -1


class Records(Protocol):
    """What a batch holds."""

    @property
    def count(self) -> int:
        """How many."""

    @property
    def size_bytes(self) -> int:
        """Of the batch before compression, header included."""

    def build(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
        """The batch's bytes with these numbers, once."""


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
        "attempts", "base_sequence", "builder", "created_ms", "done", "encoded", "first", "last_error", "numbers_of",
        "order", "partition", "producer_epoch", "producer_id", "reserved_bytes", "resolved", "results", "retry_at_ms",
    )  # fmt: skip

    def __init__(
        self,
        order: tuple[int, ...],
        partition: TopicPartition,
        records: Records,
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

    def seal(self) -> None:
        """Take no more records. Idempotent."""
        if isinstance(self.builder, OpenBatch):
            self.builder.seal()
            self.reserved_bytes = self.builder.reserved_bytes

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
