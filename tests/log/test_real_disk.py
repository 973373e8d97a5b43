"""The production disk: descriptors come and go, failed syncs poison, threads end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import strandline.log.real_disk as module
from strandline.cluster.node.faults.injection import SlowDisk
from strandline.log.disk import Disk, DiskError, read_file, write_file_durably
from strandline.log.real_disk import RealDisk
from strandline.log.real_sync import (
    SYNC_MANY,
    NoDescriptor,
    OpenFile,
    load_syncfs,
    sync_group,
    syncfs_reports_errors,
)
from strandline.log.watched_disk import WatchedDisk
from strandline.proto.errors import DirectoryInUse
from tests.log import beneath
from tests.log.helpers import FailingDisk, ManualClock, failing_call, group_sync


def test_files(disk: FailingDisk, tmp_path: Path) -> None:
    """Write, read, truncate, allocate: positions and ends."""
    file = disk.open(f"{tmp_path}/a", create=True)
    file.pwrite(b"hello", 3)
    assert file.size() == 8
    assert file.pread(100, 0) == b"\0\0\0hello"
    assert file.pread_nowait(4, 3) == b"hell"
    assert file.pread(5, 8) == b""
    assert file.pread_nowait(5, 8) == b""
    file.truncate(4)
    assert file.pread(100, 0) == b"\0\0\0h"
    file.allocate(4, 1000)
    assert file.size() == 1004
    file.pwrite(memoryview(bytearray(b"xyz"))[1:], 1)
    assert file.pread(4, 0) == b"\0yzh"
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/missing")
    assert disk.listdir(str(tmp_path)) == ["a"]
    disk.mkdir(f"{tmp_path}/x/y")
    disk.rename(f"{tmp_path}/a", f"{tmp_path}/x/b")
    disk.sync_dir(f"{tmp_path}/x")
    assert disk.exists(f"{tmp_path}/x/b")
    disk.rmdir(f"{tmp_path}/x/y")
    disk.unlink(f"{tmp_path}/x/b")
    assert disk.free_bytes(str(tmp_path)) > 0


def test_small_files_are_replaced_whole(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule A1: temp file, sync, rename, sync of the directory; a longer old content leaves nothing behind."""
    for content in (b"long content", b"short", b""):
        write_file_durably(disk, f"{tmp_path}/f", content)
        assert read_file(disk, f"{tmp_path}/f") == content
    assert disk.listdir(str(tmp_path)) == ["f"]


def test_descriptors_come_and_go(tmp_path: Path) -> None:
    """Thousands of segments work with few descriptors; dirty files keep theirs."""
    disk = RealDisk(open_files_max=10)
    files = [disk.open(f"{tmp_path}/{i}", create=True) for i in range(100)]
    assert sum(file.fd >= 0 for file in files) <= 11
    for i, file in enumerate(files):
        file.pwrite(b"%d" % i, 0)
        assert file.fd >= 0
    assert sum(file.fd >= 0 for file in files) == 100, "what is not synced keeps its descriptor"
    disk.sync_now(files)
    disk.open(f"{tmp_path}/another", create=True)
    disk.open(f"{tmp_path}/third", create=True)
    assert sum(file.fd >= 0 for file in files) <= 10
    assert [file.pread(10, 0) for file in files] == [b"%d" % i for i in range(100)]
    assert sum(file.fd >= 0 for file in files) <= 11
    disk.close()


@pytest.mark.parametrize("count", [1, SYNC_MANY + 1])
def test_group_sync(disk: FailingDisk, tmp_path: Path, count: int) -> None:
    """Few files one by one, many at once; closing a file while its sync runs is fine, and so is a deleted directory."""
    disk.mkdir(f"{tmp_path}/gone")
    files = [disk.open(f"{tmp_path}/{i}", create=True) for i in range(count)]

    async def main() -> None:
        for file in files:
            file.pwrite(b"x", 0)
        disk.rmdir(f"{tmp_path}/gone")
        sync = asyncio.ensure_future(disk.sync(files, [str(tmp_path), f"{tmp_path}/gone"]))
        await asyncio.sleep(0)
        for file in files:
            file.close()
        await sync
        assert all(file.fd < 0 for file in files)
        assert not any(file.dirty for file in files)

    asyncio.run(main())


def test_short_writes_are_continued(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than asked for."""
    file = disk.open(f"{tmp_path}/a", create=True)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, memoryview(data)[:3], position))
    file.pwrite(b"0123456789", 5)
    monkeypatch.undo()
    assert file.pread(20, 5) == b"0123456789"


NOWAIT = getattr(os, "RWF_NOWAIT", 0)


@pytest.mark.skipif(not NOWAIT, reason="this operating system has no read that does not wait")
def test_cold_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None where reading would block, or gives less than the file has; a plain read where there is no such flag."""
    monkeypatch.setattr(os, "RWF_NOWAIT", NOWAIT, raising=False)
    disk = FailingDisk()
    file = disk.open(f"{tmp_path}/a", create=True)
    file.pwrite(b"0123456789", 0)
    assert file.pread_nowait(5, 0) in (b"01234", None)
    monkeypatch.setattr(os, "preadv", failing_call(errno.EAGAIN))
    assert file.pread_nowait(5, 0) is None
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, position, flags: 3)
    assert file.pread_nowait(5, 0) is None
    monkeypatch.setattr(os, "preadv", failing_call(errno.EIO))
    with pytest.raises(DiskError):
        file.pread_nowait(5, 0)
    monkeypatch.setattr(os, "preadv", failing_call(errno.EOPNOTSUPP))
    assert file.pread_nowait(5, 2) == b"23456"
    monkeypatch.undo()
    assert file.pread_nowait(5, 2) == b"23456", "and it is not tried again"
    assert asyncio.run(disk.pread_cold(file, 100, 4)) == b"456789"
    assert asyncio.run(disk.pread_cold(file, 100, 40)) == b""
    disk.close()


def test_slow_deletion(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule P7: a large file goes step by step."""
    monkeypatch.setattr(module, "UNLINK_STEP_BYTES", 100)
    steps: list[int] = []
    real = os.truncate

    def truncate(path: str, size: int) -> None:
        steps.append(size)
        real(path, size)

    monkeypatch.setattr(os, "truncate", truncate)
    (tmp_path / "large").write_bytes(bytes(350))
    asyncio.run(disk.unlink_slowly(f"{tmp_path}/large"))
    assert steps == [250, 150, 50]
    assert not (tmp_path / "large").exists()
    with pytest.raises(FileNotFoundError):
        asyncio.run(disk.unlink_slowly(f"{tmp_path}/large"))


def test_boot_id(tmp_path: Path) -> None:
    """Equal for two disks of one boot, and known on Linux."""
    first, second = RealDisk(), RealDisk()
    assert first.boot_id() == second.boot_id() != ""
    first.close()
    second.close()


def test_without_locks_nothing_starts(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot keep a second process out is refused, with the reason."""
    monkeypatch.setattr(fcntl, "flock", failing_call(errno.ENOLCK))
    with pytest.raises(DiskError, match="has no locks"):
        disk.lock(str(tmp_path))


def test_the_last_descriptor(tmp_path: Path) -> None:
    """EMFILE: idle files give theirs up, and the call succeeds; a dirty one never does. In a process of its own:
    here threads and garbage of other tests come by descriptors, and leave some behind."""
    body = "import sys; from tests.log.test_real_disk import last_descriptor; last_descriptor(sys.argv[1])"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", body, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def last_descriptor(tmp_path: str) -> None:
    """The test, alone in its process."""
    disk = RealDisk()
    idle = [disk.open(f"{tmp_path}/{i}", create=True) for i in range(20)]
    dirty = disk.open(f"{tmp_path}/dirty", create=True)
    dirty.pwrite(b"x", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk.mkdir(f"{tmp_path}/d")
    clean = disk.open(f"{tmp_path}/clean", create=True)

    async def syncs() -> None:
        await disk.sync([dirty], [str(tmp_path), f"{tmp_path}/d"])

    calls: list[Callable[[], object]] = [
        lambda: disk.open(f"{tmp_path}/more", create=True),
        lambda: disk.sync_dir(str(tmp_path)),
        lambda: disk.sync_now([clean], [str(tmp_path)]),
        lambda: runner.run(syncs()),
    ]
    with asyncio.Runner() as runner:
        runner.get_loop()
        for call in calls:
            for file in idle:
                file.size()
            assert all(file.fd >= 0 for file in idle)
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor(), hard))
            try:
                call()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert all(file.fd < 0 for file in idle)
            assert dirty.fd >= 0
        disk.sync_now(idle[:1])
        idle[0].pwrite(b"x", 0)
        for file in idle[1:]:
            file.pwrite(b"x", 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor(), hard))
        try:
            with pytest.raises(DiskError) as caught:
                open_many(disk, f"{tmp_path}/none")
            assert caught.value.errno == errno.EMFILE
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    disk.sync_now(idle)
    disk.close()


def open_many(disk: RealDisk, path: str) -> None:
    """More files than there are descriptors, none of which can give its own up."""
    for number in range(100):
        disk.open(f"{path}-{number}", create=True).pwrite(b"x", 0)


def next_descriptor() -> int:
    """The number that the next descriptor of this process would have."""
    fd = os.open("/", os.O_RDONLY)
    os.close(fd)
    return fd


def test_descriptors_stay_while_a_thread_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller of a sync or a cold read is cancelled and the file closed: its number must not come to mean another
    file under the thread."""
    disk = RealDisk()
    go, seen = threading.Event(), threading.Semaphore(0)
    fdatasync, pread = os.fdatasync, os.pread

    def held_sync(fd: int) -> None:
        seen.release()
        go.wait(30)
        fdatasync(fd)

    def held_pread(fd: int, size: int, position: int) -> bytes:
        seen.release()
        go.wait(30)
        return pread(fd, size, position)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        file = disk.open(f"{tmp_path}/a", create=True)
        file.pwrite(b"x", 0)
        disk.sync_now([file])
        monkeypatch.setattr(os, "fdatasync", held_sync)
        monkeypatch.setattr(os, "pread", held_pread)
        works: list[Callable[[], Awaitable[object]]] = [
            lambda: disk.sync([file]),
            lambda: disk.pread_cold(file, 1, 0),
        ]
        for work in works:
            go.clear()
            task = asyncio.ensure_future(work())
            await loop.run_in_executor(None, seen.acquire)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            file.close()
            assert file.pins == 1
            assert file.fd >= 0
            go.set()
            async with asyncio.timeout(30):
                while file.pins:
                    await asyncio.sleep(0.001)
            assert file.fd < 0
        monkeypatch.undo()

    with beneath.through_python():
        asyncio.run(main())
    disk.close()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", ["plain", "watched", "slow"])
def test_a_sync_has_begun_when_the_call_returns(tmp_path: Path, kind: str, named: bool) -> None:
    """A log is cut whole in the turn of the loop that began its sync: the files are closed and have no name any more
    before anybody awaits the disk, and the sync is none that fails (schedule 91)."""
    real = RealDisk()

    async def no_delay() -> None:
        pass

    async def main() -> None:
        disk: Disk = real
        if kind == "watched":
            disk = WatchedDisk(real, ManualClock(), pytest.fail)
        elif kind == "slow":
            disk = SlowDisk(real, no_delay)
        file = real.open(f"{tmp_path}/a", create=True)
        file.pwrite(b"x", 0)
        sync = disk.sync([file], [str(tmp_path)] if named else ())
        file.close()
        disk.unlink(f"{tmp_path}/a")
        await sync
        assert (file.fd, file.pins) == (-1, 0)

    asyncio.run(main())
    real.close()


def test_files_that_were_closed_are_synced_when_a_descriptor_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left for a directory, and the second attempt finds the files open, whoever closed them
    meanwhile."""
    disk = RealDisk()
    disk.open(f"{tmp_path}/idle", create=True)
    attempts: list[list[int]] = []

    def sync(files: Sequence[tuple[OpenFile, int]], *arguments: Any) -> None:
        attempts.append([fd for _, fd in files])
        if len(attempts) == 1:
            raise NoDescriptor(errno.EMFILE, "open directory: Too many open files", str(tmp_path))
        sync_group(files, *arguments)

    async def main() -> None:
        file = disk.open(f"{tmp_path}/a", create=True)
        file.pwrite(b"x", 0)
        synced = disk.sync([file], [str(tmp_path)])
        file.close()
        disk.unlink(f"{tmp_path}/a")
        await synced
        assert (file.fd, file.pins) == (-1, 0)

    monkeypatch.setattr(module, "sync_group", sync)
    asyncio.run(main())
    assert len(attempts) == 2
    assert attempts[0] == attempts[1]
    disk.close()


def test_syncfs_only_where_it_tells_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.8 it returned 0 over pages that were lost; unknown kernels are not believed either."""
    tells = {"5.8.0": True, "5.10.0-28-amd64": True, "6.1": True, "5.7.19": False, "4.19.0": False, "what": False}
    assert {release: syncfs_reports_errors(release) for release in tells} == tells
    real = os.uname()
    for release, there in (("5.7.19", False), ("6.1.0", True)):
        monkeypatch.setattr(os, "uname", lambda release=release: SimpleNamespace(sysname="Linux", release=release))
        assert (load_syncfs() is not None) is there
    monkeypatch.undo()
    assert real.sysname != "Linux" or load_syncfs() is not None


def test_many_are_synced_by_their_file_system(tmp_path: Path) -> None:
    """syncfs covers one file system: what lies on another is synced by itself, and neither is forgotten. The descriptor
    that asks is one that was open before anything was written."""
    disk = RealDisk()
    asked: list[int] = []
    synced: list[str] = []
    disk._syncfs = asked.append
    many = [disk.open(f"{tmp_path}/{i}", create=True) for i in range(SYNC_MANY + 1)]
    few = [disk.open(f"{tmp_path}/few-{i}", create=True) for i in range(2)]
    for file in few:
        file.device = -1
    names = {file.fd: file.path.rpartition("/")[2] for file in (*many, *few)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: synced.append(names[fd]))
        asyncio.run(group_sync(disk, [*many, *few], [str(tmp_path)]))
        assert asked == [disk._anchors[many[0].device]]
        assert synced == ["few-0", "few-1"]
        disk._syncfs = None
        synced.clear()
        asyncio.run(group_sync(disk, [*many, *few]))
        assert len(synced) == len(many) + len(few)
    disk.close()


HOLDER = """
import sys, time
from strandline.log.real_disk import RealDisk
from strandline.log.real_disk import RealFile
lock = RealDisk().lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_with_its_process(disk: FailingDisk, tmp_path: Path) -> None:
    """SIGKILL: the kernel lets it go. Until then whoever comes is told the directory, the process and its command."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUse) as caught:
            disk.lock(str(tmp_path))
        said = str(caught.value)
        assert str(tmp_path) in said
        assert f"process {holder.pid} (" in said
        assert "import sys, time" in said
        assert "Stop that process" in said
        (tmp_path / ".lock").write_text(f"pid={holder.pid}\nhost=elsewhere\nsince=0\n")
        with pytest.raises(DirectoryInUse, match=f"process {holder.pid} of elsewhere, since 1970"):
            disk.lock(str(tmp_path))
        (tmp_path / ".lock").write_text("")
        with pytest.raises(DirectoryInUse, match="another process uses"):
            disk.lock(str(tmp_path))
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    disk.lock(str(tmp_path)).release()
