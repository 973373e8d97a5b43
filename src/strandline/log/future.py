"""A replica's log on its way to another log directory of the node (KIP-113), copied as a follower copies its leader's.

Until it is whole it lies in `<topic>-<partition>.<unique>-future`, which a start deletes. Then these steps follow,
without a turn of the event loop in between:

| step | after a crash |
|---|---|
| the last batches, epochs and producers are appended; all is synced | the copy is deleted |
| the copy gets the replica's name, durably | it is set aside as a stray: `replica-directories` names the old one |
| its log start is durable in its directory | the same |
| `replica-directories` names its directory, durably | it counts, and the old log is set aside |
| the old directory is set aside and deleted | nothing is left to do |
"""

from __future__ import annotations

from strandline.log.checkpoints import PARTITION_METADATA, encode_partition_metadata
from strandline.log.disk import DiskError, DiskFull
from strandline.log.loading import FUTURE, aside_name
from strandline.log.log_dir import LogDir
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.recovery import open_log
from strandline.proto.ensure import ensure
from strandline.proto.errors import CorruptLogError, NoSpaceLeft, StorageError
from strandline.proto.ports import Clock


class FutureLog:
    """A copy of a log in the making.

    Invariants:
    - it is a prefix of the current log as long as that was not cut (`current.cuts` is unchanged);
    - it has the replica's own name only within one turn of the loop, unless it has replaced the replica's log.
    """

    def __init__(self, log_dir: LogDir, current: PartitionLog, clock: Clock, number: int) -> None:
        """Begin a copy in `log_dir`. `number` tells apart copies of one millisecond. Raises NoSpaceLeft,
        StorageError."""
        self.log_dir = log_dir
        self.current = current
        self.cuts = current.cuts
        self._clock = clock
        tp = current.topic_partition
        self.unique = f"{clock.wall_ms():024x}{number:08x}"
        self._name = aside_name(tp, self.unique, FUTURE)
        self.directory = f"{log_dir.path}/{self._name}"
        disk = log_dir.disk
        try:
            disk.mkdir(self.directory)
            metadata = disk.open(f"{self.directory}/{PARTITION_METADATA}", create=True)
            metadata.truncate(0)
            metadata.pwrite(encode_partition_metadata(current.topic_id), 0)
            self.log = self._open(LastLife(), sync=False)
            if current.log_start_offset:
                self._begin_as(current)
        except DiskFull as error:
            raise NoSpaceLeft(f"for a copy of {tp} in {log_dir.path}") from error
        except DiskError as error:
            raise StorageError(f"a copy of {tp} cannot be made in {log_dir.path}: {error}") from error
        self.log.must_sync([], [metadata], [self.directory, log_dir.path])

    def _begin_as(self, current: PartitionLog) -> None:
        """Begin the copy at the log start, with the producers of the records before it: no batch names them
        (schedule 86)."""
        copy, start = self.log, current.log_start_offset
        copy.truncate_fully_and_start_at(start)
        if not current.lacks_producers():  # rule B24/moved-logs-forget-deleted-records
            copy.producers = current.snapshots.load(current.segments, start, int(self._clock.monotonic_ms()))
            copy.must_sync([], [copy.snapshots.write(start, copy.producers)], [])

    def _open(self, last_life: LastLife, *, sync: bool) -> PartitionLog:
        current = self.current
        return open_log(
            self.log_dir.disk,
            self.directory,
            current.topic_partition,
            clock=self._clock,
            topic_id=current.topic_id,
            config=current.config,
            last_life=last_life,
            cache=self.log_dir.cache,
            sync=sync,
        )

    @property
    def lag(self) -> int:
        """Number of offsets that it is behind the current log."""
        return max(0, self.current.log_end_offset - self.log.log_end_offset)

    @property
    def stands(self) -> bool:
        """True if the copy is still a prefix of the current log, so that copying can go on."""
        current = self.current
        # rule B12/a-copy-of-a-cut-log-goes-on
        return self.cuts == current.cuts and self.log.log_end_offset >= current.log_start_offset

    def append(self, batches: bytes) -> None:
        """Append the batches that follow in the current log. Raises KafkaError, StorageError as `append_as_follower`
        does."""
        self.log.config = self.current.config
        self.log.append_as_follower(memoryview(batches))

    def raise_start(self) -> None:
        """Delete the records that the current log has deleted. Raises StorageError."""
        self.log.delete_records_before(self.current.log_start_offset, keep_active=True)

    async def sync(self) -> None:
        """Sync what was copied, off the loop, so that the last sync is short. Raises DiskError."""
        files, directories = self.log.begin_sync()
        await self.log_dir.disk.sync(files, directories)
        self.log.end_sync()

    def finish(self) -> PartitionLog:
        """Complete a copy that has all batches: add the rest of the log's state, durably and under the replica's name.
        Return the log to go on with, which counts only once `LogDirs.moved` records it. Blocking.

        Raises KafkaError, StorageError, CorruptLogError, DiskError: the replica stays as it was.
        """
        current, disk = self.current, self.log_dir.disk
        self.raise_start()
        self.log.producers = current.producers  # retention may have deleted the batches that name them
        self.log.close()  # rule B12/a-copy-is-not-synced
        path = f"{self.log_dir.path}/{current.topic_partition}"
        disk.rename(self.directory, path)
        self.directory = path
        disk.sync_dir(self.log_dir.path)
        new = self.log = self._open(LastLife(clean=True, log_start_offset=current.log_start_offset), sync=False)
        new.producers = current.producers
        new.epochs.clear()
        for epoch, start in current.epochs.entries():  # including one that has no records yet
            new.epochs.assign(epoch, start)
        new.sync_now()
        ensure(
            (new.log_start_offset, new.log_end_offset, new.latest_epoch)
            == (current.log_start_offset, current.log_end_offset, current.latest_epoch)
            and new.durable_offset >= current.durable_offset,
            "MovedLogIsTheSame",
            moved=repr(new),
            current=repr(current),
        )
        return new

    def drop(self) -> str:
        """Give up the copy: close it, and rename it to a name that no start uses. Returns that name. Raises
        DiskError."""
        self.log.close_files()
        aside = f"{self.log_dir.path}/{self._name}"
        if self.directory != aside:
            self.log_dir.disk.rename(self.directory, aside)
            self.directory = aside
        return self._name


BROKEN = (StorageError, DiskError, CorruptLogError, FileNotFoundError)
"""Errors that end a copy: of its own disk, or of the disk of the log that is copied."""
