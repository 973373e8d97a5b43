"""A slow write names the replica that it waited for (rule A40), on simulated production nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.stage import ClusterStage

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.proto.errors import StrandlineError

SLOW, HANGS = 500.0, 10_000.0
"""A sync of a simulated disk takes up to 4 ms; so much slower, up to two seconds, and some ten."""

SETTINGS = {
    "replica.lag.time.max.ms": "6000",
    "broker.session.timeout.ms": "60000",
    "disk.sync.timeout.ms": "60000",
    "slow.request.log.threshold.ms": "100",
}


class Site(ClusterStage):
    def __init__(self) -> None:
        super().__init__(1, SETTINGS)

    async def write(self, **settings: Any) -> None:
        async def work(ports: Ports) -> None:
            producer = Producer(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng, linger_ms=0, **settings)
            async with producer:
                await producer.send_and_wait("t", b"x", partition=0)

        await self.process("client", work)

    def slow_disk(self, machine: str, factor: float) -> None:
        self.world.machines[machine].disk.config.slow_factor = factor

    async def waited_for(self, work: Callable[[], Any]) -> list[str]:
        """What the slow requests of some work say that they waited for."""
        with capture_logs() as lines:
            await work()
            await self.world.sleep_ms(100)
        slow = [line for line in lines if line["event"] == "a slow request" and line["api"] == "Produce"]
        assert all(line["topic_partitions"] == "t-0" and line["acks"] == -1 for line in slow)
        return [line["waited_for"] for line in slow]


def test_158_the_replica_that_was_last_is_named() -> None:
    """Schedule 158: a follower's disk is slow, then the leader's; then a follower's hangs, until it leaves the ISR."""

    async def scenario(site: Site) -> None:
        await site.create("t", min_insync_replicas="2")
        leader = site.leader("t")
        slow, other = (name for name in site.cluster.names if name != leader)
        await site.write()
        site.slow_disk(slow, SLOW)
        assert await site.waited_for(site.write) == [f"t-0: the sync of node {slow[1:]}"]
        site.slow_disk(slow, 1)
        site.slow_disk(leader, SLOW)
        assert await site.waited_for(site.write) == [f"t-0: the sync of node {leader[1:]} (itself, the leader)"]
        site.slow_disk(leader, 1)
        site.slow_disk(other, HANGS)

        async def write_in_vain() -> None:
            with pytest.raises(StrandlineError):
                await site.write(request_timeout_ms=1_000, delivery_timeout_ms=2_000)

        assert set(await site.waited_for(write_in_vain)) == {f"t-0: still for the sync of node {other[1:]}"}
        waits = await site.waited_for(lambda: site.write(request_timeout_ms=30_000, delivery_timeout_ms=120_000))
        assert waits == ["t-0: a change of the replicas in sync"]

    Site().play(scenario)
