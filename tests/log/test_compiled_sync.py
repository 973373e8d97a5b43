"""The compiled thread that syncs: what it answers, what it holds on to, and that it waits for nobody's lock."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.log.disk import DiskError
from strandline.log.real_disk import RealDisk, RealFile
from strandline.log.real_sync import FILES_MAX, SYNC_MANY, CompiledSync
from tests.log import beneath

pytestmark = pytest.mark.skipif(not FILES_MAX, reason="there was no compiler at the installation")

PATIENCE_S = 60


class Gate:
    """`os.fdatasync`, held up and counted; it fails with `error` where that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.seen = threading.Semaphore(0)
        self.calls: list[int] = []
        self.error = 0
        self._fdatasync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, fd: int) -> None:
        self.calls.append(fd)
        self.seen.release()
        assert self.open.wait(PATIENCE_S)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self._fdatasync(fd)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Beneath every thread that syncs."""
    made = Gate(monkeypatch)
    with beneath.through_python():
        yield made
        made.open.set()


@pytest.fixture
def disk(gate: Gate) -> Iterator[RealDisk]:
    """One with the compiled thread."""
    made = RealDisk()
    yield made
    gate.open.set()
    made.close()


def written(disk: RealDisk, path: str) -> RealFile:
    """A file with something to sync."""
    file = disk.open(path, create=True)
    file.pwrite(b"x", 0)
    return file


async def seen(gate: Gate) -> None:
    """A call has begun."""
    async with asyncio.timeout(PATIENCE_S):
        while not gate.seen.acquire(blocking=False):
            await asyncio.sleep(0.001)


def test_it_takes_every_small_group() -> None:
    """What is not for syncfs goes to it."""
    assert FILES_MAX >= SYNC_MANY


def test_the_kernel_s_own_answer(tmp_path: Path) -> None:
    """Nothing in between: a pipe cannot be synced. What stands before it in the group was, what follows was not."""

    async def main() -> None:
        sync = CompiledSync()
        reader, writer = os.pipe()
        file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
        told: list[tuple[int, int]] = []

        def ended(synced: int, number: int) -> DiskError | None:
            told.append((synced, number))
            return DiskError(number, "refused") if number else None

        await sync.begin([file, file], 0.0, ended)
        with pytest.raises(DiskError):
            await sync.begin([file, writer, file], 0.0, ended)
        with pytest.raises(DiskError):
            await sync.begin([writer], 100.0, ended)
        await sync.begin([], 0.0, ended)
        assert told == [(2, 0), (1, errno.EINVAL), (0, errno.EINVAL), (0, 0)]
        for fd in (reader, writer, file):
            os.close(fd)
        sync.close()
        sync.close()
        with pytest.raises(RuntimeError, match="closed"):
            sync.begin([], 0.0, ended)

    asyncio.run(main())


def test_what_it_cannot_hold_is_refused() -> None:
    """More files than it has room for, a wait beyond reason, a second group at once: nothing of it is begun."""

    async def main() -> None:
        sync = CompiledSync()
        ended = lambda synced, number: None  # noqa: E731
        for files, wait_ms in (([0] * (FILES_MAX + 1), 0.0), ([0], 1_001.0), ([0], -1.0)):
            with pytest.raises(ValueError, match="at most"):
                sync.begin(files, wait_ms, ended)
            assert sync.idle
        first = sync.begin([], 0.0, ended)
        with pytest.raises(RuntimeError, match="under way"):
            sync.begin([], 0.0, ended)
        await first
        sync.close()

    asyncio.run(main())


def test_a_fast_sync_ends_without_a_turn_of_the_loop(disk: RealDisk, tmp_path: Path) -> None:
    """In place: nothing else of the loop has run when it is over."""
    turns: list[int] = []

    async def main() -> None:
        file = written(disk, f"{tmp_path}/a")
        asyncio.get_running_loop().call_soon(turns.append, 1)
        await disk.sync([file], wait_ms=1_000.0)
        assert turns == []
        assert not file.dirty
        assert file.pins == 0
        await disk.sync([file])
        assert turns == [1]

    asyncio.run(main())


def test_a_sync_that_hangs_keeps_the_loop_for_its_limit_alone(gate: Gate, disk: RealDisk, tmp_path: Path) -> None:
    """The wait ends by the clock, the loop goes on, and the sync ends through it when the disk answers at last."""

    async def main() -> None:
        file = written(disk, f"{tmp_path}/a")
        gate.open.clear()
        began = time.monotonic()
        task = asyncio.ensure_future(disk.sync([file], wait_ms=20.0))
        await seen(gate)
        assert time.monotonic() - began >= 0.02
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not task.done()
        assert file.pins == 1
        gate.open.set()
        await task
        assert file.pins == 0

    asyncio.run(main())


def test_while_it_hangs_others_are_synced(gate: Gate, disk: RealDisk, tmp_path: Path) -> None:
    """The metadata log's group does not wait behind the partitions': the thread in Python takes it."""

    async def main() -> None:
        first, second = written(disk, f"{tmp_path}/a"), written(disk, f"{tmp_path}/b")
        gate.open.clear()
        held = asyncio.ensure_future(disk.sync([first]))
        await seen(gate)
        other = asyncio.ensure_future(disk.sync([second], wait_ms=100.0))
        await seen(gate)
        assert gate.calls == [first.fd, second.fd]
        gate.open.set()
        await asyncio.gather(held, other)

    asyncio.run(main())


@pytest.mark.parametrize("blocking", [False, True])
def test_two_threads_never_sync_one_file(gate: Gate, disk: RealDisk, tmp_path: Path, blocking: bool) -> None:
    """Schedule 32: the kernel tells one of the two calls of the failure. So the second waits for the first, and is
    refused by what it left."""

    async def main() -> None:
        file = written(disk, f"{tmp_path}/a")
        gate.open.clear()
        first = asyncio.ensure_future(disk.sync([file]))
        await seen(gate)
        gate.error = errno.EIO
        if blocking:
            threading.Timer(0.05, gate.open.set).start()
            with pytest.raises(DiskError, match="failed sync"):
                disk.sync_now([file])
        else:
            second = asyncio.ensure_future(disk.sync([file]))
            await asyncio.sleep(0.05)
            gate.open.set()
            with pytest.raises(DiskError, match="failed sync"):
                await second
        with pytest.raises(DiskError, match="Input/output error"):
            await first
        assert len(gate.calls) == 1
        assert file.pins == 0

    asyncio.run(main())


def test_a_failure_counts_before_the_loop_hears_of_it(gate: Gate, disk: RealDisk, tmp_path: Path) -> None:
    """Schedule 32: it has failed, and the loop has not been told yet, when another sync of the file begins."""

    async def main() -> None:
        file = written(disk, f"{tmp_path}/a")
        gate.error = errno.EIO
        first = asyncio.ensure_future(disk.sync([file]))
        await asyncio.sleep(0)
        assert gate.seen.acquire(timeout=PATIENCE_S)
        time.sleep(0.05)
        gate.error = 0
        with pytest.raises(DiskError, match="failed sync"):
            disk.sync_now([file])
        with pytest.raises(DiskError):
            await first

    asyncio.run(main())


def test_nobody_waits_any_more(gate: Gate, disk: RealDisk, tmp_path: Path) -> None:
    """The caller is cancelled: a failure poisons the file all the same. Its loop is closed: a sync on
    the next loop sees to it."""
    file, other = written(disk, f"{tmp_path}/a"), written(disk, f"{tmp_path}/b")

    async def cancelled() -> None:
        gate.open.clear()
        task = asyncio.ensure_future(disk.sync([file]))
        await seen(gate)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.error = errno.EIO
        gate.open.set()
        async with asyncio.timeout(PATIENCE_S):
            while file.pins:
                await asyncio.sleep(0.001)
        with pytest.raises(DiskError, match="failed sync"):
            file.pwrite(b"y", 0)
        gate.error = 0

    async def left() -> None:
        gate.open.clear()
        task = asyncio.ensure_future(disk.sync([other]))
        await seen(gate)
        assert not task.done()

    async def next_loop() -> None:
        gate.open.set()
        file = written(disk, f"{tmp_path}/c")
        async with asyncio.timeout(PATIENCE_S):
            while other.pins:
                await disk.sync([file])

    asyncio.run(cancelled())
    asyncio.run(left())
    asyncio.run(next_loop())


def test_it_ends_with_its_disk(gate: Gate, tmp_path: Path) -> None:
    """`close` waits for what was given. A disk that is dropped while a call hangs leaves the thread to the call, and
    what the two share to the thread."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    disk = RealDisk()
    file = written(disk, f"{tmp_path}/a")

    async def begin(disk: RealDisk, file: RealFile) -> None:
        task = asyncio.ensure_future(disk.sync([file]))
        await seen(gate)
        task.cancel()

    gate.open.clear()
    asyncio.run(begin(disk, file))
    threading.Timer(0.05, gate.open.set).start()
    disk.close()
    assert file.pins == 0

    async def leave(file: RealFile) -> None:
        CompiledSync().begin([file.descriptor()], 0.0, lambda synced, number: None)
        await seen(gate)

    gate.open.clear()
    again = RealDisk()
    asyncio.run(leave(written(again, f"{tmp_path}/a")))
    gc.collect()
    gate.open.set()
    until = time.monotonic() + PATIENCE_S
    while threads() > before and time.monotonic() < until:
        time.sleep(0.01)
    again.close()
    assert threads() <= before


def test_it_needs_no_lock_of_the_interpreter(tmp_path: Path) -> None:
    """The kernel's call ends, and its end can be seen on the descriptor, in a stretch of bytecode that never gives the
    interpreter's lock away."""

    async def main() -> None:
        sync = CompiledSync()
        file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
        await sync.begin([file], 0.0, lambda synced, number: None)  # the thread runs
        interval = _switch_interval(PATIENCE_S)
        try:
            done = sync.begin([file], 0.0, lambda synced, number: None)
            until = time.monotonic() + PATIENCE_S
            while not done.done() and time.monotonic() < until:
                sync.take_end()
            assert done.done()
        finally:
            _switch_interval(interval)
        os.close(file)
        sync.close()

    asyncio.run(main())


def _switch_interval(seconds: float) -> float:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    return before
