"""Shared by the tests of transactions in a log: a producer with transactions, and what committed readers see."""

from __future__ import annotations

from strandline.log.batch import Record, build_batch, decode_records, iter_batches
from strandline.log.partition_log import AppendResult, PartitionLog
from strandline.log.transactions import AbortedTransaction, Marker, read_marker
from tests.log.helpers import records

NOW_MS = 1_700_000_000_000


class TransactionalProducer:
    """A producer of one log, whose transactions are verified as those of the other version are not."""

    def __init__(self, log: PartitionLog, producer_id: int, *, version: int = 2) -> None:
        self.log = log
        self.producer_id = producer_id
        self.version = version
        self.epoch = 0
        self.sequence = 0
        self.coordinator_epoch = 0

    def batch(self, count: int = 1, *, first: int | None = None, size: int = 10) -> memoryview:
        """Its next batch, of records that are named by the offsets that they will have."""
        number = int(self.log.log_end_offset) if first is None else first
        return memoryview(
            build_batch(
                records(count, first=number, size=size),
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequence,
                transactional=True,
            )
        )

    def send(self, count: int = 1, *, size: int = 10, leader_epoch: int = 0) -> AppendResult:
        """Append `count` records, verified where that is asked for."""
        verification = self.log.begin_verification(
            self.producer_id, self.epoch, self.sequence, begins_at_0=self.version >= 2
        )
        result = self.log.append_as_leader(
            self.batch(count, size=size), leader_epoch, NOW_MS, verification=verification
        )
        self.sequence += count
        return result

    def end(self, *, commit: bool, leader_epoch: int = 0) -> AppendResult:
        """Append the marker."""
        if self.version >= 2:
            self.epoch += 1
            self.sequence = 0
        return self.log.append_marker(
            Marker(self.producer_id, self.epoch, commit, self.coordinator_epoch),
            leader_epoch,
            NOW_MS,
            transaction_version=self.version,
        )


def aborted(log: PartitionLog, start: int, end: int) -> list[AbortedTransaction]:
    """Aborted transactions, however cold."""
    found = log.aborted_transactions(start, end)
    assert found is not None
    return found


def committed_records(
    log: PartitionLog, *, high_watermark: int | None = None, start: int | None = None
) -> list[Record]:
    """What a reader of committed records gets up to the last stable offset, as Kafka's consumer decides."""
    end = log.last_stable_offset(
        log.log_end_offset if high_watermark is None else type(log.log_end_offset)(high_watermark)
    )
    found: list[Record] = []
    offset = int(log.log_start_offset) if start is None else start
    first = offset
    while offset < end:
        read = log.read(offset, 1 << 20, int(end))
        assert read is not None
        if not read.data:
            break
        coming = sorted(aborted(log, offset, int(read.next_offset)), key=lambda one: one.first_offset)
        dead: set[int] = set()
        for header, batch in iter_batches(read.data):
            while coming and coming[0].first_offset <= header.last_offset:
                dead.add(coming.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.commit:
                    dead.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dead):
                found += [one for one in decode_records(batch) if one.offset >= first]
        offset = int(read.next_offset)
    return found
