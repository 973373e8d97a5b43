"""What `RealDisk` and the simulator's disk both keep: otherwise the simulator tests another program.

`tests/chaos/test_disk_conformance.py` compares them by random calls; here each promise of the port has a test of its
own, run against both. Failures are injected below the real disk (the system call fails) and inside of the double.
"""

from __future__ import annotations

import asyncio

import pytest

from strandline.log.disk import DiskError, DiskFull, read_file
from strandline.log.real_sync import SYNC_MANY
from strandline.proto.errors import DirectoryInUse
from tests.log.disk_bench import Bench, put, refused

# ---------------------------------------------------------------------- names


def test_what_is_missing_is_file_not_found(bench: Bench) -> None:
    """The one error that callers tell from a failing disk."""
    disk, path = bench.disk, f"{bench.root}/missing"
    refused(
        FileNotFoundError,
        lambda: disk.open(path),
        lambda: disk.open(f"{path}/below", create=True),
        lambda: disk.listdir(path),
        lambda: disk.unlink(path),
        lambda: disk.rmdir(path),
        lambda: disk.rename(path, f"{bench.root}/target"),
        lambda: disk.sync_dir(path),
        lambda: disk.free_bytes(path),
        lambda: disk.total_bytes(path),
        lambda: read_file(disk, path),
        lambda: bench.run(disk.unlink_slowly(path)),
    )
    assert not disk.exists(path)
    assert not disk.exists(f"{path}/below")


def test_what_is_of_the_wrong_kind_is_a_disk_error(bench: Bench) -> None:
    """A file where a directory should stand, and the other way round."""
    disk, file = bench.disk, put(bench, "file")
    disk.mkdir(f"{bench.root}/d/inner")
    directory = f"{bench.root}/d"
    refused(
        DiskError,
        lambda: disk.open(directory),
        lambda: disk.open(f"{file}/below", create=True),
        lambda: disk.listdir(file),
        lambda: disk.mkdir(file),
        lambda: disk.mkdir(f"{file}/below"),
        lambda: disk.unlink(directory),
        lambda: disk.rmdir(directory),
        lambda: disk.rmdir(file),
        lambda: disk.rename(file, directory),
        lambda: disk.rename(directory, file),
        lambda: disk.sync_dir(file),
    )
    assert not disk.exists(f"{file}/below")


def test_names(bench: Bench) -> None:
    """Made with their parents, listed in order, moved whole."""
    disk, root = bench.disk, bench.root
    disk.mkdir(f"{root}/x/y")
    disk.mkdir(f"{root}/x/y")
    put(bench, "x/b", b"b")
    put(bench, "x/a")
    assert disk.listdir(f"{root}/x") == ["a", "b", "y"]
    disk.rename(f"{root}/x", f"{root}/z")
    assert not disk.exists(f"{root}/x")
    assert read_file(disk, f"{root}/z/b") == b"b"
    disk.rmdir(f"{root}/z/y")
    disk.unlink(f"{root}/z/a")
    assert disk.listdir(f"{root}/z") == ["b"]
    bench.run(disk.unlink_slowly(f"{root}/z/b"))
    disk.rmdir(f"{root}/z")
    assert disk.listdir(root) == []


def test_a_rename_replaces(bench: Bench) -> None:
    """Whoever has the old file open keeps it."""
    disk = bench.disk
    old, new = put(bench, "old", b"old"), put(bench, "new", b"new")
    held = disk.open(old)
    disk.rename(new, old)
    assert read_file(disk, old) == b"new"
    assert held.pread(10, 0) == b"old"
    held.pwrite(b"more", 3)
    assert held.pread(10, 0) == b"oldmore"
    assert read_file(disk, old) == b"new"
    disk.rename(old, old)
    assert read_file(disk, old) == b"new"


def test_an_open_file_outlives_its_name(bench: Bench) -> None:
    """Deleted, and another made under its name."""
    disk, path = bench.disk, put(bench, "file", b"first")
    held = disk.open(path)
    disk.unlink(path)
    assert held.pread(10, 0) == b"first"
    held.pwrite(b"F", 0)
    other = disk.open(path, create=True)
    assert other.size() == 0
    assert held.pread(10, 0) == b"First"


def test_a_lock_is_one_process_s(bench: Bench) -> None:
    """Held until it is released; whoever comes second is told by whom."""
    disk, other = bench.disk, bench.another()
    lock = disk.lock(bench.root)
    with pytest.raises(DirectoryInUse, match="process "):
        other.lock(bench.root)
    lock.release()
    lock.release()
    theirs = other.lock(bench.root)
    refused(DirectoryInUse, lambda: disk.lock(bench.root))
    lock.release()
    refused(DirectoryInUse, lambda: disk.lock(bench.root))
    theirs.release()
    disk.lock(bench.root).release()
    refused(DiskError, lambda: disk.lock(f"{bench.root}/missing"))


# ---------------------------------------------------------------------- content


def test_reads_and_writes(bench: Bench) -> None:
    """Positions, ends, gaps of zeros."""
    file = bench.disk.open(f"{bench.root}/f", create=True)
    assert (file.size(), file.pread(10, 0), file.pread_nowait(10, 0)) == (0, b"", b"")
    file.pwrite(b"hello", 5_000)
    assert file.size() == 5_005
    assert file.pread(10, 4_998) == b"\0\0hello"
    assert file.pread(10, 9_000) == b""
    file.pwrite(memoryview(bytearray(b"-yz-"))[1:3], 5_001)
    assert file.pread(5, 5_000) == b"hyzlo"

    async def cold() -> None:
        assert await bench.disk.pread_cold(file, 5, 5_000) == b"hyzlo"
        assert await bench.disk.pread_cold(file, 50, 5_004) == b"o"
        assert await bench.disk.pread_cold(file, 50, 50_000) == b""

    bench.run(cold())


def test_what_grows_grows_by_zeros(bench: Bench) -> None:
    """Also where something stood before it was cut."""
    file = bench.disk.open(f"{bench.root}/f", create=True)
    file.pwrite(b"a" * 9_000, 0)
    file.truncate(1_000)
    assert file.size() == 1_000
    file.truncate(6_000)
    assert file.pread(9_000, 0) == b"a" * 1_000 + bytes(5_000)
    file.allocate(6_000, 2_000)
    assert file.pread(9_000, 6_000) == bytes(2_000)
    file.allocate(0, 500)
    assert file.size() == 8_000
    assert file.pread(1_000, 0) == b"a" * 1_000


def test_a_full_disk(bench: Bench) -> None:
    """DiskFull, and what was there is untouched."""
    file = bench.disk.open(put(bench, "f", b"a" * 100))
    bench.fill()
    refused(DiskFull, lambda: file.pwrite(b"b" * 100_000, 100), lambda: file.allocate(100, 100_000))
    assert file.pread(100, 0) == b"a" * 100


def test_space(bench: Bench) -> None:
    """Free is a part of all."""
    disk = bench.disk
    assert 0 < disk.free_bytes(bench.root) <= disk.total_bytes(bench.root)


def test_a_closed_file_is_opened_again(bench: Bench) -> None:
    """By its path, when it is used; where that is gone, so is the file."""
    path = put(bench, "f", b"content")
    file = bench.disk.open(path)
    file.close()
    file.close()
    assert file.pread(3, 0) == b"con"
    file.close()
    file.pwrite(b"C", 0)
    assert read_file(bench.disk, path) == b"Content"
    file.close()
    bench.disk.unlink(path)
    refused(FileNotFoundError, lambda: file.pread(3, 0))


def test_one_boot(bench: Bench) -> None:
    """Every process of a boot is told the same of it."""
    assert bench.disk.boot_id() == bench.another().boot_id() != ""


# ---------------------------------------------------------------------- syncs


@pytest.mark.parametrize("count", [1, SYNC_MANY + 1])
def test_a_group_sync(bench: Bench, count: int) -> None:
    """Few and many; files closed, and directories deleted, while it runs."""
    disk, root = bench.disk, bench.root
    disk.mkdir(f"{root}/gone")

    async def main() -> None:
        files = [disk.open(f"{root}/{number}", create=True) for number in range(count)]
        for file in files:
            file.pwrite(b"x", 0)
        disk.rmdir(f"{root}/gone")
        await disk.sync([], [])
        sync = asyncio.ensure_future(disk.sync(files, [root, f"{root}/gone"]))
        await asyncio.sleep(0)
        for file in files:
            file.close()
        await sync
        assert [file.pread(1, 0) for file in files] == [b"x"] * count

    bench.run(main())


def test_a_file_is_cut_and_written_while_it_is_synced(bench: Bench) -> None:
    """And two syncs run at once: each ends, and the content is what was written last."""
    disk = bench.disk

    async def main() -> None:
        file = disk.open(f"{bench.root}/f", create=True)
        for number in range(20):
            file.pwrite(b"a" * 9_000, 0)
            first = asyncio.ensure_future(disk.sync([file], [bench.root]))
            await asyncio.sleep(0)
            file.truncate(number)
            second = asyncio.ensure_future(disk.sync([file]))
            await asyncio.sleep(0)
            file.pwrite(b"b", number)
            await first
            await second
            assert file.pread(100, 0) == b"a" * number + b"b"

    bench.run(main())


def test_a_sync_goes_on_without_its_caller(bench: Bench) -> None:
    """The caller is cancelled: the file keeps its place until the sync has ended, and works after it."""
    disk = bench.disk

    async def main() -> None:
        files = [disk.open(f"{bench.root}/{number}", create=True) for number in range(3)]
        for file in files:
            file.pwrite(b"x" * 5_000, 0)
        sync = asyncio.ensure_future(disk.sync(files))
        await asyncio.sleep(0)
        sync.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sync
        for file in files:
            file.close()
        await disk.sync([disk.open(f"{bench.root}/0")])
        assert [file.pread(1, 0) for file in files] == [b"x"] * 3

    bench.run(main())


def test_a_small_group_may_be_waited_for(bench: Bench) -> None:
    """As far as the port can tell, nothing changes: it is durable when the call returns, and the file goes on."""
    disk = bench.disk

    async def main() -> None:
        file = disk.open(f"{bench.root}/waited", create=True)
        for wait_ms in (0.0, 0.001, 0.5, 100.0):
            file.pwrite(b"content", 0)
            await disk.sync([file], wait_ms=wait_ms)
            await disk.sync([file], [bench.root], wait_ms)
            await disk.sync([], [], wait_ms)
        many = [disk.open(f"{bench.root}/{number}", create=True) for number in range(SYNC_MANY + 1)]
        await disk.sync(many, wait_ms=100.0)
        file.close()

    bench.run(main())
    assert read_file(disk, f"{bench.root}/waited") == b"content"
