"""Group commit: one sync in flight for a whole node; everything written while it runs forms the next group.

A sync covers what was written before it *starts*, and is reported at its *end*: each log's end offset is captured at
the start, and only that counts as durable afterwards (rules A9, E9). After a failed sync the logs of the group are
fenced for good, because a repeated fsync "succeeds" over bytes that are gone (schedule 32).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.log.disk import Disk, DiskError, File
from strandline.log.partition_log import PartitionLog
from strandline.log.request_trace import RequestTrace
from strandline.proto.errors import FatalError
from strandline.proto.tasks import Report

_DISK_FAILED = (DiskError, FileNotFoundError)
"""Errors of the disk. FileNotFoundError: the log's directory was deleted."""


UNSYNCED_BYTES_MAX = 32 << 20
"""Bytes of one directory's logs that may wait for their sync before whoever writes is held up. A page cache takes a
gigabyte in a second; a disk of 100 MB/s then needs ten seconds for one sync, which is longer than
`disk.sync.timeout.ms`, so that the node would take the disk for one that hangs, and stop (rule B51)."""


class Syncer:
    """Makes marked logs durable.

    Invariants:
    - at most one sync is in flight;
    - `on_synced` is called once a group, after `durable_offset` of all its logs has moved;
    - logs that acknowledgements wait for are synced together, apart from those that are only catching up; two groups of
      the latter never follow each other while an acknowledgement waits (rule B50);
    - a marked log is synced by the next group of its kind or fenced: a failure of one log (its epoch checkpoint) fences
      that log, a failure of the group fences all of it;
    - after an unexpected error, in here or in a callback, nothing is synced any more: `on_fatal` is called, and every
      log that was to be synced is fenced (schedule 59).
    """

    def __init__(
        self,
        disk: Disk,
        on_synced: Callable[[list[PartitionLog]], None],
        on_failed: Callable[[list[PartitionLog], OSError], None],
        on_fatal: Report,
    ) -> None:
        self._disk = disk
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._on_fatal = on_fatal
        self._marked: list[PartitionLog] = []
        self._unhurried: dict[PartitionLog, None] = {}
        """Marked logs that no acknowledgement waits for."""
        self._unhurried_is_next = False
        """True if the group under way, or the last one, is of logs that acknowledgements wait for."""
        self.unsynced_bytes = 0
        """Bytes that were written and whose sync has not ended."""
        self._bytes: dict[PartitionLog, int] = {}
        """Bytes of each marked log that are in no group yet."""
        self._group_bytes = 0
        self._when_caught_up: dict[Callable[[], None], None] = {}
        """Calls to make once it is no longer behind."""
        self._group: list[PartitionLog] = []
        self._failed: dict[PartitionLog, OSError] = {}
        """Logs of the group whose sync failed, with the error."""
        self._syncing: asyncio.Future[None] | None = None
        """Sync that the disk has not answered yet; None if there is none."""
        self._busy = False
        """True if a group is about to begin, or is being synced."""
        self._idle: asyncio.Future[None] | None = None
        self._broken: Exception | None = None
        self.trace: RequestTrace | None = None
        """Trace of requests that is told when groups begin and end; None if there is none."""
        self.syncs = 0
        """Groups synced so far."""

    @property
    def is_behind(self) -> bool:
        """True if `UNSYNCED_BYTES_MAX` bytes or more wait for their sync. False once nothing is synced any more."""
        return self.unsynced_bytes >= UNSYNCED_BYTES_MAX

    def when_caught_up(self, call: Callable[[], None]) -> None:
        """Make the call once this is not behind: now, or at the end of a sync."""
        if self.is_behind:
            self._when_caught_up[call] = None
        else:
            call()

    def _tell_caught_up(self) -> None:
        if self._when_caught_up and not self.is_behind:
            calls, self._when_caught_up = self._when_caught_up, {}
            for call in calls:
                call()

    def mark(self, log: PartitionLog, size: int = 0, *, waited_for: bool = True) -> None:
        """Sync `log`, which was written to, with the next group. Cheap; call it after every append.

        Args:
            size: bytes that were written.
            waited_for: False if no acknowledgement waits for the log, because its replica is catching up. It is then
                synced in turn with the groups of the others, whose syncs its bytes would prolong.
        """
        if not log.sync_pending:
            if self._broken is not None:  # rule A9/syncer-takes-marks-after-its-end
                log.sync_failed(self._broken)
                return
            log.sync_pending = True
            if waited_for:
                self._marked.append(log)
            else:
                self._unhurried[log] = None
            if not self._busy:  # it begins in the next turn of the loop: all that this turn marks goes with it
                self._busy = True
                asyncio.get_running_loop().call_soon(self._go_on, None)
        elif waited_for and log in self._unhurried:  # rule B50/who-is-waited-for-stays-behind
            del self._unhurried[log]
            self._marked.append(log)
        if size:
            self._bytes[log] = self._bytes.get(log, 0) + size
            self.unsynced_bytes += size

    async def drain(self) -> None:
        """Wait until everything marked so far, and what follows from it, has been synced or has failed."""
        while self._busy:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle])

    def abandon(self) -> None:
        """Stop syncing at once, without waiting: the node stops uncleanly, and a sync under way may never end."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.cancel()
        self._break(FatalError("the syncer was given up"))
        self._rest()

    def _go_on(self, answered: asyncio.Future[None] | None) -> None:
        """End the group that the disk has answered, if any, and begin groups until nothing is marked or the disk
        answers later. (With a task instead of callbacks a lone record would wait for the task's start and end.)"""
        if answered is not self._syncing:
            return  # it was given up
        self._syncing = None
        try:
            if answered is not None:
                self._end_group(answered)
            while (self._marked or self._unhurried) and self._syncing is None:
                self._begin_group()
        except Exception as error:
            self._break(error)
            self._on_fatal(error)  # rule A9/syncer-ends-in-silence
        if self._syncing is None:
            self._rest()

    def _rest(self) -> None:
        self._busy = self._unhurried_is_next = False
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set_result(None)

    def _break(self, error: Exception) -> None:
        """Fence all logs that were to be synced, and sync nothing any more."""
        self._broken = error
        self.unsynced_bytes = self._group_bytes = 0
        self._bytes.clear()
        broken, self._group, self._marked = [*self._group, *self._marked, *self._unhurried], [], []
        self._unhurried.clear()
        for log in broken:
            log.sync_pending = False
            log.sync_failed(error)  # rule A9/syncer-ends-and-fences-nothing
        self._tell_caught_up()

    def _next_group(self) -> list[PartitionLog]:
        """Return the logs to sync now: those that are only catching up in turn with those that acks wait for."""
        # rule B50/who-catches-up-is-never-synced
        if self._unhurried and (not self._marked or self._unhurried_is_next):
            unhurried, self._unhurried = list(self._unhurried), {}
            self._unhurried_is_next = False
            return unhurried
        self._unhurried_is_next = True
        group, self._marked = self._marked, []
        return group

    def _begin_group(self) -> None:
        self._group = self._next_group()
        failed = self._failed = {}
        files: list[File] = []
        directories: dict[str, None] = {}
        self._group_bytes = 0
        for log in self._group:
            log.sync_pending = False
            self._group_bytes += self._bytes.pop(log, 0)
        self._group = [log for log in self._group if log.failure is None]
        for log in self._group:
            try:
                log_files, log_directories = log.begin_sync()
            except _DISK_FAILED as error:
                failed[log] = error  # rule A9/one-log-s-failure-is-the-group-s
            else:
                files += log_files
                directories.update(dict.fromkeys(log_directories))
        if self.trace is not None:
            self.trace.sync_began(self._group)
        sync: asyncio.Future[None] | None = None
        if files or directories:
            try:
                sync = asyncio.ensure_future(self._disk.sync(files, list(directories)))
            except _DISK_FAILED as error:
                self._failed = dict.fromkeys(self._group, error)
        if sync is None or sync.done():
            self._end_group(sync)
        else:
            self._syncing = sync
            sync.add_done_callback(self._go_on)

    def _end_group(self, sync: asyncio.Future[None] | None) -> None:
        if sync is not None:
            if sync.cancelled():
                # rule A9/sync-cancelled-by-nobody
                raise FatalError("a sync was cancelled, and nobody had asked for it")
            try:
                sync.result()
            except _DISK_FAILED as error:
                self._failed = dict.fromkeys(self._group, error)
        failed = self._failed
        synced = self._end([log for log in self._group if log not in failed], failed)
        self._fence(failed)
        self._group = []
        self.unsynced_bytes -= self._group_bytes
        if synced:
            self.syncs += 1
            if self.trace is not None:
                self.trace.sync_ended(synced)
            self._on_synced(synced)
        self._tell_caught_up()

    def _end(self, logs: list[PartitionLog], failed: dict[PartitionLog, OSError]) -> list[PartitionLog]:
        """Record the success of the sync; return the logs for which it counts, and add the others to `failed`."""
        synced = []
        for log in logs:
            try:
                log.end_sync()
            except _DISK_FAILED as error:
                failed[log] = error  # rule A9/checkpoint-not-renamed-and-forgotten
                continue
            synced.append(log)
            if log.needs_sync and log.failure is None:
                self.mark(log, waited_for=self._unhurried_is_next)
        return synced

    def _fence(self, failed: dict[PartitionLog, OSError]) -> None:
        """Fence each log with its own error; those with the same error are reported together."""
        for log, error in failed.items():
            log.sync_failed(error)  # rule A9/failed-sync-is-retried/2
        for error in dict.fromkeys(failed.values()):
            self._on_failed([log for log, its in failed.items() if its is error], error)
