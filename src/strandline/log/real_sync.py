"""How the production disk asks the kernel to make things durable: one by one, or a whole file system at once.

These functions run in the sync thread, or block the event loop where the port says so; they keep no state of the disk.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from strandline.log.disk import DiskError, DiskFull, DiskPoisoned

SYNC_MANY = 8
"""Above so many files of one file system, one syncfs is cheaper than fdatasync each (300 files: 5-10 ms against
230-600 ms)."""

_SYNCFS_REPORTS_SINCE = (5, 8)
"""Before this Linux syncfs returned 0 over pages that could not be written (see syncfs(2)): no use to a log."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

Syncfs = Callable[[int], None]


class NoDescriptor(DiskError):
    """The process, or the machine, has no file descriptor left. Nothing was done."""


def disk_error(error: OSError, doing: str, path: str) -> DiskError:
    """The port's error for one of the operating system's."""
    number = error.errno or errno.EIO
    kind = DiskFull if number in _FULL else NoDescriptor if number in _NO_DESCRIPTOR else DiskError
    return kind(number, f"{doing}: {os.strerror(number)}", path)


@contextmanager
def as_disk_errors(doing: str, path: str) -> Iterator[None]:
    """Every OSError but FileNotFoundError is the port's DiskError."""
    try:
        yield
    except (FileNotFoundError, DiskError):
        raise
    except OSError as error:
        raise disk_error(error, doing, path) from error


class OpenFile(Protocol):
    """What is synced of a file."""

    @property
    def path(self) -> str: ...
    @property
    def device(self) -> int: ...
    @property
    def poison(self) -> DiskError | None: ...


class _Device(NamedTuple):
    """What one group has to sync of one file system."""

    files: list[tuple[OpenFile, int]]
    directories: list[tuple[str, int]]


def sync_group(
    files: Sequence[tuple[OpenFile, int]],
    directories: Sequence[str],
    syncfs: Syncfs | None,
    anchors: Mapping[int, int],
) -> None:
    """Make `files` (with their descriptors) and the names in `directories` durable.

    Many of one file system go by one syncfs, through its descriptor in `anchors` (by device): it reports what failed
    since that descriptor was opened, whoever wrote it.

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
    """Those that are still there: one that was deleted while its sync waited has nothing left to make durable."""
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
    """Make the names in it durable. Raises FileNotFoundError, NoDescriptor, DiskPoisoned, DiskError."""
    fd = _open_directory(path)
    try:
        _sync_names(path, fd)
    finally:
        os.close(fd)


def _sync_names(path: str, fd: int) -> None:
    """Names are the file system's own bookkeeping: when they cannot be written, nothing on it can be relied on."""
    try:
        os.fsync(fd)
    except OSError as error:
        raise _poisoned(error, "sync directory", path) from error


def sync_file(file: OpenFile, fd: int) -> None:
    """fdatasync. Raises DiskError, never DiskFull: what found no room is gone, and writing less does not help."""
    refuse_if_poisoned(file)
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise sync_error(error.errno or errno.EIO, file.path) from error  # schedule 32/full-where-a-sync-failed


def sync_error(number: int, path: str) -> DiskError:
    """The port's error of an fdatasync, never DiskFull."""
    return DiskError(number, f"sync: {os.strerror(number)}", path)


def refuse_if_poisoned(file: OpenFile) -> None:
    """Raises DiskError for a file of which a sync has failed (schedule 32)."""
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
    """syncfs(2), where there is one that reports errors."""
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
    """Whether the Linux of this release (`uname -r`) tells syncfs of failed writes; unknown ones do not."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _SYNCFS_REPORTS_SINCE
