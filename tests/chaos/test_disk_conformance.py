"""The disk double answers as the real disk does, call by call: otherwise the simulator tests another program."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.chaos.sim.disk_port import DiskPort
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.world import World
from strandline.log.disk import Disk, DiskError
from strandline.log.real_disk import RealDisk

NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "x/y"])
DIRECTORIES = st.sampled_from(["d", "d/e", "a", "x"])
POSITIONS = st.integers(0, 20_000)


def outcome(call: Any, *arguments: Any, **keywords: Any) -> Any:
    """The result, or the kind of error in the terms of the port."""
    try:
        return call(*arguments, **keywords)
    except FileNotFoundError:
        return FileNotFoundError
    except DiskError:
        return DiskError
    except OSError:
        return OSError


class BothDisks(RuleBasedStateMachine):
    """Every operation on both; every answer, and every file afterwards, equal."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="strandline-conformance-")
        world = World(1)
        machine = world.add_machine("n1")
        double = DiskPort(machine.disk, Process(machine, world.loop))
        double.mkdir(self.root)
        self.real = RealDisk()
        self.world = world
        self.disks: tuple[Disk, Disk] = (self.real, double)

    def teardown(self) -> None:
        self.real.close()
        self.world.loop.close()
        shutil.rmtree(self.root)

    def both(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        real, double = (outcome(getattr(disk, method), *arguments, **keywords) for disk in self.disks)
        assert real == double, (method, arguments)
        return real

    def files(self, name: str, create: bool) -> list[Any]:
        opened = [outcome(disk.open, f"{self.root}/{name}", create=create) for disk in self.disks]
        if any(isinstance(file, type) for file in opened):
            assert opened[0] == opened[1], name
            return []
        return opened

    @rule(name=NAMES, position=POSITIONS, data=st.binary(min_size=1, max_size=9_000))
    def write(self, name: str, position: int, data: bytes) -> None:
        for file in self.files(name, True):
            file.pwrite(memoryview(data), position)
            file.close()

    @rule(name=NAMES, position=POSITIONS, size=st.integers(0, 30_000))
    def read(self, name: str, position: int, size: int) -> None:
        files = self.files(name, False)
        if files:
            assert files[0].size() == files[1].size()
            assert files[0].pread(size, position) == files[1].pread(size, position)

    @rule(name=NAMES, size=POSITIONS)
    def truncate(self, name: str, size: int) -> None:
        for file in self.files(name, False):
            file.truncate(size)

    @rule(name=NAMES, position=POSITIONS, size=st.integers(1, 10_000))
    def allocate(self, name: str, position: int, size: int) -> None:
        for file in self.files(name, False):
            file.allocate(position, size)

    @rule(name=NAMES)
    def write_renamed(self, name: str) -> None:
        """A file that is open while its name changes keeps its content."""
        files = self.files(name, False)
        if files and self.both("rename", f"{self.root}/{name}", f"{self.root}/moved") is None:
            for file in files:
                file.pwrite(b"after the rename", 0)
            self.both("rename", f"{self.root}/moved", f"{self.root}/{name}")

    @rule(name=DIRECTORIES)
    def mkdir(self, name: str) -> None:
        self.both("mkdir", f"{self.root}/{name}")

    @rule(name=st.one_of(NAMES, DIRECTORIES))
    def exists(self, name: str) -> None:
        self.both("exists", f"{self.root}/{name}")

    @rule(name=DIRECTORIES)
    def listdir(self, name: str) -> None:
        self.both("listdir", f"{self.root}/{name}")

    @rule(source=NAMES, destination=NAMES)
    def rename(self, source: str, destination: str) -> None:
        self.both("rename", f"{self.root}/{source}", f"{self.root}/{destination}")

    @rule(source=DIRECTORIES)
    def rename_directory(self, source: str) -> None:
        if self.both("exists", f"{self.root}/{source}"):
            self.both("rename", f"{self.root}/{source}", f"{self.root}/{source}-renamed")
            self.both("rename", f"{self.root}/{source}-renamed", f"{self.root}/{source}")

    @rule(name=st.one_of(NAMES, DIRECTORIES))
    def unlink(self, name: str) -> None:
        self.both("unlink", f"{self.root}/{name}")

    @rule(name=DIRECTORIES)
    def rmdir(self, name: str) -> None:
        self.both("rmdir", f"{self.root}/{name}")

    @rule(name=NAMES)
    def sync(self, name: str) -> None:
        for disk, file in zip(self.disks, self.files(name, False), strict=False):
            disk.sync_now([file])
        self.both("sync_dir", self.root)

    @invariant()
    def same_names(self) -> None:
        self.both("listdir", self.root)


TestBothDisks = BothDisks.TestCase
TestBothDisks.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
