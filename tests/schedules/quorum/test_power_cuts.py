"""Schedule 71: a broker's machine loses power and is back before anything of it has ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from strandline.controller.operations import REGISTER_BROKER
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from tests.controller.sim_cluster import SimCluster
from tests.schedules.helpers import schedule

BACK_MS_MAX = 1200
"""From the start of the new process to its registration: the old one has half a second to send a heartbeat."""


@pytest.mark.parametrize(("seed", "served_ms"), [(1, 0.0), (4, 0.0), (12, 0.0), (13, 0.5), (23, 0.5)])
@schedule(
    71,
    rule="another process at the address of one that sends no heartbeat takes its place",
    mutant=("other-process-is-not-believed", "refused-registration-probes-nothing"),
)
def test_71_a_machine_loses_power_after_it_registered_and_is_back_at_once(seed: int, served_ms: float) -> None:
    """Its stream to the controller stays open, and no probe had been answered yet: its new process was refused for
    2.5 s, and for the rest of the session's 9 s where nothing was sent over the stream."""

    async def scenario(cluster: SimCluster) -> float:
        _, other = cluster.active_and_other()
        node = other.node
        cluster.kill(node)
        await cluster.until(lambda: cluster.is_fenced(node))
        await asyncio.sleep(0.5)
        cluster.start(node)
        await cluster.until(lambda: cluster.is_registered(node) and not cluster.is_fenced(node))
        await asyncio.sleep(served_ms / 1000)
        cluster.power_cut(node)
        await asyncio.sleep(0.001)
        cluster.start(node)
        return await cluster.until(lambda: cluster.is_registered(node))

    assert SimCluster(seed).play(scenario) < BACK_MS_MAX


@schedule(
    71, rule="a heartbeat counts for more than what answers at the address", mutant="displaced-broker-is-not-asked"
)
def test_71_a_live_broker_whose_address_leads_to_another_process_stays() -> None:
    """Two processes live under one node id, and the name of the first leads to the second, which asks for its place
    twenty times a second: the first is never fenced, and the second is refused for as long."""
    twin = UUID(int=71)

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        node = other.node
        cluster.kill(node)
        await cluster.until(lambda: cluster.is_fenced(node))
        cluster.start(node, answers_as=twin)
        await cluster.until(lambda: cluster.is_registered(node) and not cluster.is_fenced(node))
        fenced: list[NodeId] = []
        active.publisher.subscribe(
            lambda _, image: fenced.extend(node for node, broker in image.brokers.items() if broker.fenced)
        )
        request = replace(cluster.registration(node, twin), replaces=cluster.registered(node))
        refused = 0
        for _ in range(400):
            with pytest.raises(KafkaError) as caught:
                await cluster.on(active.node, lambda active: active.channel.ask(REGISTER_BROKER, request))
            refused += caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            await asyncio.sleep(0.05)
        assert refused == 400
        assert not fenced

    SimCluster(71).play(scenario)
