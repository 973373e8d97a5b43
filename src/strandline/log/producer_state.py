"""Producer state: the last batches of each idempotent producer, by which appends are exactly-once (KIP-98; rule C1).

For each producer id: its epoch and its last five batches. A batch that is among the five is answered with its original
offsets; one that does not follow on the last is refused.

A batch that was refused for a reason that may pass is expected again (`Refusals`, schedule 52). Until then later
batches of its producer are refused for the same reason. With OUT_OF_ORDER_SEQUENCE_NUMBER instead, librdkafka would
renumber all unanswered batches under the next epoch, and some of those may be stored. And if nothing is known of the
producer, a later batch would be accepted: librdkafka takes its ack for the ack of the ones before it, so the refused
one would be lost.

`Snapshots` are files of the state at an offset, so that a restart or a truncation replays little. One is written at
each roll and clean stop (forced to disk with the segment, KAFKA-9892) and, as an optional shortcut, after each
`SNAPSHOT_INTERVAL_BYTES` of log. The one at the log start is the only evidence of the producers of records that
retention has deleted (schedule 86).

For transactions the state has the first offset of each open one, and those that have ended and may not be committed
yet: the last stable offset follows from both (rule C6).
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Container, Hashable
from typing import Generic, NamedTuple, TypeVar

from crc32c import crc32c

from strandline.log.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from strandline.log.config import INT64_MAX
from strandline.log.disk import Disk, DiskFull, File, read_file, write_file_durably
from strandline.log.segment import SNAPSHOT_SUFFIX, Segment, pread_blocking, segment_name
from strandline.log.transactions import (
    VERIFICATIONS_MAX,
    AbortedTransaction,
    Marker,
    OpenTransaction,
    Verification,
    read_marker,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.marks import mark

SEQUENCE_MAX = 0x7FFFFFFF
"""Last sequence before the wrap to 0."""

REFUSAL_KEPT_MS = 10_000
"""Longest wait for a refused batch, in milliseconds. Its producer sends it again within a second or so
(`retry.backoff.max.ms` is 1 s in the Java client and in librdkafka); a producer that gave it up gets the error for a
missing sequence after this time."""

REFUSALS_MAX = 1_000
"""Maximum refused batches that one table remembers, the latest ones: about 200 KB."""

BATCHES_KEPT = 5
"""Batches remembered for each producer, as in Kafka: clients may have five requests in flight and stay idempotent."""

ENDED_MAX = 64
"""Maximum ended transactions of one log that may not be committed yet; beyond it the two oldest count as one."""

SNAPSHOT_VERSION = 1
SNAPSHOT_INTERVAL_BYTES = 64 << 20
"""Bytes of log between snapshots, which bounds the replay of a truncation: 64 MiB of 1 KB batches take about 0.1 s."""

_NAME = re.compile(r"(\d{20})\.snapshot")
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version, CRC-32C of what follows it, number of entries
_SNAPSHOT_CRC_END = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


K = TypeVar("K", bound=Hashable)


def is_behind(sequence: int, other: int) -> bool:
    """True if `sequence` comes after `other`, with the wrap at SEQUENCE_MAX."""
    return 0 < ((sequence - other) & SEQUENCE_MAX) <= SEQUENCE_MAX // 2


class Refusal(NamedTuple):
    """First batch of a producer that was refused; `refused_ms` is monotonic time."""

    epoch: int
    sequence: int
    code: ErrorCode
    refused_ms: float


class Refusals(Generic[K]):
    """The first refused batch of each producer, in the memory of this process only.

    Invariants: at most REFUSALS_MAX entries; for each producer, the first refused batch of its latest epoch.
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[K, Refusal] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def add(self, producer: K, refusal: Refusal) -> None:
        """Add a batch that was refused and not written."""
        self.expire(refusal.refused_ms)
        known = self._refused.pop(producer, None)
        if known is not None and (
            known.epoch > refusal.epoch
            or (known.epoch == refusal.epoch and is_behind(refusal.sequence, known.sequence))
        ):
            refusal = known
        self._refused[producer] = refusal
        if len(self._refused) > REFUSALS_MAX:
            del self._refused[next(iter(self._refused))]

    def before(self, producer: K, epoch: int, sequence: int, now_ms: float) -> Refusal | None:
        """Return the refused batch that must come again before one with this sequence is accepted, or None."""
        refusal = self._refused.get(producer)
        if refusal is None or refusal.epoch != epoch or not is_behind(sequence, refusal.sequence):
            return None
        if now_ms - refusal.refused_ms >= REFUSAL_KEPT_MS:  # rule C1/refusals-last-for-ever
            del self._refused[producer]
            return None
        return refusal

    def written(self, producer: K, epoch: int, last_sequence: int) -> None:
        """Drop the refusal if the batch was written, perhaps by another leader, or one of another epoch was."""
        refusal = self._refused.get(producer)
        if refusal is not None and (refusal.epoch != epoch or not is_behind(refusal.sequence, last_sequence)):
            del self._refused[producer]

    def take(self, producer: K) -> Refusal | None:
        """Remove a producer's refused batch, and return it."""
        return self._refused.pop(producer, None)

    def expire(self, now_ms: float) -> None:
        """Remove the oldest ones, whose wait is over."""
        while self._refused:
            producer = next(iter(self._refused))
            if now_ms - self._refused[producer].refused_ms < REFUSAL_KEPT_MS:
                return
            del self._refused[producer]

    def clear(self) -> None:
        """Remove everything."""
        self._refused.clear()


class SnapshotDamaged(Exception):
    """A producer snapshot that cannot be read; an older one and a longer replay take its place."""


class ProducerBatch(NamedTuple):
    """One batch of a producer, as deduplication needs it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerEntry:
    """State of one producer id. `last_seen_ms` is this node's monotonic clock at the last append. Expiry does not
    follow the records' timestamps, or a producer that writes historic data would be forgotten while it writes; nor a
    wall clock, which may be set, or a retry would be written once more (schedule 100).
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_seen_ms",
        "last_timestamp_ms",
        "marker_offset",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[ProducerBatch] = []
        self.last_seen_ms = -1
        self.last_timestamp_ms = -1
        """Timestamp of the producer's newest batch or marker, in milliseconds."""
        self.coordinator_epoch = -1
        """Coordinator epoch of the producer's last marker; -1 if none is known."""
        self.marker_offset = -1
        """Offset of the producer's last marker, if this process has met it; else -1."""
        self.transaction_start = -1
        """First offset of its open transaction; -1 if none is open."""


class SnapshotRow(NamedTuple):
    """One row of a `.snapshot` file, with the fields of Kafka's ProducerSnapshot schema."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_start: int


class EndedTransaction(NamedTuple):
    """A transaction whose marker may not be committed yet."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the transaction's marker."""


class ProducerStates:
    """All producers of one log.

    Invariants:
    - a producer's batches have rising offsets, are all of its current epoch, and at most BATCHES_KEPT; batches without
      a sequence, which coordinators write, are not among them;
    - state changes only through `update`, after the batch has been written (KAFKA-6683);
    - `refusals` and `verifications` are of this process only, and say nothing about what is written;
    - `open` has the first offset of each open transaction by producer, rising; `ended` those whose marker may lie at or
      above the high watermark, by rising marker;
    - `unsettled` has producers whose open transaction may have ended in a log that was lost: their batches are refused
      until its outcome is known (rule C29).
    """

    __slots__ = ("_entries", "_verifications", "ended", "open", "refusals", "unsettled")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._verifications: dict[int, Verification] = {}
        self.open: dict[int, int] = {}
        self.ended: deque[EndedTransaction] = deque()
        self.refusals: Refusals[int] = Refusals()
        self.unsettled: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return the entry of a producer; None if nothing is known of it."""
        return self._entries.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        """Return the entries of all producers, by id."""
        return [self._entries[producer_id] for producer_id in sorted(self._entries)]

    def check(
        self,
        header: BatchHeader,
        previous: BatchHeader | None = None,
        now_ms: float = 0.0,
        verification: Verification | None = None,
    ) -> ProducerBatch | None:
        """Judge a producer's batch before it is written. Return the original batch for a duplicate, None if it may be
        written.

        `previous` is an earlier batch of the same producer in the same append, not yet in the state; `now_ms`
        (monotonic) is used if there are `refusals`; `verification` admits the first batch of a transaction.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE; NOT_ENOUGH_REPLICAS for
                a batch that came before the first of its transaction, or of an unsettled producer; or the error of an
                earlier batch's refusal.
        """
        first = header.base_sequence
        epoch = header.producer_epoch
        if previous is not None:
            _check_epoch(header, previous.producer_epoch)  # rule C1/older-epoch-in-one-append
            _check_kind(header, previous)
            _check_follows(header, previous.producer_epoch, previous.last_sequence)  # rule C1/gap-in-one-append
            return None
        entry = self._entries.get(header.producer_id)
        if entry is None:
            self._check_refusal(header, now_ms)  # rule C1/unknown-producer-begins-at-0
            if header[5] & TRANSACTIONAL_BIT:
                self._check_verified(header, None, verification)
            return None
        _check_epoch(header, entry.epoch)
        batches = entry.batches
        if epoch == entry.epoch:  # rule C1/duplicate-of-another-epoch
            last = header.last_sequence
            for batch in reversed(batches):
                # rule C1/same-first-sequence-is-a-duplicate
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch  # rule C1/nothing-is-a-duplicate
        self._check_refusal(header, now_ms)
        if header[5] & TRANSACTIONAL_BIT:
            self._check_verified(header, entry, verification)
        elif entry.transaction_start >= 0:  # rule C10/plain-batches-join-a-transaction
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                "a transaction of this producer is open here, and the batch is not of it",
                producer_id=header.producer_id,
                epoch=epoch,
                transaction_start=entry.transaction_start,
            )
        _check_follows(header, entry.epoch, batches[-1].last_sequence if batches else -1)
        return None

    def refused(self, producer_id: int, refusal: Refusal) -> None:
        """Record that a producer's batch was refused for a reason that may pass: later ones wait until it comes
        again."""
        entry = self._entries.get(producer_id)
        if entry is not None:
            if refusal.epoch < entry.epoch:
                return
            batches = entry.batches if refusal.epoch == entry.epoch else ()
            # rule C1/a-retry-of-what-is-stored-counts-as-refused
            if batches and not is_behind(refusal.sequence, batches[-1].last_sequence):
                return  # it is written: a retry of it was refused
        self.refusals.add(producer_id, refusal)

    def _check_refusal(self, header: BatchHeader, now_ms: float) -> None:
        if header.base_sequence < 0:
            return
        refusal = self.refusals.before(header.producer_id, header.producer_epoch, header.base_sequence, now_ms)
        if refusal is not None:  # rule C1/out-of-order-behind-a-refusal
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
        """Add a producer's batch that was written at `first_offset`. For markers use `end`."""
        if self.refusals:
            self.refusals.written(header.producer_id, header.producer_epoch, header.last_sequence)
        entry = self._seen(header, now_ms)
        if header[5] & TRANSACTIONAL_BIT:
            self._verifications.pop(header.producer_id, None)  # no longer needed: the transaction is open
            if entry.transaction_start < 0:
                entry.transaction_start = self.open[header.producer_id] = first_offset
        elif self._verifications:
            self._drop_older_verification(header)
        if header.base_sequence < 0:
            return
        batches = entry.batches
        if len(batches) == BATCHES_KEPT:  # rule C1/one-batch-is-remembered, rule C1/every-batch-is-remembered
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

    def _seen(self, header: BatchHeader, now_ms: int) -> ProducerEntry:
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()  # rule C1/older-epochs-batches-are-kept
        entry.last_seen_ms = now_ms  # rule C2/expiry-by-the-records-time
        entry.last_timestamp_ms = header.max_timestamp
        return entry

    # ------------------------------------------------------------------ transactions

    def begin_verification(
        self, producer_id: int, epoch: int, first_sequence: int, now_ms: int, *, begins_at_0: bool
    ) -> Verification | None:
        """Begin the verification of a transaction; see `PartitionLog.begin_verification`."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _older_epoch(producer_id, epoch, entry.epoch)
        if entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch:
            return None
        verification = self._verifications.get(producer_id)
        if verification is not None and epoch < verification.producer_epoch:
            raise _older_epoch(producer_id, epoch, verification.producer_epoch)
        if verification is None or verification.producer_epoch != epoch:
            verification = Verification(producer_id, epoch, first_sequence, begins_at_0=begins_at_0, begun_ms=now_ms)
            self._verifications.pop(producer_id, None)
            self._verifications[producer_id] = verification
            if len(self._verifications) > VERIFICATIONS_MAX:
                del self._verifications[next(iter(self._verifications))]
        elif is_behind(verification.first_sequence, first_sequence):
            verification.first_sequence = first_sequence
        return verification

    def end_verification(self, verification: Verification) -> None:
        """Drop a verification, because the coordinator knows of no such transaction."""
        if self._verifications.get(verification.producer_id) is verification:
            del self._verifications[verification.producer_id]

    def _drop_older_verification(self, header: BatchHeader) -> None:
        verification = self._verifications.get(header.producer_id)
        if verification is not None and verification.producer_epoch < header.producer_epoch:
            del self._verifications[header.producer_id]

    def _check_verified(
        self, header: BatchHeader, entry: ProducerEntry | None, verification: Verification | None
    ) -> None:
        """Check that a batch belongs to the open transaction, or may begin one. Raises KafkaError."""
        figures = {"producer_id": header.producer_id, "epoch": header.producer_epoch, "sequence": header.base_sequence}
        if entry is not None and entry.transaction_start >= 0:
            if header.producer_id in self.unsettled:  # rule C29/unsettled-producers-write
                message = "the leader was elected uncleanly, and asks what became of the producer's transaction"
                raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message, **figures)
            if entry.epoch == header.producer_epoch:  # rule C10/the-next-transaction-goes-on-with-an-older-one
                return
            message = "an older transaction of this producer is open here, whose marker has to come first"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message, **figures)
        # rule C10/first-batches-are-not-verified, rule C10/a-verification-of-an-earlier-asking-counts
        if (
            verification is None
            or verification is not self._verifications.get(header.producer_id)
            or verification.producer_epoch != header.producer_epoch
        ):
            message = "no transaction of this producer is open here, and none was verified that has not ended since"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message, **figures)
        if header.base_sequence < 0:
            return
        # rule C10/later-batches-pass-the-first
        if is_behind(header.base_sequence, verification.first_sequence):
            mark("ahead-of-its-transaction")
            message = "an earlier batch of this transaction is not written yet; the same may be sent again"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message, **figures)
        # rule C10/unknown-producers-begin-anywhere
        if verification.begins_at_0 and header.base_sequence and not (entry is not None and entry.batches):
            mark("out-of-order-sequence")
            message = "nothing is known of this producer here, and its transaction's first batch has sequence 0"
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message, **figures)

    def check_marker(self, marker: Marker, transaction_version: int) -> None:
        """Judge a coordinator's marker before it is written.

        From version 2 on, each transaction has an epoch of its own, and its marker has the next one. So a marker with
        the epoch of the open transaction belongs to an earlier one (KIP-1228). If none is open, it is a repeated marker
        (KAFKA-19999).

        Raises:
            KafkaError: TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH.
        """
        entry = self._entries.get(marker.producer_id)
        if entry is None:
            return
        if marker.coordinator_epoch < entry.coordinator_epoch:  # rule C10/older-coordinators-write-markers
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                "a newer coordinator of this producer's transactions has written a marker",
                producer_id=marker.producer_id,
                coordinator_epoch=marker.coordinator_epoch,
                current_epoch=entry.coordinator_epoch,
            )
        # rule C10/the-last-transactions-marker-ends-the-next, rule C10/a-marker-that-comes-again-is-refused
        is_earlier = transaction_version >= 2 and entry.transaction_start >= 0 and marker.producer_epoch == entry.epoch
        if marker.producer_epoch < entry.epoch or is_earlier:
            raise _older_epoch(marker.producer_id, marker.producer_epoch, entry.epoch)

    def end(
        self, header: BatchHeader, marker: Marker | None, first_offset: int, now_ms: int
    ) -> AbortedTransaction | None:
        """Apply a marker that was written at `first_offset`; return the transaction if it was aborted. `marker` is None
        if only its header is known: then the transaction ends, with an unknown outcome."""
        asked = self._verifications.get(header.producer_id)
        if asked is not None and not asked.is_after(header.producer_epoch):
            del self._verifications[header.producer_id]  # rule C10/a-verification-outlives-a-marker
        entry = self._seen(header, now_ms)
        entry.marker_offset = first_offset
        if marker is not None:
            entry.coordinator_epoch = marker.coordinator_epoch  # rule C10/coordinators-are-forgotten
        self.unsettled.discard(header.producer_id)
        start, entry.transaction_start = entry.transaction_start, -1
        if start < 0:
            return None
        del self.open[header.producer_id]
        self.ended.append(EndedTransaction(header.producer_id, start, first_offset))
        if len(self.ended) > ENDED_MAX:
            one, other = self.ended.popleft(), self.ended.popleft()
            self.ended.appendleft(other._replace(first_offset=min(one.first_offset, other.first_offset)))
        if marker is None or marker.commit:
            return None
        stable = next(iter(self.open.values()), first_offset + 1)
        return AbortedTransaction(header.producer_id, start, first_offset, stable)

    def first_unstable(self, high_watermark: int) -> int:
        """Return the first offset of the oldest transaction that is open, or whose marker lies at `high_watermark` or
        above; `high_watermark` if there is none below it."""
        ended = self.ended
        # rule C6/a-marker-counts-before-it-is-committed
        while ended and ended[0].last_offset < high_watermark:
            ended.popleft()
        first = min((one.first_offset for one in ended), default=high_watermark)
        # rule C6/open-transactions-are-read
        return min(first, next(iter(self.open.values()), high_watermark), high_watermark)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions without a marker yet, oldest first."""
        entries = (self._entries[producer_id] for producer_id in self.open)
        return [
            OpenTransaction(
                entry.producer_id,
                entry.epoch,
                entry.transaction_start,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
            )
            for entry in entries
        ]

    # ------------------------------------------------------------------ forgetting

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers not seen for `expiration_ms` that have no open transaction; return their number."""
        # rule C2/open-transaction-expires
        gone = [
            producer_id
            for producer_id, entry in self._entries.items()
            if now_ms - entry.last_seen_ms >= expiration_ms and entry.transaction_start < 0
        ]
        for producer_id in gone:
            del self._entries[producer_id]
        for producer_id in [
            one.producer_id for one in self._verifications.values() if now_ms - one.begun_ms >= expiration_ms
        ]:
            del self._verifications[producer_id]
        return len(gone)

    def keep(self, producer_ids: Container[int]) -> None:
        """Forget all other producers."""
        self._entries = {number: entry for number, entry in self._entries.items() if number in producer_ids}
        self._find_open()

    def end_all(self) -> None:
        """End all open transactions, whose outcomes are known elsewhere."""
        for producer_id in self.open:
            self._entries[producer_id].transaction_start = -1
        self.open.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._verifications.clear()
        self.open.clear()
        self.ended.clear()
        self.refusals.clear()
        self.unsettled.clear()

    def _find_open(self) -> None:
        starts = [(one.transaction_start, one.producer_id) for one in self._entries.values()]
        self.open = {producer_id: start for start, producer_id in sorted(starts) if start >= 0}

    # ------------------------------------------------------------------ snapshots

    def encode_snapshot(self) -> bytes:
        """Encode a `.snapshot` file. Kafka's schema has one batch a row; here each remembered batch has a row, oldest
        first. Kafka's loader keeps the last row of a producer, this one all five, so that retries are recognised after
        a restart, too. The first rows are transactions that have ended and may not be committed yet: without a
        sequence, with the marker's offset, and with the first offset in place of the timestamp.
        """
        # rule C6/a-start-forgets-what-is-not-committed
        rows = [
            _SNAPSHOT_ENTRY.pack(one.producer_id, -1, -1, one.last_offset, 0, one.first_offset, -1, -1)
            for one in self.ended
        ]
        for entry in self.entries():
            for batch in entry.batches or [ProducerBatch(-1, -1, -1, -1, entry.last_timestamp_ms)]:
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
        """Replace the state with a snapshot's; its producers count as seen now. Raises SnapshotDamaged."""
        rows = decode_snapshot(data)
        self._entries.clear()
        self.ended.clear()
        for row in rows:
            if row.last_sequence < 0 <= row.last_offset:
                self.ended.append(EndedTransaction(row.producer_id, row.timestamp_ms, row.last_offset))
                continue
            entry = self._entries.get(row.producer_id)
            if entry is None or entry.epoch != row.epoch:
                entry = self._entries[row.producer_id] = ProducerEntry(row.producer_id, row.epoch)
            entry.last_seen_ms = now_ms
            entry.last_timestamp_ms = row.timestamp_ms
            entry.coordinator_epoch = row.coordinator_epoch
            entry.transaction_start = row.transaction_start
            if row.last_offset >= 0:
                # rule C2/snapshot-forgets-the-wrap
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
                del entry.batches[:-BATCHES_KEPT]  # rule C2/one-batch-in-a-snapshot
        self._find_open()  # rule C6/a-start-forgets-what-is-open


def decode_snapshot(data: bytes) -> list[SnapshotRow]:
    """Decode the rows of a `.snapshot` file. Raises SnapshotDamaged."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise SnapshotDamaged(f"{len(data)} bytes are shorter than its head")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise SnapshotDamaged(f"version {version}, known is {SNAPSHOT_VERSION}")
    if crc != crc32c(memoryview(data)[_SNAPSHOT_CRC_END:]):  # rule C2/damaged-snapshot-is-believed
        raise SnapshotDamaged("its CRC does not hold")
    if count * _SNAPSHOT_ENTRY.size != len(data) - _SNAPSHOT_HEAD.size:
        raise SnapshotDamaged(f"{count} entries announced in {len(data)} bytes")
    return [SnapshotRow._make(row) for row in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])]


def _check_epoch(header: BatchHeader, current_epoch: int) -> None:
    if header.producer_epoch < current_epoch:  # rule C1/older-producer-epoch-writes
        raise _older_epoch(header.producer_id, header.producer_epoch, current_epoch)


def _older_epoch(producer_id: int, epoch: int, current_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "a newer instance of this producer has written",
        producer_id=producer_id,
        epoch=epoch,
        current_epoch=current_epoch,
    )


def _check_kind(header: BatchHeader, previous: BatchHeader) -> None:
    if (header[5] ^ previous[5]) & TRANSACTIONAL_BIT:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            "one batch is of a transaction, and the one before it is not",
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
        )


def _check_follows(header: BatchHeader, current_epoch: int, last_sequence: int) -> None:
    """Check that a batch has the next sequence; a new epoch begins at 0. Epoch -1 (nothing known) allows any."""
    if header.base_sequence < 0:  # written by a coordinator, which writes each batch once
        return
    # rule C1/sequences-do-not-wrap, rule C1/new-epoch-begins-anywhere
    expected = 0 if header.producer_epoch != current_epoch else (last_sequence + 1) & SEQUENCE_MAX
    if header.producer_epoch == current_epoch and last_sequence < 0:
        return
    if header.base_sequence != expected:  # rule C1/gaps-are-accepted
        mark("out-of-order-sequence")
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            "the batch does not follow on the producer's last one",
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            sequence=header.base_sequence,
            expected=expected,
        )


class Snapshots:
    """Snapshots of producer state in a log. The one at offset S is the state after every record below S; truncating the
    log below S removes it."""

    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str, names: list[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def offsets(self) -> list[int]:
        """Return the offsets of the files, rising."""
        return list(self._offsets)

    def has(self, offset: int) -> bool:
        """True if there is a snapshot at this offset."""
        return offset in self._offsets

    def take_in(self, path: str, offset: int) -> None:
        """Make the durable file at `path` the snapshot at `offset`, durably. Blocking."""
        self._disk.rename(path, self._path(offset))
        self._disk.sync_dir(self._directory)  # rule B24/what-a-log-is-told-is-not-durable
        if offset not in self._offsets:
            insort(self._offsets, offset)

    def write(self, offset: int, states: ProducerStates) -> File:
        """Write the state at `offset`, not synced; the caller may sync the file, and closes it."""
        file = self._disk.open(self._path(offset), create=True)
        file.truncate(0)
        file.pwrite(states.encode_snapshot(), 0)
        if offset not in self._offsets:
            insort(self._offsets, offset)
        return file

    def fill(self, segments: list[Segment], now_ms: int) -> list[File]:
        """Write the missing snapshots of segments' beginnings after the newest snapshot. Once the records before are
        off the disk, nothing else names their producers. Not synced: the caller syncs and closes the files.

        A full disk is no failure: the batches name the producers as long as they are here.
        """
        written: list[File] = []
        try:
            for segment in segments[1:]:
                if not self._offsets or self._offsets[-1] < segment.base_offset:
                    states = self.load(segments, segment.base_offset, now_ms)
                    written.append(self.write(segment.base_offset, states))
        except DiskFull:
            return written
        return written

    def is_readable(self, offset: int) -> bool:
        """True if there is a snapshot at this offset, and it is whole."""
        if offset not in self._offsets:
            return False
        try:
            decode_snapshot(read_file(self._disk, self._path(offset)))
        except SnapshotDamaged:
            return False
        return True

    def write_again(self, offset: int) -> None:
        """Make the snapshot at this offset durable, as it may be only in the page cache. Raises DiskError."""
        path = self._path(offset)
        write_file_durably(self._disk, path, read_file(self._disk, path))

    def load(self, segments: list[Segment], end_offset: int, now_ms: int) -> ProducerStates:
        """Return the state after every record below `end_offset`: the newest readable snapshot up to there, then a
        replay."""
        states = ProducerStates()
        start = segments[0].base_offset
        # rule C2/snapshot-beyond-the-point
        for offset in reversed(self._offsets[: bisect_right(self._offsets, end_offset)]):
            if offset < start:
                break
            try:
                states.load_snapshot(read_file(self._disk, self._path(offset)), now_ms)
            except SnapshotDamaged:
                self.delete(offset)
                continue
            mark("producer-state-from-snapshot")
            start = offset
            break
        replay(states, segments, start, end_offset, now_ms)  # rule C2/no-replay-after-the-snapshot
        return states

    def delete_above(self, offset: int) -> bool:
        """Delete snapshots above `offset`; True if there was one (the caller syncs the directory)."""
        stale = self._offsets[bisect_right(self._offsets, offset) :]
        for at in stale:
            self.delete(at)
        return bool(stale)

    def delete_strays(self, segment_bases: list[int]) -> None:
        """Delete snapshots that are not at the base of a segment, except for the newest of all."""
        bases = set(segment_bases)
        for offset in self._offsets[:-1]:
            if offset not in bases:
                self.delete(offset)

    def delete(self, offset: int) -> None:
        """Delete the snapshot at `offset`."""
        self._offsets.remove(offset)
        self._disk.unlink(self._path(offset))

    def delete_below(self, offset: int) -> None:
        """Delete snapshots below `offset`, whose records are out of the log; newer ones include their state."""
        for at in self._offsets[: bisect_right(self._offsets, offset - 1)]:
            self.delete(at)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{segment_name(offset, SNAPSHOT_SUFFIX)}"


def rebuild_aborted(snapshots: Snapshots, segments: list[Segment], segment: Segment, now_ms: int) -> None:
    """Build a segment's index of aborted transactions anew, from its batches and the transactions that were open before
    it. Blocking; the file is written with the other indexes. Raises KafkaError and DiskError as reading does."""
    index = segment.reset_aborted()
    following = [one.base_offset for one in segments if one.base_offset > segment.base_offset]
    states = snapshots.load(segments, segment.base_offset, now_ms)
    end_offset = min(following, default=INT64_MAX)
    replay(states, [segment], segment.base_offset, end_offset, now_ms, aborted=index.append)


def replay(
    states: ProducerStates,
    segments: list[Segment],
    start: int,
    end_offset: int,
    now_ms: int,
    *,
    aborted: Callable[[AbortedTransaction], None] = lambda _: None,
) -> None:
    """Apply the batches in [start, end_offset) that end within it, from their headers, blocking; `aborted` is called
    with each transaction that was aborted there."""
    for i, segment in enumerate(segments):
        if segment.base_offset >= end_offset:
            break
        if i + 1 < len(segments) and segments[i + 1].base_offset <= start:
            continue
        found = segment.find(start, pread_blocking) if start > segment.base_offset else (0, None)
        if found is None:
            continue
        for position, header in segment.headers(found[0], pread_blocking):
            if header.next_offset > end_offset:
                break
            if header.producer_id < 0 or header.base_offset < start:
                continue
            if header[5] & CONTROL_BIT:
                marker = read_marker(pread_blocking(segment.file, header.size, position))
                ended = states.end(header, marker, header.base_offset, now_ms)
                if ended is not None:
                    aborted(ended)
            else:
                states.update(header, header.base_offset, now_ms)
