"""Rows that need a network to cut or a power line to pull: production nodes and clients in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.process import Ports
from strandline.chaos.sim.world import World
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.errors import ClientError
from strandline.client.types import NewTopic
from strandline.proto.errors import KafkaError

READY_MS = 30_000.0
QUICK = {"broker.session.timeout.ms": "3000", "replica.lag.time.max.ms": "2000"}
in_both_layouts = pytest.mark.parametrize(("split", "seeds"), [(False, 3), (True, 2)], ids=["combined", "split"])


class Site:
    """Three nodes, or three controllers and three brokers; a machine for clients, and one that a test cuts off with a
    node."""

    def __init__(self, seed: int, split: bool, **settings: str) -> None:
        self.world = World(seed)
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self.cluster = SimCluster(self.world, {**QUICK, **named}, split=split)
        self.world.add_machine("client")
        self.world.add_machine("beside")
        self.acked: dict[bytes, int] = {}
        self.refused: list[bytes] = []

    def run(self, story: Callable[[Site], Awaitable[None]]) -> None:
        async def whole() -> None:
            for name in self.cluster.names:
                self.cluster.start(name)
            await self.cluster.wait_ready(READY_MS)
            await story(self)

        self.world.run(whole())

    async def client(self, work: Callable[[Ports], Awaitable[None]], machine: str = "client") -> None:
        """Run `work` as a process of its own; its error is ours."""
        ended: list[BaseException | None] = []

        async def main(ports: Ports) -> None:
            try:
                await work(ports)
            except Exception as error:
                ended.append(error)
            else:
                ended.append(None)

        self.world.spawn(machine, main)
        await self.cluster.wait_for("the client is done", 120_000, lambda: bool(ended))
        self.world.kill(machine)
        if ended[0] is not None:
            raise ended[0]

    async def create(self, topic: str) -> None:
        async def work(ports: Ports) -> None:
            async with Admin(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
                await admin.create_topics([NewTopic(topic, 1, 3)])

        await self.client(work)
        await self.cluster.wait_in_sync(READY_MS)

    async def send(self, bootstrap: str, topic: str, first: int, last: int, machine: str = "client") -> None:
        """Values first..last-1; those acknowledged go to `acked`, those that failed to `refused`."""

        async def work(ports: Ports) -> None:
            settings = {"delivery_timeout_ms": 10_000, "request_timeout_ms": 1500, "linger_ms": 0}
            async with Producer(bootstrap, clock=ports.clock, rng=ports.rng, **settings) as producer:
                for number in range(first, last):
                    value = b"%d" % number
                    try:
                        ack = await producer.send_and_wait(topic, value, partition=0)
                        self.acked[value] = ack.offset
                    except (KafkaError, ClientError, TimeoutError):
                        self.refused.append(value)

        await self.client(work, machine)

    async def read(self, topic: str) -> list[bytes | None]:
        values: list[bytes | None] = []

        async def work(ports: Ports) -> None:
            async with Consumer(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as consumer:
                consumer.assign([(topic, 0)])
                consumer.seek_to_beginning()
                [end] = (await consumer.end_offsets([(topic, 0)])).values()
                while await consumer.position((topic, 0)) < end:
                    values.extend(record.value for record in await consumer.poll(timeout_s=1))

        await self.client(work)
        return values

    def leader(self, topic: str) -> str:
        image = self.cluster.newest_image()
        assert image is not None
        return f"n{image.topics[topic].partitions[0].leader}"


@in_both_layouts
def test_s50_a_minority_side_takes_no_writes(split: bool, seeds: int) -> None:
    """S50: the leader is cut off from the other two with a client beside it: acks=all never succeeds there, the others
    elect and go on; after healing the histories agree."""

    async def story(site: Site) -> None:
        await site.create("t")
        await site.send(site.cluster.bootstrap, "t", 0, 20)
        old = site.leader("t")
        others = [name for name in site.cluster.names if name != old]
        for other in others:
            site.world.partition(old, other)
            site.world.partition("beside", other)
        await site.send(f"{old}:9092", "t", 100, 103, machine="beside")
        assert site.refused == [b"100", b"101", b"102"]
        await site.cluster.wait_for("the majority has elected", READY_MS, lambda: site.leader("t") != old)
        majority = [name for name in others if name in site.cluster.brokers]
        await site.send(",".join(f"{name}:9092" for name in majority), "t", 20, 40)
        assert len(site.acked) == 40
        site.world.heal()
        await site.cluster.wait_in_sync(READY_MS)
        site.cluster.inspect()
        values = await site.read("t")
        assert [values[offset] for offset in site.acked.values()] == list(site.acked)

    for seed in range(seeds):
        Site(seed, split).run(story)


@in_both_layouts
def test_s47_power_cut_of_every_node_loses_nothing_acked(split: bool, seeds: int) -> None:
    """S47: flush.policy=ack: the power of all nodes fails, unsynced bytes are gone; every acked record is there."""

    async def story(site: Site) -> None:
        await site.create("t")
        sending = asyncio.ensure_future(site.send(site.cluster.bootstrap, "t", 0, 300))
        await site.cluster.wait_for("a part is acknowledged", READY_MS, lambda: len(site.acked) >= 50)
        for name in site.cluster.names:
            site.world.power_cut(name)
        before = dict(site.acked)
        await site.world.sleep_ms(500)
        for name in site.cluster.names:
            site.cluster.start(name)
        await sending
        await site.cluster.wait_in_sync(READY_MS)
        site.cluster.inspect()
        values = await site.read("t")
        assert len(before) >= 50
        assert all(values[offset] == value for value, offset in {**site.acked, **before}.items())

    for seed in range(seeds):
        Site(seed, split).run(story)


@in_both_layouts
def test_s46_only_who_has_everything_committed_leads_the_quorum(split: bool, seeds: int) -> None:
    """S46: a controller that was away while topics were made never leads before it has caught up; what was committed
    stays."""

    async def story(site: Site) -> None:
        site.world.isolate("n3")
        await site.cluster.wait_for("a leader of the two", READY_MS, lambda: _quorum_leader(site)[1] in ("n1", "n2"))
        near = ",".join(f"{name}:9092" for name in site.cluster.brokers if name != "n3")

        async def work(ports: Ports) -> None:
            async with Admin(near, clock=ports.clock, rng=ports.rng) as admin:
                for number in range(5):
                    await admin.create_topics([NewTopic(f"t{number}", 1, 2)])

        await site.client(work)
        epoch, leader = _quorum_leader(site)
        assert leader in ("n1", "n2")
        behind_log_end = site.cluster.live["n3"].node.quorum.log_end_offset
        assert behind_log_end < site.cluster.live[leader].node.quorum.high_watermark
        # The one that had everything dies as the one that had not comes back: both of the others must agree on a log.
        site.world.kill(leader)
        site.world.heal()
        await site.cluster.wait_for("another leads", READY_MS, lambda: _quorum_leader(site)[0] > epoch)
        site.cluster.observe()
        image = site.cluster.newest_image()
        assert image is not None
        assert {f"t{number}" for number in range(5)} <= image.topics.keys()

    for seed in range(seeds):
        Site(seed, split).run(story)


def _quorum_leader(site: Site) -> tuple[int, str]:
    """The newest epoch in which a living node takes itself for the leader, and its name; (-1, "") if none does. One
    that is cut off may do so in an older epoch."""
    leading = [
        (live.node.quorum.leader_and_epoch.epoch, f"n{live.number}")
        for live in site.cluster.nodes()
        if live.node.quorum.leader_and_epoch.leader_id == live.number
    ]
    return max(leading, default=(-1, ""))
