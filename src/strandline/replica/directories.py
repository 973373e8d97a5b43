"""Parts that the partitions of one log directory share, and the set of a broker's directories.

A disk that fails, fills up or hangs concerns the replicas that lie on it, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from strandline.log.disk import DiskError
from strandline.log.log_dir import CheckpointWriter, LogDir
from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import PartitionLog
from strandline.log.request_trace import RequestTrace
from strandline.log.strays import Strays
from strandline.log.syncer import Syncer
from strandline.proto.believed import BelievedClock
from strandline.proto.ids import TopicId, TopicPartition
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report
from strandline.replica.disk_health import DiskRoom
from strandline.replica.states import ReplicaConfig

Synced = Callable[[list[PartitionLog]], None]
SyncFailed = Callable[[list[PartitionLog], OSError], None]


class Checkpoints:
    """Writes the offset checkpoints without blocking, and calls back when a raised log start is durable."""

    def __init__(self, log_dir: LogDir, on_full: Callable[[], None], on_fatal: Report) -> None:
        self._raised: dict[Callable[[], None], None] = {}
        self._writer = CheckpointWriter(log_dir, self._durable, on_full, on_fatal)
        self.write_all = self._writer.write_all
        self.stop = self._writer.stop
        self.abandon = self._writer.abandon

    def log_start_raised(self, durable: Callable[[], None]) -> None:
        """Take note of a raised log start. `durable` is called once it, or a part of the raise, is durable."""
        self._raised[durable] = None
        self._writer.log_start_raised()

    def _durable(self) -> None:
        raised, self._raised = self._raised, {}
        for durable in raised:
            durable()


@dataclass(slots=True, eq=False)
class Directory:
    """One log directory.

    Attributes:
        syncer: syncs the logs in it. One sync is in flight on a disk, and none waits for another disk's.
        room: tells whether the disk has room; while it has none, clients' writes to the partitions here are refused.
        checkpoints: writes the offset checkpoints that make log starts durable, and that a start relies on.
        strays: directories here whose partitions are no longer assigned to this broker.
    """

    log_dir: LogDir
    syncer: Syncer
    room: DiskRoom
    checkpoints: Checkpoints
    strays: Strays

    @property
    def path(self) -> str:
        """Path of the directory, by which it is known."""
        return self.log_dir.path


class Directories:
    """Log directories that could be opened. One that failed stays in the set; its partitions are offline."""

    def __init__(
        self,
        log_dirs: LogDirs,
        clock: Clock,
        believed: BelievedClock,
        config: ReplicaConfig,
        *,
        on_synced: Synced,
        on_sync_failed: SyncFailed,
        on_change: Callable[[], None],
        on_room: Callable[[], None],
        on_fatal: Report,
    ) -> None:
        self.log_dirs = log_dirs
        self.trace: RequestTrace | None = None
        self._by_path: dict[str, Directory] = {}
        for log_dir in log_dirs.dirs:
            room = DiskRoom(log_dir, clock, on_change, on_room, config.disk_reserve_bytes)
            log_dir.on_fatal = on_fatal
            log_dir.on_full = room.ran_out
            self._by_path[log_dir.path] = Directory(
                log_dir,
                Syncer(log_dir.disk, on_synced, on_sync_failed, on_fatal),
                room,
                Checkpoints(log_dir, room.ran_out, on_fatal),
                Strays(log_dir, log_dir.disk, believed, config.stray_delete_delay_ms),
            )

    @property
    def all(self) -> Iterable[Directory]:
        """All directories, in the order of `log.dirs`."""
        return self._by_path.values()

    @property
    def usable(self) -> list[Directory]:
        """Directories that have not failed."""
        return [directory for directory in self.all if not directory.log_dir.failed]

    def of(self, home: str) -> Directory:
        """Return the directory that holds a log with this `LogState.home`."""
        return self._by_path[home]

    def at(self, path: str) -> Directory | None:
        """Return the directory at a path, or None."""
        return self._by_path.get(path)

    @property
    def full(self) -> bool:
        """True if no directory has room: the broker takes no writes."""
        return all(directory.room.full for directory in self.usable)

    @property
    def behind(self) -> Syncer | None:
        """Syncer of a directory that is behind with its syncs (rule B51); None if there is none."""
        return next((one.syncer for one in self.usable if one.syncer.is_behind), None)

    def set_trace(self, trace: RequestTrace | None) -> None:
        """Trace the stages of requests; None ends the trace."""
        self.trace = trace
        for directory in self.all:
            directory.syncer.trace = trace

    # Work in every directory

    def look_for_room(self) -> None:
        """Ask the file system of each usable directory how much space is free."""
        for directory in self.usable:
            directory.room.look()

    def set_reserve(self, reserve_bytes: int) -> None:
        """Set log.dir.reserve.bytes for every usable directory."""
        for directory in self.usable:
            directory.room.set_reserve(reserve_bytes)

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write all checkpoints, off the loop, and look for files to delete. A directory whose disk is busy is
        skipped."""
        for directory in self.usable:
            log_dir = directory.log_dir
            if not log_dir.disk.busy:
                log_dir.tell(_of(log_dir, high_watermarks))
                directory.checkpoints.write_all()
                log_dir.sweep()

    def write_last_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write all checkpoints for the last time, blocking. Raises DiskError for the first directory only."""
        for directory in self.usable:
            try:
                directory.log_dir.write_checkpoints(_of(directory.log_dir, high_watermarks))
            except DiskError as error:
                if directory.log_dir is self.log_dirs.first:
                    raise
                self.log_dirs.fail(directory.log_dir, str(error))

    def set_strays_aside(self, assigned: Mapping[TopicPartition, TopicId], *, knows_topics: bool) -> None:
        """See `Strays.set_aside`."""
        self.log_dirs.forget_unassigned(assigned)
        for directory in self.usable:
            directory.strays.set_aside(assigned, knows_topics=knows_topics)

    def fail(self, directory: Directory, why: str) -> None:
        """Give up a directory that cannot be relied on: its logs are fenced, and nothing more is written to it."""
        self.log_dirs.fail(directory.log_dir, why)
        directory.checkpoints.abandon()
        directory.syncer.abandon()

    # The end

    def stop(self, clean: bool) -> list[asyncio.Task[None]]:
        """Stop writing checkpoints; return the tasks that end now."""
        if not clean:
            for directory in self.all:
                # schedule 58/a-checkpoint-that-hangs-holds-up-the-end
                directory.checkpoints.abandon()  # the disk may be why, and wait for ever
        stopping = (directory.checkpoints.stop() for directory in self.all)
        return [task for task in stopping if task is not None]

    def abandon_syncs(self) -> None:
        """See `Syncer.abandon`."""
        for directory in self.all:
            directory.syncer.abandon()

    async def drain(self) -> None:
        """See `Syncer.drain`."""
        for directory in self.all:
            await directory.syncer.drain()


def _of(log_dir: LogDir, high_watermarks: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: at for tp, at in high_watermarks.items() if tp in log_dir.logs}
