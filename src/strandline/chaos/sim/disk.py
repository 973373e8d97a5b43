"""A machine's disk: power cuts, tears, failures, syncs that hang, fullness, slowness. `disk_port` is how it is used."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from strandline.chaos.sim.disk_image import PAGE_BYTES, FileNode
from strandline.chaos.sim.disk_names import Names
from strandline.chaos.sim.loop import SimLoop
from strandline.log.disk import DiskError, DiskFull
from strandline.log.real_sync import disk_error


@dataclass
class DiskConfig:
    """Behaviour of a disk of this run; times in microseconds."""

    sync_min_us: int = 200
    sync_max_us: int = 4_000
    read_min_us: int = 100
    read_max_us: int = 5_000
    cold_probability: float = 0.02
    """Probability that a `pread_nowait` finds its bytes not in memory."""
    sector_bytes: int = 512
    capacity_bytes: int = 1 << 34
    slow_factor: float = 1.0
    name_us: int = 0
    """Microseconds to create or rename a file, for which the caller waits (400 in a full region of an old ext4)."""


@dataclass
class DiskFaults:
    """Failures to come; each counter falls by one as it strikes. Only paths that contain `where` are hit."""

    syncs: int = 0
    dir_syncs: int = 0
    """Syncs of directories, alone or in a group."""
    names: int = 0
    """Calls that open, list or change names."""
    error: int = errno.EIO
    """Error of failing syncs of files and calls of names: EIO; ENOSPC, which names meet only where one is added;
    EMFILE, which only calls meet that need a descriptor."""
    writes: int = 0
    reads: int = 0
    where: str = ""


class NameCall(Enum):
    """Needs of a call of names."""

    OPENS = "a descriptor"
    ADDS = "room for a name"
    OTHER = "neither"


_MET_BY = {errno.EMFILE: NameCall.OPENS, errno.ENOSPC: NameCall.ADDS}


class Caller(Protocol):
    """The process (`strandline.chaos.sim.process.Process`) that calls the disk."""

    @property
    def alive(self) -> bool: ...
    @property
    def machine_name(self) -> str: ...
    def require_alive(self) -> None: ...
    def block(self) -> None: ...


class SimDisk:
    """A machine's disk; it outlives the processes that use it."""

    def __init__(self, loop: SimLoop, rng: random.Random, config: DiskConfig) -> None:
        self.loop = loop
        self.config = config
        self.faults = DiskFaults()
        self.names = Names()
        self.used_bytes = 0
        self.foreign_bytes = 0
        """Bytes that another program on the machine has taken."""
        self.power_cuts = 0
        self.wipes = 0
        self.destroyed = 0
        """Number of times that something on it was destroyed for good: a directory, a bit, everything."""
        self.rotten: dict[str, None] = {}
        """Directories with rotten files, which checks of the log skip."""
        self.tails_lost: dict[str, None] = {}
        """Directories whose disk lost data that was synced last. While the broker is in no ISR, it cannot find out that
        data is missing."""
        self._flipped: list[tuple[str, int, int]] = []
        """(path, position, byte) of what `rot` left there."""
        self.operations = 0
        self.locks: dict[str, Caller] = {}
        """Directory -> process that has locked it."""
        self.hung = False
        """True while no sync ends, whether it has begun already or begins now."""
        self.on_blocked: Callable[[Caller], None] = lambda process: None
        """Callback for a process whose loop waits for a hung disk: it runs no further."""
        self._held: list[Callable[[], None]] = []
        self._rng = rng
        self.mounted = True
        """Processes find it."""
        self._strike_in = 0
        self._strike: Callable[[], None] | None = None

    # --- what a scenario does to it ---

    def crash(self) -> None:
        """Cut the power: unsynced sectors and names are lost, or not, at random."""
        self.power_cuts += 1
        self._strike = None
        self._held.clear()
        effects = self.loop.effects
        for lost in self.names.crash(self._rng):
            effects["rename-lost" if len(lost.steps) > 1 else "name-lost"] += 1
        for _, node in self.names.files():
            gone, unsynced = node.crash(self._rng, self.config.sector_bytes)
            effects["sectors-lost"] += gone
            effects["file-torn"] += 0 < gone < unsynced
        self._count()

    def hang(self) -> None:
        """Let no sync end from now on, until `let_go`."""
        self.hung = True

    def let_go(self) -> None:
        """End the syncs that hung, in their order."""
        self.hung = False
        held, self._held = self._held, []
        for end in held:
            end()

    def evict(self) -> None:
        """Memory is short: what counts as clean leaves the page cache, and readers find what is on the disk (after a
        failed sync that is not what was written)."""
        self.names.evict()
        for _, node in self.names.files():
            node.evict()
        self._count()

    def strike_after(self, operations: int, strike: Callable[[], None] | None) -> None:
        """Call `strike` (a kill, a power cut) right before the n-th operation from now: in mid-callback if so be it.
        None takes a strike back."""
        self._strike_in = operations
        self._strike = strike

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot: damage that is durable, and that no sync or crash undoes.

        Raises:
            FileNotFoundError: no such file.
        """
        node = self.names.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        node.pages[position // PAGE_BYTES][position % PAGE_BYTES] ^= 1 << bit
        self.destroyed += 1
        self.loop.effects["bit-flipped"] += 1

    def give_back(self, path: str, data: bytes) -> None:
        """Give a file another content from now on, durably. Of what beside the logs is damaged nothing good is lost: it
        does not count as destroyed.

        Raises:
            FileNotFoundError: no such file.
        """
        node = self.names.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        node.become(data)
        self.loop.effects["file-damaged"] += 1
        self._count()

    def lose_tail(self, path: str, position: int, *, cut: bool) -> None:
        """Lose what was synced from `position` on, as a dishonest disk: it is zeros, or the file ends there, for good.

        Raises:
            FileNotFoundError: no such file.
        """
        node = self.names.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if cut:
            node.resize(position)
        else:
            node.write(memoryview(bytes(node.size - position)), position)
        node.complete_sync(node.begin_sync())
        self.tails_lost[path.rpartition("/")[0]] = None
        self.destroyed += 1
        self.loop.effects["tail-lost"] += 1
        self._count()

    def rot(self, path: str, position: int, bit: int) -> None:
        """`flip_bit`, remembered in `rotten`."""
        self.flip_bit(path, position, bit)
        self.rotten[path.rpartition("/")[0]] = None
        self._flipped.append((path, position, self._byte(path, position)))

    def _byte(self, path: str, position: int) -> int:
        """Byte at a position; -1 for nothing."""
        node = self.names.find(path)
        if not isinstance(node, FileNode) or position >= node.size:
            return -1
        page = node.pages.get(position // PAGE_BYTES)
        return 0 if page is None else int(page[position % PAGE_BYTES])  # a power cut took the page, and left the size

    def look_for_rot(self, directory: str) -> bool:
        """Whether any bit that rotted in the directory is still as `rot` left it; else it is judged again."""
        there = [flip for flip in self._flipped if flip[0].rpartition("/")[0] == directory]
        if any(self._byte(path, position) == byte for path, position, byte in there):
            return True
        self.rotten.pop(directory, None)
        return False

    def remove_directory(self, path: str) -> None:
        """Move a directory away for good, by hand, while nothing runs. Nothing happens when it does not exist."""
        self.rotten.pop(path, None)
        if self.names.find(path) is None:
            return
        parent, name = self.names.parent(path)
        del parent.entries[name]
        self.destroyed += 1
        self.loop.effects["directory-lost"] += 1
        self._count()

    def unmount(self) -> None:
        """Let the disk not be found at a boot: nothing is where it was mounted. What is on it stays."""
        self.mounted = False
        self.loop.effects["disk-unmounted"] += 1

    def wipe(self) -> None:
        """Replace the disk by a new, empty one."""
        self.names = Names()
        self.wipes += 1
        self.destroyed += 1
        self.loop.effects["disk-replaced"] += 1
        self.rotten.clear()
        self._count()

    def _count(self) -> None:
        self.used_bytes = sum(occupied(node.size) for _, node in self.names.files())

    def files(self) -> dict[str, bytes]:
        """Every file as readers see it now."""
        return {path: node.read(node.size, 0) for path, node in self.names.files()}

    # --- for the port ---

    def operation(self, process: Caller) -> None:
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
        """Whether the injected fault `kind`, a field of `DiskFaults`, hits this call."""
        left: int = getattr(self.faults, kind)
        if left <= 0 or self.faults.where not in path:
            return False
        setattr(self.faults, kind, left - 1)
        self.loop.effects[f"{kind[:-1].replace('_', '-')}-failed"] += 1
        return True

    def name_error(self, path: str, doing: NameCall) -> DiskError | None:
        """The injected failure of a call that opens, lists or changes names."""
        wanted = _MET_BY.get(self.faults.error)
        if (wanted is not None and doing is not wanted) or not self.struck("names", path):
            return None
        number = self.faults.error
        self.loop.effects["no-descriptor"] += number == errno.EMFILE
        return disk_error(OSError(number, os.strerror(number)), "injected", path)

    def end_sync(self, end: Callable[[], None]) -> None:
        """End a sync that has taken its time, unless the disk hangs."""
        if self.hung:
            self.loop.effects["sync-hung"] += 1
            self._held.append(end)
        else:
            end()

    def blocks(self, process: Caller) -> None:
        """Block the process if a call on its event loop's thread syncs a hung disk: nothing of it runs any more."""
        if self.hung:
            self.loop.effects["loop-blocked"] += 1
            self.on_blocked(process)
            process.require_alive()

    @property
    def free_bytes(self) -> int:
        """Bytes that are left; less than nothing where the capacity was lowered below what is used."""
        return self.config.capacity_bytes - self.foreign_bytes - self.used_bytes

    def reserve(self, before: int, after: int) -> None:
        """Account for a file's change of size.

        Raises:
            DiskFull: it does not fit.
        """
        growth = occupied(after) - occupied(before)
        if growth > 0 and growth > self.free_bytes:
            self.loop.effects["no-space"] += 1
            raise DiskFull(errno.ENOSPC, "No space left on device")
        self.used_bytes += growth

    def done_before_failing(self, size: int) -> int:
        """Bytes of a failing write that are written all the same."""
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

    def name_us(self) -> int:
        self.loop.effects["names-slow"] += self.config.name_us > 0
        return self.config.name_us

    def is_cold(self) -> bool:
        return self._rng.random() < self.config.cold_probability


def occupied(size: int) -> int:
    """Bytes that a file of `size` takes of the disk."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
