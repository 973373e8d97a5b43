"""A partition's log as a value: records, leader epochs, and what a power cut leaves of it.

It keeps the promises of `strandline.log.partition_log.PartitionLog` to the streams that read and write it; a record is
four bytes (offset, epoch, value, a spare), so that frames stay small.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.log.config import LogConfig
from strandline.log.epochs import LeaderEpochs
from strandline.log.partition_log import AppendResult, LogRead
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, Offset, TopicId, TopicPartition

TOPIC_PARTITION = TopicPartition("t", 0)
TOPIC_ID = TopicId(int=1)
RECORD_BYTES = 4


class Entry(NamedTuple):
    """A record: the leader epoch in which it was appended, and a value that no other record has."""

    epoch: int
    value: int

    def __str__(self) -> str:
        return f"{chr(ord('a') + self.value)}@{self.epoch}"


class Written(NamedTuple):
    """Something written that no sync has covered yet: a record at the log's end, or a cut at an offset."""

    entry: Entry | None
    cut_at: int = -1


class ModelLog:
    """One replica's log.

    Attributes:
        entries: the log as the process sees it.
        disk: the records that survive a power cut; unsynced: what was written since, in order, of which the first
            `syncing` are covered by the sync under way (-1: there is none).
        durable_offset: as far as syncs have told.
        epochs: of the product. What a crash leaves of them follows from the records.
    """

    __slots__ = ("_syncing_to", "config", "disk", "durable_offset", "entries", "epochs", "syncing", "unsynced")

    log_start_offset = durable_log_start_offset = 0
    rot = ()
    """Nothing of it rots."""
    home = "/data"
    topic_id = TOPIC_ID
    topic_partition = TOPIC_PARTITION

    def __init__(self) -> None:
        self.entries: tuple[Entry, ...] = ()
        self.disk: tuple[Entry, ...] = ()
        self.unsynced: tuple[Written, ...] = ()
        self.syncing = -1
        self.durable_offset = 0
        self.epochs = LeaderEpochs()
        self.config = LogConfig()
        self._syncing_to = 0

    # What the streams ask for

    @property
    def log_end_offset(self) -> int:
        """One past the last record."""
        return len(self.entries)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The newest leader epoch known."""
        return self.epochs.latest

    @property
    def size_bytes(self) -> int:
        """Bytes of all records."""
        return len(self.entries) * RECORD_BYTES

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """The high watermark: there are no transactions here."""
        return high_watermark

    def end_offset_for_epoch(self, epoch: int) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `epoch`, and where it ends."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Note that this node leads `epoch` from `offset` on."""
        self.epochs.assign(epoch, offset)

    def append_own(self, epoch: int, value: int) -> AppendResult:
        """A leader appends a record."""
        base = self.log_end_offset
        self._write(Entry(epoch, value))
        data = memoryview(bytearray(_pack(base, self.entries[base])))
        return AppendResult(Offset(base), Offset(base + 1), -1, Offset(0), False, data)

    def append_as_follower(self, batches: memoryview) -> Offset:
        """Records as a leader has them. Raises KafkaError where they do not follow on the log."""
        offset, latest = self.log_end_offset, self.epochs.latest
        found: list[Entry] = []
        for position in range(0, len(batches), RECORD_BYTES):
            base, epoch, value, _ = batches[position : position + RECORD_BYTES]
            if base != offset + len(found):
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "a replicated record does not follow")
            if epoch < latest:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "leader epochs go back")
            latest = LeaderEpoch(epoch)
            found.append(Entry(epoch, value))
        for entry in found:
            self._write(entry)
        return Offset(self.log_end_offset)

    def read(self, offset: int, max_bytes: int, limit_offset: int, *, one_batch_bytes: int = 0) -> LogRead:
        """Every record from `offset` on, below `limit_offset`."""
        records = [_pack(at, self.entries[at]) for at in range(offset, min(limit_offset, self.log_end_offset))]
        return LogRead(b"".join(records), Offset(offset), Offset(offset + len(records)))

    def truncate_to(self, offset: int) -> Offset:
        """Drop what lies at or after `offset`."""
        if offset < self.log_end_offset:
            self.unsynced += (Written(None, offset),)
            self.entries = self.entries[:offset]
            self.durable_offset = min(self.durable_offset, offset)
            self._syncing_to = min(self._syncing_to, offset)
        self.epochs.truncate_from_end(self.log_end_offset)
        return Offset(self.log_end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything. Nothing is ever deleted here, so that every log begins at 0."""
        assert offset == 0
        self.truncate_to(0)
        self.epochs.clear()

    def _write(self, entry: Entry) -> None:
        self.epochs.assign(entry.epoch, self.log_end_offset)
        self.entries = (*self.entries, entry)
        self.unsynced += (Written(entry),)

    # Syncs and crashes

    @property
    def tearable(self) -> tuple[int, ...]:
        """Numbers of writes without a sync that can be whole where a part of the next one is there too."""
        return tuple(kept for kept, written in enumerate(self.unsynced) if written.entry is not None)

    def mark(self) -> None:
        """Note that something must be synced: a sync begins unless one is under way."""
        if self.syncing < 0 and self.unsynced:
            self.syncing = len(self.unsynced)
            self._syncing_to = self.log_end_offset

    def synced(self) -> None:
        """End the sync under way; another begins if more was written meanwhile."""
        covered, self.unsynced = self.unsynced[: self.syncing], self.unsynced[self.syncing :]
        self.disk = after(self.disk, covered)
        self.durable_offset = max(self.durable_offset, self._syncing_to)
        self.syncing = -1
        self.mark()

    def crash(self, kept: int) -> None:
        """Crash: of what was not synced the first `kept` writes are there afterwards. What a process then finds is
        synced before it counts."""
        self._recover(after(self.disk, self.unsynced[:kept]))

    def lose_end(self, kept: int) -> None:
        """Lose, while no process runs, what was synced behind the first `kept` records."""
        self._recover(self.disk[:kept])

    def _recover(self, found: tuple[Entry, ...]) -> None:
        self.disk = self.entries = found
        self.unsynced = ()
        self.syncing = -1
        self.durable_offset = self._syncing_to = len(self.entries)
        self.epochs = LeaderEpochs()
        for offset, entry in enumerate(self.entries):
            self.epochs.assign(entry.epoch, offset)


def after(entries: tuple[Entry, ...], written: tuple[Written, ...]) -> tuple[Entry, ...]:
    """Records after writes."""
    for one in written:
        entries = entries[: one.cut_at] if one.entry is None else (*entries, one.entry)
    return entries


def _pack(offset: int, entry: Entry) -> bytes:
    return bytes((offset, entry.epoch, entry.value, 0))
