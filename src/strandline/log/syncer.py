"""Group commit: one sync in flight for a whole node; everything written while it runs forms the next group.

A sync has two instants. It covers what was written before it *starts* and tells so at its *end*: each log's end offset
is captured at the start, and only that counts as durable afterwards (rules A9, E). After a failed sync the logs of the
group are fenced for ever, because a repeated fsync "succeeds" over bytes that are gone (D-32).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.log.disk import Disk, DiskError, File
from strandline.log.partition_log import PartitionLog


class Syncer:
    """Makes marked logs durable.

    Invariants:
    - at most one sync is in flight;
    - `on_synced` is called once a group, after `durable_offset` of all its logs has moved.
    """

    def __init__(
        self,
        disk: Disk,
        on_synced: Callable[[list[PartitionLog]], None],
        on_failed: Callable[[list[PartitionLog], DiskError], None],
    ) -> None:
        self._disk = disk
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._marked: list[PartitionLog] = []
        self._task: asyncio.Task[None] | None = None
        self.syncs = 0
        """Groups synced so far."""

    def mark(self, log: PartitionLog) -> None:
        """`log` was written to: sync it with the next group. Cheap; call it after every append."""
        if not log.sync_pending:
            log.sync_pending = True
            self._marked.append(log)
            if self._task is None:  # it starts in the next turn of the loop: all that this turn marks goes with it
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def drain(self) -> None:
        """Return when everything marked so far, and what that entails, has been synced or has failed."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._marked:
                await self._sync_group()
        finally:
            self._task = None

    async def _sync_group(self) -> None:
        marked, self._marked = self._marked, []
        group: list[PartitionLog] = []
        files: list[File] = []
        directories: dict[str, None] = {}
        try:
            for log in marked:
                log.sync_pending = False
                if log.failure is None:
                    group.append(log)
                    log_files, log_directories = log.begin_sync()
                    files += log_files
                    directories.update(dict.fromkeys(log_directories))
            if not group:
                return
            if files or directories:
                await self._disk.sync(files, list(directories))
            for log in group:
                log.end_sync()
        except DiskError as error:
            for log in group:
                log.sync_failed(error)
            self._on_failed(group, error)
            return
        self.syncs += 1
        for log in group:
            if log.needs_sync and log.failure is None and not log.sync_pending:
                log.sync_pending = True
                self._marked.append(log)
        self._on_synced(group)
