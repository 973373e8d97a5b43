"""Replaces the offset checkpoints of a log directory off the loop: many changes in one write, one write in flight.

A deletion (DeleteRecords) is answered once the new log start is durable on every replica in sync: else a power cut, or
a mere kill before the next checkpoint, would bring the records back. So log starts are written as soon as one was
raised; recovery points and high watermarks every few seconds, with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from strandline.log.checkpoints import LOG_STARTS, OFFSET_CHECKPOINTS
from strandline.log.disk import DiskError, DiskFull, write_synced
from strandline.log.log_dir import LogDir
from strandline.proto.marks import mark
from strandline.proto.tasks import Report, spawn

log = structlog.get_logger("strandline.log")

RETRY_S = 1.0
"""After a write of raised log starts that failed (a full disk most likely). Who waits for it waits until its own time
is over."""

TEMPORARY = ".next.tmp"
"""Ends the names of files that are not checkpoints yet. Those of a blocking write are others: both may be under way."""


class CheckpointWriter:
    """Writes the checkpoints without blocking, and calls `on_durable` each time that more log starts are durable.

    Invariant: what was gathered before a promise of the directory was lowered or forgotten never replaces a checkpoint
    afterwards. Such a promise may be of a log that was cut since, or of one that was deleted and made anew.
    """

    def __init__(
        self, log_dir: LogDir, on_durable: Callable[[], None], on_full: Callable[[], None], failed: Report
    ) -> None:
        """`on_full` is told of a write that found no room; `failed` of what nobody foresaw, after which nothing would
        be written any more."""
        self._log_dir = log_dir
        self._on_durable = on_durable
        self._on_full = on_full
        self._failed = failed
        self._raised = False
        self._due = False
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def log_start_raised(self) -> None:
        """Write the log starts down with the next group. Cheap."""
        self._raised = True
        self._begin()

    def write_all(self) -> None:
        """Write all checkpoints down with the next group. Where that fails, the caller asks again sooner or later."""
        self._due = True
        self._begin()

    def stop(self) -> asyncio.Task[None] | None:
        """Write nothing more after what is being written; returns the task that ends with it, if any."""
        self._stopping = True
        return self._task

    def abandon(self) -> None:
        """Write nothing more, and wait for nothing: a sync under way may never end."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None and not self._stopping:
            self._task = spawn(self._run(), self._failed)

    async def _run(self) -> None:
        try:
            while (self._raised or self._due) and not self._stopping:
                raised, self._raised = self._raised, False
                names = OFFSET_CHECKPOINTS if self._due else (LOG_STARTS,)
                self._due = False
                try:
                    await self._write(names)
                except DiskError as error:
                    if isinstance(error, DiskFull):
                        self._on_full()  # rule B18/checkpoints-without-room-are-silent
                    log.warning("checkpoints could not be written; trying again", names=names, error=str(error))
                    self._raised |= raised
                    await asyncio.sleep(RETRY_S)
                else:
                    self._on_durable()
        finally:
            self._task = None  # here, not in a callback of the next turn: what is raised in between begins anew

    async def _write(self, names: tuple[str, ...]) -> None:
        log_dir = self._log_dir
        disk, path = log_dir.disk, log_dir.path
        while True:
            gathered = log_dir.gather(names)
            await write_synced(disk, {f"{path}/{name}{TEMPORARY}": data for name, data in gathered.data.items()})
            if log_dir.has_taken_back(gathered):
                mark("checkpoint-overtaken")
                continue
            log_dir.replacing(gathered)
            for name in gathered.data:
                disk.rename(f"{path}/{name}{TEMPORARY}", f"{path}/{name}")
            if gathered.data:
                await disk.sync([], [path])
            if not log_dir.has_taken_back(gathered):  # rule B15/a-start-is-durable-that-was-lowered
                log_dir.replaced(gathered)
                return
