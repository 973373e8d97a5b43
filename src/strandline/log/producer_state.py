"""What each idempotent producer wrote last: the ground of exactly-once appends (KIP-98; rule C1).

Per producer id: its epoch and its last five batches. A batch that is already among the five is answered with its
original offsets; one that does not follow on the last is refused.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from strandline.log.batch import BatchHeader
from strandline.log.refusals import SEQUENCE_MAX, Refusal, Refusals, is_behind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.marks import mark

BATCHES_KEPT = 5
"""Kafka's number: clients may have at most five requests in flight and still be idempotent."""

SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version, CRC-32C of what follows it, number of entries
_SNAPSHOT_CRC_END = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotDamaged(Exception):
    """A producer snapshot that cannot be read; an older one and a longer replay take its place."""


class ProducerBatch(NamedTuple):
    """One batch of a producer, as far as deduplication needs it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerEntry:
    """One producer id. `last_seen_ms` is this node's wall clock at the last append: expiry must not follow the records'
    own timestamps, or a producer that writes history is forgotten while it writes.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen_ms", "producer_id", "transaction_start")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[ProducerBatch] = []
        self.last_seen_ms = -1
        self.coordinator_epoch = -1
        self.transaction_start = -1


class SnapshotRow(NamedTuple):
    """One row of a `.snapshot` file, fields as Kafka's ProducerSnapshot schema has them."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_start: int


class ProducerStates:
    """All producers of one log.

    Invariants:
    - a producer's batches lie in rising offsets, all of its current epoch, at most BATCHES_KEPT;
    - state changes only through `update`, after the batch has been written (KAFKA-6683);
    - `refusals` are of this process alone, and say nothing of what is written.
    """

    __slots__ = ("_entries", "refusals")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self.refusals: Refusals[int] = Refusals()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """What is known of this producer."""
        return self._entries.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        """Every producer, in order of id."""
        return [self._entries[producer_id] for producer_id in sorted(self._entries)]

    def check(
        self, header: BatchHeader, previous: BatchHeader | None = None, now_ms: float = 0.0
    ) -> ProducerBatch | None:
        """Judge a producer's batch before it is written: the original if it is a duplicate, None if it may be written.

        `previous` is an earlier batch of the same producer in the same append, not yet in the state; `now_ms` (a
        monotonic clock's) counts where there are `refusals`.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, or the code of an earlier batch's refusal.
        """
        first = header.base_sequence
        epoch = header.producer_epoch
        if previous is not None:
            _check_epoch(header, previous.producer_epoch)
            _check_follows(header, previous.producer_epoch, previous.last_sequence)
            return None
        entry = self._entries.get(header.producer_id)
        if entry is None:
            self._check_refusal(header, now_ms)
            return None
        _check_epoch(header, entry.epoch)
        batches = entry.batches
        if epoch == entry.epoch:
            last = header.last_sequence
            for batch in reversed(batches):
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
        self._check_refusal(header, now_ms)
        _check_follows(header, entry.epoch, batches[-1].last_sequence if batches else -1)
        return None

    def refused(self, producer_id: int, refusal: Refusal) -> None:
        """A producer's batch was refused for a reason that may pass: what is behind it waits until it comes again."""
        entry = self._entries.get(producer_id)
        if entry is not None:
            if refusal.epoch < entry.epoch:
                return
            batches = entry.batches if refusal.epoch == entry.epoch else ()
            if batches and not is_behind(refusal.sequence, batches[-1].last_sequence):
                return  # it is written: a retry of it was refused
        self.refusals.add(producer_id, refusal)

    def _check_refusal(self, header: BatchHeader, now_ms: float) -> None:
        refusal = self.refusals.before(header.producer_id, header.producer_epoch, header.base_sequence, now_ms)
        if refusal is not None:
            mark("behind-a-refusal")
            raise KafkaError(
                refusal.code,
                "an earlier batch of this producer was refused, and has not come again yet",
                producer_id=header.producer_id,
                epoch=header.producer_epoch,
                sequence=header.base_sequence,
                expected=refusal.sequence,
            )

    def update(self, header: BatchHeader, first_offset: int, now_ms: int) -> None:
        """A batch of a producer was written at `first_offset`."""
        if self.refusals:
            self.refusals.written(header.producer_id, header.producer_epoch, header.last_sequence)
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_seen_ms = now_ms
        if header.is_control:
            entry.transaction_start = -1  # a marker ends the producer's transaction and carries no sequence
            return
        if header.is_transactional and entry.transaction_start < 0:
            entry.transaction_start = first_offset
        batches = entry.batches
        if len(batches) == BATCHES_KEPT:
            del batches[0]
        batches.append(
            ProducerBatch(
                header.base_sequence,
                header.last_sequence,
                first_offset,
                first_offset + header.last_offset_delta,
                header.max_timestamp,
            )
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers not seen for `expiration_ms`, unless a transaction of theirs is open; how many went."""
        gone = [
            producer_id
            for producer_id, entry in self._entries.items()
            if now_ms - entry.last_seen_ms >= expiration_ms and entry.transaction_start < 0
        ]
        for producer_id in gone:
            del self._entries[producer_id]
        return len(gone)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.refusals.clear()

    # ------------------------------------------------------------------ snapshots

    def encode_snapshot(self) -> bytes:
        """A `.snapshot` file. Kafka's schema has one batch a row; ours has a row for each batch kept, oldest first:
        Kafka's loader keeps the last row of a producer, ours all five, so that retries are recognised after a restart
        as well.
        """
        rows: list[bytes] = []
        for entry in self.entries():
            for batch in entry.batches or [ProducerBatch(-1, -1, -1, -1, -1)]:
                delta = batch.last_offset - batch.first_offset
                rows.append(
                    _SNAPSHOT_ENTRY.pack(
                        entry.producer_id,
                        entry.epoch,
                        batch.last_sequence,
                        batch.last_offset,
                        delta,
                        batch.timestamp_ms,
                        entry.coordinator_epoch,
                        entry.transaction_start,
                    )
                )
        body = struct.pack(">i", len(rows)) + b"".join(rows)
        return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body

    def load_snapshot(self, data: bytes, now_ms: int) -> None:
        """Replace the state by a snapshot's; its producers count as seen now. Raises SnapshotDamaged."""
        rows = decode_snapshot(data)
        self._entries.clear()
        for row in rows:
            entry = self._entries.get(row.producer_id)
            if entry is None or entry.epoch != row.epoch:
                entry = self._entries[row.producer_id] = ProducerEntry(row.producer_id, row.epoch)
            entry.last_seen_ms = now_ms
            entry.coordinator_epoch = row.coordinator_epoch
            entry.transaction_start = row.transaction_start
            if row.last_offset >= 0:
                first_sequence = (row.last_sequence - row.offset_delta) & SEQUENCE_MAX
                entry.batches.append(
                    ProducerBatch(
                        first_sequence,
                        row.last_sequence,
                        row.last_offset - row.offset_delta,
                        row.last_offset,
                        row.timestamp_ms,
                    )
                )
                del entry.batches[:-BATCHES_KEPT]


def decode_snapshot(data: bytes) -> list[SnapshotRow]:
    """The rows of a `.snapshot` file. Raises SnapshotDamaged."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise SnapshotDamaged(f"{len(data)} bytes are shorter than its head")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise SnapshotDamaged(f"version {version}, known is {SNAPSHOT_VERSION}")
    if crc != crc32c(memoryview(data)[_SNAPSHOT_CRC_END:]):
        raise SnapshotDamaged("its CRC does not hold")
    if count * _SNAPSHOT_ENTRY.size != len(data) - _SNAPSHOT_HEAD.size:
        raise SnapshotDamaged(f"{count} entries announced in {len(data)} bytes")
    return [SnapshotRow._make(row) for row in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])]


def _check_epoch(header: BatchHeader, current_epoch: int) -> None:
    if header.producer_epoch < current_epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            "a newer instance of this producer has written",
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            current_epoch=current_epoch,
        )


def _check_follows(header: BatchHeader, current_epoch: int, last_sequence: int) -> None:
    """The sequence that must come next; a new epoch begins at 0. Epoch -1 (nothing known) takes any."""
    expected = 0 if header.producer_epoch != current_epoch else (last_sequence + 1) & SEQUENCE_MAX
    if header.producer_epoch == current_epoch and last_sequence < 0:
        return
    if header.base_sequence != expected:
        mark("out-of-order-sequence")
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            "the batch does not follow on the producer's last one",
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            sequence=header.base_sequence,
            expected=expected,
        )
