"""The production disk: descriptors come and go, failed syncs poison, threads end."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import strandline.log.real_disk as module
from strandline.log.disk import DiskError, DiskFull, DiskPoisoned, read_file, write_file_durably
from strandline.log.real_disk import RealDisk
from strandline.log.real_sync import SYNC_MANY
from tests.log.helpers import FailingDisk


def failing(number: int) -> Callable[..., None]:
    """A system call that fails."""

    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


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


def test_a_failed_sync_poisons_the_file(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-32: the second fdatasync of Linux would succeed over lost bytes, so it is never tried."""
    file = disk.open(f"{tmp_path}/a", create=True)
    other = disk.open(f"{tmp_path}/b", create=True)
    file.pwrite(b"x", 0)
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    with pytest.raises(DiskError) as caught:
        asyncio.run(disk.sync([file]))
    assert caught.value.errno == errno.EIO
    monkeypatch.undo()
    attempts: list[Callable[[], object]] = [
        lambda: disk.sync_now([file]),
        lambda: asyncio.run(disk.sync([file])),
        lambda: file.pwrite(b"y", 0),
        lambda: file.truncate(0),
    ]
    for refused in attempts:
        with pytest.raises(DiskError, match="failed sync"):
            refused()
    assert file.pread(1, 0) == b"x"
    disk.sync_now([other])


def test_a_failed_sync_of_many_poisons_the_disk(tmp_path: Path) -> None:
    """syncfs tells of the whole file system: nothing on it can be trusted after an error."""
    disk = RealDisk()
    files = [disk.open(f"{tmp_path}/{i}", create=True) for i in range(SYNC_MANY + 1)]
    assert disk._syncfs is not None
    disk._syncfs = failing(errno.EIO)
    with pytest.raises(DiskPoisoned, match="syncfs"):
        asyncio.run(disk.sync(files))
    attempts: list[Callable[[], object]] = [
        lambda: asyncio.run(disk.sync(files[:1])),
        lambda: disk.sync_now(files[:1]),
        lambda: disk.sync_dir(str(tmp_path)),
        lambda: disk.open(f"{tmp_path}/0").pwrite(b"x", 0),
        lambda: disk.open(f"{tmp_path}/another", create=True),
        lambda: disk.rename(f"{tmp_path}/0", f"{tmp_path}/another"),
        lambda: disk.unlink(f"{tmp_path}/0"),
        lambda: asyncio.run(disk.unlink_slowly(f"{tmp_path}/0")),
    ]
    for refused in attempts:
        with pytest.raises(DiskPoisoned, match="earlier sync"):
            refused()
    assert sorted(os.listdir(tmp_path)) == [str(i) for i in range(SYNC_MANY + 1)]
    disk.close()


def test_errors_have_their_kind(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is DiskFull, everything else DiskError, with the path."""
    file = disk.open(f"{tmp_path}/a", create=True)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("pwrite", lambda: file.pwrite(b"x", 0)),
        ("ftruncate", lambda: file.truncate(0)),
        ("posix_fallocate", lambda: file.allocate(0, 10)),
    ]
    for name, call in calls:
        for number, kind in ((errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskError)):
            monkeypatch.setattr(os, name, failing(number))
            with pytest.raises(kind) as caught:
                call()
            assert caught.value.filename == file.path
        monkeypatch.undo()
    monkeypatch.setattr(os, "pread", failing(errno.EIO))
    with pytest.raises(DiskError):
        file.pread(1, 0)
    with pytest.raises(DiskError):
        asyncio.run(disk.pread_cold(file, 1, 0))


def test_short_writes_are_continued(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than asked for."""
    file = disk.open(f"{tmp_path}/a", create=True)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, memoryview(data)[:3], position))
    file.pwrite(b"0123456789", 5)
    monkeypatch.undo()
    assert file.pread(20, 5) == b"0123456789"


def test_cold_bytes(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None where reading would block, or gives less than the file has; a plain read where there is no such flag."""
    file = disk.open(f"{tmp_path}/a", create=True)
    file.pwrite(b"0123456789", 0)
    monkeypatch.setattr(os, "preadv", failing(errno.EAGAIN))
    assert file.pread_nowait(5, 0) is None
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, position, flags: 3)
    assert file.pread_nowait(5, 0) is None
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    with pytest.raises(DiskError):
        file.pread_nowait(5, 0)
    monkeypatch.setattr(os, "preadv", failing(errno.EOPNOTSUPP))
    assert file.pread_nowait(5, 2) == b"23456"
    monkeypatch.undo()
    assert file.pread_nowait(5, 2) == b"23456", "and it is not tried again"
    assert asyncio.run(disk.pread_cold(file, 100, 4)) == b"456789"
    assert asyncio.run(disk.pread_cold(file, 100, 40)) == b""


def test_slow_deletion(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Performance rule 7: a large file goes step by step."""
    monkeypatch.setattr(module, "UNLINK_STEP_BYTES", 100)
    steps: list[int] = []
    real = os.ftruncate

    def ftruncate(fd: int, size: int) -> None:
        steps.append(size)
        real(fd, size)

    monkeypatch.setattr(os, "ftruncate", ftruncate)
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
