"""The production Disk: POSIX files, one thread for syncs, and two threads for cold reads and deletions of large files.

A data directory is locked by flock(2) on a small file in it, which names the holder. The kernel releases the lock when
the process that has the file open ends, for whatever reason; the file stays, and means nothing by itself. A process
with a thread that waits for a hung disk has not ended yet, even if it was killed: its write may still come.

Only the user that runs the node may read its files, as they hold records and, in the metadata log, the salted keys of
every SCRAM user. New files and directories have `FILE_MODE` and `DIRECTORY_MODE`, whatever the umask. Those made by an
older build, or by an operator's mkdir, are closed to other accounts when the node takes its directory; the rights of a
group stay.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

import structlog

from strandline.log.disk import LOCK_FILE, METADATA_DIRECTORY, DiskError, DiskPoisoned, File
from strandline.log.real_sync import (
    FILES_MAX,
    CompiledSync,
    NoDescriptor,
    SyncThread,
    as_disk_errors,
    disk_error,
    load_syncfs,
    refuse_if_poisoned,
    sync_directory,
    sync_error,
    sync_group,
)
from strandline.proto.errors import DirectoryInUse

if TYPE_CHECKING:
    from typing_extensions import Buffer

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger("strandline.log")

OPEN_FILES_MAX = 2048
"""Maximum descriptors kept open; other files are opened again when used. Half of a service's common limit of 4096."""

UNLINK_STEP_BYTES = 16 << 20
"""Bytes by which a large file is truncated at a time before it is removed: removing gigabytes at once added 90-140 ms
to the slowest syncs."""

UNLINK_REST_S = 0.025
"""Pause after each step, as other syncs also pay for the space that was freed before them. Steps of 64 MB without a
pause made the p99 of a sync 9 ms, these make it 2.6; without deletions it is 1.2."""

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Permissions of new files and of new directories."""

_WORD_MAX = 200
_NOT_CACHED = (errno.EAGAIN,)
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class RealDisk:
    """Implements the Disk port with the operating system's files. Only the bodies of threads run outside of the loop's
    thread.

    Invariants:
    - once a sync of names or of a whole file system has failed, every write and sync is refused;
    - for each file system on which a file was opened, one descriptor stays open (`_anchors`): syncfs reports to it
      every write that failed since.
    """

    def __init__(self, *, open_files_max: int = OPEN_FILES_MAX, compiled_sync: bool = True) -> None:
        """`compiled_sync`: use the compiled sync thread for small groups, if the installation could build it."""
        self._compiled_sync = CompiledSync.load() if compiled_sync else None
        self.busy = False  # time is not measured here: see WatchedDisk
        self.poison: DiskPoisoned | None = None
        self.waits_for = ""
        self.calls = 0
        self.sync_thread = "python" if self._compiled_sync is None else "compiled"
        self._open_files_max = open_files_max
        self._open: OrderedDict[RealFile, None] = OrderedDict()
        self._anchors: dict[int, int] = {}
        self._scratch = bytearray()
        self._nowait = getattr(os, "RWF_NOWAIT", 0)
        self._sync_thread = SyncThread("strandline-sync")
        self._io_threads = ThreadPoolExecutor(2, "strandline-disk")
        self._deleting = asyncio.Lock()
        self._syncfs = load_syncfs()

    # ------------------------------------------------------------------ files and names

    def lock(self, path: str) -> RealLock:
        """Lock the directory for this process, and close it to other accounts. Raises DirectoryInUse, DiskError."""
        lock = RealLock.take(path)
        close_to_others(path)
        return lock

    def open(self, path: str, *, create: bool = False) -> RealFile:
        """Open a file for reading and writing. Raises FileNotFoundError unless `create`."""
        if create:
            self._refuse_if_poisoned()
        fd = self._descriptor(path, os.O_CREAT if create else 0)
        file = RealFile(self, path, fd, self._anchor(path, fd))
        self._remember(file)
        return file

    def exists(self, path: str) -> bool:
        """True if the name exists."""
        with as_disk_errors("look at", path):
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def listdir(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""
        with as_disk_errors("list directory", path):
            return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents."""
        self._refuse_if_poisoned()
        with self._waiting(path), as_disk_errors("make directory", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.isdir(path):
                os.mkdir(path, DIRECTORY_MODE)

    def rename(self, source: str, target: str) -> None:
        """Rename atomically; durable after `sync_dir`."""
        self._refuse_if_poisoned()
        with self._waiting(source), as_disk_errors("rename", source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove the name. Raises FileNotFoundError."""
        self._refuse_if_poisoned()
        with self._waiting(path), as_disk_errors("delete", path):
            os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self._refuse_if_poisoned()
        with self._waiting(path), as_disk_errors("remove directory", path):
            os.rmdir(path)

    def free_bytes(self, path: str) -> int:
        """Return the free bytes that ordinary processes may use."""
        status = self._status(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system in bytes."""
        status = self._status(path)
        return status.f_blocks * status.f_frsize

    def modified_ms(self, path: str) -> int:
        """Return the file's mtime in milliseconds. Raises FileNotFoundError."""
        with as_disk_errors("look at", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def _status(self, path: str) -> os.statvfs_result:
        with as_disk_errors("ask for the space of", path):
            return os.statvfs(path)

    def boot_id(self) -> str:
        """Return the kernel's id of this boot; empty if there is none."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as source:
                return source.read().strip()
        except OSError:
            return ""

    # ------------------------------------------------------------------ syncs

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """Sync a group, blocking, and after threads that are syncing one of its files. Raises DiskError: nothing of the
        group may be relied on."""
        real = cast("Sequence[RealFile]", files)
        if _shared(real):
            with self._waiting(files[0].path):
                if self._compiled_sync is not None:
                    self._compiled_sync.finish()  # schedule 32/blocking-sync-beside-the-thread
                self._sync_thread.join()  # schedule 32/blocking-sync-beside-the-python-thread
        pairs = self._pinned(real)
        try:
            with self._waiting(files[0].path if files else "".join(directories[:1])):
                self._with_descriptors(lambda: self._sync_group(pairs, directories))
        finally:
            for file, _ in pairs:
                file.unpin()
        for file, _ in pairs:
            file.dirty = False
        self._give_up_surplus()

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable, blocking. Raises DiskPoisoned, DiskError, FileNotFoundError."""
        self._refuse_if_poisoned()
        try:
            with self._waiting(path):
                self._with_descriptors(lambda: sync_directory(path))
        except DiskPoisoned as error:
            self.poison = error
            raise

    def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> Awaitable[None]:
        """Sync a group in a sync thread. Raises DiskError: nothing of the group may be relied on."""
        real = cast("Sequence[RealFile]", files)
        begun = self._sync_pinned(real, directories, wait_ms)
        return self._sync_with_names(begun, real, directories) if directories else begun

    def _sync_with_names(
        self, begun: asyncio.Future[None], files: Sequence[RealFile], directories: Sequence[str]
    ) -> asyncio.Future[None]:
        """Sync a group with directories, which the thread opens: if it runs out of descriptors, idle files are closed
        and it tries again. The files' own descriptors stay open until the second attempt, as a file deleted meanwhile
        could not be opened again."""

        async def twice() -> None:
            try:
                await begun
            except NoDescriptor:
                if not self._give_up_idle():
                    raise
                await self._sync_pinned(files, directories, 0.0)

        def ended(_: asyncio.Future[None]) -> None:
            for file in files:
                file.unpin()

        for file in files:
            file.pins += 1  # schedule 91/files-of-a-second-attempt-are-given-up
        synced = asyncio.ensure_future(twice())
        synced.add_done_callback(ended)
        return synced

    def _sync_pinned(
        self, files: Sequence[RealFile], directories: Sequence[str], wait_ms: float
    ) -> asyncio.Future[None]:
        """Sync a group whose descriptors stay open until the thread has finished, even if the caller no longer waits.

        Two threads never sync one file at the same time: the kernel reports a failure to one of the two calls only, and
        the other succeeds (schedule 32). So the second sync goes to the Python thread, and waits there until the first
        has been judged.
        """
        shared = _shared(files)
        pairs = self._pinned(files)

        def finished() -> None:
            for file in files:
                file.unpin()

        compiled = self._compiled_sync
        if compiled is not None and compiled.idle and not (directories or shared) and _are_small(files):

            def ended(synced: int, number: int) -> DiskError | None:
                error = None
                if number:
                    error = sync_error(number, files[synced].path)
                    self._failed(pairs, error)  # schedule 32/failed-compiled-sync-poisons-nothing
                finished()
                return error

            return compiled.begin([fd for _, fd in pairs], wait_ms, ended)
        over = compiled.over() if compiled is not None and shared else None  # schedule 32/two-threads-sync-one-file
        work = partial(self._sync_group, pairs, tuple(directories), over)
        return self._sync_thread.run(work, finished)

    def _pinned(self, files: Sequence[RealFile]) -> list[tuple[RealFile, int]]:
        """Pin the files of a sync that begins; return them with their descriptors. Raises DiskPoisoned, DiskError."""
        self._refuse_if_poisoned()
        pairs = [(file, file.descriptor()) for file in files]
        for file in files:
            file.pins += 1
            file.dirty = False  # what is written while the sync runs belongs to the next one, and sets this again
        return pairs

    def _sync_group(
        self, pairs: list[tuple[RealFile, int]], directories: Sequence[str], after: Event | None = None
    ) -> None:
        """Sync a group, in the sync thread or blocking. If any of its files fails, none of them is written again."""
        if after is not None:
            after.wait()
        try:
            sync_group(pairs, directories, self._syncfs, self._anchors)
        except DiskError as error:
            self._failed(pairs, error)
            raise

    def _failed(self, pairs: list[tuple[RealFile, int]], error: DiskError) -> None:
        for file, _ in pairs:
            file.dirty = True
        if isinstance(error, NoDescriptor):
            return
        if isinstance(error, DiskPoisoned):
            self.poison = error
        for file, _ in pairs:
            file.poison = file.poison or error

    @contextmanager
    def _waiting(self, path: str) -> Iterator[None]:
        """Mark a call that may block with the file that it waits for: see `waits_for`."""
        self.calls += 1
        self.waits_for = path
        try:
            yield
        finally:
            self.waits_for = ""

    def _refuse_if_poisoned(self) -> None:
        if self.poison is not None:
            raise refused(self.poison)

    # ------------------------------------------------------------------ work in threads

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        """Do `pread` in a thread."""
        real = cast("RealFile", file)
        fd = real.descriptor()
        real.pins += 1
        return await self._in_thread(real.unpin, pread_all, fd, size, position, real.path)

    async def unlink_slowly(self, path: str) -> None:
        """Truncate the file step by step, then unlink it: one file at a time, in a thread that is free between steps.
        Raises FileNotFoundError, DiskError.
        """
        self._refuse_if_poisoned()
        async with self._deleting:
            left = await self._in_thread(None, _cut_or_unlink, path)
            while left:
                await asyncio.sleep(UNLINK_REST_S)
                left = await self._in_thread(None, _cut_or_unlink, path)

    async def _in_thread(
        self, finished: Callable[[], None] | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do `work` in a thread. `finished` is called in the loop after it, even if the caller no longer waits."""
        loop = asyncio.get_running_loop()
        future = self._io_threads.submit(work, *args, **kwargs)
        if finished is not None:
            future.add_done_callback(partial(_call_in, loop, finished))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Close every descriptor and end the threads, after the work that they have."""
        if self._compiled_sync is not None:  # the other thread may wait for it
            self._compiled_sync.close()
        self._sync_thread.close()
        self._io_threads.shutdown()
        for file in list(self._open):
            file.close()
        while self._anchors:
            os.close(self._anchors.popitem()[1])

    # ------------------------------------------------------------------ descriptors

    def read_cached(self, file: RealFile, fd: int, size: int, position: int) -> bytes | None:
        """Read with `preadv` and RWF_NOWAIT into a reused buffer; a plain read if the kernel lacks that flag."""
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
            raise disk_error(error, "read", file.path) from error
        if got < size and got + position < os.fstat(fd).st_size:
            return None
        return bytes(view[:got])

    def reopen(self, file: RealFile) -> None:
        """Open the file of a descriptor that was closed to save descriptors."""
        file.fd = self._descriptor(file.path, 0)
        self._remember(file)

    def forget(self, file: RealFile) -> None:
        """Close the descriptor of a file that is no longer used."""
        self._open.pop(file, None)
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1

    def _descriptor(self, path: str, flags: int) -> int:
        with self._waiting(path):
            return self._with_descriptors(partial(_open, path, os.O_RDWR | flags))

    def _anchor(self, path: str, fd: int) -> int:
        """Return the device that holds the file; at its first file, open the descriptor that is kept for syncfs."""
        try:
            with as_disk_errors("look at", path):
                device = os.fstat(fd).st_dev
            if device not in self._anchors:
                directory = path.rpartition("/")[0] or "/"
                self._anchors[device] = self._with_descriptors(partial(_open, directory, os.O_RDONLY))
        except BaseException:
            os.close(fd)
            raise
        return device

    def _with_descriptors(self, call: Callable[[], T]) -> T:
        """Call `call`; if no descriptor is left for it, close those of idle files and call it once more."""
        try:
            return call()
        except NoDescriptor:
            if not self._give_up_idle():
                raise
            return call()

    def _give_up_idle(self) -> bool:
        """Close every descriptor that can be opened again on use; True if there was one."""
        idle = [file for file in self._open if not (file.dirty or file.pins)]
        for file in idle:
            self.forget(file)
        return bool(idle)

    def _remember(self, file: RealFile) -> None:
        """Keep a new descriptor, and close surplus ones: oldest first, with a second chance for files used since (so
        about the least recently used), and never those of dirty files or of files in a thread.
        """
        self._open[file] = None
        self._give_up_surplus(file)

    def _give_up_surplus(self, kept: RealFile | None = None) -> None:
        chances = 2 * len(self._open)
        while len(self._open) > self._open_files_max and chances:
            chances -= 1
            old = next(iter(self._open))
            if old.used or old.dirty or old.pins or old is kept:
                old.used = False
                self._open.move_to_end(old)
            else:
                self.forget(old)


def _shared(files: Sequence[RealFile]) -> bool:
    """True if a thread is using one of the files."""
    return any(file.pins for file in files)


def _are_small(files: Sequence[RealFile]) -> bool:
    """True if the files are few enough for the compiled thread, and none was refused after a failed sync."""
    return 0 < len(files) <= FILES_MAX and all(file.poison is None for file in files)


def _open(path: str, flags: int) -> int:
    with as_disk_errors("open", path):
        return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def _call_in(loop: asyncio.AbstractEventLoop, finished: Callable[[], None], _: Future[object]) -> None:
    try:
        loop.call_soon_threadsafe(finished)
    except RuntimeError:
        pass  # the loop has been closed


def _cut_or_unlink(path: str) -> bool:
    """Cut one step off the file, or unlink it. True if some of the file is left."""
    with as_disk_errors("delete", path):
        size = os.stat(path).st_size
        if size > UNLINK_STEP_BYTES:
            os.truncate(path, size - UNLINK_STEP_BYTES)
            return True
        os.unlink(path)
        return False


class Descriptors(Protocol):
    """The disk that a file belongs to."""

    poison: DiskPoisoned | None
    """Reason that nothing on the disk can be written any more, or None."""
    waits_for: str
    """File that a blocking call on the event loop's thread works on now; "" if none. Read by watchers in other
    threads."""
    calls: int
    """Number of blocking calls so far."""

    def reopen(self, file: RealFile) -> None:
        """Open the file of a descriptor that was closed to save descriptors."""

    def forget(self, file: RealFile) -> None:
        """Close the descriptor of a file that is no longer used."""

    def read_cached(self, file: RealFile, fd: int, size: int, position: int) -> bytes | None:
        """Read bytes that are in memory; None if reading would block."""


class RealFile:
    """A file whose descriptor may be closed and opened again behind the scenes.

    Invariants:
    - A file with unsynced writes, or with an operation in a thread, keeps its descriptor: the kernel reports write-back
      errors only to descriptors that were open, and the number of a closed descriptor may name another file.
    - After a failed sync the file refuses everything but reading and closing (schedule 32).
    """

    __slots__ = ("_close_wanted", "_disk", "_path", "device", "dirty", "fd", "pins", "poison", "used")

    def __init__(self, disk: Descriptors, path: str, fd: int, device: int) -> None:
        self._disk = disk
        self._path = path
        self.fd = fd
        self.device = device
        self.dirty = False
        self.used = True
        self.pins = 0
        self.poison: DiskError | None = None
        self._close_wanted = False

    @property
    def path(self) -> str:
        """Path under which the file was opened."""
        return self._path

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`. Raises DiskFull, DiskError."""
        fd = self._writable()
        disk = self._disk
        disk.calls += 1
        disk.waits_for = self._path
        try:
            written = os.pwrite(fd, data, position)
            size = memoryview(data).nbytes
            while written < size:
                written += os.pwrite(fd, memoryview(data).cast("B")[written:], position + written)
        except OSError as error:
            raise disk_error(error, "write", self._path) from error
        finally:
            disk.waits_for = ""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`; may block."""
        fd = self._readable()
        self._disk.calls += 1
        self._disk.waits_for = self._path
        try:
            return pread_all(fd, size, position, self._path)
        finally:
            self._disk.waits_for = ""

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        """Read as `pread` does; None if that would block."""
        return self._disk.read_cached(self, self._readable(), size, position)

    def size(self) -> int:
        """Return the file's size in bytes, allocated zeros included."""
        with as_disk_errors("look at", self._path):
            return os.fstat(self._readable()).st_size

    def truncate(self, size: int) -> None:
        """Set the file's size. Raises DiskFull, DiskError."""
        fd = self._writable()
        self._disk.calls += 1
        self._disk.waits_for = self._path
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise disk_error(error, "truncate", self._path) from error
        finally:
            self._disk.waits_for = ""

    def allocate(self, position: int, size: int) -> None:
        """Reserve zeroed space. Raises DiskFull, DiskError."""
        fd = self._writable()
        self._disk.calls += 1
        self._disk.waits_for = self._path
        try:
            os.posix_fallocate(fd, position, size)
        except OSError as error:
            raise disk_error(error, "allocate", self._path) from error
        finally:
            self._disk.waits_for = ""

    def close(self) -> None:
        """Close the descriptor once no thread uses it. Idempotent."""
        self._close_wanted = True
        if not self.pins:
            self._disk.forget(self)

    def unpin(self) -> None:
        """Take note that a thread has finished with the descriptor."""
        self.pins -= 1
        if self._close_wanted and not self.pins:
            self._disk.forget(self)

    def descriptor(self) -> int:
        """Return the open descriptor, opened again if it was closed. Raises DiskError."""
        self.used = True
        if self.fd < 0:
            self._disk.reopen(self)
        return self.fd

    def _readable(self) -> int:
        self.used = True
        return self.fd if self.fd >= 0 else self.descriptor()

    def _writable(self) -> int:
        if self.poison is not None:
            refuse_if_poisoned(self)
        if self._disk.poison is not None:
            raise refused(self._disk.poison)
        fd = self.fd
        if fd < 0:
            fd = self.descriptor()
        self.dirty = self.used = True
        return fd


def refused(poison: DiskPoisoned) -> DiskPoisoned:
    """Return the error for a call after the disk was poisoned."""
    return DiskPoisoned(poison.errno, f"refused: an earlier sync of the whole disk failed ({poison.strerror})", "")


def pread_all(fd: int, size: int, position: int, path: str) -> bytes:
    """Read `size` bytes at `position`; fewer only at the end of the file. Raises DiskError."""
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
        raise disk_error(error, "read", path) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def close_to_others(directory: str) -> None:
    """Remove the rights of other accounts from a data directory, from its entries, and from the metadata log's files.
    One log line reports it; if the rights cannot be changed, a log line reports that, and the node starts anyway."""
    closed = []
    for path in _looked_at(directory):
        try:
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if mode & stat.S_IRWXO and not os.path.islink(path):  # rule A19/secrets-for-every-account
                os.chmod(path, mode & ~stat.S_IRWXO)
                closed.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("other accounts of this machine may read the node's files", path=path, error=error.strerror)
            return
    if closed:
        log.warning(
            "other accounts of this machine could read the node's files: they no longer can",
            directory=directory,
            files=len(closed),
        )


def _looked_at(directory: str) -> Iterator[str]:
    yield directory
    for parent in (directory, os.path.join(directory, METADATA_DIRECTORY)):
        try:
            names = os.listdir(parent)
        except OSError:
            continue
        for name in names:
            yield os.path.join(parent, name)


class RealLock:
    """Lock on a directory, held until `release` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, path: str) -> RealLock:
        """Lock a directory. Raises DirectoryInUse, DiskError."""
        name = f"{path}/{LOCK_FILE}"
        with as_disk_errors("open the lock of the directory", name):
            try:
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            except FileNotFoundError:
                raise DiskError(errno.ENOENT, "there is no such directory", path) from None
        try:
            _flock(fd, path, fcntl.LOCK_EX)
            _write_holder(fd)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    @classmethod
    def take_to_read(cls, path: str) -> RealLock | None:
        """Keep out every process that would write while this one reads, and change nothing: not even the lock's file is
        written. None if no process has ever locked the directory: there is nothing to hold, and a process that comes
        shows by the file that it creates.

        Raises DirectoryInUse, DiskError.
        """
        name = f"{path}/{LOCK_FILE}"
        with as_disk_errors("open the lock of the directory", name):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        try:
            _flock(fd, path, fcntl.LOCK_SH)  # rule A3/reader-takes-no-lock
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _flock(fd: int, path: str, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DirectoryInUse(path, _holder(os.pread(fd, 1024, 0).decode("utf-8", "replace"))) from None
    except OSError as error:
        reason = f"its file system has no locks ({error.strerror}), which keep a second process out"
        raise DiskError(error.errno or errno.EIO, reason, path) from error


def _write_holder(fd: int) -> None:
    """Write the holder's name into the lock's file, for messages only: a full disk does not keep a node from
    starting."""
    text = f"pid={os.getpid()}\nhost={socket.gethostname()}\nsince={int(time.time())}\n"
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)
    except OSError:
        pass


def _holder(text: str) -> str:
    """Describe the holder of the lock, from the text of its file. A process that only reads does not write its name
    there."""
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    pid, since = facts.get("pid", ""), facts.get("since", "")
    if not (pid.isdigit() and since.isdigit()):
        return "another process"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(since)))
    host = facts.get("host", "")[:_WORD_MAX]
    command = _command(int(pid), int(since)) if host == socket.gethostname() else ""
    where = f"process {pid} ({command})" if command else f"process {pid} of {host or 'another machine'}"
    reads = "" if command else ", or one that only reads it (`strandline log verify`),"
    return f"{where}, since {when}{reads or ','}"


def _command(pid: int, since: int) -> str:
    """Return the command of process `pid`, if the process is old enough to hold a lock taken at `since`; empty if it is
    not known."""
    import psutil  # only after a failure

    try:
        process = psutil.Process(pid)
        if process.create_time() > since + 1:
            return ""
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return command if len(command) <= _WORD_MAX else command[: _WORD_MAX - 3] + "..."
