"""An address leads to another broker than it is advertised for (rule B42, KIP-1242)."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Consumer, Producer
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from tests.client.broker import BOOTSTRAP, FIRST_PORT, HOST, ScriptedCluster, play

EVERY_ADDRESS = [f"{HOST}:{FIRST_PORT + node}" for node in (1, 2, 3)]


def written_to(settings: dict[str, Any], *, healed: bool, offered: int = 5) -> tuple[int, list[bytes | None]]:
    """Write to a partition that broker 2 leads, whose address leads to broker 1, until it is `healed`, or broker 1
    leads; how many connections were refused, and what is in the log."""
    refused = 0

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        nonlocal refused
        cluster.offered[Api.API_VERSIONS] = (0, offered)
        cluster.advertised[2] = (HOST, FIRST_PORT + 1)
        async with asyncio.timeout(120), Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, **settings) as sender:
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


def test_a_cluster_made_anew_at_the_same_addresses_is_found() -> None:
    """Of the one that is lost nobody is left, and each bootstrap address is one that it advertised."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with (
            asyncio.timeout(120),
            Producer(EVERY_ADDRESS, clock=ports.clock, rng=ports.rng, delivery_timeout_ms=60_000) as sender,
        ):
            await (await sender.send("t", b"one", partition=1))
            cluster.become("another")
            await (await sender.send("t", b"two", partition=1))
        assert cluster.misrouted > 0

    cluster = play(scenario, {"t": 2}, seed=3)
    [records] = [found for where, found in cluster.records.items() if where.partition == 1]
    assert [record.value for record in records] == [b"one", b"two"]


def test_what_leads_to_a_cluster_that_is_left_is_closed() -> None:
    """The other cluster's brokers have the same ids and addresses: what goes to one of them goes over a connection to
    it."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with (
            asyncio.timeout(120),
            Producer(EVERY_ADDRESS, clock=ports.clock, rng=ports.rng, metadata_max_age_ms=500) as sender,
        ):
            await (await sender.send("t", b"one", partition=1))
            [before] = [writer for writer, apis in cluster.connections.items() if Api.PRODUCE in apis]
            cluster.become("another", keep=Api.PRODUCE)
            while before in cluster.connections:
                await asyncio.sleep(0.1)
            await (await sender.send("t", b"two", partition=1))

    play(scenario, {"t": 2}, seed=3)


def test_a_client_that_is_sent_away_asks_another_bootstrap_address() -> None:
    """A broker answers Metadata with REBOOTSTRAP_REQUIRED (KIP-1102), and goes on to do so."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with asyncio.timeout(120), Producer(EVERY_ADDRESS, clock=ports.clock, rng=ports.rng) as sender:
            await (await sender.send("t", b"one", partition=0))
            cluster.send_away = {1}
            await (await sender.send("u", b"two", partition=0))

    play(scenario, {"t": 1, "u": 1}, seed=3)


def test_a_bootstrap_connection_is_not_taken_for_a_broker_that_is_elsewhere() -> None:
    """The address by which a client came is the one that broker 2 advertises, and broker 1 answers there."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        cluster.advertised[2] = (HOST, FIRST_PORT + 1)
        async with asyncio.timeout(120), Consumer(BOOTSTRAP, clock=ports.clock, rng=ports.rng) as reader:
            asked = asyncio.ensure_future(reader.end_offsets([TopicPartition("t", 1)]))
            while not cluster.misrouted:
                await asyncio.sleep(0.01)
            assert not cluster.requests[Api.LIST_OFFSETS]
            cluster.advertised.clear()
            assert await asked == {TopicPartition("t", 1): 0}

    play(scenario, {"t": 2}, seed=3)


def test_the_check_can_be_switched_off() -> None:
    """As behind a proxy that has one address for all."""
    assert written_to({"metadata_cluster_check_enable": False}, healed=False)[0] == 0


def test_a_broker_that_knows_no_such_check_is_asked_without() -> None:
    """Apache Kafka below 4.4."""
    assert written_to({}, healed=False, offered=4)[0] == 0
