"""A sync never returns: schedule 58, production nodes in the simulator."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Admin, Producer
from strandline.client.errors import ClientError
from strandline.client.types import NewTopic
from strandline.proto.errors import KafkaError
from tests.schedules.helpers import schedule
from tests.stage import READY_MS, ClusterStage

TIMEOUT_MS = 5_000
"""`disk.sync.timeout.ms`, as it is by default."""
MOVES_MS = 2_500
"""What an election, its news and a client's next attempt take on top of it."""


class Site(ClusterStage):
    """A cluster, and a producer that notes when its records were acknowledged."""

    def __init__(self, seed: int, *, split: bool = False, **settings: str) -> None:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        super().__init__(seed, {"disk.sync.timeout.ms": str(TIMEOUT_MS), **given}, split=split)
        self.acked_ms: list[float] = []

    async def begin(self) -> None:
        await super().begin()
        self.world.spawn("client", self._produce)
        await self.until(lambda: len(self.acked_ms) > 5, "acks come")
        await self.cluster.wait_in_sync(READY_MS)

    async def _produce(self, ports: Ports) -> None:
        async with Admin(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
            await admin.create_topics([NewTopic("t", 1, 3)])
        settings = {"delivery_timeout_ms": 120_000, "request_timeout_ms": 2_000, "linger_ms": 0}
        async with Producer(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng, **settings) as producer:
            while True:
                await producer.send_and_wait("t", b"value", partition=0)
                self.acked_ms.append(self.world.now_ms)
                await asyncio.sleep(0.1)

    async def change_metadata(self, ports: Ports) -> None:
        """All the time: an idle controller syncs nothing."""
        async with Admin(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
            for number in range(1_000):
                with suppress(KafkaError, ClientError):
                    await admin.create_topics([NewTopic(f"more-{number}", 1, 3)])
                await asyncio.sleep(0.5)

    async def longest_gap_ms(self, duration_ms: float) -> float:
        """The longest time without an ack from now on."""
        seen = len(self.acked_ms)
        began_ms = self.world.now_ms
        await self.world.sleep_ms(duration_ms)
        times = [began_ms, *self.acked_ms[seen:], self.world.now_ms]
        return max(later - sooner for sooner, later in pairwise(times))

    async def be_fast(self) -> None:
        """Every disk is a good drive, until each broker waits in place for what it syncs."""
        for name in self.cluster.brokers:
            config = self.world.machines[name].disk.config
            config.sync_min_us, config.sync_max_us = 50, 200
        await self.cluster.wait_for(
            "syncs are waited for",
            READY_MS,
            lambda: all(self.cluster.live[name].node.disk.waited > 20 for name in self.cluster.brokers),
        )

    def hang(self, name: str) -> None:
        """From now on no sync of this machine ends. Its node has a reason to stop itself."""
        self.world.machines[name].disk.hang()
        self.cluster.may_fall = (name,)


@pytest.mark.parametrize("role", ["leader", "follower"])
@schedule(58, rule="B18: the age of the sync in flight is a health signal", mutant="hung-sync-is-waited-for")
def test_58_a_sync_hangs_under_a_broker(role: str) -> None:
    """Of a leader: no record is acknowledged, and its heartbeats go on. Of a follower in the ISR: the same, until it
    has lagged for half a minute. Either gives up within the bound, and acks come again."""
    site = Site(58, split=True)

    async def story(site: Site) -> None:
        leader = site.leader("t")
        victim = leader if role == "leader" else next(name for name in site.cluster.brokers if name != leader)
        site.hang(victim)
        assert await site.longest_gap_ms(20_000) < TIMEOUT_MS + MOVES_MS
        assert site.leader("t") != victim
        site.world.machines[victim].disk.let_go()
        site.world.kill(victim)
        site.cluster.start(victim)
        await site.cluster.wait_in_sync(READY_MS)

    site.play(story)


@schedule(58, rule="leaderships move first", mutant="hung-disk-is-told-to-nobody")
def test_58_leaderships_move_before_the_node_ends() -> None:
    """Its event loop still runs: it tells the controller that it can serve nothing any more, and then it ends."""
    site = Site(63, split=True)

    async def story(site: Site) -> None:
        leader = site.leader("t")
        node = site.cluster.live[leader].node
        site.hang(leader)
        await site.until(lambda: site.leader("t") != leader, "another leads", within_ms=TIMEOUT_MS + MOVES_MS)
        assert not node.failed.done()
        await site.until(node.failed.done, "it gives up", within_ms=MOVES_MS)

    site.play(story)


@schedule(58, rule="A5: a leader whose disk hangs resigns", mutant="quorum-leads-on-a-hung-disk")
def test_58_a_sync_hangs_under_the_active_controller() -> None:
    """The other controllers commit without it, but it can remember no vote and no epoch: it resigns within the bound,
    and does not lead again."""
    site = Site(59, split=True)

    async def story(site: Site) -> None:
        controller = site.cluster.controller()
        assert controller is not None
        site.world.add_machine("admin")
        site.world.spawn("admin", site.change_metadata)
        site.hang(controller)
        began_ms = site.world.now_ms
        await site.until(
            lambda: site.cluster.controller() not in (None, controller),
            "another controller",
            within_ms=TIMEOUT_MS + MOVES_MS,
        )
        assert site.world.now_ms - began_ms > TIMEOUT_MS / 2, "it had no reason to go yet"
        assert await site.longest_gap_ms(30_000) < MOVES_MS
        assert site.cluster.controller() != controller
        site.world.machines[controller].disk.let_go()
        site.cluster.start(controller)
        await site.cluster.wait_ready(READY_MS)

    site.play(story)


@schedule(58, rule="B18: a node whose disk hangs ends", mutant="a-stop-waits-for-the-hung-sync")
def test_58_a_combined_node_whose_disk_hangs_ends() -> None:
    """It leads the quorum and partitions: it stops by itself although its sync never ends, and nothing waits for it."""
    site = Site(60)

    async def story(site: Site) -> None:
        victim = site.leader("t")
        live = site.cluster.live[victim]
        site.hang(victim)
        await site.until(live.node.failed.done, "it gives up", within_ms=TIMEOUT_MS + MOVES_MS)
        failed_ms = site.world.now_ms
        await site.until(lambda: not live.process.alive, "it has ended", within_ms=60_000)
        assert site.world.now_ms - failed_ms < MOVES_MS, "its stop waited for what never ends"
        assert await site.longest_gap_ms(20_000) < MOVES_MS

    site.play(story)


def test_58_a_disk_that_hangs_for_a_moment_costs_nothing_more() -> None:
    """Four seconds without an ack, and everybody goes on as before: nobody stops."""
    site = Site(61)

    async def story(site: Site) -> None:
        leader = site.leader("t")
        disk = site.world.machines[leader].disk
        disk.hang()
        await site.world.sleep_ms(TIMEOUT_MS - 1_500)
        disk.let_go()
        assert await site.longest_gap_ms(10_000) < MOVES_MS
        assert site.leader("t") == leader
        assert site.cluster.self_stops == 0

    site.play(story)


def test_58_acks_that_wait_for_no_sync_go_on() -> None:
    """flush.policy=replicate: the memory of min.insync.replicas machines counts, until a checkpoint waits for the disk
    on the event loop. Then the watch thread ends the process: nothing of it becomes durable any more."""
    site = Site(62, split=True, flush_policy="replicate")

    async def story(site: Site) -> None:
        leader = site.leader("t")
        site.hang(leader)
        assert await site.longest_gap_ms(8 * TIMEOUT_MS) < TIMEOUT_MS + MOVES_MS
        assert site.leader("t") != leader

    site.play(story)


@pytest.mark.parametrize("role", ["leader", "follower"])
@schedule(58, rule="B18: a wait in place ends", mutant="a-wait-in-place-has-no-end")
def test_58_a_sync_hangs_while_the_event_loop_waits_for_it(role: str) -> None:
    """The disks were fast, so that each node waits in place. Then one hangs: its loop goes on after the limit, it keeps
    voting and answering, and gives up what it leads within the same bound as ever."""
    site = Site(64, split=True)

    async def story(site: Site) -> None:
        await site.be_fast()
        leader = site.leader("t")
        victim = leader if role == "leader" else next(name for name in site.cluster.brokers if name != leader)
        node = site.cluster.live[victim].node
        site.hang(victim)
        gap = asyncio.ensure_future(site.longest_gap_ms(20_000))
        await site.cluster.wait_for("a sync hangs", READY_MS, lambda: node.disk.age_ms > 1_000)
        for _ in range(20):
            lag = await lag_ms(site, victim)
            assert lag < 50, "its event loop stands still"
        assert await gap < TIMEOUT_MS + MOVES_MS
        assert site.leader("t") != victim

    site.play(story)


async def lag_ms(site: Site, name: str) -> float:
    """How late a timer of this node is."""
    loop, process = asyncio.get_running_loop(), site.cluster.live[name].process
    ran: asyncio.Future[float] = loop.create_future()
    due_ms = site.world.now_ms + 5
    process.context.run(loop.call_later, 0.005, lambda: ran.set_result(site.world.now_ms - due_ms))
    return await ran


@schedule(58, rule="B18: a disk that turned slow is not waited for", mutant="slow-syncs-are-waited-for")
def test_58_a_disk_turns_slow_while_it_is_waited_for() -> None:
    """From 0.1 ms a sync to 200 under everybody: one wait for each node, and no election, for votes and heartbeats do
    not wait behind syncs."""
    site = Site(65)

    async def story(site: Site) -> None:
        await site.be_fast()
        leader, controller = site.leader("t"), site.cluster.controller()
        nodes = [site.cluster.live[name].node for name in site.cluster.names]
        epoch = nodes[0].quorum.leader_and_epoch.epoch
        for name in site.cluster.names:
            config = site.world.machines[name].disk.config
            config.sync_min_us, config.sync_max_us = 100_000, 300_000
        waited = [node.disk.waited for node in nodes]
        began = site.world.loop.effects["sync-wait-missed"]
        assert await site.longest_gap_ms(10_000) < MOVES_MS
        assert site.world.loop.effects["sync-wait-missed"] - began <= len(nodes)
        assert [node.disk.waited for node in nodes] == waited
        assert (site.leader("t"), site.cluster.controller()) == (leader, controller)
        assert nodes[0].quorum.leader_and_epoch.epoch == epoch

    site.play(story)
