"""The metadata log on disk: the core's orders carried out on a `PartitionLog`, and committed batches read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import structlog

from strandline.controller.quorum.api import DAMAGE_ADVICE, CommittedBatch, QuorumConfig
from strandline.controller.quorum.control_records import leader_change, read_voters, voters_records
from strandline.controller.quorum.recovery_point import RecoveryPoint
from strandline.controller.raft.log_summary import EMPTY, LogSummary
from strandline.controller.raft.messages import Batch, LeaderChange, OffsetAndEpoch, VotersChange
from strandline.log.batch import Record, build_batch, decode_records, iter_batches
from strandline.log.config import LogConfig
from strandline.log.disk import Disk, DiskError
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import LogRead, PartitionLog
from strandline.log.recovery import open_log
from strandline.log.rewriting import Rewriting, refusal
from strandline.log.segment import pread_blocking
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import CorruptLogError, KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import LeaderEpoch, Offset, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock

logger = structlog.get_logger("strandline.controller")

TOPIC_PARTITION = TopicPartition("__cluster_metadata", 0)


class MetadataLog:
    """A thin seam around the partition log of `__cluster_metadata-0`."""

    def __init__(self, log: PartitionLog, recovery_point: RecoveryPoint, *, proven: bool) -> None:
        self.partition_log = log
        self.proven = proven
        """The stop before was clean: the log ends where it ended then (rule A22)."""
        self.held = int(log.log_end_offset)
        """All below was here when the log was opened, in the log or in a snapshot, and was not cut since."""
        self._recovery_point = recovery_point
        log.on_cut_below = recovery_point.lower_to

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        clock: Clock,
        config: QuorumConfig,
        *,
        rewriting: Rewriting | None,
        before_cut: Callable[[int], None] = lambda _: None,
    ) -> MetadataLog:
        """Recover the log. What it then holds is made durable before anyone counts it: after a mere restart of the
        process some of it may never have been synced (rule A9), or a sync of it may have failed (schedule 47).

        `rewriting` is None where all that is read is on the disk. With it every name in the directory is made durable
        too: those of snapshots, of the quorum state and of the recovery point. `before_cut` is called
        with the end of a tail, before that is cut (rule A15).

        Raises:
            CorruptLogError: damage in what was once durable.
            DiskError
        """
        recovery_point = RecoveryPoint(disk, directory)
        try:
            last_life = recovery_point.read()
        except CorruptLogError as error:  # what must be in the log is known from the quorum state, which is kept twice
            mark("recovery-point-damaged")
            logger.warning("the metadata log's recovery point is damaged, and is written anew", error=str(error))
            last_life = LastLife()
        log_config = LogConfig(
            segment_bytes=config.log_segment_bytes,
            max_message_bytes=config.max_batch_bytes,
            retention_ms=-1,
        )
        try:
            # rule A9/metadata-not-written-again
            log = open_log(
                disk,
                directory,
                TOPIC_PARTITION,
                clock=clock,
                config=log_config,
                last_life=last_life,
                rewriting=rewriting,
                before_cut=before_cut,
            )
            disk.sync_dir(directory)  # names that the last process made and had not synced yet
        except CorruptLogError as error:
            raise _with_advice(error) from error
        except (StorageError, DiskError) as error:
            if rewriting is None:
                raise
            raise refusal(error, directory) from error
        # rule A22/clean-voters-are-doubted
        proven = recovery_point.clean and recovery_point.offset == log.log_end_offset
        recovery_point.note(log.log_end_offset)  # rule A22/clean-mark-of-the-quorum-stays
        return cls(log, recovery_point, proven=proven)

    def note_recovery_point(self) -> None:
        """Write down how far the log is durable. Raises DiskError."""
        if self.durable_offset > self._recovery_point.offset:
            self._recovery_point.note(self.durable_offset)

    @property
    def end_offset(self) -> int:
        """One past the last record written."""
        return self.partition_log.log_end_offset

    @property
    def start_offset(self) -> int:
        """Start offset of the log; what lies below is in a snapshot alone."""
        return self.partition_log.log_start_offset

    @property
    def durable_offset(self) -> int:
        """Everything below has been synced."""
        return self.partition_log.durable_offset

    def summary(self, snapshots: Sequence[OffsetAndEpoch], said: VotersChange | None = None) -> LogSummary:
        """Summary of the log for the core; `said` are the voters that the latest snapshot names. A snapshot that is
        ahead of the log replaces it first: the node stopped between making a fetched snapshot durable and truncating
        (rule A10).

        Raises:
            CorruptLogError: no snapshot holds what was before the log, or a batch of it is damaged.
        """
        log = self.partition_log
        latest = snapshots[-1] if snapshots else None
        # rule A10/restart-between-freeze-and-truncation
        if latest is not None and (latest.offset > log.log_end_offset or latest.epoch > log.latest_epoch):
            self.reset_to(latest)
            self.held = latest.offset
        # A stop between that reset and the deletion of older snapshots leaves those behind: they serve no follower.
        useful = [snapshot for snapshot in snapshots if snapshot.offset >= log.log_start_offset]
        oldest = useful[0] if useful else latest or EMPTY
        if oldest.offset < log.log_start_offset:
            raise CorruptLogError(
                log.directory,
                0,
                oldest.offset,
                f"the log starts at {log.log_start_offset}, and no snapshot tells what was before",
                DAMAGE_ADVICE,
            )
        self.delete_before(oldest.offset)
        before = [] if latest is None or said is None else [(latest.offset - 1, said)]
        return LogSummary(
            start=oldest,
            end_offset=log.log_end_offset,
            epochs=self._epochs(oldest.offset),
            snapshot=latest,
            voters=(*before, *self._voters(0 if latest is None else latest.offset)),
        )

    def _voters(self, start_offset: int) -> Iterator[tuple[int, VotersChange]]:
        """(offset, voters) of every voter set in the log from `start_offset` on."""
        for segment in self.partition_log.segments:
            for position, header in segment.headers(0, pread_blocking):
                if header.is_control and header.base_offset >= start_offset:
                    data = pread_blocking(segment.file, header.size, position)
                    said = read_voters(decode_records(data))
                    if said is not None:
                        yield header.base_offset, said

    def _epochs(self, start_offset: int) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset) of every epoch that has records, oldest first."""
        log = self.partition_log
        found: list[tuple[int, int]] = []
        end: int = log.log_end_offset
        while end > start_offset:
            epoch = log.epoch_at(end - 1)
            _, before = log.end_offset_for_epoch(LeaderEpoch(epoch - 1))
            begin = max(before, start_offset)
            found.append((epoch, begin))
            end = begin
        return tuple(reversed(found))

    def write(self, batch: Batch, timestamp_ms: int) -> bool:
        """Append what the core ordered, at exactly its offset; False if there is no room, and nothing was written.

        Raises:
            StorageError: the disk failed.
        """
        try:
            self._write(batch, timestamp_ms)
        except NoSpaceLeft:
            return False
        return True

    def _write(self, batch: Batch, timestamp_ms: int) -> None:
        log = self.partition_log
        ensure(log.log_end_offset == batch.base_offset, "NoGap", end=log.log_end_offset, base=batch.base_offset)
        if isinstance(batch.data, LeaderChange):
            self._write_control([leader_change(batch.data, timestamp_ms)], batch)
        elif isinstance(batch.data, VotersChange):
            self._write_control(voters_records(batch.data, timestamp_ms), batch)
        elif isinstance(batch.data, bytearray):
            log.append_batch(batch.data, LeaderEpoch(batch.epoch))
        else:
            log.append_as_follower(memoryview(batch.data))
        ensure(log.log_end_offset == batch.next_offset, "NoGap", end=log.log_end_offset, next=batch.next_offset)

    def _write_control(self, records: list[Record], batch: Batch) -> None:
        data = build_batch(records, base_offset=batch.base_offset, leader_epoch=batch.epoch, control=True)
        self.partition_log.append_batch(data, LeaderEpoch(batch.epoch))

    def truncate_to(self, offset: int) -> None:
        """Drop every record at or after `offset`."""
        self.held = min(self.held, offset)  # rule B38/what-was-cut-proves-the-directory
        self.partition_log.truncate_to(offset)

    def reset_to(self, snapshot: OffsetAndEpoch) -> None:
        """Drop everything; the log continues at the snapshot's end."""
        self.held = 0
        self.partition_log.truncate_fully_and_start_at(snapshot.offset)

    def delete_before(self, offset: int) -> None:
        """Take out what a kept, durable snapshot contains; `delete_removed` gives the space back. The active segment
        stays: no checkpoint would say where the log begins if the name of a new one were lost."""
        self.partition_log.delete_records_before(offset, keep_active=True)

    async def delete_removed(self) -> None:
        """Delete from the disk what `delete_before` took out, slowly. Raises DiskError.

        Oldest first, each segment gone durably before the next one goes. No checkpoint says where this log starts: an
        older segment that came back after a power cut, without the next, would be a log with a gap.
        """
        log = self.partition_log
        while log.removed:
            await log.delete_oldest_removed()
            await log.disk.sync([], [log.directory])  # rule E5/start-is-cut-in-any-order

    def abandon(self) -> None:
        """Close the files as they are."""
        self.partition_log.close_files()

    def close(self) -> None:
        """Sync and close the files. Raises StorageError; the files are closed anyway."""
        self.partition_log.close()
        self._recovery_point.note(self.durable_offset, clean=True)

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """Whole batches from `offset`, one at least; None if they are not in memory. Raises CorruptLogError."""
        found = self._read(offset, max_bytes, self.end_offset)
        return None if found is None else found.data

    async def read_cold(self, offset: int, max_bytes: int) -> bytes:
        """Read as `read` does, off the loop; nothing if a snapshot took the place of these records meanwhile."""
        return (await self._read_cold(offset, max_bytes, self.end_offset)).data

    def committed(self, offset: int, limit: int, max_bytes: int) -> tuple[list[CommittedBatch], int] | None:
        """Batches in [offset, limit) and their size in bytes; None if they are not in memory. Control batches come
        without records, so that no offset is missing. Raises CorruptLogError."""
        found = self._read(offset, max_bytes, limit)
        return None if found is None else (decode_batches(found.data), len(found.data))

    async def committed_cold(self, offset: int, limit: int, max_bytes: int) -> tuple[list[CommittedBatch], int]:
        """Read as `committed` does, off the loop; nothing if a snapshot took the place of these records meanwhile."""
        found = await self._read_cold(offset, max_bytes, limit)
        return decode_batches(found.data), len(found.data)

    def _read(self, offset: int, max_bytes: int, limit: int) -> LogRead | None:
        try:
            return self.partition_log.read(offset, max_bytes, limit)
        except KafkaError as error:
            self._refuse_rot(error)
            raise

    async def _read_cold(self, offset: int, max_bytes: int, limit: int) -> LogRead:
        try:
            return await self.partition_log.read_cold(offset, max_bytes, limit)
        except (KafkaError, FileNotFoundError) as error:
            if offset < self.start_offset:
                return LogRead(b"", Offset(offset), Offset(offset))
            self._refuse_rot(error)
            raise

    def _refuse_rot(self, error: Exception) -> None:
        """Refuse what was read and is not what was written: a bit that turned over since must reach no image, and no
        other node.

        Raises:
            CorruptLogError: that is why the log could not be read.
        """
        if isinstance(error, KafkaError) and error.code is ErrorCode.CORRUPT_MESSAGE:
            mark("metadata-rot-found")
            where, position = str(error.figures["file"]), int(error.figures["position"])
            raise CorruptLogError(where, position, None, error.message, DAMAGE_ADVICE) from error


def _with_advice(error: CorruptLogError) -> CorruptLogError:
    return CorruptLogError(error.path, error.position, error.offset, error.reason, DAMAGE_ADVICE)


def build_data_batch(records: Sequence[bytes], *, base_offset: int, epoch: int, timestamp_ms: int) -> bytearray:
    """One atomic batch of opaque records."""
    return build_batch(
        [Record(0, timestamp_ms, None, value) for value in records], base_offset=base_offset, leader_epoch=epoch
    )


def decode_batches(data: bytes) -> list[CommittedBatch]:
    """The batches with their records; those of the quorum's own have none. Raises KafkaError for what is no batch."""
    batches = []
    for header, view in iter_batches(data):
        values = [] if header.is_control else [record.value or b"" for record in decode_records(view)]
        batches.append(
            CommittedBatch(header.base_offset, header.last_offset, header.leader_epoch, header.max_timestamp, values)
        )
    return batches
