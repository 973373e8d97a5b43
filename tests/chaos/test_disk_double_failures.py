"""The disk double where syncs fail or hang: it forgets what Linux forgets (schedule 32), and no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import ProcessState
from strandline.chaos.sim.world import BLOCKED_MS, World
from strandline.log.disk import Disk, DiskError, DiskPoisoned
from strandline.proto.errors import DirectoryInUse

Life = Callable[[Disk], Coroutine[Any, Any, None]]


class Machine:
    """A machine whose processes use its disk, one after the other."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.disk = self.world.add_machine("n1").disk

    def play(self, *lives: Life | Callable[[], None]) -> dict[str, bytes]:
        """Lives, each in a process that is killed afterwards, and what befalls the machine in between; then the power
        fails. What is left."""

        async def story() -> dict[str, bytes]:
            for life in lives:
                if asyncio.iscoroutinefunction(life):
                    process = self.world.spawn("n1", lambda ports, life=life: life(ports.disk))
                    assert process.main is not None
                    await process.main
                    self.world.kill("n1")
                else:
                    life()  # type: ignore[call-arg]
            self.world.power_cut("n1")
            return self.disk.files()

        return self.world.run(story())


async def synced(disk: Disk) -> None:
    """A file of two pages, durable."""
    disk.mkdir("/d")
    disk.sync_dir("/")
    file = disk.open("/d/f", create=True)
    file.pwrite(b"a" * 8_192, 0)
    disk.sync_now([file])
    disk.sync_dir("/d")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("rewrite", [False, True])
def test_only_what_is_written_again_is_brought_to_the_disk(seed: int, rewrite: bool) -> None:
    """The next process reads what the failed sync covered, and its own syncs succeed."""
    machine = Machine(seed)

    async def fails(disk: Disk) -> None:
        file = disk.open("/d/f")
        file.pwrite(b"b" * 10_000, 4_096)
        machine.disk.faults.syncs = 1
        with pytest.raises(DiskError):
            await disk.sync([file])

    async def next_life(disk: Disk) -> None:
        file = disk.open("/d/f")
        content = file.pread(20_000, 0)
        assert content == b"a" * 4_096 + b"b" * 10_000
        if rewrite:
            file.pwrite(content[4_096:], 4_096)
        disk.sync_now([file])

    left = machine.play(synced, fails, next_life)["/d/f"]
    assert left == (b"a" * 4_096 + b"b" * 10_000 if rewrite else b"a" * 8_192)


@pytest.mark.parametrize("seed", range(10))
def test_a_page_that_is_not_written_again_stays_lost(seed: int) -> None:
    """Later writes to other pages, and their syncs, change nothing about it; the size is what they reach."""
    machine = Machine(seed)

    async def fails(disk: Disk) -> None:
        file = disk.open("/d/f")
        file.pwrite(b"b" * 12_288, 0)
        machine.disk.faults.syncs = 1
        with pytest.raises(DiskError):
            disk.sync_now([file])

    async def next_life(disk: Disk) -> None:
        file = disk.open("/d/f")
        file.pwrite(b"c" * 10, 12_000)
        disk.sync_now([file])

    left = machine.play(synced, fails, next_life)["/d/f"]
    assert left == b"a" * 8_192 + b"b" * (12_000 - 8_192) + b"c" * 10 + b"b" * (12_288 - 12_010)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("again", [False, True])
def test_a_size_that_is_not_set_again_is_lost_too(seed: int, again: bool) -> None:
    """A truncation that a failed sync covered comes about only when the size changes again."""
    machine = Machine(seed)

    async def fails(disk: Disk) -> None:
        file = disk.open("/d/f")
        file.truncate(4_096)
        machine.disk.faults.syncs = 1
        with pytest.raises(DiskError):
            disk.sync_now([file])

    async def next_life(disk: Disk) -> None:
        file = disk.open("/d/f")
        assert file.size() == 4_096
        if again:
            file.truncate(4_097)
            file.truncate(4_096)
        disk.sync_now([file])

    assert machine.play(synced, fails, next_life)["/d/f"] == b"a" * (4_096 if again else 8_192)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("how", ["blocking", "group"])
@pytest.mark.parametrize("touched", [False, True])
def test_names_are_lost_in_the_same_way(seed: int, how: str, touched: bool) -> None:
    """What is there is written again when its name changes, and not by a sync that finds its block clean; what is gone
    goes with any change."""
    machine = Machine(seed)

    async def fails(disk: Disk) -> None:
        new = disk.open("/d/new", create=True)
        new.pwrite(b"new", 0)
        disk.sync_now([new])
        disk.rename("/d/f", "/d/g")
        machine.disk.faults.dir_syncs = 1
        if how == "blocking":
            with pytest.raises(DiskPoisoned):
                disk.sync_dir("/d")
        else:
            with pytest.raises(DiskPoisoned):
                await disk.sync([], ["/d"])

    async def next_life(disk: Disk) -> None:
        assert disk.listdir("/d") == ["g", "new"]
        if touched:
            disk.rename("/d/new", "/d/away")
            disk.rename("/d/away", "/d/new")
        disk.sync_dir("/d")
        if touched:
            disk.rename("/d/g", "/d/away")
            disk.rename("/d/away", "/d/g")
        disk.sync_dir("/d")

    left = machine.play(synced, fails, next_life)
    assert left == ({"/d/g": b"a" * 8_192, "/d/new": b"new"} if touched else {"/d/f": b"a" * 8_192})


@pytest.mark.parametrize("seed", range(10))
def test_of_two_names_each_has_to_be_made_again(seed: int) -> None:
    """They may lie in different blocks; but a rename is undone as a whole."""
    machine = Machine(seed)

    async def fails(disk: Disk) -> None:
        disk.open("/d/new", create=True)
        disk.rename("/d/f", "/d/g")
        machine.disk.faults.dir_syncs = 1
        with pytest.raises(DiskPoisoned):
            disk.sync_dir("/d")

    async def next_life(disk: Disk) -> None:
        disk.rename("/d/new", "/d/away")
        disk.rename("/d/away", "/d/new")
        disk.sync_dir("/d")

    assert machine.play(synced, fails, next_life) == {"/d/f": b"a" * 8_192, "/d/new": b""}


def test_a_power_cut_that_keeps_a_later_change_has_written_the_block() -> None:
    """Unsynced changes may get to the disk by themselves, and then the name is made again."""
    seen: set[tuple[str, ...]] = set()
    for seed in range(40):
        machine = Machine(seed)

        async def fails(disk: Disk, machine: Machine = machine) -> None:
            disk.open("/d/new", create=True)
            machine.disk.faults.dir_syncs = 1
            with pytest.raises(DiskPoisoned):
                disk.sync_dir("/d")

        async def next_life(disk: Disk) -> None:
            disk.unlink("/d/new")
            disk.open("/d/new", create=True)
            disk.open("/d/newer", create=True)

        seen.add(tuple(machine.play(synced, fails, next_life)))
    assert {("/d/f",), ("/d/f", "/d/new", "/d/newer")} <= seen


@pytest.mark.parametrize("seed", range(5))
def test_what_counts_as_clean_may_leave_memory(seed: int) -> None:
    """Then readers find what is on the disk, and nothing of it comes back."""
    machine = Machine(seed)

    async def fails(disk: Disk) -> None:
        file = disk.open("/d/f")
        file.pwrite(b"b" * 8_192, 4_096)
        machine.disk.faults.syncs, machine.disk.faults.dir_syncs = 1, 1
        with pytest.raises(DiskError):
            disk.sync_now([file])
        disk.open("/d/new", create=True)
        with pytest.raises(DiskPoisoned):
            disk.sync_dir("/d")

    async def next_life(disk: Disk) -> None:
        assert disk.listdir("/d") == ["f"]
        file = disk.open("/d/f")
        assert file.pread(20_000, 0) == b"a" * 8_192
        file.pwrite(b"c", 0)
        disk.sync_now([file])

    assert machine.play(synced, fails, machine.disk.evict, next_life)["/d/f"] == b"c" + b"a" * 8_191


def test_a_sync_that_hangs_ends_when_the_disk_does_its_work_again() -> None:
    """Until then it promises nothing; the process goes on."""
    machine = Machine()
    events: list[str] = []

    async def life(ports: Ports) -> None:
        disk = ports.disk
        file = disk.open("/f", create=True)
        file.pwrite(b"x", 0)
        sync = asyncio.ensure_future(disk.sync([file], ["/"]))
        sync.add_done_callback(lambda _: events.append("synced"))
        await asyncio.sleep(20)
        events.append("twenty seconds")
        await sync

    async def story() -> dict[str, bytes]:
        machine.disk.hang()
        machine.world.spawn("n1", life)
        await machine.world.sleep_ms(30_000)
        machine.disk.let_go()
        await machine.world.sleep_ms(10)
        machine.world.power_cut("n1")
        return machine.disk.files()

    assert machine.world.run(story()) == {"/f": b"x"}
    assert events == ["twenty seconds", "synced"]
    assert machine.world.loop.effects["sync-hung"] == 1


def test_a_hung_sync_and_a_power_cut() -> None:
    """It ends for nobody any more."""
    machine = Machine()

    async def life(ports: Ports) -> None:
        file = ports.disk.open("/f", create=True)
        await ports.disk.sync([file], ["/"])
        raise AssertionError("it must not return")

    async def story() -> None:
        machine.disk.hang()
        machine.world.spawn("n1", life)
        await machine.world.sleep_ms(1_000)
        machine.world.power_cut("n1")
        machine.disk.let_go()
        await machine.world.sleep_ms(1_000)

    machine.world.run(story())
    assert not machine.world.loop.unhandled


@pytest.mark.parametrize("how", ["file", "directory"])
def test_whoever_blocks_on_a_hung_disk_runs_no_further(how: str) -> None:
    """A blocking sync is on the loop's own thread: nothing after it happens, no timer fires, and in the end the watch
    thread of the process ends it. To its peers it is silent, not gone, until then."""
    machine = Machine()
    after: list[str] = []

    async def life(ports: Ports) -> None:
        asyncio.get_running_loop().call_later(0.1, after.append, "a timer fired")
        try:
            if how == "file":
                file = ports.disk.open("/f", create=True)
                file.pwrite(b"x", 0)
                ports.disk.sync_now([file])
            else:
                ports.disk.sync_dir("/")
            after.append("it returned")
        except Exception:
            after.append("it was told")

    async def story() -> list[ProcessState]:
        machine.disk.hang()
        process = machine.world.spawn("n1", life)
        await machine.world.sleep_ms(BLOCKED_MS - 100)
        states = [process.state]
        await machine.world.sleep_ms(200)
        return [*states, process.state]

    assert machine.world.run(story()) == [ProcessState.PAUSED, ProcessState.DEAD]
    assert after == []


def test_a_lock_dies_with_its_process() -> None:
    """Killed, or without power: the next process gets it."""
    machine = Machine()
    refused: list[str] = []

    async def life(ports: Ports) -> None:
        ports.disk.lock("/")
        try:
            ports.disk.lock("/")
        except DirectoryInUse as error:
            refused.append(str(error))
        await asyncio.sleep(1e6)

    async def story() -> None:
        for end in (machine.world.kill, machine.world.power_cut, machine.world.kill):
            machine.world.spawn("n1", life)
            await machine.world.sleep_ms(10)
            end("n1")

    machine.world.run(story())
    assert [f"n1#{number}" in said for number, said in enumerate(refused, 1)] == [True] * 3
    assert not machine.world.loop.unhandled
