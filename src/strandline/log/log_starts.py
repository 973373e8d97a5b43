"""Group commit of log starts: one checkpoint for all that were raised, one write in flight, off the loop.

A deletion (DeleteRecords) is answered once the new log start is durable on every replica in sync: else a power cut, or
a mere kill before the next checkpoint, would bring the records back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from strandline.log.checkpoints import LOG_STARTS
from strandline.log.disk import Disk, DiskError
from strandline.log.log_dir import LogDir, settle
from strandline.proto.tasks import Report, spawn

log = structlog.get_logger("strandline.log")

RETRY_S = 1.0
"""After a write that failed (a full disk most likely). Who waits for it waits until its own time is over."""


class LogStarts:
    """Makes raised log starts durable, and calls `on_durable` each time that more are.

    Invariant: a checkpoint that was gathered before a blocking write of `LogDir` never replaces what that wrote, for a
    log may have been cut below its old start in between.
    """

    def __init__(self, log_dir: LogDir, disk: Disk, on_durable: Callable[[], None], failed: Report) -> None:
        """`failed` is told what nobody foresaw, after which nothing would be written any more."""
        self._log_dir = log_dir
        self._disk = disk
        self._on_durable = on_durable
        self._failed = failed
        self._wanted = False
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def raised(self) -> None:
        """A log start was raised: write it down with the next group. Cheap."""
        self._wanted = True
        if self._task is None:
            self._task = spawn(self._run(), self._failed)

    def stop(self) -> asyncio.Task[None] | None:
        """Write nothing more after what is being written; returns the task that ends with it, if any."""
        self._stopping = True
        return self._task

    async def _run(self) -> None:
        try:
            while self._wanted and not self._stopping:
                self._wanted = False
                try:
                    await self._write()
                except DiskError as error:
                    log.warning("raised log starts could not be written down; trying again", error=str(error))
                    self._wanted = True
                    await asyncio.sleep(RETRY_S)
                else:
                    self._on_durable()
        finally:
            self._task = None  # here, not in a callback of the next turn: what is raised in between begins anew

    async def _write(self) -> None:
        log_dir, path = self._log_dir, f"{self._log_dir.path}/{LOG_STARTS}"
        temporary = f"{path}.raised.tmp"
        while True:
            writes = log_dir.writes
            data, starts = log_dir.gather_log_starts()
            file = self._disk.open(temporary, create=True)
            try:
                file.truncate(0)
                file.pwrite(data, 0)
                await self._disk.sync([file])
            finally:
                file.close()
            if log_dir.writes == writes:
                break
        log_dir.log_starts_replaced()
        self._disk.rename(temporary, path)
        await self._disk.sync([], [log_dir.path])
        settle(starts)
