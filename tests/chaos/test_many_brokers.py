"""Row S101: fifty brokers and a thousand partitions in virtual time; one broker dies, and its leaderships move."""

from __future__ import annotations

import pytest

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.client.aio import Admin
from strandline.client.types import NewTopic
from strandline.proto.ids import NodeId

BROKERS, TOPICS, PARTITIONS = 50, 10, 100
READY_MS = 30_000.0
SILENCE_MS = 2_500.0
"""broker.silence.timeout.ms, as it is unless set."""


def leaderless(cluster: SimCluster, gone: NodeId) -> int:
    """Partitions that nobody leads: by the metadata, or because the leader they name does not lead yet."""
    image = cluster.newest_image()
    assert image is not None
    leading = {
        (str(partition.topic_partition), live.number, int(partition.state.leader_epoch))
        for live in cluster.nodes()
        for partition in cluster.replicas(live)
        if partition.leader is not None
    }
    partitions = [(topic.name, info) for topic in image.topics.values() for info in topic.partitions.values()]
    assert len(partitions) == TOPICS * PARTITIONS
    return sum(
        info.leader == gone or (f"{name}-{info.partition}", int(info.leader), int(info.leader_epoch)) not in leading
        for name, info in partitions
    )


@pytest.mark.parametrize(("how", "within_ms"), [("kill", 500.0), ("power_cut", SILENCE_MS + 1_000.0)])
def test_s101_every_partition_of_a_dead_broker_has_a_new_leader(how: str, within_ms: float) -> None:
    """Row S101: a killed broker's kernel says so, and its leaderships have moved within half a second; one without
    power says nothing, and is fenced for its silence. Nobody else is fenced, no partition is left without a leader."""
    world = World(101)
    cluster = SimCluster(world, {}, size=BROKERS, controllers=3)
    world.add_machine("client")
    victim = cluster.names[20]
    gone = NodeId(int(victim[1:]))

    async def create(ports: Ports) -> None:
        async with Admin(cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
            await admin.create_topics([NewTopic(f"t{number}", PARTITIONS, 3) for number in range(TOPICS)])

    async def story() -> None:
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_ready(READY_MS)
        client = world.spawn("client", create)
        assert client.main is not None
        await cluster.wait_for("the topics exist", READY_MS, client.main.done)
        await cluster.wait_for("every partition is led", READY_MS, lambda: leaderless(cluster, NodeId(0)) == 0)
        await world.sleep_ms(1_000)
        led_before = sum(one.leader is not None for one in cluster.replicas(cluster.live[victim]))
        assert led_before == TOPICS * PARTITIONS // BROKERS
        getattr(world, how)(victim)
        await cluster.wait_for("every partition has a leader", within_ms, lambda: leaderless(cluster, gone) == 0)
        image = cluster.newest_image()
        assert image is not None
        assert [node for node, broker in image.brokers.items() if broker.fenced] == [gone]
        assert not cluster.fallen

    world.run(story())
