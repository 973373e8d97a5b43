"""The nemesis: every kind of fault strikes and is undone, what destroys data is bounded, a seed is one schedule."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.chaos.checkers.metadata_logs import DIRECTORY
from strandline.chaos.nemesis.kinds import (
    BESIDE,
    BY_NAME_ALONE,
    DESTRUCTIVE,
    FAULTS,
    KINDS,
    NODE_KINDS,
    OF_CLIENTS,
    OF_CLOCKS,
    OF_SEVERAL,
    STORE_KINDS,
)
from strandline.chaos.nemesis.minority import LASTING, cripple
from strandline.chaos.nemesis.nemesis import Nemesis
from strandline.chaos.nemesis.operator import Operator, all_vote
from strandline.chaos.nemesis.options import FaultOptions
from strandline.chaos.sim.disk import DiskFaults
from strandline.chaos.sim.effects import EFFECTS
from strandline.chaos.sim.links import Link
from strandline.chaos.sim.object_store import SimStore, SimStorePort, StoreConfig, StoreFaults
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import ProcessState
from strandline.chaos.sim.world import World, WorldConfig
from strandline.log.batch import Record, build_batch
from strandline.log.disk import DiskError, write_file_durably
from strandline.proto.errors import StoreError

NAMES = ("n1", "n2", "n3")

EFFECTS_OF = {
    "stop": ("killed",),
    "kill": ("killed",),
    "kill_in_callback": ("killed", "killed-in-callback"),
    "kill_leader": ("killed",),
    "kill_controller": ("killed",),
    "kill_all": ("killed",),
    "rolling_restart": ("killed",),
    "power_cut": ("power-lost", "sectors-lost", "name-lost"),
    "power_cut_in_callback": ("power-lost", "killed-in-callback"),
    "power_cut_all": ("power-lost",),
    "power_cut_all_in_callback": ("power-lost", "killed-in-callback"),
    "one_stays_dead": ("killed",),
    "pause": ("paused",),
    "wall_jump": ("wall-clock-jumped",),
    "wall_days": ("wall-clock-jumped-days",),
    "slow_disk": ("disk-slow",),
    "fail_sync": ("sync-failed",),
    "hang_sync": ("sync-hung",),
    "fail_write": ("write-failed", "write-torn"),
    "fail_name": ("name-failed", "no-descriptor"),
    "fail_read": ("read-failed",),
    "bit_rot": ("bit-flipped",),
    "rot_beside_log": ("bit-flipped",),
    "damage_files": ("file-damaged",),
    "lose_directory": ("directory-lost",),
    "wipe": ("disk-replaced",),
    "wipe_ahead": ("disk-replaced", "wall-clock-jumped-days"),
    "wipe_one": ("disk-replaced",),
    "unmount_one": ("disk-unmounted",),
    "lose_metadata": ("metadata-lost",),
    "rot_metadata": ("bit-flipped",),
    "store_away": ("store-away",),
    "store_slow": ("store-slow",),
    "store_refuses": ("store-refused",),
    "store_loses_answers": ("store-answer-lost",),
    "store_keeps": ("store-delete-refused",),
}
"""What a fault does to machines that write a log and an object each and never talk; `test_network` has what befalls
those who do."""


class Site:
    """Three machines that write a log and an object, one of clients, an object store, and a nemesis."""

    def __init__(self, seed: int, kinds: tuple[str, ...]) -> None:
        self.world = World(seed)
        self.store = SimStore(self.world.loop, random.Random(seed), StoreConfig(timeout_us=100_000))
        for name in (*NAMES, "client"):
            self.world.add_machine(name, mounted=["/data2"] if set(kinds) & set(OF_SEVERAL) else [])
        self.nemesis = Nemesis(
            self.world,
            random.Random(seed),
            NAMES,
            self.start,
            FaultOptions(kinds, 20, 100, 50, 300),
            stop=self.world.kill,
            leader=lambda: "n1",
            controller=lambda: "n2",
            store=self.store,
        )

    def start(self, name: str) -> None:
        self.world.spawn(name, self.write)
        process = self.world.process(name)
        assert process is not None
        task = self.copy(self.store.for_node(process), name)
        process.context.copy().run(self.world.loop.create_task, task)

    @staticmethod
    async def copy(store: SimStorePort, key: str) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"segment"

        while True:
            with suppress(StoreError):
                await store.put(key, chunks(), 7)
                await store.delete(key)
            await asyncio.sleep(0.01)

    async def write(self, ports: Ports) -> None:
        ports.disk.mkdir(DIRECTORY)
        write_file_durably(ports.disk, f"{DIRECTORY}/quorum-state", b"a vote")
        for number in range(1_000_000):
            with suppress(DiskError):
                ports.disk.mkdir("/data/t-0")
                file = ports.disk.open("/data/t-0/00000000000000000000.log", create=True)
                file.pwrite(b"%7d\n" % number, number % 1_000 * 8)
                ports.disk.open("/data/t-0/leader-epoch-checkpoint", create=True).pwrite(b"0\n", 0)
                file.pread(8, 0)
                await ports.disk.sync([file])
            await asyncio.sleep(0.01)

    def run(self, duration_ms: float = 3_000) -> list[str]:
        async def story() -> None:
            for name in NAMES:
                self.start(name)
            await self.nemesis.run(duration_ms, FAULTS)
            self.nemesis.heal()
            await self.world.sleep_ms(1_000)  # a stop that must not be cut short is waited for

        self.world.run(story())
        return [what for _, what in self.nemesis.events]


@pytest.mark.parametrize("kind", sorted({*FAULTS} - {"zeroed_tail", "stall_connection"}))
def test_every_kind_strikes_and_is_undone(kind: str) -> None:
    """After `heal` links, disks and processes are as in a world without faults (liveness is judged in that one)."""
    site = Site(7, (kind,))
    lines: list[str] = []
    alive: list[bool] = []

    async def story() -> None:
        for name in NAMES:
            site.start(name)
        await site.nemesis.run(3_000, FAULTS)
        site.nemesis.heal()
        alive.extend(site.world.process(name) is not None for name in NAMES)
        await site.world.sleep_ms(1_000)
        alive.extend(site.world.process(name) is not None for name in NAMES)

    site.world.run(story())
    lines.extend(what for _, what in site.nemesis.events)
    assert site.nemesis.injected > 10
    assert 0 < site.nemesis.struck[kind] <= site.nemesis.injected
    for effect in EFFECTS_OF.get(kind, ()):
        assert site.world.loop.effects[effect] > 0, effect
    assert set(site.world.loop.effects) <= set(EFFECTS)
    assert len(lines) > 3
    assert alive == [True] * 6
    for link in site.world.network.links.values():
        assert link == Link(link.source, link.target)
    for name in NAMES:
        disk = site.world.machines[name].disk
        assert disk.config == site.world.config.disk
        assert disk.faults == DiskFaults()
        assert not disk.hung
        assert not disk.rotten
    assert site.store.faults == StoreFaults()
    assert not site.nemesis.excused
    assert not site.nemesis.damaged


def test_kinds_are_known_by_one_name_each() -> None:
    """What the quorum survives is part of what a node survives; what needs seeds of its own is drawn beside nothing."""
    apart = {*BY_NAME_ALONE, *OF_SEVERAL, *OF_CLOCKS, *BESIDE, *OF_CLIENTS, *STORE_KINDS}
    assert set(KINDS) < set(NODE_KINDS) == set(FAULTS) - apart
    assert apart < set(FAULTS)
    assert set(DESTRUCTIVE) < {*NODE_KINDS, *OF_SEVERAL, *OF_CLOCKS}


def test_only_the_victim_loses_its_data() -> None:
    """Bounded (rule E3): rotten bits and new disks befall one machine, a majority keeps what it has."""
    for seed in range(5):
        site = Site(seed, ("wipe", "bit_rot", "lose_directory", "kill"))
        site.run()
        wiped = [name for name in NAMES if site.world.machines[name].disk.wipes]
        assert wiped == [site.nemesis.victim]


def test_a_tail_is_lost_and_all_are_back_at_once() -> None:
    """One machine's disk gives back less than it had synced; all were killed, that one starts first, and nothing else
    strikes until the replicas are in sync again. While another fault is in effect nothing happens."""
    site = Site(3, ("zeroed_tail",))
    nemesis, victim = site.nemesis, site.nemesis.victim
    path = "/data/orders-0/00000000000000000000.log"
    batches = [bytes(build_batch([Record(0, 0, None, b"v")], base_offset=n, leader_epoch=0)) for n in range(10)]

    async def fill(ports: Ports) -> None:
        ports.disk.mkdir("/data/orders-0")
        write_file_durably(ports.disk, path, b"".join(batches) + bytes(100))

    async def story() -> None:
        for name in NAMES:
            site.world.spawn(name, fill)
        await site.world.sleep_ms(10)
        for name in NAMES:
            site.world.kill(name)
            site.start(name)
        disks = {name: site.world.machines[name].disk for name in NAMES}
        whole = {name: disk.files()[path] for name, disk in disks.items()}
        undo = nemesis.later(lambda: None)
        FAULTS["zeroed_tail"](nemesis)
        assert not nemesis.events
        await site.world.sleep_ms(undo + 1)
        for _ in range(8):
            await site.world.sleep_ms(300)
            nemesis.events.clear()
            FAULTS["zeroed_tail"](nemesis)
            assert all(site.world.process(name) is None for name in NAMES)
        await site.world.sleep_ms(300)
        assert next(what for _, what in nemesis.events if what.startswith("start ")) == f"start {victim}"
        assert all(site.world.process(name) is not None for name in NAMES)
        assert nemesis.calm_until_ms > site.world.now_ms + 5_000
        left = disks[victim].files()[path].rstrip(b"\0")
        assert len(left) < len(b"".join(batches)) - 1
        assert whole[victim].startswith(left)
        assert "/data/orders-0" in disks[victim].tails_lost
        assert all(disks[name].files()[path] == whole[name] for name in NAMES if name != victim)

    site.world.run(story())


def test_directories_are_lost_while_nothing_runs_there() -> None:
    """By hand, or by a disk that forgets: the next process finds none."""
    site = Site(5, ("lose_directory",))
    lines = site.run()
    lost = [line for line in lines if "is lost; it starts" in line]
    assert lost
    assert all(line.startswith(f"/data/t-0 of {site.nemesis.victim} ") for line in lost)


def test_a_rotten_directory_is_moved_away() -> None:
    """Whoever watches the disk acts as the node's message says; the log is fetched again."""
    site = Site(2, ("bit_rot",))
    lines = site.run()
    assert any("turns over" in line for line in lines)
    assert any("is moved away" in line for line in lines)


def test_a_new_disk_has_nothing_rotten_to_be_moved_away() -> None:
    """Bits rot, then the machine gets a new disk: what is fetched onto that one is good, and stays (simulator seed 148:
    it was moved away too, or, before it was there, the move failed)."""
    site = Site(2, ("bit_rot",))
    nemesis, disk = site.nemesis, site.world.machines[site.nemesis.victim].disk
    nemesis.options.duration_min_ms = nemesis.options.duration_max_ms = 100

    async def story(back_ms: float) -> None:
        site.start(nemesis.victim)
        await site.world.sleep_ms(50)
        FAULTS["bit_rot"](nemesis)
        site.world.power_cut(nemesis.victim)
        disk.wipe()
        await site.world.sleep_ms(back_ms)
        nemesis.restart(nemesis.victim)
        await site.world.sleep_ms(200)

    async def stories() -> None:
        for back_ms in (50, 150):
            await story(back_ms)
            assert disk.names.find("/data/t-0") is not None
            assert not nemesis.excused
            site.world.kill(nemesis.victim)

    site.world.run(stories())
    assert not site.world.loop.unhandled
    assert not any("moved away" in what for _, what in nemesis.events)


def test_a_paused_node_is_excused_until_it_went_on() -> None:
    """It had decided to end over its disk, and could not, until the disk was well again for a while (seed 903112)."""
    site = Site(2, ("kill",))

    async def story() -> None:
        site.start("n1")
        await site.world.sleep_ms(50)
        site.nemesis.excuse("n1")
        site.nemesis.blame_after("n1", 100)
        site.world.pause("n1")
        await site.world.sleep_ms(250)
        assert "n1" in site.nemesis.excused
        site.world.resume("n1")
        await site.world.sleep_ms(150)
        assert not site.nemesis.excused

    site.world.run(story())


def test_one_machine_stays_dead_until_all_is_healed() -> None:
    """Whatever else would start it; and only one of them."""
    site = Site(3, ("one_stays_dead", "kill", "power_cut", "fail_sync"))
    lines = site.run()
    [said] = [line for line in lines if line.endswith("stays dead")]
    gone = said.split()[-3]
    began = lines.index(said)
    assert f"start {gone}" not in lines[began : lines.index("healed") - len(NAMES)]
    assert all(f"start {name}" in lines[began:] for name in NAMES)


def test_a_node_that_ends_when_all_is_healed_is_started_again() -> None:
    """It was about to stop over its disk (seed 40: nobody started it). Whoever is to stay dead stays dead."""
    site = Site(4, ())
    found: list[bool] = []

    async def story() -> None:
        for name in NAMES:
            site.start(name)
        await site.world.sleep_ms(50)
        site.nemesis.heal()
        site.world.kill("n1")
        site.nemesis.dead["n2"] = None
        site.world.kill("n2")
        await site.world.sleep_ms(1_000)
        found.extend(site.world.process(name) is not None for name in NAMES)

    site.world.run(story())
    assert found == [True, False, True]


def test_fewer_faults_leave_the_others_as_they_were() -> None:
    """Shrinking: of the same seed only the first are injected, at the same instants, on the same machines."""
    site = Site(11, NODE_KINDS)
    every = site.run()
    site = Site(11, NODE_KINDS)
    site.nemesis.options.first = 3
    few = site.run()
    assert site.nemesis.injected == 3
    assert few[:2] == every[:2]


def test_equal_seeds_are_equal_schedules() -> None:
    """One seed, one schedule; another one, another."""
    assert Site(4, NODE_KINDS).run() == Site(4, NODE_KINDS).run()
    assert Site(4, NODE_KINDS).run() != Site(5, NODE_KINDS).run()


def test_seeds_draw_few_and_many_kinds() -> None:
    """Swarm testing: some runs know two kinds of fault alone, some know all."""
    numbers = {len(FaultOptions.draw(random.Random(seed), NODE_KINDS).kinds) for seed in range(60)}
    assert 2 in numbers
    assert len(NODE_KINDS) in numbers


def test_a_minority_can_be_broken_in_every_way_and_mended() -> None:
    """One machine of those named, until it is mended: the world is then as it was."""
    how: dict[str, None] = {}
    for seed in range(60):
        site = Site(seed, ())
        broken: list[bool] = []

        async def story(site: Site = site, seed: int = seed, broken: list[bool] = broken) -> None:
            for name in NAMES:
                site.start(name)
            await site.world.sleep_ms(50)
            mend = cripple(site.nemesis, ["n2"], random.Random(seed))
            await site.world.sleep_ms(50)
            process = site.world.process("n2")
            links = site.world.network.links.values()
            broken.append(process is None or process.state is ProcessState.PAUSED)
            broken.append(any(link.blocked and "n2" in (link.source, link.target) for link in links))
            broken.append(site.world.machines["n2"].disk.config.slow_factor > 1)
            mend()
            await site.world.sleep_ms(50)
            process = site.world.process("n2")
            assert process is not None
            assert process.state is ProcessState.RUNNING

        site.world.run(story())
        assert sum(broken) == 1, broken
        how[site.nemesis.events[0][1].removeprefix("n2 is ").partition(" from now on")[0]] = None
        assert not any(link.blocked for link in site.world.network.links.values())
        assert site.world.machines["n2"].disk.config == site.world.config.disk
    assert set(how) == set(LASTING)


def test_the_operator_does_not_wait_for_a_leader_that_died() -> None:
    """Restoring a vote runs in the leader's process: killed with it, it never ends, and the next leader is asked."""
    world = World(1, WorldConfig())
    world.add_machine("n1")
    operator = Operator(world, dict, ["n1"], lambda _: None, victim="n1", force=world.kill)

    async def idle(ports: Ports) -> None:
        await asyncio.sleep(1e6)

    async def main() -> None:
        world.spawn("n1", idle)
        process = world.process("n1")
        assert process is not None
        operator._asked = "n1", process
        operator._task = asyncio.get_running_loop().create_task(asyncio.sleep(1e6))
        assert operator._busy()
        world.kill("n1")
        assert not operator._busy()
        world.spawn("n1", idle)
        assert not operator._busy(), "another process of that machine is not asked"

    world.run(main())


def test_a_vote_counts_once_all_know_that_it_is_committed() -> None:
    """What stands at the end of the logs alone goes with a power cut of all (seed 11001066)."""

    def quorum(high_watermark: int) -> Any:
        node = SimpleNamespace(doubt=None, voteless=False, voters_offset=61)
        core = SimpleNamespace(high_watermark=high_watermark, node=node)
        voters = SimpleNamespace(is_voter=lambda key, voteless: True)
        return SimpleNamespace(_driver=SimpleNamespace(stopped=False, core=core), voters=voters, key=None)

    assert not all_vote({"n1": quorum(62), "n2": quorum(61)}, ["n1", "n2"])
    assert all_vote({"n1": quorum(62), "n2": quorum(62)}, ["n1", "n2"])
    assert not all_vote({"n1": quorum(62)}, ["n1", "n2"])
