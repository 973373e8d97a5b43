"""A disk that changes nothing: writes stay in memory, over files that are opened for reading only.

So the product's own recovery can run over a directory to show what it would do (`strandline log verify`,
`strandline log repair --dry-run`), and the result is what a start does, instead of a second description of it.

Writes take a few kilobytes a partition (checkpoints, rebuilt indexes); unchanged bytes are read from their files, and
never copied.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from strandline.log.disk import DirectoryLock, DiskError, File
from strandline.log.real_disk import pread_all
from strandline.log.real_sync import as_disk_errors

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OPEN_FILES_MAX = 128


class Change(NamedTuple):
    """Change of one file, by its name before and after.

    Attributes:
        before: name before; None if the file is new.
        after: name after; None if the file is gone.
        bytes_before, bytes_after: sizes; -1 if there is no such file.
    """

    before: str | None
    after: str | None
    bytes_before: int
    bytes_after: int


class _Descriptors:
    """Open files of the real disk, for reading only; beyond a limit the least recently used is closed."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def get(self, path: str) -> int:
        fd = self._open.get(path)
        if fd is None:
            with as_disk_errors("open", path):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._open[path] = fd
            if len(self._open) > _OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(path)
        return fd

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


class _Content:
    """Content of a file: `kept` bytes of its source, zeros up to `size`, and `pieces` over both, the latest last."""

    __slots__ = ("kept", "modified_ms", "pieces", "size", "source")

    def __init__(self, source: str | None, size: int, modified_ms: int) -> None:
        self.source = source
        self.kept = self.size = size
        self.modified_ms = modified_ms
        self.pieces: list[tuple[int, bytes]] = []

    def truncate(self, size: int) -> None:
        self.kept = min(self.kept, size)
        self.pieces = [(at, data[: size - at]) for at, data in self.pieces if at < size]
        self.size = size

    def write(self, data: bytes, position: int) -> None:
        if self.pieces and self.pieces[-1][0] == position and len(self.pieces[-1][1]) <= len(data):
            self.pieces.pop()
        self.pieces.append((position, data))
        self.size = max(self.size, position + len(data))

    def read(self, descriptors: _Descriptors, size: int, position: int) -> bytes:
        size = max(0, min(size, self.size - position))
        from_source = max(0, min(size, self.kept - position))
        data = b""
        if from_source and self.source is not None:
            data = pread_all(descriptors.get(self.source), from_source, position, self.source)
        if not self.pieces and len(data) == size:
            return data
        mixed = bytearray(data.ljust(size, b"\0"))
        for at, piece in self.pieces:
            start, end = max(at, position), min(at + len(piece), position + size)
            if start < end:
                mixed[start - position : end - position] = piece[start - at : end - at]
        return bytes(mixed)


class _Directory:
    """Names in a directory; those of the source are read on first use."""

    def __init__(self, source: str | None) -> None:
        self.source = source
        self._entries: dict[str, _Directory | _Content] | None = None if source is not None else {}

    @property
    def entries(self) -> dict[str, _Directory | _Content]:
        if self._entries is None:
            self._entries = dict(_found(self.source or ""))
        return self._entries

    @property
    def is_untouched(self) -> bool:
        return self._entries is None


def _found(source: str) -> Iterator[tuple[str, _Directory | _Content]]:
    with as_disk_errors("list directory", source):
        for name in sorted(os.listdir(source)):
            path = f"{source}/{name}"
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                yield name, _Directory(path)
            elif stat.S_ISREG(status.st_mode):
                yield name, _Content(path, status.st_size, status.st_mtime_ns // 1_000_000)


class OverlayDisk:
    """Implements the Disk port over one directory, which is not changed.

    Invariants:
    - no file of the real directory is opened for writing, made, renamed or deleted;
    - paths outside of `root` do not exist.
    """

    busy = False
    sync_thread = "none"

    def __init__(self, root: str) -> None:
        self._root = root
        self._tree = _Directory(root)
        self._descriptors = _Descriptors()
        self._removed: list[str] = []

    def close(self) -> None:
        """Close all descriptors."""
        self._descriptors.close()

    # ------------------------------------------------------------------ files and names

    def lock(self, path: str) -> DirectoryLock:
        """Return a lock without effect: no other process sees these writes. Readers lock the real directory instead."""
        return _NoLock()

    def open(self, path: str, *, create: bool = False) -> OverlayFile:
        """Open a file. Raises FileNotFoundError unless `create`."""
        parent, name = self._parent(path)
        found = parent.entries.get(name)
        if found is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            found = parent.entries[name] = _Content(None, 0, 0)
        if isinstance(found, _Directory):
            raise DiskError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return OverlayFile(path, found, self._descriptors)

    def exists(self, path: str) -> bool:
        """True if the name exists."""
        try:
            self._at(path)
        except FileNotFoundError:
            return False
        except DiskError as error:  # below a file there is nothing
            if error.errno != errno.ENOTDIR:
                raise
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """True if a directory of this name exists."""
        return self.exists(path) and isinstance(self._at(path), _Directory)

    def listdir(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""
        return sorted(self._directory(path).entries)

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents."""
        if path != self._root:
            self.mkdir(path.rpartition("/")[0])
            parent, name = self._parent(path)
            parent.entries.setdefault(name, _Directory(None))

    def rename(self, source: str, target: str) -> None:
        """Move a file or a directory, replacing what has the target's name."""
        found = self._at(source)
        old_parent, old_name = self._parent(source)
        new_parent, new_name = self._parent(target)
        del old_parent.entries[old_name]
        new_parent.entries[new_name] = found

    def unlink(self, path: str) -> None:
        """Remove the name. Raises FileNotFoundError."""
        self._at(path)
        parent, name = self._parent(path)
        del parent.entries[name]

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        directory = self._directory(path)
        if directory.entries:
            raise DiskError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if directory.source is not None:
            self._removed.append(directory.source)
        self.unlink(path)

    def free_bytes(self, path: str) -> int:
        """Return a practically unlimited number: nothing is written to a disk."""
        return 1 << 62

    def total_bytes(self, path: str) -> int:
        """Return the same as `free_bytes`."""
        return 1 << 62

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write to the file; 0 for a file made here. Raises FileNotFoundError."""
        found = self._at(path)
        return found.modified_ms if isinstance(found, _Content) else 0

    def boot_id(self) -> str:
        """Return the kernel's id of this boot, as a start on this machine would find it."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as source:
                return source.read().strip()
        except OSError:
            return ""

    # ------------------------------------------------------------------ syncs and threads: there is nothing to sync

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """Do nothing: nothing is written to the disk, so nothing can be lost."""

    def sync_dir(self, path: str) -> None:
        """Do nothing, as `sync_now`."""

    async def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
        """Do nothing, as `sync_now`."""

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        """Do `pread`, blocking: nothing else needs this thread."""
        return file.pread(size, position)

    async def unlink_slowly(self, path: str) -> None:
        """Do `unlink`: it frees no space."""
        self.unlink(path)

    # ------------------------------------------------------------------ changes

    def changes(self) -> list[Change]:
        """Return the files that differ from those on the disk, by name."""
        before: dict[str, tuple[str, int]] = {}
        after: dict[str, tuple[str, _Content]] = {}
        self._walk(self._tree, "", before, after)
        for directory in self._removed:
            self._walk_source(directory, before)
        gone = dict(before[source] for source in sorted(before.keys() - after.keys()))
        found: list[Change] = []
        for key, (name, content) in sorted(after.items()):
            if key not in before:
                size = gone.pop(name, -1)
                found.append(Change(name if size >= 0 else None, name, size, content.size))
                continue
            old_name, size = before[key]
            if old_name != name or content.pieces or content.size != size or content.kept != size:
                found.append(Change(old_name, name, size, content.size))
        found += [Change(name, None, size, -1) for name, size in gone.items()]
        found.sort(key=lambda change: change.before or change.after or "")
        return found

    def _walk(
        self,
        directory: _Directory,
        path: str,
        before: dict[str, tuple[str, int]],
        after: dict[str, tuple[str, _Content]],
    ) -> None:
        if directory.is_untouched:
            return
        if directory.source is not None:
            self._walk_source(directory.source, before)
        for name, entry in directory.entries.items():
            inner = f"{path}/{name}" if path else name
            if isinstance(entry, _Directory):
                self._walk(entry, inner, before, after)
            else:
                after[entry.source or f"new {inner}"] = (inner, entry)

    def _walk_source(self, source: str, before: dict[str, tuple[str, int]]) -> None:
        for name, entry in _found(source):
            if isinstance(entry, _Content):
                path = f"{source}/{name}"
                before[path] = (path.removeprefix(self._root + "/"), entry.size)

    # ------------------------------------------------------------------ paths

    def _at(self, path: str) -> _Directory | _Content:
        if path == self._root:
            return self._tree
        parent, name = self._parent(path)
        found = parent.entries.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _directory(self, path: str) -> _Directory:
        found = self._at(path)
        if not isinstance(found, _Directory):
            raise DiskError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return found

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        if not path.startswith(self._root + "/"):
            raise FileNotFoundError(errno.ENOENT, f"not in {self._root}", path)
        return self._directory(parent), name


class OverlayFile:
    """A file of an `OverlayDisk`."""

    __slots__ = ("_content", "_descriptors", "_path")

    def __init__(self, path: str, content: _Content, descriptors: _Descriptors) -> None:
        self._path = path
        self._content = content
        self._descriptors = descriptors

    @property
    def path(self) -> str:
        """Path under which the file was opened."""
        return self._path

    def pwrite(self, data: Buffer, position: int) -> None:
        """Keep a write in memory, unless the file has these bytes already: recovery writes much again unchanged."""
        content, written = self._content, bytes(data)
        if position + len(written) > content.size or self.pread(len(written), position) != written:
            content.write(written, position)

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`."""
        return self._content.read(self._descriptors, size, position)

    def pread_nowait(self, size: int, position: int) -> bytes:
        """Do `pread`, blocking: nothing else needs this thread."""
        return self.pread(size, position)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._content.size

    def truncate(self, size: int) -> None:
        """Set the file's size."""
        self._content.truncate(size)

    def allocate(self, position: int, size: int) -> None:
        """Extend the file with zeros."""
        self._content.size = max(self._content.size, position + size)

    def close(self) -> None:
        """Do nothing: the disk keeps the descriptors."""


class _NoLock:
    def release(self) -> None:
        """Do nothing: the lock was never taken."""
