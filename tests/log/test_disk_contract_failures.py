"""Of the contract in `test_disk_contract`: what fails, and what is relied on afterwards."""

from __future__ import annotations

import errno

import pytest

from strandline.log.disk import DiskError, DiskFull, DiskPoisoned, read_file
from strandline.log.real_sync import NoDescriptor
from tests.log.disk_bench import Bench, put, refused
from tests.log.helpers import group_sync


@pytest.mark.parametrize("wait_ms", [0.0, 100.0])
def test_after_a_failed_sync_the_file_refuses(bench: Bench, wait_ms: float) -> None:
    """Schedule 32: no retry may make good what failed. Reading goes on, and so do other files; who opens it anew (the
    next life of the node) is not refused."""
    disk = bench.disk
    path = put(bench, "f", b"a")
    file, other = disk.open(path), disk.open(f"{bench.root}/other", create=True)
    file.pwrite(b"b", 0)
    bench.fail("sync")
    refused(DiskError, lambda: bench.run(group_sync(disk, [file], wait_ms=wait_ms)))
    refused(
        DiskError,
        lambda: file.pwrite(b"c", 0),
        lambda: file.truncate(0),
        lambda: file.allocate(0, 10),
        lambda: disk.sync_now([file]),
        lambda: bench.run(group_sync(disk, [file])),
    )
    assert file.pread(1, 0) == b"b"
    disk.sync_now([other])
    again = disk.open(path)
    again.pwrite(b"d", 0)
    disk.sync_now([again])


def test_a_failed_blocking_sync_does_the_same(bench: Bench) -> None:
    """The file that failed is refused; one that had been synced before it in the same call is not."""
    disk = bench.disk
    first, second = (disk.open(put(bench, name)) for name in "ab")
    first.pwrite(b"x", 0)
    disk.sync_now([first])
    bench.fail("sync")
    refused(DiskError, lambda: disk.sync_now([second]))
    refused(DiskError, lambda: second.pwrite(b"x", 0), lambda: disk.sync_now([second]))
    disk.sync_now([first])


def test_of_a_failed_group_nothing_is_relied_on(bench: Bench) -> None:
    """Every file of the group is refused, whichever it was that failed."""
    disk = bench.disk
    files = [disk.open(put(bench, name)) for name in "abc"]
    bench.fail("sync")
    refused(DiskError, lambda: bench.run(group_sync(disk, files)))
    for file in files:
        refused(DiskError, lambda file=file: file.pwrite(b"x", 0))  # type: ignore[misc]


@pytest.mark.parametrize("how", ["blocking", "group"])
def test_a_failed_sync_of_names_ends_all_writing(bench: Bench, how: str) -> None:
    """The file system cannot keep its own books: this process relies on nothing there any more. Reading goes on."""
    disk, root = bench.disk, bench.root
    file = disk.open(put(bench, "f", b"content"))
    bench.fail("dir_sync")
    sync = {"blocking": lambda: disk.sync_dir(root), "group": lambda: bench.run(group_sync(disk, [], [root]))}
    refused(DiskPoisoned, sync[how])
    refused(
        DiskPoisoned,
        lambda: disk.sync_dir(root),
        lambda: disk.sync_now([file]),
        lambda: bench.run(group_sync(disk, [file])),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        lambda: file.allocate(0, 10),
        lambda: disk.open(f"{root}/new", create=True),
        lambda: disk.mkdir(f"{root}/new"),
        lambda: disk.rename(f"{root}/f", f"{root}/g"),
        lambda: disk.unlink(f"{root}/f"),
        lambda: bench.run(disk.unlink_slowly(f"{root}/f")),
    )
    assert file.pread(10, 0) == b"content"
    assert disk.listdir(root) == ["f"]
    another = bench.another()
    another.sync_dir(root)


def test_a_failed_write_is_a_disk_error(bench: Bench) -> None:
    """It may be half done, and the next one may work: what to make of it is the log's to decide."""
    file = bench.disk.open(put(bench, "f", b"content"))
    bench.fail("write")
    refused(DiskError, lambda: file.pwrite(b"x", 0))
    file.pwrite(b"y", 0)


def test_a_failed_listing_is_a_disk_error(bench: Bench) -> None:
    """And not an empty directory."""
    put(bench, "f")
    bench.fail("list")
    refused(DiskError, lambda: bench.disk.listdir(bench.root))
    assert bench.disk.listdir(bench.root) == ["f"]


def test_a_sync_that_finds_no_room_has_failed(bench: Bench) -> None:
    """ENOSPC at a sync (delayed allocation, network file systems): what it was to write is gone, and making room does
    not bring it back. It is no full disk, over which one goes on when there is room."""
    disk = bench.disk
    file = disk.open(put(bench, "a"))
    file.pwrite(b"x", 0)
    bench.fail("sync", errno.ENOSPC)
    with pytest.raises(DiskError) as caught:
        disk.sync_now([file])
    assert type(caught.value) is DiskError
    assert caught.value.errno == errno.ENOSPC
    refused(DiskError, lambda: file.pwrite(b"x", 0))


def test_no_room_for_a_name_is_a_full_disk(bench: Bench) -> None:
    """And nothing is there afterwards."""
    bench.fail("open", errno.ENOSPC)
    refused(DiskFull, lambda: bench.disk.open(f"{bench.root}/a", create=True))
    assert bench.disk.listdir(bench.root) == []


def test_no_descriptor_left(bench: Bench) -> None:
    """EMFILE: nothing was done, and the call may be made again; of a sync too, which opens the directories first."""
    disk, path = bench.disk, put(bench, "a", b"content")
    bench.fail("open", errno.EMFILE, calls=9)
    refused(NoDescriptor, lambda: disk.open(path), lambda: disk.sync_dir(bench.root))
    bench.mend()
    bench.fail("list", errno.EMFILE, calls=9)
    refused(NoDescriptor, lambda: disk.listdir(bench.root))
    bench.mend()
    assert disk.listdir(bench.root) == ["a"]
    file = disk.open(path)
    file.pwrite(b"C", 0)
    bench.fail("open", errno.EMFILE, calls=9)
    refused(NoDescriptor, lambda: disk.sync_now([file], [bench.root]))
    bench.mend()
    file.pwrite(b"more", 7)
    disk.sync_now([file], [bench.root])
    assert read_file(disk, path) == b"Contentmore"


def test_directories_that_cannot_be_opened_fail_their_sync(bench: Bench) -> None:
    """Nothing was synced, and nobody relies on the files of that group again."""
    disk = bench.disk
    file = disk.open(put(bench, "a"))
    file.pwrite(b"x", 0)
    bench.fail("open")
    refused(DiskError, lambda: disk.sync_now([file], [bench.root]))
    refused(DiskError, lambda: file.pwrite(b"x", 0), lambda: disk.sync_now([file]))
