"""A file of the production disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from strandline.log.disk import DiskError, DiskPoisoned
from strandline.log.real_sync import as_disk_errors, disk_error, refuse_if_poisoned

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Descriptors(Protocol):
    """The disk that a file is of."""

    poison: DiskPoisoned | None
    """Why nothing on the disk is written any more."""
    waits_for: str
    """The file in a call of which the event loop's thread is, for whoever watches it from outside."""
    calls: int
    """Which of all such calls that is."""

    def reopen(self, file: RealFile) -> None:
        """Open again a descriptor that was given up."""

    def forget(self, file: RealFile) -> None:
        """Close the descriptor of a file that nobody uses any more."""

    def read_cached(self, file: RealFile, fd: int, size: int, position: int) -> bytes | None:
        """What is in memory; None where reading would block."""


class RealFile:
    """A file whose descriptor may be closed and opened again behind it.

    Invariants:
    - A file with unsynced writes or with an operation in a thread keeps its descriptor: an error of writing back is
      told only to descriptors that were open, and a number that is closed under a thread may name another file by then.
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
        """Where it was opened."""
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
        """Up to `size` bytes at `position`; may block."""
        fd = self._readable()
        self._disk.calls += 1
        self._disk.waits_for = self._path
        try:
            return pread_all(fd, size, position, self._path)
        finally:
            self._disk.waits_for = ""

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        """As `pread`, or None where it would block."""
        return self._disk.read_cached(self, self._readable(), size, position)

    def size(self) -> int:
        """Bytes, allocated zeros included."""
        with as_disk_errors("look at", self._path):
            return os.fstat(self._readable()).st_size

    def truncate(self, size: int) -> None:
        """Set the size. Raises DiskFull, DiskError."""
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
            refuse_if_poisoned(self)
        if self._disk.poison is not None:
            raise refused(self._disk.poison)
        fd = self.fd
        if fd < 0:
            fd = self.descriptor()
        self.dirty = self.used = True
        return fd


def refused(poison: DiskPoisoned) -> DiskPoisoned:
    """The error of a call after the one that poisoned the disk."""
    return DiskPoisoned(poison.errno, f"refused: an earlier sync of the whole disk failed ({poison.strerror})", "")


def pread_all(fd: int, size: int, position: int, path: str) -> bytes:
    """`size` bytes at `position`, fewer at the end of the file alone. Raises DiskError."""
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
