"""The Disk port: the only code that touches a file system.

`strandline.log.real_disk.RealDisk` is the production one. The simulator's double keeps a written and a durable image of
every file and directory, loses unsynced writes at a power cut, and can fail, tear, fill up or slow down.

Paths are absolute strings. Written data are durable only after a sync of the file *and*, for a new file or name, a sync
of its directory (`sync_dir`). After any failed sync the affected files must not be trusted again: a retry may "succeed"
over bytes that are gone (schedule 32).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DiskError(OSError):
    """The disk failed (EIO, a failed sync, no descriptor left, ...). The log that met it must be fenced."""


class DiskFull(DiskError):
    """No space left for a write; earlier contents are untouched. Never raised by a sync: a sync that finds no room has
    dropped the data that it was to write.
    """


class DiskPoisoned(DiskError):
    """A sync of names, or of the whole file system, has failed: this process can rely on nothing on this disk any more.
    Raised by that sync and by every later write and sync.
    """


class File(Protocol):
    """An open file. Positions and sizes are bytes."""

    @property
    def path(self) -> str: ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`, or raise DiskFull or DiskError."""

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes at `position`; fewer only at the end of the file. May block on a cold page."""

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        """Do what `pread` does; None if the bytes are not in memory and reading would block."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, position: int, size: int) -> None:
        """Reserve zeroed space (posix_fallocate); the file's size grows to cover it. Raises DiskFull."""

    def close(self) -> None: ...


METADATA_DIRECTORY = "__cluster_metadata-0"
"""Directory of the quorum's own log, which lies in the same place and is not the broker's."""

LOCK_FILE = ".lock"
"""File in a data directory that is locked (Kafka's name for its own). It is never renamed or deleted: a process that
then made it anew would hold another lock."""


class DirectoryLock(Protocol):
    """Lock on a directory, which only this process may use."""

    def release(self) -> None:
        """Release the lock. Idempotent."""


class Disk(Protocol):
    """A node's file system.

    Every method raises DiskError if the operating system fails, FileNotFoundError if a name that it needs is missing.
    """

    @property
    def busy(self) -> bool:
        """True if a group sync has been under way for much longer than syncs take. A blocking sync would wait for it,
        and the event loop with it, so callers postpone what can wait."""

    @property
    def sync_thread(self) -> str:
        """Implementation of small group syncs, for display: `compiled`, `python` or `simulated`."""

    def lock(self, path: str) -> DirectoryLock:
        """Lock the directory at `path` for this process, before anything in it is read: two processes in one directory
        would vote twice in one epoch, and overwrite each other's data. The kernel holds the lock and releases it when
        the process ends, for whatever reason.

        Raises:
            DirectoryInUse: another process has the lock; the message names it.
            DiskError: there is no such directory, or its file system has no locks.
        """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing. Raises FileNotFoundError unless `create`."""

    def exists(self, path: str) -> bool:
        """True if the name exists. A name that cannot be looked up is an error, and not missing."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents; no effect if it exists. Syncs nothing."""

    def rename(self, source: str, target: str) -> None:
        """Rename atomically; durable only after `sync_dir` of the parent."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int:
        """Return the free bytes that ordinary processes may use on the file system of `path`."""

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of the file system of `path`."""

    def modified_ms(self, path: str) -> int:
        """Return the wall time in milliseconds of the last write to the file. Raises FileNotFoundError."""

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """Do what `sync` does, blocking: for small files at rare moments (votes, checkpoints), and at start and
        stop."""

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable, blocking. Raises DiskPoisoned if that fails."""

    def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> Awaitable[None]:
        """Sync a group off the event loop: earlier writes to `files`, and earlier changes of entries in `directories`,
        are durable when the returned awaitable is done.

        The event loop may block up to `wait_ms` for a small group: if it ends by then, the returned future is done. A
        few files are synced one by one, many at once (syncfs). Raises DiskError, at once or when awaited: nothing of
        the group may be relied on then. A directory deleted meanwhile is skipped. The sync begins at once: the files
        may be closed and deleted before it is awaited, and it is carried out even if the awaiting task is cancelled.
        """

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        """Do `pread` off the event loop, for bytes that `pread_nowait` did not find in memory."""

    def boot_id(self) -> str:
        """Return an id of the time since the machine last lost its memory; empty if it is not known.

        While it stays the same, every completed write is still there, synced or not: only the process died. After a
        power cut (another id), unsynced writes may be lost in any order. Recovery judges damage by it (rule E5).
        """

    async def unlink_slowly(self, path: str) -> None:
        """Delete a large file without delaying other syncs (truncates it in steps, off the event loop)."""


def read_file(disk: Disk, path: str) -> bytes:
    """Return the whole content of a small file. Raises FileNotFoundError."""
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
    """Replace a small file so that a crash at any instant leaves the old content or the new, never a mix.

    By a temporary file, sync, atomic rename, and sync of the parent directory (rule A1).
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
    """Do what `write_synced` does, blocking. Raises DiskError."""
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
    """Write small files and sync them together, without blocking. A crash before the end may leave anything in them:
    they are temporary, and renamed afterwards.

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
