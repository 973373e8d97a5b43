"""Syncs of the production disk: the kernel's calls that make data durable, and the threads that wait for them.

Files are synced one by one, or a whole file system at once. The functions run in a sync thread, or block the event loop
where the port says so; they keep no state of the disk.

An acknowledged record waits for one hop to a thread and back on every replica. With a `ThreadPoolExecutor` and its two
kinds of futures the hop took 0.1 ms longer, on a sync of 0.25 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import NamedTuple, ParamSpec, Protocol

from strandline.log.disk import DiskError, DiskFull, DiskPoisoned

try:
    from strandline.log import _sync

    FILES_MAX = _sync.FILES_MAX
except ImportError:  # there was no compiler at the installation
    FILES_MAX = 0
"""Maximum descriptors that `CompiledSync` takes at a time; 0 if the installation has no such thread."""

P = ParamSpec("P")

SYNC_MANY = 8
"""Number of files of one file system above which one syncfs is cheaper than an fdatasync each (300 files: 5-10 ms
against 230-600 ms)."""

_SYNCFS_REPORTS_SINCE = (5, 8)
"""First Linux version whose syncfs is of use to a log: before it, syncfs returned 0 over pages that could not be
written (see syncfs(2))."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

Syncfs = Callable[[int], None]
Ended = Callable[[int, int], DiskError | None]
"""Called with the number of files that were synced, and the errno of the first that was not (0 if none failed); returns
the error of the group."""


class NoDescriptor(DiskError):
    """The process or the machine has no file descriptor left. Nothing was done."""


def disk_error(error: OSError, doing: str, path: str) -> DiskError:
    """Return the port's error for an error of the operating system."""
    number = error.errno or errno.EIO
    kind = DiskFull if number in _FULL else NoDescriptor if number in _NO_DESCRIPTOR else DiskError
    return kind(number, f"{doing}: {os.strerror(number)}", path)


@contextmanager
def as_disk_errors(doing: str, path: str) -> Iterator[None]:
    """Raise every OSError except FileNotFoundError as the port's DiskError."""
    try:
        yield
    except (FileNotFoundError, DiskError):
        raise
    except OSError as error:
        raise disk_error(error, doing, path) from error


class OpenFile(Protocol):
    """File, as a sync needs it."""

    @property
    def path(self) -> str: ...
    @property
    def device(self) -> int: ...
    @property
    def poison(self) -> DiskError | None: ...


class _Device(NamedTuple):
    """Files and directories of a group on one file system."""

    files: list[tuple[OpenFile, int]]
    directories: list[tuple[str, int]]


def sync_group(
    files: Sequence[tuple[OpenFile, int]],
    directories: Sequence[str],
    syncfs: Syncfs | None,
    anchors: Mapping[int, int],
) -> None:
    """Make `files` (with their descriptors) and the names in `directories` durable.

    If there are many of one file system, one syncfs covers them, through its descriptor in `anchors` (by device): it
    reports all writes that failed since that descriptor was opened.

    Raises:
        NoDescriptor: nothing was done.
        DiskPoisoned: names, or a whole file system, could not be synced.
        DiskError: a file could not be synced.
    """
    opened = _open_directories(directories)
    try:
        for device, (some, names) in _by_device(files, opened).items():
            anchor = anchors.get(device)
            if syncfs is not None and anchor is not None and len(some) + len(names) > SYNC_MANY:
                for file, _ in some:
                    refuse_if_poisoned(file)
                _sync_file_system(syncfs, anchor, some[0][0].path if some else names[0][0])
                continue
            for file, fd in some:
                sync_file(file, fd)
            for path, fd in names:
                _sync_names(path, fd)
    finally:
        for _, fd in opened:
            os.close(fd)


def _by_device(files: Sequence[tuple[OpenFile, int]], opened: Sequence[tuple[str, int]]) -> dict[int, _Device]:
    devices: dict[int, _Device] = {}
    for file, fd in files:
        devices.setdefault(file.device, _Device([], [])).files.append((file, fd))
    for path, fd in opened:
        with as_disk_errors("look at directory", path):
            devices.setdefault(os.fstat(fd).st_dev, _Device([], [])).directories.append((path, fd))
    return devices


def _open_directories(paths: Sequence[str]) -> list[tuple[str, int]]:
    """Open the directories that still exist: one that was deleted while its sync waited has nothing left to make
    durable."""
    opened: list[tuple[str, int]] = []
    try:
        for path in paths:
            try:
                opened.append((path, _open_directory(path)))
            except FileNotFoundError:
                continue
    except DiskError:
        for _, fd in opened:
            os.close(fd)
        raise
    return opened


def _open_directory(path: str) -> int:
    with as_disk_errors("open directory", path):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises FileNotFoundError, NoDescriptor, DiskPoisoned, DiskError."""
    fd = _open_directory(path)
    try:
        _sync_names(path, fd)
    finally:
        os.close(fd)


def _sync_names(path: str, fd: int) -> None:
    """Sync names. They are the file system's own data: if they cannot be written, nothing on it can be relied on."""
    try:
        os.fsync(fd)
    except OSError as error:
        raise _poisoned(error, "sync directory", path) from error


def sync_file(file: OpenFile, fd: int) -> None:
    """Do an fdatasync. Raises DiskError, never DiskFull: data that found no room are gone, and writing less does not
    help."""
    refuse_if_poisoned(file)
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise sync_error(error.errno or errno.EIO, file.path) from error  # schedule 32/full-where-a-sync-failed


def sync_error(number: int, path: str) -> DiskError:
    """Return the port's error for a failed fdatasync, never DiskFull."""
    return DiskError(number, f"sync: {os.strerror(number)}", path)


def refuse_if_poisoned(file: OpenFile) -> None:
    """Raise DiskError for a file of which a sync has failed (schedule 32)."""
    poison = file.poison
    if poison is not None:
        raise DiskError(poison.errno, f"refused after a failed sync ({poison.strerror})", file.path)


def _sync_file_system(syncfs: Syncfs, anchor: int, path: str) -> None:
    try:
        syncfs(anchor)
    except OSError as error:
        raise _poisoned(error, "syncfs", path) from error


def _poisoned(error: OSError, doing: str, path: str) -> DiskPoisoned:
    number = error.errno or errno.EIO
    return DiskPoisoned(number, f"{doing}: {os.strerror(number)}", path)


def load_syncfs() -> Syncfs | None:
    """Return syncfs(2), if the system has one that reports errors, else None."""
    system = os.uname()
    if system.sysname != "Linux" or not syncfs_reports_errors(system.release):
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int,)

    def syncfs(fd: int) -> None:
        if function(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")

    return syncfs


def syncfs_reports_errors(release: str) -> bool:
    """True if the Linux of this release (`uname -r`) reports failed writes to syncfs; False for unknown releases."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _SYNCFS_REPORTS_SINCE


class _Work(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    call: Callable[[], None]
    finished: Callable[[], None]


class SyncThread:
    """One thread, started by the first call of `run`. `close` lets it finish its work."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Work | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._closed = False

    def run(self, work: Callable[[], None], finished: Callable[[], None]) -> asyncio.Future[None]:
        """Call `work` in the thread; the future gets its outcome. Raises RuntimeError once closed.

        `finished` is called in the loop when the thread has done the work, even if the future was cancelled before, as
        the work is done all the same.
        """
        if self._closed:
            raise RuntimeError("the sync thread has been closed")
        if self._thread.ident is None:
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Work(loop, done, work, finished))
        return done

    def join(self) -> None:
        """Block until the thread has done its work. The loop hears of it later."""
        if self._thread.ident is not None and not self._closed:
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait()

    def close(self) -> None:
        """End the thread after its work. Idempotent."""
        self._closed = True
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            if isinstance(work, threading.Event):
                work.set()
                continue
            try:
                work.call()
            except BaseException as error:
                _tell(work, error)
            else:
                _tell(work, None)


def _tell(work: _Work, error: BaseException | None) -> None:
    def end() -> None:
        work.finished()
        if work.done.done():  # cancelled meanwhile
            return
        if error is None:
            work.done.set_result(None)
        else:
            work.done.set_exception(error)

    try:
        work.loop.call_soon_threadsafe(end)
    except RuntimeError:
        pass  # the loop has been closed: nobody waits any more


class _Group(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    ended: Ended


class CompiledSync:
    """Syncs small groups of files, one group at a time. Everything here runs on the event loop's thread.

    Invariant: `ended` of each group is called once, even if the future was cancelled before.

    Its thread never takes the interpreter's lock (`_sync.c`). `SyncThread` waits for that lock before and after its
    work, and wakes the event loop through a socket. This thread gets descriptors, and answers through a descriptor that
    the loop selects on. Like the other it keeps the loop free while a disk is slow or hangs. (io_uring does the same at
    the same price, where a container allows it: docs/benchmarks.md.)
    """

    def __init__(self) -> None:
        self._thread = _sync.SyncThread()
        self._selecting: asyncio.AbstractEventLoop | None = None
        self._group: _Group | None = None
        self._over: threading.Event | None = None

    @classmethod
    def load(cls) -> CompiledSync | None:
        """Return a new one; None if it could not be compiled at the installation."""
        return cls() if FILES_MAX else None

    @property
    def idle(self) -> bool:
        """True if no group is under way; a group that has ended is handled first."""
        self.take_end()
        return self._group is None

    def begin(self, files: list[int], wait_ms: float, ended: Ended) -> asyncio.Future[None]:
        """Sync at most FILES_MAX descriptors in their order, up to the first that fails. They must stay open until
        `ended` is called. The loop waits up to `wait_ms` for the end; if it comes by then, the returned future is done.

        Raises:
            RuntimeError: the thread was closed.
            OSError: the thread cannot be started.
        """
        loop = asyncio.get_running_loop()
        if self._selecting is not loop:
            self._select_on(loop)
        done: asyncio.Future[None] = loop.create_future()
        self._thread.begin(files, round(wait_ms * 1000))
        self._group = _Group(loop, done, ended)
        if wait_ms:
            self.take_end()
        return done

    def take_end(self) -> None:
        """Handle the end of the group under way, if it has ended and the loop has not handled it yet."""
        group = self._group
        if group is None:
            return
        result = self._thread.end()
        if result is None:
            return
        self._group = None
        error = group.ended(*result)
        over, self._over = self._over, None
        if over is not None:
            over.set()
        if group.done.done() or group.loop.is_closed():  # cancelled meanwhile
            return
        if error is None:
            group.done.set_result(None)
        else:
            group.done.set_exception(error)

    def over(self) -> threading.Event | None:
        """Return an event that is set once `ended` of the group under way was called; None if there is none."""
        if self._group is not None and self._over is None:
            self._over = threading.Event()
        return self._over

    def finish(self) -> None:
        """Block until the group under way has ended, and handle its end."""
        if self._group is not None:
            self._thread.join()
            self.take_end()

    def close(self) -> None:
        """End the thread after its work. Idempotent."""
        self._thread.close()
        self.take_end()
        self._select_on(None)

    def _select_on(self, loop: asyncio.AbstractEventLoop | None) -> None:
        before, self._selecting = self._selecting, loop
        if before is not None and not before.is_closed():
            before.remove_reader(self._thread.fileno())
        if loop is not None:
            loop.add_reader(self._thread.fileno(), self.take_end)
