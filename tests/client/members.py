"""What the simulated tests of our consumer's groups share: members of either protocol, and a watch over commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from strandline.chaos.testing.env import Env
from strandline.chaos.testing.simulation import Simulation
from strandline.client.aio import Consumer, Producer
from strandline.proto.ids import TopicPartition

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
}
MEMBER: dict[str, Any] = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 500,
    "metadata_max_age_ms": 2_000,
}
CLASSIC: dict[str, Any] = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}
"""The consumer protocol leaves these to the brokers (SETTINGS)."""
CONSUMER: dict[str, Any] = {"group_protocol": "consumer"}


def simulate(main: Callable[[Env], Any], seed: int = 1) -> Any:
    return Simulation(seed, settings=SETTINGS).run(main)


def member(env: Env, **settings: Any) -> Consumer:
    """A consumer of the group, classic unless the settings say otherwise."""
    protocol = {} if settings.get("group_protocol") == "consumer" else CLASSIC
    return Consumer(env.bootstrap, **MEMBER | protocol | settings)


async def fill(env: Env, topic: str, count: int, partitions: int, start: int = 0) -> None:
    async with Producer(env.bootstrap, linger_ms=5) as producer:
        for number in range(start, start + count):
            await producer.send(topic, b"%d" % number, partition=number % partitions)


async def until(holds: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.05)


class Reader:
    """A member that reads until it is stopped; what it handled, in order."""

    def __init__(self, env: Env, topics: Any = "t", **settings: Any) -> None:
        self.handled: list[tuple[int, int, bytes]] = []
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.consumer = member(env, **settings)
        self.consumer.subscribe(
            topics,
            on_assigned=lambda items: self.events.append(("assigned", items)),
            on_revoked=lambda items: self.events.append(("revoked", items)),
            on_lost=lambda items: self.events.append(("lost", items)),
        )
        self._stop = False
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self.consumer:
            while not self._stop:
                for record in await self.consumer.poll(0.2):
                    self.handled.append((record.partition, record.offset, record.value or b""))

    @property
    def numbers(self) -> list[int]:
        return sorted(item.partition for item in self.consumer.assignment())

    async def stop(self) -> None:
        self._stop = True
        await self.task


def sizes(readers: list[Reader]) -> list[int]:
    """How many partitions each has, in order of size; nothing while two claim the same one."""
    owned = [number for reader in readers for number in reader.numbers]
    return sorted(len(one.numbers) for one in readers) if len(owned) == len(set(owned)) else []


@asynccontextmanager
async def commits_only_grow(env: Env, topic: str, partitions: int) -> AsyncIterator[None]:
    """All the while the group's committed offsets are looked at; at the end: there were some, and none went back."""
    seen: dict[TopicPartition, int] = {}

    async def watch() -> None:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        async with Consumer(env.bootstrap, group_id="g") as other:
            while True:
                for item, found in (await other.committed(wanted)).items():
                    if found is not None:
                        assert found.offset >= seen.get(item, 0), f"{item} went back to {found.offset}"
                        seen[item] = found.offset
                await asyncio.sleep(0.3)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])
        if not watcher.cancelled():
            watcher.result()
    assert seen
