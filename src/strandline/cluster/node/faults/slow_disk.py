"""A Disk whose syncs and cold reads take longer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from strandline.log.disk import Disk, File


class SlowDisk:
    """`disk`, with `delay` awaited after every group sync and every cold read, before anybody hears of its end.

    (Not before: the files of a sync must not be closed or deleted between the call and the disk's part of it.) The
    blocking syncs of small files at rare moments (votes, checkpoints) are not held up: that would stop the node's event
    loop, which is another fault, a pause.
    """

    def __init__(self, disk: Disk, delay: Callable[[], Awaitable[None]]) -> None:
        self._disk = disk
        self._delay = delay
        self.busy = False
        self.sync_thread = disk.sync_thread
        self.lock = disk.lock
        self.open = disk.open
        self.exists = disk.exists
        self.listdir = disk.listdir
        self.mkdir = disk.mkdir
        self.rename = disk.rename
        self.unlink = disk.unlink
        self.rmdir = disk.rmdir
        self.free_bytes = disk.free_bytes
        self.total_bytes = disk.total_bytes
        self.modified_ms = disk.modified_ms
        self.sync_now = disk.sync_now
        self.sync_dir = disk.sync_dir
        self.boot_id = disk.boot_id
        self.unlink_slowly = disk.unlink_slowly

    async def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
        """As the disk, told later. Raises DiskError."""
        await self._disk.sync(files, directories, wait_ms)
        await self._delay()

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        """As the disk, told later. Raises DiskError."""
        data = await self._disk.pread_cold(file, size, position)
        await self._delay()
        return data
