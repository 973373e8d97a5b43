"""The `Disk` port over a simulated disk: syncs with two instants, power cuts, tears, failures, fullness, slowness."""

from __future__ import annotations

import contextvars
import errno
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.chaos.sim.disk_image import PAGE_BYTES, DirNode, FileNode, NameChange, Names
from strandline.log.disk import DiskError, DiskFull, File

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from strandline.chaos.sim.loop import SimLoop
    from strandline.chaos.sim.process import Process

_WORLD = contextvars.Context()


@dataclass
class DiskConfig:
    """How a disk of this run behaves; times in microseconds."""

    sync_min_us: int = 200
    sync_max_us: int = 4_000
    read_min_us: int = 100
    read_max_us: int = 5_000
    cold_probability: float = 0.02
    """Of a `pread_nowait` that finds its bytes not in memory."""
    sector_bytes: int = 512
    capacity_bytes: int = 1 << 34
    slow_factor: float = 1.0


@dataclass
class DiskFaults:
    """Failures to come; each counter falls by one as it strikes. Only paths that contain `where` are hit."""

    syncs: int = 0
    writes: int = 0
    reads: int = 0
    where: str = ""


class SimDisk:
    """A machine's disk; it outlives the processes that use it."""

    def __init__(self, loop: SimLoop, rng: random.Random, config: DiskConfig) -> None:
        self.loop = loop
        self.config = config
        self.faults = DiskFaults()
        self.names = Names()
        self.used_bytes = 0
        self.power_cuts = 0
        self.wipes = 0
        self.rotten: dict[str, None] = {}
        """Directories with rotten files: what stands there is not judged."""
        self.operations = 0
        self._rng = rng
        self._strike_in = 0
        self._strike: Callable[[], None] | None = None

    # --- what a scenario does to it ---

    def crash(self) -> None:
        """The power fails: unsynced sectors and names are lost, or not, as chance has it."""
        self.power_cuts += 1
        self._strike = None
        effects = self.loop.effects
        for lost in self.names.crash(self._rng):
            effects["rename-lost" if len(lost.steps) > 1 else "name-lost"] += 1
        for _, node in self.names.files():
            gone, unsynced = node.crash(self._rng, self.config.sector_bytes)
            effects["sectors-lost"] += gone
            effects["file-torn"] += 0 < gone < unsynced
        self._count()

    def strike_after(self, operations: int, strike: Callable[[], None] | None) -> None:
        """Call `strike` (a kill, a power cut) right before the n-th operation from now: in mid-callback if so be it.
        None takes a strike back."""
        self._strike_in = operations
        self._strike = strike

    @property
    def strikes_soon(self) -> bool:
        """A strike is set."""
        return self._strike is not None

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot: damage that is durable, and that no sync or crash undoes.

        Raises:
            FileNotFoundError: no such file.
        """
        node = self.names.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        node.pages[position // PAGE_BYTES][position % PAGE_BYTES] ^= 1 << bit
        self.loop.effects["bit-flipped"] += 1

    def rot(self, path: str, position: int, bit: int) -> None:
        """`flip_bit`, remembered in `rotten`."""
        self.flip_bit(path, position, bit)
        self.rotten[path.rpartition("/")[0]] = None

    def remove_directory(self, path: str) -> None:
        """A directory is moved away for good, by hand, while nothing runs. Nothing happens when it does not exist."""
        self.rotten.pop(path, None)
        if self.names.find(path) is None:
            return
        parent, name = self.names.parent(path)
        del parent.entries[name]
        self.loop.effects["directory-lost"] += 1
        self._count()

    def wipe(self) -> None:
        """A new, empty disk."""
        self.names = Names()
        self.wipes += 1
        self.loop.effects["disk-replaced"] += 1
        self.rotten.clear()
        self._count()

    def _count(self) -> None:
        self.used_bytes = sum(_occupied(node.size) for _, node in self.names.files())

    def files(self) -> dict[str, bytes]:
        """Every file as readers see it now."""
        return {path: node.read(node.size, 0) for path, node in self.names.files()}

    # --- for the port ---

    def operation(self, process: Process) -> None:
        """Every call of the port passes here first."""
        process.require_alive()
        self.operations += 1
        if self._strike is not None:
            self._strike_in -= 1
            if self._strike_in <= 0:
                strike, self._strike = self._strike, None
                strike()
                self.loop.effects["killed-in-callback"] += not process.alive
                process.require_alive()

    def struck(self, kind: str, path: str) -> bool:
        """Whether the injected fault `kind` (syncs, writes, reads) hits this call."""
        left: int = getattr(self.faults, kind)
        if left <= 0 or self.faults.where not in path:
            return False
        setattr(self.faults, kind, left - 1)
        self.loop.effects[f"{kind[:-1]}-failed"] += 1
        return True

    def reserve(self, before: int, after: int) -> None:
        """Account for a file's change of size.

        Raises:
            DiskFull: it does not fit.
        """
        growth = _occupied(after) - _occupied(before)
        if growth > 0 and self.used_bytes + growth > self.config.capacity_bytes:
            self.loop.effects["no-space"] += 1
            raise DiskFull(errno.ENOSPC, "No space left on device")
        self.used_bytes += growth

    def done_before_failing(self, size: int) -> int:
        """How many of a failing write's bytes are written all the same."""
        done = self._rng.randint(0, size) if self._rng.random() < 0.5 else 0
        self.loop.effects["write-torn"] += 0 < done < size
        return done

    def sync_us(self, files: int) -> int:
        config = self.config
        base = config.sync_min_us + self._rng.random() * (config.sync_max_us - config.sync_min_us)
        self.loop.effects["disk-slow"] += config.slow_factor > 1
        return int(base * config.slow_factor) + 20 * files

    def read_us(self) -> int:
        config = self.config
        self.loop.effects["disk-slow"] += config.slow_factor > 1
        return int(
            (config.read_min_us + self._rng.random() * (config.read_max_us - config.read_min_us)) * config.slow_factor
        )

    def is_cold(self) -> bool:
        return self._rng.random() < self.config.cold_probability


class SimFile:
    """An open file of one process: the `File` port."""

    def __init__(self, disk: SimDisk, process: Process, path: str, node: FileNode) -> None:
        self._disk = disk
        self._process = process
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
            room = _occupied(self.node.size) + self._disk.config.capacity_bytes - self._disk.used_bytes - position
            self._write(view[: max(0, min(len(view), room) // PAGE_BYTES * PAGE_BYTES)], position)
            raise

    def _write(self, view: memoryview, position: int) -> None:
        if view:
            self._disk.reserve(self.node.size, max(self.node.size, position + len(view)))
            self._disk.loop.mix(zlib.crc32(view) ^ position)
            self.node.write(view, position)

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
        """Raises DiskError once a sync of this open file has failed (rule D-32)."""
        self._writing()
        return self.node.begin_sync()

    def finish_sync(self, token: int, *, failed: bool) -> None:
        if failed:
            self._poisoned = True
            self.node.fail_sync(token)
        else:
            self.node.complete_sync(token)

    def _writing(self) -> None:
        self._operation()
        if self._poisoned:
            raise DiskError(errno.EIO, "refused after a failed sync", self._path)

    def _operation(self) -> None:
        self._disk.operation(self._process)
        if self._closed:
            # As RealDisk: a closed file is opened again by its path when it is used.
            node = self._disk.names.find(self._path)
            if not isinstance(node, FileNode):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", self._path)
            self.node = node
            self._closed = False


class DiskPort:
    """The `Disk` port of one process incarnation; dead, it refuses everything."""

    def __init__(self, disk: SimDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def open(self, path: str, *, create: bool = False) -> SimFile:
        names = self._names()
        node = names.find(path)
        if isinstance(node, DirNode):
            raise DiskError(errno.EISDIR, "Is a directory", path)
        if node is None:
            directory, name = names.parent(path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            node = FileNode()
            names.change((directory, name, node))
        return SimFile(self._disk, self._process, path, node)

    def exists(self, path: str) -> bool:
        return self._names().find(path) is not None

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(self._names(), path).entries)

    def mkdir(self, path: str) -> None:
        names = self._names()
        directory = names.root
        for part in path.split("/"):
            if part:
                child = directory.entries.get(part)
                if child is None:
                    child = DirNode()
                    names.change((directory, part, child))
                if not isinstance(child, DirNode):
                    raise DiskError(errno.EEXIST, "File exists", path)
                directory = child

    def rename(self, source: str, target: str) -> None:
        names = self._names()
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
            self._disk.used_bytes -= _occupied(replaced.size)
        names.change((source_directory, source_name, None), (target_directory, target_name, node))

    def unlink(self, path: str) -> None:
        names = self._names()
        directory, name = names.parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, DirNode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self._disk.used_bytes -= _occupied(node.size)
        names.change((directory, name, None))

    def rmdir(self, path: str) -> None:
        names = self._names()
        found = self._directory(names, path)
        if found.entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        directory, name = names.parent(path)
        names.change((directory, name, None))

    def free_bytes(self, path: str) -> int:
        self._names()
        return max(0, self._disk.config.capacity_bytes - self._disk.used_bytes)

    def total_bytes(self, path: str) -> int:
        self._names()
        return self._disk.config.capacity_bytes

    def sync_now(self, files: Sequence[File]) -> None:
        for file in files:
            assert isinstance(file, SimFile)
            token = file.begin_sync()
            failed = self._disk.struck("syncs", file.path)
            file.finish_sync(token, failed=failed)
            if failed:
                raise DiskError(errno.EIO, "Input/output error in fdatasync", file.path)
        self._process.stall(self._disk.sync_us(len(files)))

    def sync_dir(self, path: str) -> None:
        names = self._names()
        names.complete_sync(names.begin_sync(self._directory(names, path)))
        self._process.stall(self._disk.sync_us(1))

    async def sync(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        names = self._names()
        covered: list[tuple[SimFile, int]] = []
        for file in files:
            assert isinstance(file, SimFile)
            covered.append((file, file.begin_sync()))
        changes: list[NameChange] = []
        for path in directories:
            node = names.find(path)
            if isinstance(node, DirNode):  # one that was deleted meanwhile has nothing left to make durable
                changes += names.begin_sync(node)
        done = self._disk.loop.create_future()
        delay_us = self._disk.sync_us(len(covered) + len(directories))
        self._later(delay_us, self._finish_sync, covered, changes, done, self._disk.power_cuts)
        await done

    def _finish_sync(
        self, covered: list[tuple[SimFile, int]], changes: list[NameChange], done: Any, power_cuts: int
    ) -> None:
        """The second instant. The kernel gets here even when the process that asked was killed in between."""
        if self._disk.power_cuts != power_cuts:
            return
        failed = [file for file, _ in covered if self._disk.struck("syncs", file.path)]
        for file, token in covered:
            file.finish_sync(token, failed=bool(failed))
        if not failed:
            self._disk.names.complete_sync(changes)
        if done.done():
            return
        if failed:
            done.set_exception(DiskError(errno.EIO, "Input/output error in fdatasync", failed[0].path))
        else:
            done.set_result(None)

    async def pread_cold(self, file: File, size: int, position: int) -> bytes:
        await self._pass(self._disk.read_us())
        return file.pread(size, position)

    def boot_id(self) -> str:
        self._names()
        return f"boot-{self._disk.power_cuts}"

    async def unlink_slowly(self, path: str) -> None:
        await self._pass(self._disk.sync_us(1))
        self.unlink(path)

    async def _pass(self, duration_us: int) -> None:
        self._names()
        done = self._disk.loop.create_future()
        self._later(duration_us, _wake, done)
        await done

    def _later(self, delay_us: int, callback: Callable[..., None], *args: Any) -> None:
        self._disk.loop.call_at_us(self._disk.loop.now_us + delay_us, callback, *args, context=_WORLD)

    def _names(self) -> Names:
        self._disk.operation(self._process)
        return self._disk.names

    def _directory(self, names: Names, path: str) -> DirNode:
        node = names.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if not isinstance(node, DirNode):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node


def _wake(future: Any) -> None:
    if not future.done():
        future.set_result(None)


def _occupied(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
