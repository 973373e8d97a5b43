"""The production Disk: POSIX files, one thread that syncs, two that read what is cold and delete what is large."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from strandline.log.disk import DiskError, DiskFull, File
from strandline.log.sync_thread import SyncThread

if TYPE_CHECKING:
    from typing_extensions import Buffer

P = ParamSpec("P")
T = TypeVar("T")

FSYNC_MANY = 8
"""Above so many files one syncfs is cheaper than fdatasync each (300 files: 5-10 ms against 230-600 ms)."""

OPEN_FILES_MAX = 2048
"""Descriptors kept open; others are opened anew when they are used. Half of a service's common limit of 4096."""

UNLINK_STEP_BYTES = 64 << 20
"""Large files are cut by so much at a time: unlinking gigabytes at once put 90-140 ms into the tail of syncs."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_CACHED = (errno.EAGAIN,)
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def _disk_error(error: OSError, doing: str, path: str) -> DiskError:
    kind = DiskFull if error.errno in _FULL else DiskError
    return kind(error.errno or errno.EIO, f"{doing}: {os.strerror(error.errno or errno.EIO)}", path)


class RealFile:
    """A file whose descriptor may be closed and opened again behind it.

    Invariants:
    - A file with unsynced writes or with an operation in a thread keeps its descriptor: an error of writing back is
      told only to descriptors that were open.
    - After a failed sync the file refuses everything but close (rule D-32).
    """

    __slots__ = ("_close_wanted", "_disk", "_path", "dirty", "fd", "pins", "poison", "used")

    def __init__(self, disk: RealDisk, path: str, fd: int) -> None:
        self._disk = disk
        self._path = path
        self.fd = fd
        self.dirty = False
        self.used = True
        self.pins = 0
        self.poison: DiskError | None = None
        self._close_wanted = False

    @property
    def path(self) -> str:
        """Where it was opened."""
        return self._path

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`. Raises DiskFull, DiskError."""
        fd = self._writable()
        try:
            written = os.pwrite(fd, data, position)
            size = memoryview(data).nbytes
            while written < size:
                written += os.pwrite(fd, memoryview(data).cast("B")[written:], position + written)
        except OSError as error:
            raise _disk_error(error, "write", self._path) from error

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at `position`; may block."""
        fd = self._readable()
        try:
            data = os.pread(fd, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size:
                data = os.pread(fd, size - got, position + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        except OSError as error:
            raise _disk_error(error, "read", self._path) from error

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        """As `pread`, or None where it would block."""
        return self._disk.read_cached(self, self._readable(), size, position)

    def size(self) -> int:
        """Bytes, allocated zeros included."""
        return os.fstat(self._readable()).st_size

    def truncate(self, size: int) -> None:
        """Set the size. Raises DiskFull, DiskError."""
        fd = self._writable()
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise _disk_error(error, "truncate", self._path) from error

    def allocate(self, position: int, size: int) -> None:
        """Reserve zeroed space. Raises DiskFull, DiskError."""
        fd = self._writable()
        try:
            os.posix_fallocate(fd, position, size)
        except OSError as error:
            raise _disk_error(error, "allocate", self._path) from error

    def close(self) -> None:
        """Give the descriptor back, once no thread uses it any more. Idempotent."""
        self._close_wanted = True
        if not self.pins:
            self._disk.forget(self)

    def unpin(self) -> None:
        """One thread less uses the descriptor."""
        self.pins -= 1
        if self._close_wanted and not self.pins:
            self._disk.forget(self)

    def descriptor(self) -> int:
        """The open descriptor, opened again if it was given up. Raises DiskError."""
        self.used = True
        if self.fd < 0:
            self._disk.reopen(self)
        return self.fd

    def _readable(self) -> int:
        self.used = True
        return self.fd if self.fd >= 0 else self.descriptor()

    def _writable(self) -> int:
        if self.poison is not None:
            raise DiskError(self.poison.errno, f"refused after a failed sync ({self.poison.strerror})", self._path)
        fd = self.fd
        if fd < 0:
            fd = self.descriptor()
        self.dirty = self.used = True
        return fd


class RealDisk:
    """The Disk port over the operating system. Everything but the bodies of threads runs on one thread (the loop's).

    `close` ends its threads; a disk that was poisoned by a failed syncfs refuses every later write and sync.
    """

    def __init__(self, *, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._open_files_max = open_files_max
        self._open: OrderedDict[RealFile, None] = OrderedDict()
        self._poison: DiskError | None = None
        self._scratch = bytearray()
        self._nowait = getattr(os, "RWF_NOWAIT", 0)
        self._sync_thread = SyncThread("strandline-sync")
        self._io_threads = ThreadPoolExecutor(2, "strandline-disk")
        self._syncfs = _load_syncfs()

    # ------------------------------------------------------------------ files and names

    def open(self, path: str, *, create: bool = False) -> RealFile:
        """Open for reading and writing. Raises FileNotFoundError unless `create`."""
        file = RealFile(self, path, self._descriptor(path, os.O_CREAT if create else 0))
        self._remember(file)
        return file

    def exists(self, path: str) -> bool:
        """Whether the name is there."""
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents."""
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise _disk_error(error, "make directory", path) from error

    def rename(self, source: str, target: str) -> None:
        """Atomic; durable after `sync_dir`."""
        try:
            os.rename(source, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _disk_error(error, "rename", source) from error

    def unlink(self, path: str) -> None:
        """Remove the name. Raises FileNotFoundError."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def free_bytes(self, path: str) -> int:
        """Space left for ordinary writers."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """Size of the file system."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def boot_id(self) -> str:
        """The kernel's id of this boot; empty where there is none."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as source:
                return source.read().strip()
        except FileNotFoundError:
            return ""

    # ------------------------------------------------------------------ syncs

    def sync_now(self, files: Sequence[File]) -> None:
        """fdatasync each, blocking. Raises DiskError; the file that failed is poisoned."""
        self._refuse_if_poisoned()
        for file in cast("Sequence[RealFile]", files):
            self._sync_file(file, file.descriptor())
            file.dirty = False

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable, blocking. Raises DiskError."""
        self._refuse_if_poisoned()
        _sync_directory(path)

    async def sync(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """One group sync in the sync thread. Raises DiskError: nothing of the group may be relied on."""
        self._refuse_if_poisoned()
        real = cast("Sequence[RealFile]", files)
        pairs = []
        for file in real:
            pairs.append((file, file.descriptor()))
            file.pins += 1
            file.dirty = False  # what is written while the sync runs belongs to the next one, and sets this again
        try:
            await self._sync_thread.run(partial(self._sync_group, pairs, tuple(directories)))
        except BaseException:
            for file in real:
                file.dirty = True
            raise
        finally:
            for file in real:
                file.unpin()

    def _sync_group(self, pairs: list[tuple[RealFile, int]], directories: tuple[str, ...]) -> None:
        """In the sync thread."""
        if self._syncfs is not None and pairs and len(pairs) + len(directories) > FSYNC_MANY:
            self._sync_file_system(*pairs[0])
            return
        for file, fd in pairs:
            self._sync_file(file, fd)
        for path in directories:
            _sync_directory(path, missing_ok=True)

    def _sync_file(self, file: RealFile, fd: int) -> None:
        if file.poison is not None:
            raise DiskError(file.poison.errno, f"refused after a failed sync ({file.poison.strerror})", file.path)
        try:
            os.fdatasync(fd)
        except OSError as error:
            file.poison = _disk_error(error, "sync", file.path)
            raise file.poison from error

    def _sync_file_system(self, file: RealFile, fd: int) -> None:
        """syncfs reports an error for the whole file system, so nothing on this disk can be trusted after one."""
        assert self._syncfs is not None
        try:
            self._syncfs(fd, file.path)
        except DiskError as error:
            self._poison = error
            raise

    def _refuse_if_poisoned(self) -> None:
        if self._poison is not None:
            raise DiskError(self._poison.errno, "refused: an earlier sync of the whole disk failed", "")

    # ------------------------------------------------------------------ work in threads

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        """`pread` in a thread."""
        real = cast("RealFile", file)
        fd = real.descriptor()
        real.pins += 1
        try:
            return await self._in_thread(_pread_all, fd, size, position, real.path)
        finally:
            real.unpin()

    async def unlink_slowly(self, path: str) -> None:
        """Shrink the file step by step, then unlink it, in a thread. Raises FileNotFoundError, DiskError."""
        await self._in_thread(_shrink_and_unlink, path)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs
        return await asyncio.get_running_loop().run_in_executor(self._io_threads, work, *args)

    def close(self) -> None:
        """Close every descriptor and end the threads; waits for what they are doing."""
        self._sync_thread.close()
        self._io_threads.shutdown()
        for file in list(self._open):
            file.close()

    # ------------------------------------------------------------------ descriptors

    def read_cached(self, file: RealFile, fd: int, size: int, position: int) -> bytes | None:
        """`preadv` with RWF_NOWAIT through one buffer that stays warm; a plain read where there is no such flag."""
        if not self._nowait:
            return file.pread(size, position)
        scratch = self._scratch
        if len(scratch) < size:
            scratch = self._scratch = bytearray(size)
        view = memoryview(scratch)[:size]
        try:
            got = os.preadv(fd, [view], position, self._nowait)
        except OSError as error:
            if error.errno in _NOT_CACHED:
                return None
            if error.errno in _NO_NOWAIT:
                self._nowait = 0
                return file.pread(size, position)
            raise _disk_error(error, "read", file.path) from error
        if got < size and got + position < os.fstat(fd).st_size:
            return None
        return bytes(view[:got])

    def reopen(self, file: RealFile) -> None:
        """Open again a descriptor that was given up."""
        file.fd = self._descriptor(file.path, 0)
        self._remember(file)

    def forget(self, file: RealFile) -> None:
        """Close the descriptor of a file that nobody uses any more."""
        self._open.pop(file, None)
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1

    def _descriptor(self, path: str, flags: int) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _disk_error(error, "open", path) from error

    def _remember(self, file: RealFile) -> None:
        """Keep what is in use; close what is not, oldest first, with a second chance for what was used since (so about
        the least recently used), and never what is dirty or in a thread.
        """
        self._open[file] = None
        chances = 2 * len(self._open)
        while len(self._open) > self._open_files_max and chances:
            chances -= 1
            old = next(iter(self._open))
            if old.used or old.dirty or old.pins or old is file:
                old.used = False
                self._open.move_to_end(old)
            else:
                self.forget(old)


def _load_syncfs() -> Callable[[int, str], None] | None:
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "syncfs", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int,)

    def syncfs(fd: int, path: str) -> None:
        if function(fd) != 0:
            raise _disk_error(OSError(ctypes.get_errno(), ""), "syncfs", path)

    return syncfs


def _sync_directory(path: str, *, missing_ok: bool = False) -> None:
    """`missing_ok`: a directory that was deleted while its sync waited has nothing left to make durable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        if missing_ok:
            return
        raise
    except OSError as error:
        raise _disk_error(error, "open directory", path) from error
    try:
        os.fsync(fd)
    except OSError as error:
        raise _disk_error(error, "sync directory", path) from error
    finally:
        os.close(fd)


def _pread_all(fd: int, size: int, position: int, path: str) -> bytes:
    parts: list[bytes] = []
    try:
        while size > 0:
            data = os.pread(fd, size, position)
            if not data:
                break
            parts.append(data)
            size -= len(data)
            position += len(data)
    except OSError as error:
        raise _disk_error(error, "read", path) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _shrink_and_unlink(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        while size > UNLINK_STEP_BYTES:
            size -= UNLINK_STEP_BYTES
            os.ftruncate(fd, size)
        os.unlink(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _disk_error(error, "delete", path) from error
    finally:
        os.close(fd)
