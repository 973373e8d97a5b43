"""The lock on a data directory: flock(2) on a small file in it, which says who holds it.

The kernel lets the lock go when the process that has the file open ends, however it ends; the file stays, and means
nothing by itself. A process whose thread waits for a hung disk has not ended yet, killed or not: its write may come.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time

from strandline.log.disk import LOCK_FILE, DiskError
from strandline.log.real_modes import FILE_MODE
from strandline.log.real_sync import as_disk_errors
from strandline.proto.errors import DirectoryInUse

_WORD_MAX = 200


class RealLock:
    """A directory that this process has to itself, until `release` or the process's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, path: str) -> RealLock:
        """Raises DirectoryInUse, DiskError."""
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
        """Keep every process out that would write, for as long as this one reads, and change nothing: no byte of the
        lock's file is written. None where no process has ever locked the directory: there is nothing to hold, and
        whether one comes is seen by the file that it makes.

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
        """Let others have it. Idempotent."""
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
    """For the message alone: a full disk does not keep a node from starting."""
    text = f"pid={os.getpid()}\nhost={socket.gethostname()}\nsince={int(time.time())}\n"
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)
    except OSError:
        pass


def _holder(text: str) -> str:
    """Who holds the lock, in words, from what its file says. Whoever only reads does not write its name there."""
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
    """What runs as `pid`, if it is old enough to hold a lock that was taken at `since`; empty where nobody knows."""
    import psutil  # only after a failure

    try:
        process = psutil.Process(pid)
        if process.create_time() > since + 1:
            return ""
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return command if len(command) <= _WORD_MAX else command[: _WORD_MAX - 3] + "..."
