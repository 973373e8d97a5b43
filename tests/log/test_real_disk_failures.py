"""What the real disk makes of the system's errors: their kinds, and what a failed sync leaves behind (schedule 32)."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.log.disk import DiskError, DiskFull, DiskPoisoned
from strandline.log.real_disk import RealDisk, RealFile
from strandline.log.real_sync import SYNC_MANY
from tests.log import beneath
from tests.log.helpers import FailingDisk, failing_call, group_sync


def test_a_failed_sync_poisons_the_file(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule 32: the second fdatasync of Linux would succeed over lost bytes, so it is never tried."""
    file = disk.open(f"{tmp_path}/a", create=True)
    other = disk.open(f"{tmp_path}/b", create=True)
    file.pwrite(b"x", 0)
    monkeypatch.setattr(os, "fdatasync", failing_call(errno.EIO))
    with pytest.raises(DiskError) as caught, beneath.through_python():
        asyncio.run(group_sync(disk, [file]))
    assert caught.value.errno == errno.EIO
    monkeypatch.undo()
    attempts: list[Callable[[], object]] = [
        lambda: disk.sync_now([file]),
        lambda: asyncio.run(group_sync(disk, [file])),
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
    disk._syncfs = failing_call(errno.EIO)
    with pytest.raises(DiskPoisoned, match="syncfs"):
        asyncio.run(group_sync(disk, files))
    attempts: list[Callable[[], object]] = [
        lambda: asyncio.run(group_sync(disk, files[:1])),
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
            monkeypatch.setattr(os, name, failing_call(number))
            with pytest.raises(kind) as caught:
                call()
            assert caught.value.filename == file.path
        monkeypatch.undo()
    monkeypatch.setattr(os, "pread", failing_call(errno.EIO))
    with pytest.raises(DiskError):
        file.pread(1, 0)
    with pytest.raises(DiskError):
        asyncio.run(disk.pread_cold(file, 1, 0))


def test_a_sync_without_room_is_no_full_disk(
    disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC told by a sync has dropped what it was to write: nothing that a smaller write would mend."""
    syncs: list[Callable[[RealFile], object]] = [
        lambda file: disk.sync_now([file]),
        lambda file: asyncio.run(group_sync(disk, [file])),
    ]
    for number, sync in enumerate(syncs):
        file = disk.open(f"{tmp_path}/{number}", create=True)
        monkeypatch.setattr(os, "fdatasync", failing_call(errno.ENOSPC))
        with pytest.raises(DiskError) as caught, beneath.through_python():
            sync(file)
        assert type(caught.value) is DiskError
        monkeypatch.undo()
        with pytest.raises(DiskError, match="failed sync"):
            file.pwrite(b"x", 0)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.EROFS])
def test_whatever_the_system_refuses_is_a_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No caller of the port knows OSErrors: one that slipped through would end a task that nobody watches."""
    disk = RealDisk()
    file = disk.open(f"{tmp_path}/a", create=True)
    path = str(tmp_path)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("open", lambda: disk.open(file.path)),
        ("open", lambda: disk.sync_dir(path)),
        ("open", lambda: asyncio.run(group_sync(disk, [], [path]))),
        ("unlink", lambda: asyncio.run(disk.unlink_slowly(file.path))),
        ("stat", lambda: asyncio.run(disk.unlink_slowly(file.path))),
        ("stat", lambda: disk.exists(file.path)),
        ("listdir", lambda: disk.listdir(path)),
        ("unlink", lambda: disk.unlink(file.path)),
        ("rmdir", lambda: disk.rmdir(path)),
        ("rename", lambda: disk.rename(file.path, f"{path}/b")),
        ("makedirs", lambda: disk.mkdir(f"{path}/d")),
        ("statvfs", lambda: disk.free_bytes(path)),
        ("statvfs", lambda: disk.total_bytes(path)),
        ("fstat", file.size),
        ("open", lambda: disk.lock(path)),
    ]
    for name, call in calls:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing_call(number))
            with pytest.raises(DiskError) as caught:
                call()
            assert caught.value.errno == number
            assert caught.value.filename
    disk.sync_dir(path)
    disk.close()


def test_a_blocking_sync_waits_for_the_thread_that_has_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedule 32, without the compiled thread: the kernel tells one of two calls of the failure. So a blocking sync of
    a file that the thread has waits, and is refused by what that left."""
    disk = RealDisk(compiled_sync=False)
    begun, opened = threading.Event(), threading.Event()
    calls: list[int] = []

    def fails_once(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            begun.set()
            opened.wait(10)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails_once)

    async def main() -> None:
        file = disk.open(f"{tmp_path}/a", create=True)
        file.pwrite(b"written", 0)
        first = asyncio.ensure_future(disk.sync([file]))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        threading.Timer(0.05, opened.set).start()
        with pytest.raises(DiskError, match="failed sync"):
            disk.sync_now([file])
        with pytest.raises(DiskError, match="Input/output error"):
            await first

    asyncio.run(main())
    assert len(calls) == 1
    disk.close()
