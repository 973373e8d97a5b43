"""An address leads to another broker than it is advertised for (rule B42, KIP-1242)."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from tests.client.broker import BOOTSTRAP, FIRST_PORT, HOST, ScriptedCluster, play


def written_to(settings: dict[str, Any], *, healed: bool, offered: int = 5) -> tuple[int, list[bytes | None]]:
    """Write to a partition that broker 2 leads, whose address leads to broker 1, until it is `healed`, or broker 1
    leads; how many connections were refused, and what is in the log."""
    refused = 0

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        nonlocal refused
        cluster.offered[Api.API_VERSIONS] = (0, offered)
        cluster.advertised[2] = (HOST, FIRST_PORT + 1)
        async with Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, **settings) as sender:
            sent = await sender.send("t", b"one", partition=1)
            if healed:
                while not cluster.misrouted:
                    await asyncio.sleep(0.01)
                cluster.advertised.clear()
            else:
                while not cluster.requests[Api.PRODUCE]:
                    await asyncio.sleep(0.01)
                cluster.move(TopicPartition("t", 1), 1)
            await sent
        refused = cluster.misrouted

    cluster = play(scenario, {"t": 2}, seed=3)
    [records] = [found for where, found in cluster.records.items() if where.partition == 1]
    return refused, [record.value for record in records]


def test_a_misrouted_client_writes_to_nobody_else_and_finds_the_broker() -> None:
    """The wrong broker gets no request of it; the metadata are asked for until the address is right."""
    refused, written = written_to({}, healed=True)
    assert refused > 0
    assert written == [b"one"]


def test_the_check_can_be_switched_off() -> None:
    """As behind a proxy that has one address for all."""
    assert written_to({"metadata_cluster_check_enable": False}, healed=False)[0] == 0


def test_a_broker_that_knows_no_such_check_is_asked_without() -> None:
    """Apache Kafka below 4.4."""
    assert written_to({}, healed=False, offered=4)[0] == 0
