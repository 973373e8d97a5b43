"""Schedule 65: an offset that never changes expires while its reader lives. A reader that polls keeps its commit alive.

Brokers forget an offset `offsets.retention.minutes` after its commit where no member of the group reads the topic.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.chaos.testing.simulation import Simulation
from strandline.client.aio import Admin, Consumer
from strandline.proto.ids import TopicPartition
from strandline.tools.copy.engine import Engine
from strandline.tools.copy.target import TargetSpec
from tests.client.members import SETTINGS, fill, member
from tests.schedules.helpers import schedule

WHERE = TopicPartition("t", 0)
RETENTION = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
QUIET_S = 300.0


def simulate(main: Any, seed: int = 1) -> Any:
    return Simulation(seed, settings=SETTINGS | RETENTION).run(main)


async def read(consumer: Consumer, count: int) -> list[int]:
    values: list[int] = []
    until = asyncio.get_running_loop().time() + 30
    while len(values) < count:
        assert asyncio.get_running_loop().time() < until, f"{len(values)} of {count} came"
        values += [int(record.value or b"") for record in await consumer.poll(1.0)]
    return values


async def poll_for(consumer: Consumer, duration_s: float) -> None:
    until = asyncio.get_running_loop().time() + duration_s
    while asyncio.get_running_loop().time() < until:
        assert not await consumer.poll(1.0)


@pytest.mark.parametrize("auto_commit", [True, False])
@schedule(65, rule="a reader that polls keeps its commit alive", mutant="unchanged-offset-never-committed-again")
def test_65_a_quiet_topic_costs_no_commit(auto_commit: bool) -> None:
    """Partitions by name, a quiet topic: the reader polls on for five times the retention. Its successor, which would
    begin at the end of the topic, reads what came in between."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        settings: dict[str, Any] = {"enable_auto_commit": auto_commit}
        async with member(env, **settings) as consumer:
            consumer.assign([WHERE])
            assert await read(consumer, 10) == list(range(10))
            await consumer.commit()
            await poll_for(consumer, QUIET_S)
        await fill(env, "t", 5, 1, start=10)
        async with member(env, auto_offset_reset="latest", **settings) as consumer:
            consumer.assign([WHERE])
            assert await read(consumer, 5) == list(range(10, 15))

    simulate(main)


def test_65_a_reader_that_never_lives_long_keeps_its_commit() -> None:
    """A job that looks in every 40 s, for a second: nothing changes, and no life of it is as long as the retention."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        async with member(env) as consumer:
            consumer.assign([WHERE])
            await read(consumer, 10)
            await consumer.commit()
        for _ in range(8):
            await asyncio.sleep(39)
            async with member(env, auto_commit_interval_ms=5_000) as consumer:
                consumer.assign([WHERE])
                await poll_for(consumer, 1.0)
        async with member(env) as consumer:
            found = (await consumer.committed([WHERE]))[WHERE]
        assert found is not None
        assert found.offset == 10

    simulate(main)


def test_65_a_reader_that_does_not_poll_keeps_nothing() -> None:
    """Nor does one that polls keep what others have set meanwhile: an offset that an administrator has reset stays."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        async with member(env, max_poll_interval_ms=10_000, session_timeout_ms=6_000) as consumer:
            consumer.assign([WHERE])
            await read(consumer, 10)
            await consumer.commit()
            async with Admin(env.bootstrap) as admin:
                await admin.alter_group_offsets("g", {("t", 0): 3})
                await poll_for(consumer, 45.0)
                assert (await admin.list_group_offsets("g"))[WHERE].offset == 3
                await asyncio.sleep(QUIET_S)
                assert await admin.list_group_offsets("g") == {}

    simulate(main)


def test_65_a_copy_that_follows_a_quiet_topic_keeps_its_notes() -> None:
    """It is a member of its group: started again after a long quiet time it goes on, and copies each record once."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)

        def copying(follow: bool) -> Engine:
            return Engine(
                env.bootstrap, "t", "copy", group="copier", wish=TargetSpec(partitions=1), transform=None,
                follow=follow, accept_deleted=False, settings={}, on_progress=lambda _done, _all: None,
            )  # fmt: skip

        running = asyncio.create_task(copying(True).run())
        await asyncio.sleep(QUIET_S)
        running.cancel()
        await asyncio.wait([running])
        await fill(env, "t", 5, 1, start=10)
        await copying(False).run()
        async with member(env, group_id=None) as consumer:
            consumer.assign([("copy", 0)])
            assert await read(consumer, 15) == list(range(15))

    simulate(main)
