"""Whole nodes on disks that take long to make files: a topic of many partitions keeps no event loop for long."""

from __future__ import annotations

import pytest

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.types import NewTopic
from strandline.replica.states import Role

READY_MS = 30_000.0
PARTITIONS = 300
NAME_US = 4_000
"""A log is three names: all of them would keep a loop for 3.6 s, and a leader of the quorum is given up after 2."""

TURN_MS = 100.0
"""What a turn may take: 20 ms of new logs and the end of one, or the epochs of those that were made last."""


def test_a_topic_of_many_partitions_leaves_the_quorum_its_leader() -> None:
    """Rule B26. Heartbeats and votes go on, no broker is fenced, what is there already is written and read. And a group
    whose partition is made late, after its metadata, finds its coordinator."""
    world = World(26)
    cluster = SimCluster(world, {"group.initial.rebalance.delay.ms": "0"})
    world.add_machine("client")
    read: list[bytes | None] = []

    async def use(ports: Ports) -> None:
        async with Admin(cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
            await admin.create_topics([NewTopic("first", 1, 3)])
            async with Producer(cluster.bootstrap, clock=ports.clock, rng=ports.rng) as producer:
                await producer.send("first", b"before")
                slow_down()
                await admin.create_topics([NewTopic("many", PARTITIONS, 3)])
                unmade.append(PARTITIONS - min(count(name) for name in cluster.names))
                await producer.send("first", b"meanwhile")
                await producer.send("many", b"in the last one", partition=PARTITIONS - 1)
        options = {"group_id": "g", "auto_offset_reset": "earliest", "clock": ports.clock, "rng": ports.rng}
        async with Consumer(cluster.bootstrap, **options) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(["first", "many"])
            while len(read) < 3:
                read.extend(record.value for record in await consumer.poll(1.0))

    unmade: list[int] = []

    def slow_down() -> None:
        for name in cluster.names:
            world.machines[name].disk.config.name_us = NAME_US

    def count(name: str) -> int:
        return sum(one.topic_partition.topic == "many" for one in cluster.replicas(cluster.live[name]))

    def epochs() -> set[int]:
        return {live.node.quorum.leader_and_epoch.epoch for live in cluster.nodes()}

    async def story() -> None:
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_ready(READY_MS)
        before = epochs()
        client = world.spawn("client", use)
        assert client.main is not None
        await cluster.wait_for("everything was read", 2 * READY_MS, client.main.done)
        client.main.result()
        assert unmade[0] > 0
        assert sorted(read, key=str) == [b"before", b"in the last one", b"meanwhile"]
        assert all(count(name) == PARTITIONS for name in cluster.names)
        assert epochs() == before
        image = cluster.newest_image()
        assert image is not None
        assert not [node for node, broker in image.brokers.items() if broker.fenced]
        longest = max(live.process.longest_turn_us for live in cluster.nodes()) / 1000
        assert 0 < longest <= TURN_MS
        assert not cluster.fallen

    world.run(story())


def test_the_coordinators_of_partitions_that_are_made_late() -> None:
    """Each partition of `__consumer_offsets` has its coordinator where it is led, though no metadata came since."""
    world = World(27)
    cluster = SimCluster(world, {})
    world.add_machine("client")

    async def use(ports: Ports) -> None:
        async with Consumer(cluster.bootstrap, group_id="g", clock=ports.clock, rng=ports.rng) as consumer:
            consumer.subscribe(["t"])
            await consumer.poll(1.0)

    def coordinators() -> tuple[int, int]:
        """Those that there are, and the partitions that are led."""
        nodes = [live.node.broker for live in cluster.nodes()]
        led = sum(
            one.topic_partition.topic == "__consumer_offsets" and one.role is Role.LEADER
            for live in cluster.nodes()
            for one in cluster.replicas(live)
        )
        return sum(
            len(list(broker.coordinators.groups.runtime.hosted())) for broker in nodes if broker is not None
        ), led

    async def story() -> None:
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_ready(READY_MS)
        for name in cluster.names:
            world.machines[name].disk.config.name_us = NAME_US
        world.spawn("client", use)
        await cluster.wait_for("all coordinators", READY_MS, lambda: coordinators() == (50, 50))

    world.run(story())


@pytest.mark.parametrize("how", ["kill", "power_cut", "stop"])
@pytest.mark.parametrize("size", [1, 3])
def test_every_partition_is_led_after_a_stop_in_the_middle(size: int, how: str) -> None:
    """All nodes stop while logs are still to be made, politely or not: nobody has these logs, and all are led in the
    end. A replica without a log is in doubt, and waits for the others of its ISR alone."""
    world = World(28)
    cluster = SimCluster(world, {}, size=size)
    world.add_machine("client")

    async def create(ports: Ports) -> None:
        async with Admin(cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
            await admin.create_topics([NewTopic("many", PARTITIONS, size)])

    def roles(role: Role) -> int:
        return sum(one.role is role for live in cluster.nodes() for one in cluster.replicas(live))

    async def story() -> None:
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_ready(READY_MS)
        for name in cluster.names:
            world.machines[name].disk.config.name_us = NAME_US
        world.spawn("client", create)
        await cluster.wait_for("some are made", READY_MS, lambda: roles(Role.LEADER) > 20)
        world.kill("client")
        assert roles(Role.LEADER) < PARTITIONS
        for name in cluster.names:
            getattr(cluster if how == "stop" else world, how)(name)
        await cluster.wait_for("the end", 2 * READY_MS, lambda: not any(map(world.process, cluster.names)))
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_ready(READY_MS)
        await cluster.wait_for("all are led", 2 * READY_MS, lambda: roles(Role.LEADER) == PARTITIONS)
        assert roles(Role.FOLLOWER) == PARTITIONS * (size - 1)

    world.run(story())
