"""Replication quotas (KIP-73) as an operator sets them: lists of topics and rates of brokers, on simulated production
nodes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.stage import ClusterStage

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.types import ConfigChange, ConfigResource
from strandline.cluster.node.metrics import Metrics
from strandline.cluster.node.node import Node
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

QUICK = {"broker.session.timeout.ms": "3000", "replica.lag.time.max.ms": "2000"}
RATE = 1_000_000
RECORDS, RECORD_BYTES = 40, 500_000
"""More than a stream's credit (8 MiB), which a follower may take beyond its quota."""


class Site(ClusterStage):
    def __init__(self) -> None:
        super().__init__(1, QUICK)

    async def set_rate(self, side: str, rate: int, *nodes: str) -> None:
        change = [ConfigChange(f"{side}.replication.throttled.rate", str(rate))]
        brokers = [ConfigResource("broker", name.removeprefix("n")) for name in nodes]
        await self.admin(lambda admin: admin.alter_configs(dict.fromkeys(brokers, change)))

    async def described(self, resource: ConfigResource) -> dict[str, Any]:
        described = await self.admin(lambda admin: admin.describe_configs([resource]))
        return {entry.name: entry for entry in described[resource]}

    async def write(self, topic: str) -> None:
        async def work(ports: Ports) -> None:
            async with Producer(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng, linger_ms=0) as producer:
                for _ in range(RECORDS):
                    await producer.send_and_wait(topic, b"." * RECORD_BYTES, partition=0)

        await self.process("client", work)

    def node(self, name: str) -> Node:
        return next(live.node for live in self.cluster.nodes() if f"n{live.number}" == name)

    def byte_rate(self, name: str, side: str) -> float:
        page = Metrics(self.node(name)).render().decode()
        found = re.search(rf"^kafka_server_{side}replication_byte_rate (\S+)$", page, re.MULTILINE)
        assert found is not None
        return float(found[1])

    def throttle_limit(self, name: str) -> int:
        broker = self.node(name).broker
        assert broker is not None
        return broker.replicas.leader_throttle.limit

    def isr(self, topic: str) -> int:
        image = self.cluster.newest_image()
        assert image is not None
        return len(image.topics[topic].partitions[0].isr)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_broker_that_comes_back_catches_up_at_the_rate_of_kafka_configs(side: str) -> None:
    """As `kafka-configs.sh --alter` sets both; raised live; the metric shows the rate; nothing is called idle."""

    async def scenario(site: Site) -> None:
        await site.create("t", **{f"{side}_replication_throttled_replicas": "0:1,0:2,0:3"})
        leader = site.leader("t")
        away = next(name for name in site.cluster.names if name != leader)
        throttled = leader if side == "leader" else away
        await site.set_rate(side, RATE, throttled)
        site.kill(away)
        await site.until(lambda: site.isr("t") == 2, "an ISR without it")
        await site.write("t")
        site.cluster.start(away)
        await site.until(lambda: any(f"n{live.number}" == away for live in site.cluster.nodes()), "its process")
        await site.until(lambda: site.byte_rate(throttled, side) > 0, "something that is throttled")
        await site.world.sleep_ms(4_000)
        assert site.isr("t") == 2
        assert 0.3 * RATE < site.byte_rate(throttled, side) < 3 * RATE
        await site.set_rate(side, 100 * RATE, throttled)
        await site.until(lambda: site.isr("t") == 3, "an ISR of all", within_ms=3_000)

    Site().play(scenario)


def test_what_is_set_is_described_and_a_rate_of_nothing_is_refused() -> None:
    async def scenario(site: Site) -> None:
        broker, topic = ConfigResource("broker", "2"), ConfigResource("topic", "t")
        await site.create("t", leader_replication_throttled_replicas="*")
        await site.set_rate("leader", RATE, "n2")
        entry = (await site.described(broker))["leader.replication.throttled.rate"]
        assert entry.value == str(RATE)
        entry = (await site.described(topic))["leader.replication.throttled.replicas"]
        assert entry.value == "*"
        await site.until(lambda: site.throttle_limit("n2") == RATE, "the rate on its broker")
        assert site.throttle_limit("n1") == 2**63 - 1
        with pytest.raises(KafkaError, match="would never catch up") as refused:
            await site.set_rate("leader", 0, "n2")
        assert refused.value.code is ErrorCode.INVALID_CONFIG

    Site().play(scenario)
