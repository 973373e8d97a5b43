"""Either disk, the production one or the simulator's, under one handle: what `test_disk_contract*` run against."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from strandline.chaos.sim.disk import DiskFaults
from strandline.chaos.sim.disk_port import DiskPort
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.world import World
from strandline.log.disk import Disk, write_file_durably
from strandline.log.real_disk import RealDisk
from tests.log import beneath


class Real:
    """The production disk in a temporary directory."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, compiled_sync: bool) -> None:
        self.root = str(root)
        self._monkeypatch = monkeypatch
        self._compiled_sync = compiled_sync
        self._disks = [RealDisk(compiled_sync=compiled_sync)]
        self._left: list[int] = []
        self.disk: Disk = self._disks[0]

    def another(self) -> Disk:
        """The disk as another process has it."""
        self._disks.append(RealDisk(compiled_sync=self._compiled_sync))
        return self._disks[-1]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it on a loop."""
        asyncio.run(work)

    def fail(self, kind: str, number: int = errno.EIO, *, calls: int = 1) -> None:
        """The next calls of a kind fail: file sync, directory sync, write, opening (a directory too), listing."""
        names = {"sync": "fdatasync", "dir_sync": "fsync", "write": "pwrite", "open": "open", "list": "listdir"}
        name = names[kind]
        works = getattr(os, name)
        self._left = left = [1] * calls

        def call(*arguments: Any) -> Any:
            if left:
                left.pop()
                raise OSError(number, os.strerror(number))
            return works(*arguments)

        self._monkeypatch.setattr(os, name, call)
        beneath.route()

    def mend(self) -> None:
        """Nothing fails any more."""
        self._left.clear()

    def fill(self) -> None:
        """There is no space any more."""

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self._monkeypatch.setattr(os, "pwrite", full)
        self._monkeypatch.setattr(os, "posix_fallocate", full)

    def close(self) -> None:
        """End the threads."""
        self._monkeypatch.undo()
        beneath.straight()
        for disk in self._disks:
            disk.close()


class Simulated:
    """The simulator's disk."""

    def __init__(self) -> None:
        self.root = "/root"
        self._world = World(1)
        self._machine = self._world.add_machine("n1")
        self.disk: Disk = self.another()
        self.disk.mkdir(self.root)

    def another(self) -> Disk:
        """The disk as another process has it."""
        return DiskPort(self._machine.disk, Process(self._machine, self._world.loop))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it on a loop."""
        contextvars.Context().run(self._world.loop.run_until_complete, work)

    def fail(self, kind: str, number: int = errno.EIO, *, calls: int = 1) -> None:
        """The next calls of a kind fail."""
        faults = self._machine.disk.faults
        fields = {"sync": "syncs", "dir_sync": "dir_syncs", "write": "writes", "open": "names", "list": "names"}
        setattr(faults, fields[kind], calls)
        faults.error = number

    def mend(self) -> None:
        """Nothing fails any more."""
        self._machine.disk.faults = DiskFaults()

    def fill(self) -> None:
        """There is no space any more."""
        self._machine.disk.config.capacity_bytes = self._machine.disk.used_bytes

    def close(self) -> None:
        """End the loop."""
        self._world.loop.close()


Bench = Real | Simulated


def put(bench: Bench, name: str, content: bytes = b"") -> str:
    """A file, synced with its name; its path."""
    path = f"{bench.root}/{name}"
    write_file_durably(bench.disk, path, content)
    return path


def refused(kind: type[Exception], *calls: Callable[[], object]) -> None:
    """Each of the calls raises exactly that."""
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
