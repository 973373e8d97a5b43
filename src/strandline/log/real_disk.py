"""The production Disk: POSIX files, one thread that syncs, two that read what is cold and delete what is large."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import ParamSpec, TypeVar, cast

from strandline.log.disk import DiskError, DiskPoisoned, File
from strandline.log.real_file import RealFile, pread_all, refused
from strandline.log.real_lock import RealLock
from strandline.log.real_modes import DIRECTORY_MODE, FILE_MODE, close_to_others
from strandline.log.real_sync import (
    NoDescriptor,
    as_disk_errors,
    disk_error,
    load_syncfs,
    sync_directory,
    sync_error,
    sync_group,
)
from strandline.log.sync_thread import FILES_MAX, CompiledSync, SyncThread

P = ParamSpec("P")
T = TypeVar("T")

OPEN_FILES_MAX = 2048
"""Descriptors kept open; others are opened anew when they are used. Half of a service's common limit of 4096."""

UNLINK_STEP_BYTES = 16 << 20
"""Large files are cut by so much at a time: unlinking gigabytes at once put 90-140 ms into the tail of syncs."""

UNLINK_REST_S = 0.025
"""After each cut: syncs of others pay for what was freed before them. Steps of 64 MB without a rest made the p99 of a
sync 9 ms, these 2.6, nothing at all 1.2."""

_NOT_CACHED = (errno.EAGAIN,)
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class RealDisk:
    """The Disk port over the operating system. Everything but the bodies of threads runs on one thread (the loop's).

    Invariants:
    - once a sync of names or of a whole file system has failed, every write and sync is refused;
    - of each file system on which a file was opened one descriptor stays open (`_anchors`): syncfs tells it of every
      failed write since.
    """

    def __init__(self, *, open_files_max: int = OPEN_FILES_MAX, compiled_sync: bool = True) -> None:
        """`compiled_sync`: small groups go to the compiled thread, where the installation could build it."""
        self._compiled_sync = CompiledSync.load() if compiled_sync else None
        self.busy = False  # nobody looks at the clock here: see WatchedDisk
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
        """Take the directory for this process alone, and close it to others. Raises DirectoryInUse, DiskError."""
        lock = RealLock.take(path)
        close_to_others(path)
        return lock

    def open(self, path: str, *, create: bool = False) -> RealFile:
        """Open for reading and writing. Raises FileNotFoundError unless `create`."""
        if create:
            self._refuse_if_poisoned()
        fd = self._descriptor(path, os.O_CREAT if create else 0)
        file = RealFile(self, path, fd, self._anchor(path, fd))
        self._remember(file)
        return file

    def exists(self, path: str) -> bool:
        """Whether the name is there."""
        with as_disk_errors("look at", path):
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""
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
        """Atomic; durable after `sync_dir`."""
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
        """Space left for ordinary writers."""
        status = self._status(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """Size of the file system."""
        status = self._status(path)
        return status.f_blocks * status.f_frsize

    def modified_ms(self, path: str) -> int:
        """The file's mtime. Raises FileNotFoundError."""
        with as_disk_errors("look at", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def _status(self, path: str) -> os.statvfs_result:
        with as_disk_errors("ask for the space of", path):
            return os.statvfs(path)

    def boot_id(self) -> str:
        """The kernel's id of this boot; empty where it does not tell."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as source:
                return source.read().strip()
        except OSError:
            return ""

    # ------------------------------------------------------------------ syncs

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """One group sync, blocking, and behind the threads that have one of its files. Raises DiskError: nothing of the
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
        """One group sync in a sync thread. Raises DiskError: nothing of the group may be relied on."""
        real = cast("Sequence[RealFile]", files)
        begun = self._sync_pinned(real, directories, wait_ms)
        return self._sync_with_names(begun, real, directories) if directories else begun

    def _sync_with_names(
        self, begun: asyncio.Future[None], files: Sequence[RealFile], directories: Sequence[str]
    ) -> asyncio.Future[None]:
        """The thread opens the directories: there, too, descriptors may run out. The files' own stay until the second
        attempt, for one that is closed meanwhile may have no name any more."""

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
        """The descriptors stay open until the thread has done with them, whoever still waits for it by then.

        Two threads never sync one file at a time: of the two calls one is told of a failure, and the other succeeds
        (schedule 32). So the second is of the thread in Python, and waits there until the first has been judged.
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
        """The files of a sync that begins, with their descriptors, which stay. Raises DiskPoisoned, DiskError."""
        self._refuse_if_poisoned()
        pairs = [(file, file.descriptor()) for file in files]
        for file in files:
            file.pins += 1
            file.dirty = False  # what is written while the sync runs belongs to the next one, and sets this again
        return pairs

    def _sync_group(
        self, pairs: list[tuple[RealFile, int]], directories: Sequence[str], after: Event | None = None
    ) -> None:
        """In the sync thread, or blocking. After a failure none of these files is written again, whichever failed."""
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
        """A call that may block: see `waits_for`."""
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
        """`pread` in a thread."""
        real = cast("RealFile", file)
        fd = real.descriptor()
        real.pins += 1
        return await self._in_thread(real.unpin, pread_all, fd, size, position, real.path)

    async def unlink_slowly(self, path: str) -> None:
        """Shrink the file step by step, then unlink it: one file at a time, in a thread that is free between steps.
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
        """`finished` is called in the loop when the thread has done with it, whoever still waits for it by then."""
        loop = asyncio.get_running_loop()
        future = self._io_threads.submit(work, *args, **kwargs)
        if finished is not None:
            future.add_done_callback(partial(_call_in, loop, finished))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Close every descriptor and end the threads; waits for what they are doing."""
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
            raise disk_error(error, "read", file.path) from error
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
        with self._waiting(path):
            return self._with_descriptors(partial(_open, path, os.O_RDWR | flags))

    def _anchor(self, path: str, fd: int) -> int:
        """The device that holds the file; the first time with a descriptor of its own, kept for syncfs."""
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
        """`call`; where no descriptor is left for it, once more when those of idle files have been given up."""
        try:
            return call()
        except NoDescriptor:
            if not self._give_up_idle():
                raise
            return call()

    def _give_up_idle(self) -> bool:
        """Close every descriptor that can be opened again when it is wanted; whether there was one."""
        idle = [file for file in self._open if not (file.dirty or file.pins)]
        for file in idle:
            self.forget(file)
        return bool(idle)

    def _remember(self, file: RealFile) -> None:
        """Keep what is in use; close what is not, oldest first, with a second chance for what was used since (so about
        the least recently used), and never what is dirty or in a thread.
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
    """A thread has one of them already."""
    return any(file.pins for file in files)


def _are_small(files: Sequence[RealFile]) -> bool:
    """Few, and none that a sync has to refuse."""
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
    """Whether some of the file is left."""
    with as_disk_errors("delete", path):
        size = os.stat(path).st_size
        if size > UNLINK_STEP_BYTES:
            os.truncate(path, size - UNLINK_STEP_BYTES)
            return True
        os.unlink(path)
        return False
