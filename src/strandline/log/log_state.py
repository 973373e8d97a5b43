"""State of a partition's log: its parts, how they become durable, and how the log is fenced when the disk fails."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from strandline.log.checkpoints import LEADER_EPOCHS, encode_epochs
from strandline.log.config import LogConfig
from strandline.log.disk import Disk, DiskError, DiskFull, File, write_file_durably
from strandline.log.epochs import LeaderEpochs
from strandline.log.producer_state import ProducerStates, Snapshots, rebuild_aborted
from strandline.log.segment import ABORTED_INDEX_SUFFIX, IndexDamaged, Pread, Segment
from strandline.log.transactions import AbortedIndex
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.log")

INDEX_CACHE_BYTES = 64 << 20
"""Memory for loaded indexes of closed segments, over all logs of a directory (a full 1 GiB segment's take 5 MB)."""


_EPOCHS_SYNCING = LEADER_EPOCHS + ".syncing.tmp"


class IndexCache:
    """Set of the closed segments whose indexes are in memory; beyond the limit the least recently used drop theirs."""

    def __init__(self, max_bytes: int = INDEX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._segments: OrderedDict[Segment, int] = OrderedDict()

    def touch(self, segment: Segment) -> None:
        """Take note that `segment` was read from just now."""
        self._bytes += segment.index_bytes - self._segments.pop(segment, 0)
        self._segments[segment] = segment.index_bytes
        while self._bytes > self._max_bytes and len(self._segments) > 1:
            old, size = self._segments.popitem(last=False)
            old.drop_indexes()
            self._bytes -= size

    def forget(self, segment: Segment) -> None:
        """Remove `segment`, which is gone or appended to again."""
        self._bytes -= self._segments.pop(segment, 0)


class PendingSwap(Protocol):
    """Swap of segments for their replacement (`strandline.log.swap`), as a cut of the log sees it."""

    @property
    def end(self) -> int:
        """Offset after the segments that are replaced."""

    def settle(self) -> None:
        """Give the swap up, or finish it. Raises DiskError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParts:
    """Parts of a log, as found when it was opened (`strandline.log.recovery`)."""

    disk: Disk
    clock: Clock
    directory: str
    topic_partition: TopicPartition
    topic_id: TopicId
    config: LogConfig
    segments: list[Segment]
    snapshots: Snapshots
    epochs: LeaderEpochs
    producers: ProducerStates
    log_start_offset: int
    log_end_offset: int
    cache: IndexCache


class LogState:
    """The parts of a `PartitionLog`, and the operations on all of them together: syncs, moves of the end, failure.

    Invariants:
    - durable_log_start_offset <= log_start_offset <= log_end_offset and durable_offset <= log_end_offset;
    - the log start may lie inside the first batch (records were deleted up to there): readers get the whole batch and
      skip the records before, as for any batch that begins before the requested offset;
    - once `failure` is set nothing is written any more until the node restarts and recovers the log (schedules 18, 32).
    """

    __slots__ = (
        "_clock",
        "_snapshot_bytes",
        "_syncing_to",
        "bases",
        "cache",
        "cleaned_to",
        "config",
        "cuts",
        "directory",
        "disk",
        "durable_log_start_offset",
        "durable_offset",
        "epochs",
        "failure",
        "home",
        "log_end_offset",
        "log_start_offset",
        "on_begun_anew",
        "on_cut_below",
        "producers",
        "removed",
        "segments",
        "size_bytes",
        "snapshots",
        "swap",
        "sync_pending",
        "topic_id",
        "topic_partition",
        "unsynced",
    )

    def __init__(self, parts: LogParts) -> None:
        self.disk = parts.disk
        self._clock = parts.clock
        self.directory = parts.directory
        self.home = parts.directory.rpartition("/")[0]
        """Log directory that the log lies in."""
        self.topic_partition = parts.topic_partition
        self.topic_id = parts.topic_id
        self.config = parts.config
        self.segments = parts.segments
        self.bases = [segment.base_offset for segment in parts.segments]
        self.snapshots = parts.snapshots
        self.epochs = parts.epochs
        self.producers = parts.producers
        self.log_start_offset = Offset(parts.log_start_offset)
        self.log_end_offset = Offset(parts.log_end_offset)
        self.durable_offset = Offset(parts.log_end_offset)
        """Offset below which everything survives a power cut. Raised by the Syncer only, lowered by truncations."""
        self.durable_log_start_offset = self.log_start_offset
        """Offset before which the log does not begin after a power cut. Raised with the checkpoint of log starts
        (`LogDir`), lowered by truncations."""
        self.size_bytes = sum(segment.size for segment in parts.segments)
        self.failure: str | None = None
        """Reason nothing can be written to the log any more, or None."""
        self.sync_pending = False
        """True if the log is in the Syncer's next group already; set by the Syncer."""
        self.on_begun_anew: Callable[[], None] | None = None
        """Called when the log was cut whole and has its new start, before anything in it is durable."""
        self.on_cut_below: Callable[[int], None] | None = None
        """Called before a truncation with its offset, to lower checkpoints above it first."""
        self.removed: list[Segment] = []
        """Segments below the log start, which are out of the log and still on disk: see `delete_oldest_removed`."""
        self.cleaned_to = Offset(0)
        """Offset below which compaction has left one record of each key. Raised by `Compactor`, lowered by
        truncations."""
        self.cuts = 0
        """Number of truncations of the log. A copy in the making begins anew after one."""
        self.swap: PendingSwap | None = None
        """Swap of segments for their compacted replacement that is under way; None if there is none."""
        self.unsynced = Unsynced(parts.disk, parts.directory, parts.epochs)
        self.cache = parts.cache
        self._snapshot_bytes = 0
        self._syncing_to: int = parts.log_end_offset

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic_partition} [{self.log_start_offset}, {self.log_end_offset})>"

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """Newest known leader epoch: that of the last record, or of an election since."""
        return self.epochs.latest

    def out_of_range(self, offset: int) -> KafkaError:
        """Return the error OFFSET_OUT_OF_RANGE for an offset that is not in log start <= offset <= log end."""
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            "the log does not hold this offset",
            offset=offset,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
        )

    def _now_ms(self) -> int:
        """Return the monotonic time in milliseconds. Ages that only this process knows, of producers and of the active
        segment, are measured with it, so that setting the clock does not change them (rule B32)."""
        return int(self._clock.monotonic_ms())  # rule B32/producers-expire-by-the-wall-clock

    def begin_segment(self, base_offset: int, now_ms: int) -> None:
        """Begin a new active segment at `base_offset`."""
        segment = Segment(self.disk, self.directory, base_offset, created_ms=now_ms, create=True)
        self.segments.append(segment)
        self.bases.append(base_offset)
        self.unsynced.add(segment.file)
        self.unsynced.add_directory(self.directory)  # rule A1/new-segments-name-not-synced

    def _roll(self, now_ms: int) -> None:
        mark("segment-rolled")
        old = self.segments[-1]
        self.unsynced.add_and_close(old.seal())
        self.unsynced.add(old.file)
        # Even without producers: a start must know that there are none without walking the whole log.
        # rule C2/no-snapshot-at-the-roll, rule C2/snapshot-at-the-roll-not-forced
        self.unsynced.add_and_close([self.snapshots.write(self.log_end_offset, self.producers)])
        self._snapshot_bytes = 0
        self.begin_segment(self.log_end_offset, now_ms)
        self.cache.touch(old)

    def move_end(self, offset: int) -> None:
        """Set the log end to `offset`, for truncations. A sync in flight then counts up to there at most."""
        self.cuts += 1
        self.log_end_offset = Offset(offset)
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.durable_log_start_offset = min(self.durable_log_start_offset, self.log_start_offset)
        self.durable_offset = min(self.durable_offset, self.log_end_offset)  # rule B8/durable-offset-survives-a-cut
        self.cleaned_to = min(self.cleaned_to, self.log_end_offset)
        self._syncing_to = min(self._syncing_to, offset)  # rule B8/cut-in-mid-sync-is-forgotten
        self.size_bytes = sum(segment.size for segment in self.segments)

    def aborted_in(self, segment: Segment, pread: Pread) -> AbortedIndex:
        """Return the transactions whose abort marker lies in a segment. A damaged index is built anew. Raises ColdRead,
        and KafkaError and DiskError as reading does."""
        try:
            index = segment.load_aborted(pread)
        except IndexDamaged as error:
            mark("aborted-index-rotten")
            log.warning(
                "an index of aborted transactions is damaged, and built anew",
                error=str(error),
                file=segment.path(ABORTED_INDEX_SUFFIX),
            )
            rebuild_aborted(self.snapshots, self.segments, segment, self._now_ms())
            for file in segment.write_indexes():
                file.close()
            index = segment.load_aborted(pread)
        if len(index) and segment is not self.segments[-1]:
            self.cache.touch(segment)
        return index

    # ------------------------------------------------------------------ syncing

    def must_sync(self, files: list[File], closing: list[File], directories: list[str]) -> None:
        """Add to the next sync: `files`, files that are closed then, and directories with new or removed names."""
        for file in files:
            self.unsynced.add(file)
        self.unsynced.add_and_close(closing)
        for path in directories:
            self.unsynced.add_directory(path)

    @property
    def recovery_point(self) -> Offset | None:
        """Offset below which nothing has to be scanned after a crash: data, names and epochs are durable. None while
        one of these is not; then the checkpointed value still holds.
        """
        return self.durable_offset if self.unsynced.is_settled else None

    @property
    def needs_sync(self) -> bool:
        """True if something was written that is not known to be durable."""
        return not self.unsynced.is_clean

    def begin_sync(self) -> tuple[list[File], list[str]]:
        """Return the files and directories for one sync, which will make everything below the present log end
        durable."""
        self._syncing_to = self.log_end_offset
        return self.unsynced.begin()

    def end_sync(self) -> None:
        """Take note that the sync succeeded. It counts up to the end of a truncation meanwhile; for a closed log not at
        all."""
        if self.failure is not None:
            return
        self.unsynced.end()
        # rule A9/synced-counts-what-came-later
        self.durable_offset = max(self.durable_offset, Offset(self._syncing_to))

    def sync_failed(self, error: Exception) -> None:
        """Fence the log because a sync failed: nothing written since the last one can be trusted, and a retry would not
        tell (schedule 32)."""
        mark("sync-failed")
        self._fence(error)  # schedule 32/failed-sync-is-forgotten

    def sync_now(self) -> None:
        """Make everything durable, blocking: at start, at stop, and for a single voter. Raises StorageError."""
        try:
            while not self.unsynced.is_clean:
                files, directories = self.begin_sync()
                self.disk.sync_now(files, directories)
                self.end_sync()
        except DiskError as error:
            raise self._fence(error) from error
        self.durable_offset = self.log_end_offset

    # ------------------------------------------------------------------ failure

    def _check_usable(self) -> None:
        if self.failure is not None:  # rule B18/append-after-an-io-error
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is offline: {self.failure}")

    def disk_failed(self, error: DiskError) -> KafkaError | StorageError:
        """Return the error for the caller. A full disk has changed nothing and may pass; any other error fences the
        log."""
        if isinstance(error, DiskFull):
            mark("disk-full")
            return NoSpaceLeft(f"in {self.directory}")
        mark("write-failed")
        return self._fence(error)  # schedule 18/io-error-does-not-fence

    def _fence(self, error: Exception) -> StorageError:
        self.failure = self.failure or f"its disk failed ({error})"
        return StorageError(f"{self.topic_partition}: {error}. Nothing more is written to it until the node restarts.")


class Unsynced:
    """Files written since the last sync, directories with changed names, and the epoch checkpoint.

    The epoch checkpoint takes two groups: its temporary file is synced with the data of the first and then renamed; the
    second makes the new name durable. Until then recovery reads the epochs of durable batches from the batches
    themselves.
    """

    __slots__ = (
        "_directories",
        "_directories_in_sync",
        "_directory",
        "_disk",
        "_epochs",
        "_files",
        "_in_sync",
        "_version_given_up",
        "_version_in_sync",
    )

    def __init__(self, disk: Disk, directory: str, epochs: LeaderEpochs) -> None:
        self._disk = disk
        self._directory = directory
        self._epochs = epochs
        self._files: dict[File, bool] = {}
        self._directories: dict[str, None] = {}
        self._directories_in_sync: list[str] = []
        self._in_sync: list[File] = []
        self._version_in_sync = -1
        self._version_given_up = -1

    @property
    def is_clean(self) -> bool:
        """True if everything is synced."""
        return not self._files and not self._directories and not self._epochs_wait

    @property
    def is_settled(self) -> bool:
        """True if the epoch checkpoint and every name in the log's directory are durable."""
        # rule B8/recovery-point-before-the-names
        return not self._epochs.dirty and not self._directories and self._directory not in self._directories_in_sync

    @property
    def _epochs_wait(self) -> bool:
        return self._epochs.dirty and self._epochs.version != self._version_given_up

    def add(self, file: File) -> None:
        """Add a file that was written to."""
        self._files[file] = False

    def add_and_close(self, files: list[File]) -> None:
        """Add files that were written to, and that are closed once synced."""
        for file in files:
            self._files[file] = True

    def add_directory(self, path: str) -> None:
        """Add a directory in which a name was made or removed."""
        self._directories[path] = None

    def close_later(self, file: File) -> bool:
        """Let `file`, which is out of the log, be closed once synced. False if it needs no sync."""
        if file not in self._files:
            return False
        self._files[file] = True
        return True

    def drop(self, file: File) -> None:
        """Remove a file that was deleted."""
        self._files.pop(file, None)

    def files(self) -> list[File]:
        """Files to be synced."""
        return list(self._files)

    def directories(self) -> list[str]:
        """Directories to be synced."""
        return list(self._directories)

    def begin(self) -> tuple[list[File], list[str]]:
        """Return the files and directories for one sync; later changes belong to the next. Raises DiskError."""
        files, directories = self.files(), self.directories()
        self._in_sync = [file for file, close in self._files.items() if close]
        if self._epochs.dirty:
            file = self._write_epochs()
            if file is not None:
                self._in_sync.append(file)
                files.append(file)  # rule B8/epoch-checkpoint-not-synced, rule B8/epoch-checkpoint-damaged-by-a-crash
        self._files = {}
        self._directories = {}
        self._directories_in_sync = directories
        return files, directories

    def _write_epochs(self) -> File | None:
        """Write the temporary file; None on a full disk: then the epochs wait for another sync, and are in the
        batches."""
        file = self._disk.open(f"{self._directory}/{_EPOCHS_SYNCING}", create=True)
        try:
            file.truncate(0)
            file.pwrite(encode_epochs(self._epochs.entries()), 0)
        except DiskFull:
            self._version_given_up = self._epochs.version
            file.close()
            return None
        self._version_in_sync = self._epochs.version
        return file

    def end(self) -> None:
        """Take note that the sync succeeded. Raises DiskError if the epoch checkpoint cannot be renamed."""
        self._close_synced()
        self._directories_in_sync = []
        if self._version_in_sync >= 0:
            if self._version_in_sync == self._epochs.version and self._epochs.dirty:
                self._disk.rename(f"{self._directory}/{_EPOCHS_SYNCING}", f"{self._directory}/{LEADER_EPOCHS}")
                self._epochs.written = self._version_in_sync
                self._directories[self._directory] = None  # schedule 20/epoch-checkpoints-name-not-synced
            self._version_in_sync = -1

    def flush_epochs(self) -> None:
        """Write the epoch checkpoint durably now, blocking. Raises DiskError."""
        if self._epochs.dirty:
            version = self._epochs.version
            write_file_durably(self._disk, f"{self._directory}/{LEADER_EPOCHS}", encode_epochs(self._epochs.entries()))
            self._epochs.written = version

    def abandon(self) -> None:
        """Give up all further syncs, and close the files that were open only for them."""
        self._in_sync += [file for file, close in self._files.items() if close]
        self._files = {}
        self._directories = {}
        self._version_in_sync = -1
        self._close_synced()

    def _close_synced(self) -> None:
        for file in self._in_sync:
            file.close()
        self._in_sync = []
