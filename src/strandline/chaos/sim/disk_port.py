"""The `Disk` port of one process over a simulated disk: what `RealDisk` and its files are to a node.

`tests/log/test_disk_contract.py` holds both to one contract.
"""

from __future__ import annotations

import contextvars
import errno
import os
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.chaos.sim.disk import NameCall, SimDisk, occupied
from strandline.chaos.sim.disk_image import PAGE_BYTES, FileNode
from strandline.chaos.sim.disk_names import DirNode, NameChange, Names
from strandline.chaos.sim.process import Process
from strandline.log.disk import DiskError, DiskFull, DiskPoisoned, File
from strandline.log.real_sync import SYNC_MANY, NoDescriptor
from strandline.proto.errors import DirectoryInUse

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Buffer


_WORLD = contextvars.Context()


class SimFile:
    """An open file of one process: the `File` port."""

    def __init__(
        self, disk: SimDisk, process: Process, path: str, node: FileNode, refuse_if_poisoned: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._process = process
        self._refuse_if_poisoned = refuse_if_poisoned
        self._path = path
        self.node = node
        self._closed = False
        self._poisoned = False

    @property
    def path(self) -> str:
        return self._path

    def pwrite(self, data: Buffer, position: int) -> None:
        self._writing()
        view = memoryview(data).cast("B")
        if self._disk.struck("writes", self._path):
            self._write(view[: self._disk.done_before_failing(len(view))], position)
            raise DiskError(errno.EIO, "Input/output error", self._path)
        try:
            self._write(view, position)
        except DiskFull:
            room = occupied(self.node.size) + self._disk.free_bytes - position
            self._write(view[: max(0, min(len(view), room) // PAGE_BYTES * PAGE_BYTES)], position)
            raise

    def _write(self, view: memoryview, position: int) -> None:
        if view:
            self._disk.reserve(self.node.size, max(self.node.size, position + len(view)))
            self._disk.loop.mix(zlib.crc32(view) ^ position)
            self.node.write(view, position)
            self.node.modified_ms = self._process.clock.wall_ms()

    def pread(self, size: int, position: int) -> bytes:
        self._operation()
        if self._disk.struck("reads", self._path):
            raise DiskError(errno.EIO, "Input/output error", self._path)
        return self.node.read(size, position)

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        if self._disk.is_cold() and position < self.node.size:
            self._operation()
            return None
        return self.pread(size, position)

    def size(self) -> int:
        self._operation()
        return self.node.size

    def truncate(self, size: int) -> None:
        self._writing()
        self._strike_write()
        self._disk.reserve(self.node.size, size)
        self._disk.loop.mix(size)
        self.node.resize(size)

    def allocate(self, position: int, size: int) -> None:
        self._writing()
        self._strike_write()
        grown = max(self.node.size, position + size)
        self._disk.reserve(self.node.size, grown)
        self.node.resize(grown)

    def _strike_write(self) -> None:
        if self._disk.struck("writes", self._path):
            raise DiskError(errno.EIO, "Input/output error", self._path)

    def close(self) -> None:
        self._closed = True

    def begin_sync(self) -> int:
        """Begin a sync of this open file; raises DiskError once one has failed (schedule 32: a failed sync is never
        repeated)."""
        self._writing()
        return self.node.begin_sync()

    def poison(self) -> None:
        """Refuse what follows: a sync was to cover this file, and did not."""
        self._poisoned = True

    def finish_sync(self, token: int, *, failed: bool) -> None:
        if failed:
            self._poisoned = True
            self.node.fail_sync(token)
        else:
            self.node.complete_sync(token)

    def _writing(self) -> None:
        self._operation()
        self._refuse_if_poisoned()
        if self._poisoned:
            raise DiskError(errno.EIO, "refused after a failed sync", self._path)

    def _operation(self) -> None:
        self._disk.operation(self._process)
        if self._closed:
            # As RealDisk: a closed file is opened again by its path when it is used.
            error = self._disk.name_error(self._path, NameCall.OPENS)
            if error is not None:
                raise error
            node = self._disk.names.find(self._path)
            if not isinstance(node, FileNode):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", self._path)
            self.node = node
            self._closed = False


@dataclass(eq=False)
class SimLock:
    """A directory that one process has to itself."""

    disk: SimDisk
    path: str
    process: Process

    def release(self) -> None:
        """Let others have it. Idempotent."""
        if self.disk.locks.get(self.path) is self.process:
            del self.disk.locks[self.path]


@dataclass(eq=False)
class _Group:
    """Files and directories that one group sync covers."""

    files: list[tuple[SimFile, int]]
    directories: list[tuple[str, DirNode, list[NameChange]]]
    power_cuts: int
    done: asyncio.Future[None]


class DiskPort:
    """The `Disk` port of one process incarnation; dead, it refuses everything."""

    def __init__(self, disk: SimDisk, process: Process) -> None:
        self._disk = disk
        self._process = process
        self.busy = False
        self.sync_thread = "simulated"
        self._poison: DiskPoisoned | None = None

    def lock(self, path: str) -> SimLock:
        names = self._names(path, NameCall.OPENS)
        if not isinstance(names.find(path), DirNode):
            raise DiskError(errno.ENOENT, "No such file or directory", path)
        holder = self._disk.locks.get(path)
        if holder is not None and holder.alive:
            raise DirectoryInUse(path, f"process {holder}")
        self._disk.locks[path] = self._process
        return SimLock(self._disk, path, self._process)

    def open(self, path: str, *, create: bool = False) -> SimFile:
        names = self._names(path, NameCall.OPENS)
        if create:
            self._refuse_if_poisoned()
        node = names.find(path)
        if isinstance(node, DirNode):
            raise DiskError(errno.EISDIR, "Is a directory", path)
        if node is None:
            directory, name = names.parent(path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self._require_names(path, NameCall.ADDS)
            node = FileNode()
            self._change(names, (directory, name, node))
        return SimFile(self._disk, self._process, path, node, self._refuse_if_poisoned)

    def exists(self, path: str) -> bool:
        return self._names(path).find(path) is not None

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(self._names(path, NameCall.OPENS), path).entries)

    def mkdir(self, path: str) -> None:
        names = self._changing(path, NameCall.ADDS)
        directory = names.root
        for part in path.split("/"):
            if part:
                child = directory.entries.get(part)
                if child is None:
                    child = DirNode()
                    self._change(names, (directory, part, child))
                if not isinstance(child, DirNode):
                    raise DiskError(errno.EEXIST, "File exists", path)
                directory = child

    def rename(self, source: str, target: str) -> None:
        names = self._changing(source, NameCall.ADDS)
        if self._disk.struck("writes", target):
            raise DiskError(errno.EIO, "Input/output error", target)
        source_directory, source_name = names.parent(source)
        target_directory, target_name = names.parent(target)
        node = source_directory.entries.get(source_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        replaced = target_directory.entries.get(target_name)
        if replaced is node:
            return
        if isinstance(replaced, DirNode) and isinstance(node, FileNode):
            raise DiskError(errno.EISDIR, "Is a directory", target)
        if isinstance(replaced, FileNode) and isinstance(node, DirNode):
            raise DiskError(errno.ENOTDIR, "Not a directory", target)
        if isinstance(replaced, DirNode) and replaced.entries:
            raise DiskError(errno.ENOTEMPTY, "Directory not empty", target)
        if isinstance(replaced, FileNode):
            self._disk.used_bytes -= occupied(replaced.size)
        self._change(names, (source_directory, source_name, None), (target_directory, target_name, node))

    def unlink(self, path: str) -> None:
        names = self._changing(path)
        directory, name = names.parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, DirNode):
            raise DiskError(errno.EISDIR, "Is a directory", path)
        self._disk.used_bytes -= occupied(node.size)
        names.change((directory, name, None))

    def rmdir(self, path: str) -> None:
        names = self._changing(path)
        found = self._directory(names, path)
        if found.entries:
            raise DiskError(errno.ENOTEMPTY, "Directory not empty", path)
        directory, name = names.parent(path)
        names.change((directory, name, None))

    def free_bytes(self, path: str) -> int:
        self._look_up(self._names(path), path)
        return max(0, self._disk.free_bytes)

    def total_bytes(self, path: str) -> int:
        self._look_up(self._names(path), path)
        return self._disk.config.capacity_bytes

    def modified_ms(self, path: str) -> int:
        node = self._look_up(self._names(path), path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return node.modified_ms

    # --- syncs ---

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        group = self._begin_sync(files, directories)
        self._disk.blocks(self._process)
        error = self._carry_out(group)
        if error is not None:
            raise error
        self._process.stall(self._disk.sync_us(len(files) + len(directories)))

    def sync_dir(self, path: str) -> None:
        names = self._names(path, NameCall.OPENS)
        self._refuse_if_poisoned()
        directory = self._directory(names, path)
        covered = names.begin_sync(directory)
        self._disk.blocks(self._process)
        if self._disk.struck("dir_syncs", path):
            names.fail_sync(directory, covered)
            raise self._poisoned(path)
        names.complete_sync(covered)
        self._process.stall(self._disk.sync_us(1))

    def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> Awaitable[None]:
        group = self._begin_sync(files, directories)
        duration_us = self._disk.sync_us(len(files) + len(directories))
        wait_us = 0 if directories or len(files) > SYNC_MANY else round(wait_ms * 1000)
        if duration_us <= wait_us and not self._disk.hung:
            self._process.stall(duration_us)
            self._disk.loop.effects["sync-waited-for"] += 1
            self._finish_sync(group)
        else:
            self._process.stall(wait_us)
            self._disk.loop.effects["sync-wait-missed"] += wait_us > 0
            self._later(duration_us, self._sync_done, group)
        return group.done

    def _begin_sync(self, files: Sequence[File], directories: Sequence[str]) -> _Group:
        names = self._names()
        self._refuse_if_poisoned()
        covered: list[tuple[SimFile, int]] = []
        for file in files:
            assert isinstance(file, SimFile)
            covered.append((file, file.begin_sync()))
        changes: list[tuple[str, DirNode, list[NameChange]]] = []
        for path in directories:
            node = names.find(path)
            if isinstance(node, DirNode):  # one that was deleted meanwhile has nothing left to make durable
                changes.append((path, node, names.begin_sync(node)))
        return _Group(covered, changes, self._disk.power_cuts, self._disk.loop.create_future())

    def _sync_done(self, group: _Group) -> None:
        self._disk.end_sync(lambda: self._finish_sync(group))

    def _finish_sync(self, group: _Group) -> None:
        """Finish a group sync, at its second instant. The kernel gets here even when the process that asked was
        killed in between."""
        if self._disk.power_cuts != group.power_cuts:
            return
        error = self._carry_out(group)
        if group.done.done():
            return
        if error is not None:
            group.done.set_exception(error)
        else:
            group.done.set_result(None)

    def _carry_out(self, group: _Group) -> DiskError | None:
        """Files first; where one fails nothing of the group is relied on. Many go by one syncfs, whose error is
        everybody's. Before anything is synced the directories are opened."""
        for path, _, _ in group.directories:
            error = self._disk.name_error(path, NameCall.OPENS)
            if error is not None:
                for file, _ in group.files if not isinstance(error, NoDescriptor) else ():
                    file.poison()
                return error
        failed = [file for file, _ in group.files if self._disk.struck("syncs", file.path)]
        for file, token in group.files:
            file.finish_sync(token, failed=bool(failed))
        if failed:
            if len(group.files) + len(group.directories) > SYNC_MANY:
                return self._poisoned(failed[0].path)
            number = self._disk.faults.error  # of no kind of its own: what found no room is gone
            return DiskError(number, f"{os.strerror(number)} in fdatasync", failed[0].path)
        for path, directory, changes in group.directories:
            if self._disk.struck("dir_syncs", path):
                self._disk.names.fail_sync(directory, changes)
                return self._poisoned(path)
            self._disk.names.complete_sync(changes)
        return None

    def _poisoned(self, path: str) -> DiskPoisoned:
        """The error of a sync after which nothing on this disk is relied on."""
        self._poison = DiskPoisoned(errno.EIO, "sync directory: Input/output error", path)
        return self._poison

    def _refuse_if_poisoned(self) -> None:
        if self._poison is not None:
            raise DiskPoisoned(errno.EIO, "refused: an earlier sync of the whole disk failed", "")

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        await self._pass(self._disk.read_us())
        return file.pread(size, position)

    def boot_id(self) -> str:
        self._operation()
        return f"boot-{self._disk.power_cuts}"

    async def unlink_slowly(self, path: str) -> None:
        await self._pass(self._disk.sync_us(1))
        self.unlink(path)

    async def _pass(self, duration_us: int) -> None:
        self._operation()
        done = self._disk.loop.create_future()
        self._later(duration_us, _wake, done)
        await done

    def _later(self, delay_us: int, callback: Callable[..., None], *args: Any) -> None:
        self._disk.loop.call_at_us(self._disk.loop.now_us + delay_us, callback, *args, context=_WORLD)

    def _operation(self) -> None:
        self._disk.operation(self._process)

    def _names(self, path: str = "", doing: NameCall = NameCall.OTHER) -> Names:
        """The names, for a call that looks at `path`."""
        self._operation()
        if path:
            self._require_names(path, doing)
        return self._disk.names if self._disk.mounted else Names()

    def _require_names(self, path: str, doing: NameCall) -> None:
        error = self._disk.name_error(path, doing)
        if error is not None:
            raise error

    def _changing(self, path: str, doing: NameCall = NameCall.OTHER) -> Names:
        """The names, for a call that changes some."""
        names = self._names(path, doing)
        self._refuse_if_poisoned()
        return names

    def _change(self, names: Names, *steps: tuple[DirNode, str, FileNode | DirNode | None]) -> None:
        """Make or change a name, which keeps the caller for as long as the disk takes."""
        names.change(*steps)
        self._process.spend(self._disk.name_us())

    def _look_up(self, names: Names, path: str) -> FileNode | DirNode:
        node = names.find(path)
        if node is None:
            names.parent(path)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _directory(self, names: Names, path: str) -> DirNode:
        node = self._look_up(names, path)
        if not isinstance(node, DirNode):
            raise DiskError(errno.ENOTDIR, "Not a directory", path)
        return node


def _wake(future: Any) -> None:
    if not future.done():
        future.set_result(None)
