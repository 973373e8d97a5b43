"""Row S86, the half of groups: each member hears of a change through its next heartbeat."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client.aio import Admin
from tests.client.members import CLASSIC, CONSUMER, SETTINGS, Reader, fill, simulate, sizes, until

ON_THE_WAY_MS = 250.0
"""The newcomer finds the coordinator and joins, the member's heartbeat is answered, and it joins anew."""


async def heard_after_ms(env: Env, readers: list[Reader], **settings: Any) -> list[float]:
    """A member joins: how long until each of the others has another generation."""
    before = [reader.consumer.state.generation for reader in readers]
    joined_ms = env.clock.now_ms
    heard: dict[int, float] = {}
    readers.append(Reader(env, **settings))
    async with asyncio.timeout(30):
        while len(heard) < len(before):
            await asyncio.sleep(0.005)
            for number, generation in enumerate(before):
                if readers[number].consumer.state.generation > generation:
                    heard.setdefault(number, env.clock.now_ms - joined_ms)
    return list(heard.values())


@pytest.mark.parametrize(
    ("settings", "interval_ms"),
    [
        (CLASSIC, float(CLASSIC["heartbeat_interval_ms"])),
        (CONSUMER, float(SETTINGS["group.consumer.heartbeat.interval.ms"])),
    ],
    ids=["classic", "consumer"],
)
def test_s86_each_member_hears_within_one_heartbeat_interval(settings: dict[str, Any], interval_ms: float) -> None:
    """Row S86: a member joins: each of the others has heard of it one heartbeat interval later. The coordinator's
    broker dies: nobody leaves the group for it, and of the next one that joins all hear as soon."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 8)
        await fill(env, "t", 80, 8)
        readers = [Reader(env, **settings) for _ in range(2)]
        await until(lambda: sizes(readers) == [4, 4])
        assert max(await heard_after_ms(env, readers, **settings)) <= interval_ms + ON_THE_WAY_MS
        await until(lambda: sizes(readers) == [2, 3, 3])
        async with Admin(env.bootstrap) as admin:
            dead = (await admin.describe_groups(["g"]))["g"].coordinator.node_id
            env.faults.kill(dead)
            async with asyncio.timeout(20):
                while (found := (await admin.describe_groups(["g"]))["g"]).coordinator.node_id == dead:
                    await asyncio.sleep(0.05)
            assert len(found.members) == 3
        await asyncio.sleep(2 * interval_ms / 1000)  # each has asked for the new coordinator
        assert max(await heard_after_ms(env, readers, **settings)) <= interval_ms + ON_THE_WAY_MS
        await until(lambda: sizes(readers) == [2, 2, 2, 2])
        assert not [what for reader in readers for what, _ in reader.events if what == "lost"]
        for reader in readers:
            await reader.stop()

    simulate(main)
