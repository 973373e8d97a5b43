"""The disk double: what a power cut may take and what it may not (rules A1, A9, E9; schedule 32)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.disk_image import FileNode
from strandline.chaos.sim.disk_port import DiskPort
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.log.disk import Disk, DiskError, DiskFull, read_file, write_file_durably


def on_a_machine(
    before: Callable[[Disk], Coroutine[Any, Any, None]],
    *,
    seed: int,
    run_ms: float = 1000,
    strike: int = 0,
    sector_bytes: int = 512,
    capacity_bytes: int = 1 << 30,
) -> tuple[dict[str, bytes], list[BaseException]]:
    """Run `before` on a machine, cut its power after `run_ms` (or at the `strike`-th disk call); what is left then."""
    world = World(seed, WorldConfig(disk=DiskConfig(sector_bytes=sector_bytes, capacity_bytes=capacity_bytes)))
    machine = world.add_machine("n1")
    errors: list[BaseException] = []

    async def main(ports: Ports) -> None:
        try:
            await before(ports.disk)
        except Exception as error:
            errors.append(error)

    async def scenario() -> dict[str, bytes]:
        if strike:
            machine.disk.strike_after(strike, lambda: world.power_cut("n1"))
        world.spawn("n1", main)
        await world.sleep_ms(run_ms)
        if machine.powered:
            world.power_cut("n1")
        return machine.disk.files()

    return world.run(scenario()), errors


@pytest.mark.parametrize("seed", range(30))
def test_what_is_synced_survives_and_the_rest_may_not(seed: int) -> None:
    """Sectors of later writes are old or new, each by itself; nothing synced changes elsewhere."""

    async def before(disk: Disk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"a" * 10_000, 0)
        disk.sync_now([file])
        disk.sync_dir("/")
        file.pwrite(b"b" * 6_000, 2_048)
        file.pwrite(b"c" * 3_000, 10_000)

    files, _ = on_a_machine(before, seed=seed)
    content = files["/f"]
    assert 10_000 <= len(content) <= 13_000
    assert content[:2_048] == b"a" * 2_048
    assert content[8_048:10_000] == b"a" * 1_952
    assert set(content[2_048:8_048]) <= set(b"ab")
    assert set(content[10_000:]) <= set(b"c\0")


def test_every_kind_of_tear_occurs() -> None:
    """Over some seeds: nothing of an unsynced write, all of it, and a mix of sectors."""

    async def before(disk: Disk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"a" * 4_096, 0)
        disk.sync_now([file])
        disk.sync_dir("/")
        file.pwrite(b"b" * 4_096, 0)

    seen = {"".join(sorted(set(on_a_machine(before, seed=seed)[0]["/f"].decode()))) for seed in range(30)}
    assert seen == {"a", "b", "ab"}


def test_a_kill_keeps_the_page_cache() -> None:
    """kill -9 loses nothing that was written: the kernel has it. Only a power cut does."""
    world = World(1)
    machine = world.add_machine("n1")

    async def main(ports: Ports) -> None:
        ports.disk.open("/f", create=True).pwrite(b"unsynced", 0)

    async def scenario() -> None:
        world.spawn("n1", main)
        await asyncio.sleep(0.1)
        world.kill("n1")
        assert machine.disk.files() == {"/f": b"unsynced"}

    world.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_a_sync_covers_what_was_written_before_it_began(seed: int) -> None:
    """Two instants (rule E9): a write during the sync is not covered by it."""

    async def before(disk: Disk) -> None:
        file = disk.open("/f", create=True)
        disk.sync_dir("/")
        file.pwrite(b"a" * 4_096, 0)
        syncing = asyncio.get_running_loop().create_task(disk.sync([file]))
        await asyncio.sleep(0)
        file.pwrite(b"b" * 4_096, 4_096)
        await syncing
        await asyncio.get_running_loop().create_future()

    files, _ = on_a_machine(before, seed=seed)
    assert files["/f"][:4_096] == b"a" * 4_096
    assert set(files["/f"][4_096:]) <= set(b"b\0")


def test_a_sync_that_has_not_ended_promises_nothing() -> None:
    """A cut between the two instants may lose what the sync covers."""

    async def before(disk: Disk) -> None:
        file = disk.open("/f", create=True)
        disk.sync_dir("/")
        file.pwrite(b"a" * 4_096, 0)
        await disk.sync([file])

    left = {on_a_machine(before, seed=seed, run_ms=0.15)[0].get("/f", b"")[:1] for seed in range(20)}
    assert b"" in left or b"\0" in left


@pytest.mark.parametrize("seed", range(20))
def test_after_a_failed_sync_a_retry_saves_nothing(seed: int) -> None:
    """Schedule 32: the kernel has forgotten that the pages are dirty; another open of the file syncs "successfully"."""
    world = World(seed)
    machine = world.add_machine("n1")

    async def main(ports: Ports) -> None:
        file = ports.disk.open("/f", create=True)
        ports.disk.sync_dir("/")
        file.pwrite(b"a" * 4_096, 0)
        ports.disk.sync_now([file])
        file.pwrite(b"b" * 4_096, 0)
        machine.disk.faults.syncs = 1
        with pytest.raises(DiskError):
            await ports.disk.sync([file])
        with pytest.raises(DiskError, match="refused after a failed sync"):
            file.pwrite(b"c", 0)
        again = ports.disk.open("/f")
        assert again.pread(3, 0) == b"bbb"
        await ports.disk.sync([again])

    async def scenario() -> bytes:
        process = world.spawn("n1", main)
        assert process.main is not None
        await process.main
        world.power_cut("n1")
        return machine.disk.files()["/f"]

    assert world.run(scenario()) == b"a" * 4_096


def test_names_are_durable_only_after_a_sync_of_their_directory() -> None:
    """Creates, renames and unlinks may vanish; a renamed file is never half renamed."""

    async def before(disk: Disk) -> None:
        disk.mkdir("/d")
        disk.sync_dir("/")
        for name in ("kept", "gone", "old"):
            file = disk.open(f"/d/{name}", create=True)
            file.pwrite(name.encode(), 0)
            disk.sync_now([file])
        disk.sync_dir("/d")
        disk.unlink("/d/gone")
        disk.rename("/d/old", "/d/new")
        disk.open("/d/fresh", create=True)

    seen: set[tuple[str, ...]] = set()
    for seed in range(60):
        files, _ = on_a_machine(before, seed=seed)
        assert files["/d/kept"] == b"kept"
        assert ("/d/old" in files) != ("/d/new" in files)
        assert files.get("/d/old", files.get("/d/new")) == b"old"
        seen.add(tuple(files))
    assert len(seen) >= 4


@pytest.mark.parametrize("strike", range(1, 16))
def test_a_small_file_is_replaced_whole_or_not_at_all(strike: int) -> None:
    """Rule A1: whatever call the power fails in, the quorum-state file holds the old content or the new."""

    async def before(disk: Disk) -> None:
        write_file_durably(disk, "/quorum-state", b"old" * 500)
        write_file_durably(disk, "/quorum-state", b"new" * 600)

    for seed in range(20):
        files, _ = on_a_machine(before, seed=seed, strike=strike)
        content = files.get("/quorum-state")
        assert content in {None, b"old" * 500, b"new" * 600}
        if strike > 7:
            assert content is not None


@pytest.mark.parametrize("seed", range(30))
def test_a_truncation_survives_whole_or_not_at_all(seed: int) -> None:
    """Cut and appended to, unsynced: the old file, or the cut one with some of the new; nothing old beyond the cut."""

    async def before(disk: Disk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"a" * 9_000, 0)
        disk.sync_now([file])
        disk.sync_dir("/")
        file.truncate(1_000)
        file.pwrite(b"b" * 5_000, 1_000)

    content = on_a_machine(before, seed=seed)[0]["/f"]
    if content != b"a" * 9_000:
        assert content[:1_000] == b"a" * 1_000
        assert set(content[1_000:]) <= set(b"b\0")
        assert len(content) <= 6_000


@pytest.mark.parametrize("seed", range(30))
def test_what_grows_after_a_crash_grows_by_zeros(seed: int) -> None:
    """Cut, and the sync of it fails: the disk may have the old sectors, but none beyond the end comes back when the
    file grows (simulator seed 478: batches of a former epoch stood in preallocated space)."""
    file = FileNode()
    file.write(memoryview(b"a" * 9_000), 0)
    file.complete_sync(file.begin_sync())
    file.resize(1_000)
    file.write(memoryview(b"b" * 500), 1_000)
    file.fail_sync(file.begin_sync())
    file.crash(random.Random(seed), 512)
    size = file.size
    file.resize(20_000)
    assert set(file.read(20_000, size)) == {0}


@pytest.mark.parametrize("seed", range(8))
def test_a_failed_write_may_be_half_done(seed: int) -> None:
    """EIO: some prefix of the write is there, and the next one goes through; so with a truncation and a rename."""
    world = World(seed)
    machine = world.add_machine("n1")
    halves: list[int] = []

    async def main(ports: Ports) -> None:
        file = ports.disk.open("/f", create=True)
        file.pwrite(b"a" * 1_000, 0)
        machine.disk.faults.writes = 1
        with pytest.raises(DiskError):
            file.pwrite(b"b" * 1_000, 0)
        content = read_file(ports.disk, "/f")
        halves.append(content.count(b"b"))
        assert content == b"b" * halves[0] + b"a" * (1_000 - halves[0])
        others: list[Callable[[], None]] = [
            lambda: file.truncate(10),
            lambda: file.allocate(0, 9_000),
            lambda: ports.disk.rename("/f", "/g"),
        ]
        for fails in others:
            machine.disk.faults.writes = 1
            with pytest.raises(DiskError):
                fails()
            assert file.size() == 1_000
        file.pwrite(b"c" * 1_000, 0)
        assert read_file(ports.disk, "/f") == b"c" * 1_000

    async def scenario() -> None:
        process = world.spawn("n1", main)
        await world.sleep_ms(10)
        assert process.main is not None
        process.main.result()

    world.run(scenario())


def test_rot_is_gone_with_the_page_that_it_was_in() -> None:
    """A power cut may take a page and leave the size: zeros are not what had rotted (seed 8001365)."""
    world = World(1)
    disk = world.add_machine("n1").disk

    async def main(ports: Ports) -> None:
        ports.disk.mkdir("/data/t-0")
        ports.disk.open("/data/t-0/log", create=True).pwrite(b"a" * 100, 0)

    async def scenario() -> None:
        world.spawn("n1", main)
        await world.sleep_ms(100)
        disk.rot("/data/t-0/log", 7, 1)
        node = disk.names.find("/data/t-0/log")
        assert isinstance(node, FileNode)
        node.pages.clear()
        assert node.size == 100
        assert not disk.look_for_rot("/data/t-0")

    world.run(scenario())


def test_a_new_disk_is_empty_and_rot_stays() -> None:
    """Rot survives syncs and power cuts; a wiped disk has nothing left, and is counted."""
    world = World(1)
    disk = world.add_machine("n1").disk

    async def main(ports: Ports) -> None:
        ports.disk.mkdir("/data/t-0")
        file = ports.disk.open("/data/t-0/log", create=True)
        file.pwrite(b"a" * 100, 0)
        await ports.disk.sync([file], ["/data/t-0", "/data", "/"])

    async def scenario() -> None:
        world.spawn("n1", main)
        await world.sleep_ms(100)
        disk.rot("/data/t-0/log", 7, 1)
        world.power_cut("n1")
        assert disk.files()["/data/t-0/log"] == b"a" * 7 + b"c" + b"a" * 92
        assert list(disk.rotten) == ["/data/t-0"]
        disk.remove_directory("/data/t-0")
        disk.remove_directory("/data/t-0")
        assert (disk.files(), disk.used_bytes, list(disk.rotten)) == ({}, 0, [])
        world.spawn("n1", main)
        await world.sleep_ms(100)
        world.power_cut("n1")
        disk.wipe()
        assert (disk.files(), disk.used_bytes, disk.wipes) == ({}, 0, 1)

    world.run(scenario())


def test_a_full_disk_refuses_and_keeps_what_is_there() -> None:
    """ENOSPC: DiskFull, of a write what found room may be there; deleting makes room."""

    async def before(disk: Disk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"a" * 8_192, 0)
        with pytest.raises(DiskFull):
            file.pwrite(b"b" * 20_000, 8_192)
        with pytest.raises(DiskFull):
            file.allocate(0, 20_000)
        content = read_file(disk, "/f")
        assert content == b"a" * 8_192 + b"b" * 8_192
        assert disk.free_bytes("/") == 0
        disk.unlink("/f")
        disk.open("/g", create=True).allocate(0, 16_384)

    assert on_a_machine(before, seed=1, capacity_bytes=16_384)[1] == []


def test_a_flipped_bit_stays() -> None:
    """Bit rot is durable damage: no crash undoes it."""
    world = World(1)
    machine = world.add_machine("n1")

    async def main(ports: Ports) -> None:
        write_file_durably(ports.disk, "/f", b"\0" * 10)

    async def scenario() -> bytes:
        world.spawn("n1", main)
        await asyncio.sleep(1)
        machine.disk.flip_bit("/f", 3, 6)
        world.power_cut("n1")
        return machine.disk.files()["/f"]

    assert world.run(scenario()) == b"\0\0\0\x40\0\0\0\0\0\0"


def test_a_dead_process_reaches_no_disk() -> None:
    """The ports of a dead incarnation refuse before anything happens."""
    world = World(1)
    machine = world.add_machine("n1")
    ports_seen: list[DiskPort] = []

    async def main(ports: Ports) -> None:
        ports_seen.append(ports.disk)

    async def scenario() -> None:
        world.spawn("n1", main)
        await asyncio.sleep(0.1)
        world.kill("n1")
        with pytest.raises(BaseException, match="n1#1"):
            ports_seen[0].open("/f", create=True)
        assert machine.disk.files() == {}

    world.run(scenario())
