"""The age of the sync under way, and what follows from it (schedule 58)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_port import DiskPort
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.log.disk import DiskError, DiskPoisoned
from strandline.log.real_disk import RealDisk
from strandline.log.watched_disk import BOUNDS_S, FAST_IN_A_ROW, LIMIT_MS, LOST_FACTOR, SyncWatch, WatchedDisk
from tests.log.helpers import FailingDisk, ManualClock

TIMEOUT_MS = 5_000.0


class Scene:
    """A watched disk in a process of a simulated machine."""

    def __init__(self) -> None:
        self.world = World(1)
        self.machine = self.world.add_machine("n1")
        self.events: list[tuple[int, str]] = []
        self.disk: WatchedDisk
        self.watch: SyncWatch

    def note(self, what: str) -> None:
        self.events.append((round(self.world.now_ms / 1000), what))

    def run(self, story: Callable[[Scene, DiskPort], Awaitable[None]], seconds: float = 60) -> list[tuple[int, str]]:
        async def main(ports: Ports) -> None:
            self.disk = WatchedDisk(ports.disk, ports.clock, lambda error: self.note(f"poisoned: {error.strerror}"))
            self.watch = SyncWatch(
                self.disk,
                TIMEOUT_MS,
                lambda age: self.note(f"stalled at {age / 1000:g}"),
                lambda: self.note("recovered"),
                lambda age: self.note(f"lost at {age / 1000:g}"),
            )
            self.watch.start()
            await story(self, ports.disk)

        async def scenario() -> None:
            self.world.spawn("n1", main)
            await self.world.sleep_ms(seconds * 1000)

        self.world.run(scenario())
        assert not self.world.loop.unhandled, self.world.loop.unhandled[0]
        return self.events


async def synced(scene: Scene, port: DiskPort) -> None:
    """One sync of a file."""
    file = port.open("/f", create=True)
    file.pwrite(b"x", 0)
    await scene.disk.sync([file])
    scene.note("synced")


def test_a_sync_that_hangs_is_told_at_its_bound_and_given_up_later() -> None:
    """Stalled at 5 s, lost at 20 s; each once. Blocking syncs are refused meanwhile: they would hang the node."""

    async def story(scene: Scene, port: DiskPort) -> None:
        scene.machine.disk.hang()
        task = asyncio.ensure_future(synced(scene, port))
        await asyncio.sleep(4)
        assert not scene.disk.stalled
        assert 3_900 < scene.disk.age_ms < 4_100
        await asyncio.sleep(2)
        assert scene.disk.stalled
        refused: list[Callable[[], object]] = [
            lambda: scene.disk.sync_now([]),
            lambda: scene.disk.sync_dir("/"),
        ]
        for call in refused:
            with pytest.raises(DiskError, match=r"a sync has been under way for 6\.\d s"):
                call()
        await asyncio.sleep(50)
        task.cancel()

    assert Scene().run(story) == [(5, "stalled at 5"), (20, "lost at 20")]


def test_a_sync_that_ends_after_all() -> None:
    """It counts, and the disk is used again; the next one is watched from its own beginning."""

    async def story(scene: Scene, port: DiskPort) -> None:
        scene.machine.disk.hang()
        task = asyncio.ensure_future(synced(scene, port))
        await asyncio.sleep(8)
        scene.machine.disk.let_go()
        await task
        await asyncio.sleep(1)
        assert not scene.disk.stalled
        assert scene.disk.age_ms == 0
        scene.disk.sync_dir("/")
        scene.machine.disk.hang()
        task = asyncio.ensure_future(synced(scene, port))
        await asyncio.sleep(7)
        scene.machine.disk.let_go()
        await task

    told = Scene().run(story)
    assert told[:4] == [(5, "stalled at 5"), (8, "synced"), (8, "recovered"), (14, "stalled at 5")]
    assert [what for _, what in told[4:]] == ["synced", "recovered"]


def test_many_short_syncs_are_no_long_one() -> None:
    """There is always one under way, and each of them ends."""

    async def story(scene: Scene, port: DiskPort) -> None:
        scene.machine.disk.config.sync_max_us = scene.machine.disk.config.sync_min_us = 700_000
        for _ in range(30):
            await synced(scene, port)
        assert sum(scene.disk.times.counts) == 30
        assert scene.disk.times.counts[BOUNDS_S.index(1.0)] == 30
        assert 21 <= scene.disk.times.seconds_total < 22

    assert {what for _, what in Scene().run(story)} == {"synced"}


def test_a_process_that_was_stopped_has_no_old_sync() -> None:
    """SIGSTOP for a minute while a sync is under way: looks are counted, the clock is not believed."""

    async def story(scene: Scene, port: DiskPort) -> None:
        scene.machine.disk.config.sync_max_us = scene.machine.disk.config.sync_min_us = 2_000_000
        await synced(scene, port)

    scene = Scene()
    scene.world.loop.call_later(0.5, lambda: scene.world.pause("n1"))
    scene.world.loop.call_later(50, lambda: scene.world.resume("n1"))
    assert scene.run(story, seconds=70) == [(50, "synced")]


def test_nothing_is_looked_at_while_nothing_is_synced() -> None:
    """An idle node is not woken for it, and a watch that was stopped never is."""

    async def story(scene: Scene, port: DiskPort) -> None:
        await synced(scene, port)
        await asyncio.sleep(2)
        scene.machine.process.wakeups = 0  # type: ignore[union-attr]
        await asyncio.sleep(30)
        assert scene.machine.process.wakeups < 3  # type: ignore[union-attr]
        scene.watch.stop()
        scene.machine.disk.hang()
        task = asyncio.ensure_future(synced(scene, port))
        await asyncio.sleep(LOST_FACTOR * TIMEOUT_MS / 1000 + 5)
        task.cancel()

    assert [what for _, what in Scene().run(story, 120)] == ["synced"]


@pytest.mark.parametrize("how", ["group", "blocking", "directory"])
def test_a_poisoned_disk_is_told_once(how: str) -> None:
    """Nothing on it can be relied on: the node must know, whoever it was that met it."""

    async def story(scene: Scene, _port: DiskPort) -> None:
        calls: dict[str, Callable[[], Awaitable[None]]] = {
            "group": lambda: scene.disk.sync([], ["/"]),
            "blocking": lambda: asyncio.sleep(0, scene.disk.sync_now([], ["/"])),
            "directory": lambda: asyncio.sleep(0, scene.disk.sync_dir("/")),
        }
        scene.machine.disk.faults.dir_syncs = 1
        for _ in range(2):
            with pytest.raises(DiskPoisoned):
                await calls[how]()

    assert Scene().run(story) == [(0, "poisoned: sync directory: Input/output error")]


def test_it_is_the_disk_in_everything_else(disk: FailingDisk, tmp_path: Path) -> None:
    """Names, files, space, locks."""
    watched = WatchedDisk(disk, ManualClock(), lambda error: None)
    watched.mkdir(f"{tmp_path}/d")
    file = watched.open(f"{tmp_path}/d/f", create=True)
    file.pwrite(b"x", 0)
    watched.sync_now([file], [f"{tmp_path}/d"])
    watched.rename(f"{tmp_path}/d/f", f"{tmp_path}/d/g")
    assert watched.exists(f"{tmp_path}/d/g")
    assert watched.listdir(f"{tmp_path}/d") == ["g"]
    assert 0 < watched.free_bytes(str(tmp_path)) <= watched.total_bytes(str(tmp_path))
    assert watched.boot_id() == "boot-1"
    watched.lock(str(tmp_path)).release()

    async def cold() -> None:
        assert await watched.pread_cold(file, 1, 0) == b"x"
        await watched.unlink_slowly(f"{tmp_path}/d/g")

    asyncio.run(cold())
    watched.rmdir(f"{tmp_path}/d")
    assert watched.listdir(str(tmp_path)) == [".lock"]


def fast(disk: SimDisk) -> None:
    """A good NVMe drive."""
    disk.config.sync_min_us, disk.config.sync_max_us = 50, 200


def test_a_fast_disk_is_waited_for_in_place() -> None:
    """Small groups, after a row of fast ones; a group with a directory never."""

    async def story(scene: Scene, port: DiskPort) -> None:
        fast(scene.machine.disk)
        for number in range(FAST_IN_A_ROW + 10):
            await asyncio.sleep(0.01)
            await synced(scene, port)
            assert scene.disk.waited == max(0, number + 1 - FAST_IN_A_ROW)
        await scene.disk.sync([], ["/"])
        assert scene.disk.waited == 10
        assert scene.world.loop.effects["sync-waited-for"] == 10

    Scene().run(story)


def test_a_disk_that_hangs_while_it_is_waited_for() -> None:
    """The wait ends at its limit: the loop goes on, the age of that sync is watched, and no other one is waited for."""

    async def story(scene: Scene, port: DiskPort) -> None:
        fast(scene.machine.disk)
        for _ in range(FAST_IN_A_ROW + 1):
            await asyncio.sleep(0.01)
            await synced(scene, port)
        assert scene.disk.waited == 1
        scene.machine.disk.hang()
        began_ms = scene.world.now_ms
        task = asyncio.ensure_future(synced(scene, port))
        await asyncio.sleep(0)
        assert 0 < scene.world.now_ms - began_ms < 2 * LIMIT_MS
        again = asyncio.ensure_future(synced(scene, port))
        await asyncio.sleep(0.001)
        assert scene.disk.age_ms > LIMIT_MS
        await asyncio.sleep(6)
        scene.machine.disk.let_go()
        await asyncio.gather(task, again)
        assert scene.disk.waited == 1
        assert scene.world.loop.effects["sync-wait-missed"] == 1

    told = [what for _, what in Scene().run(story) if what != "synced"]
    assert told == ["stalled at 5", "recovered"]


def test_the_thread_in_python_is_not_waited_for(tmp_path: Path) -> None:
    """Without a compiler each sync comes back through the loop, however fast; and none is counted as waited for."""

    async def main() -> None:
        disk = RealDisk(compiled_sync=False)
        clock = ManualClock()
        watched = WatchedDisk(disk, clock, lambda error: None)
        file = disk.open(f"{tmp_path}/f", create=True)
        for _ in range(FAST_IN_A_ROW + 5):
            clock.now_ms += 10
            await watched.sync([file])
        assert watched.waited == 0
        disk.close()

    asyncio.run(main())
