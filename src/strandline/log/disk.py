"""The Disk port: the only place that touches a file system.

`strandline.log.real_disk.RealDisk` is the production one; the simulator's double keeps a written and a durable image of
every file and directory, loses what was not synced at a power cut, and can fail, tear, fill up or slow down.

Paths are absolute strings. What is written is durable only after a sync of the file *and*, for a file or name that is
new, a sync of its directory (`sync_dir`). After any failed sync the affected files must not be trusted again: a retry
may "succeed" over bytes that are gone (schedule 32).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DiskError(OSError):
    """The disk failed (EIO, a failed sync, no descriptor left, ...). The log that met it must be fenced."""


class DiskFull(DiskError):
    """No space left for a write; what was there before is untouched. Never raised by a sync: a sync that finds no room
    has dropped what it was to write.
    """


class DiskPoisoned(DiskError):
    """A sync of names, or of the whole file system, has failed: nothing on this disk can be relied on any more by this
    process. Raised by that sync and by every write and sync after it.
    """


class File(Protocol):
    """An open file. Positions and sizes are bytes."""

    @property
    def path(self) -> str: ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position` or raise (DiskFull, DiskError)."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the end of the file. May block on a cold page."""

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        """As `pread`, or None where the bytes are not in memory and reading would block."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, position: int, size: int) -> None:
        """Reserve zeroed space (posix_fallocate); the file's size grows to cover it. Raises DiskFull."""

    def close(self) -> None: ...


METADATA_DIRECTORY = "__cluster_metadata-0"
"""The quorum's own log lies in the same place and is not the broker's."""

LOCK_FILE = ".lock"
"""The file in a data directory by which its lock is held (Kafka's name for its own). It is never renamed or deleted:
whoever then made it anew would hold another lock."""


class DirectoryLock(Protocol):
    """A directory that this process alone may use."""

    def release(self) -> None:
        """Let others have it. Idempotent."""


class Disk(Protocol):
    """A node's file system.

    Every method raises DiskError when the operating system fails, FileNotFoundError where a name it needs is missing.
    """

    @property
    def busy(self) -> bool:
        """A group sync has been under way for much longer than syncs take. A blocking one would wait behind it, and the
        event loop with it: what can wait for another moment does."""

    @property
    def sync_thread(self) -> str:
        """Implementation of small group syncs, for display: `compiled`, `python` or `simulated`."""

    def lock(self, path: str) -> DirectoryLock:
        """Take the directory at `path` for this process, before anything in it is read: two processes in one directory
        vote twice in one epoch, and write over each other. The kernel holds the lock and lets it go when the process
        ends, however it ends.

        Raises:
            DirectoryInUse: another process has it; the message says which.
            DiskError: there is no such directory, or its file system has no locks.
        """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Raises FileNotFoundError unless `create`."""

    def exists(self, path: str) -> bool:
        """Whether the name is there; what cannot be looked at is an error and not missing."""

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents; fine if it exists. Syncs nothing."""

    def rename(self, source: str, target: str) -> None:
        """Atomic; durable only after `sync_dir` of the parent."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int:
        """Space left for ordinary writers on the file system that holds `path`."""

    def total_bytes(self, path: str) -> int:
        """Size of the file system that holds `path`."""

    def modified_ms(self, path: str) -> int:
        """Wall time in milliseconds of the last write to the file. Raises FileNotFoundError."""

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """As `sync`, blocking: for small files at rare moments (votes, checkpoints), and at start and stop."""

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable, blocking. Raises DiskPoisoned when that fails."""

    def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> Awaitable[None]:
        """Group sync off the event loop: what was written to `files`, and every entry made in or removed from
        `directories`, before this call is durable when what it returns is done.

        Up to `wait_ms` the event loop may be kept for a small group's end: where it comes by then a future is returned
        that is done. Few files are synced one by one, many at once (syncfs). Raises DiskError, at once or when it is
        awaited: nothing of it may be relied on. A directory that was deleted meanwhile has nothing left to be synced.
        It begins at once: the files may be closed and deleted before anybody awaits it, and who awaits it may be
        cancelled; it is carried out all the same.
        """

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        """`pread` off the event loop, for bytes that `pread_nowait` did not find in memory."""

    def boot_id(self) -> str:
        """Names the time since the machine last lost its memory; empty where that is not known.

        While it is equal, every completed write is still there, synced or not: only the process died. After a power cut
        (another id) writes that were not synced may be gone in any order. Recovery judges damage by it (rule E5).
        """

    async def unlink_slowly(self, path: str) -> None:
        """Delete a large file without stalling syncs of others (truncates in steps, off the event loop)."""


def read_file(disk: Disk, path: str) -> bytes:
    """The whole of a small file. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


async def delete_directory(disk: Disk, path: str) -> None:
    """Delete a directory and the files in it, which may be large. Raises DiskError, FileNotFoundError."""
    for entry in disk.listdir(path):
        await disk.unlink_slowly(f"{path}/{entry}")
    disk.rmdir(path)


def write_file_durably(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file so that a crash at any instant leaves the old content or the new, and never a mix.

    Temp file, sync, atomic rename, sync of the parent directory (rule A1).
    """
    temporary = path + ".tmp"  # rule A1/small-file-written-in-place
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        disk.sync_now([file])  # rule A1/small-file-not-synced
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.rpartition("/")[0] or "/")  # rule A1/small-file-name-not-synced


def write_synced_now(disk: Disk, contents: Mapping[str, bytes]) -> None:
    """As `write_synced`, blocking. Raises DiskError."""
    files: list[File] = []
    try:
        for path, data in contents.items():
            file = disk.open(path, create=True)
            files.append(file)
            file.truncate(0)
            file.pwrite(data, 0)
        disk.sync_now(files)
    finally:
        for file in files:
            file.close()


async def write_synced(disk: Disk, contents: Mapping[str, bytes]) -> None:
    """Write small files and sync them together, without blocking. A crash before the end leaves anything in them: they
    are temporary, and renamed afterwards.

    Raises DiskError.
    """
    files: list[File] = []
    try:
        for path, data in contents.items():
            file = disk.open(path, create=True)
            files.append(file)
            file.truncate(0)
            file.pwrite(data, 0)
        if files:
            await disk.sync(files)
    finally:
        for file in files:
            file.close()
