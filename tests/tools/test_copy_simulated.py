"""Row S17 in virtual time: copies that are killed, cut off and relieved by others, brokers that die: every record once.

The rounds and batches are small, so that each run has many of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from strandline.chaos.testing.env import Env, UserProcess
from strandline.chaos.testing.simulation import Simulation
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.types import EARLIEST, LATEST
from strandline.proto.ids import TopicPartition
from strandline.tools.copy import plan, target
from strandline.tools.copy.engine import Engine
from strandline.tools.copy.errors import CopyTakenOver, SourceCut
from strandline.tools.copy.target import TargetSpec

RECORDS = 400
SOURCES, TARGETS = 3, 4
GROUP = "copiers"
SETTINGS = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FIRST_ROUND_OFFSETS", 60)
    monkeypatch.setattr(plan, "ROUND_OFFSETS_MAX", 60)
    monkeypatch.setattr(target, "BATCH_BYTES", 250)


def copier(env: Env, count: int) -> UserProcess:
    """A copy in a process of its own."""

    async def main() -> Any:
        engine = Engine(
            env.bootstrap, "orders", "orders2",
            group=GROUP, wish=TargetSpec(partitions=TARGETS), transform=None, follow=False, accept_deleted=False,
            settings={"request_timeout_ms": 3000}, on_progress=lambda _done, _all: None,
        )  # fmt: skip
        await engine.run()
        return engine.tally

    return env.spawn(main, f"copier-{count}")


async def fill(env: Env) -> None:
    await env.create_topic("orders", SOURCES)
    async with Producer(env.bootstrap, linger_ms=5, batch_size=2000) as producer:
        for number in range(RECORDS):
            key = None if number % 9 == 0 else b"key %d" % (number % 31)
            await producer.send("orders", b"%d" % (number % 5), key=key, headers=[("n", b"%d" % (number % 2))])


async def read(env: Env, topic: str, partitions: int) -> list[Any]:
    places = [TopicPartition(topic, number) for number in range(partitions)]
    async with Admin(env.bootstrap) as admin:
        ends = await admin.list_offsets(dict.fromkeys(places, LATEST))
        starts = await admin.list_offsets(dict.fromkeys(places, EARLIEST))
    assert all(told.offset == 0 for told in starts.values())
    found: list[Any] = []
    async with Consumer(env.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(places)
        while len(found) < sum(told.offset for told in ends.values()):
            found += await consumer.poll(1.0)
    return sorted(found, key=lambda record: record[:3])


def essence(record: Any) -> tuple[Any, ...]:
    return record.key, record.value, record.headers, record.timestamp_ms


def by_key(records: list[Any]) -> dict[bytes, list[tuple[Any, ...]]]:
    found: dict[bytes, list[tuple[Any, ...]]] = defaultdict(list)
    for record in records:
        if record.key is not None:
            found[record.key].append(essence(record))
    return dict(found)


async def assert_copied(env: Env) -> None:
    source, copied = await read(env, "orders", SOURCES), await read(env, "orders2", TARGETS)
    assert len(copied) == len(source) == RECORDS
    assert by_key(copied) == by_key(source)
    assert sorted(map(repr, map(essence, copied))) == sorted(map(repr, map(essence, source)))


async def befall(env: Env, process: UserProcess) -> None:
    """Something, to the copy or to a broker."""
    what = env.rng.choice(("kill", "kill", "isolate", "nothing", "leader"))
    env.note(f"{what} befalls {process.name}")
    if what == "kill":
        process.kill()
    elif what == "isolate":
        env.faults.isolate(process.name)
    elif what == "leader":
        node = await env.wait_leader("orders", env.rng.randrange(SOURCES))
        env.faults.kill(node)
        await asyncio.sleep(env.rng.uniform(0.1, 3.0))
        env.faults.start(node)


@pytest.mark.parametrize("seed", range(12))
def test_s17_every_record_once_whatever_befalls(seed: int) -> None:
    """Copies are started one after the other, whatever became of the one before: killed, cut off with requests under
    way, or at work. Those who are cut off come back. Each that ends of itself has copied all, or was relieved; in the
    end the target is equal."""

    async def main(env: Env) -> None:
        await fill(env)
        processes: list[UserProcess] = []
        for count in range(env.rng.randint(3, 7)):
            process = copier(env, count)
            processes.append(process)
            await asyncio.sleep(env.rng.uniform(0.05, 1.0))
            if process.alive:
                await befall(env, process)
            if env.rng.random() < 0.3:
                env.faults.heal()
        processes.append(copier(env, len(processes)))
        await asyncio.sleep(env.rng.uniform(0.0, 0.5))
        env.faults.heal()
        for process in processes:
            try:
                await process.wait()
            except CopyTakenOver:
                env.note(f"{process.name} was relieved")
        await copier(env, len(processes)).wait()
        await assert_copied(env)

    Simulation(seed, settings=SETTINGS).run(main)


def test_s17_a_copy_that_nothing_befalls() -> None:
    """It is told what was read and written; again, there is nothing to do."""

    async def main(env: Env) -> None:
        await fill(env)
        tally = await copier(env, 0).wait()
        assert (sum(tally.read.values()), tally.written, tally.already) == (RECORDS, RECORDS, 0)
        await assert_copied(env)
        tally = await copier(env, 1).wait()
        assert (sum(tally.read.values()), tally.written, tally.already) == (0, 0, 0)
        await assert_copied(env)

    Simulation(1, settings=SETTINGS).run(main)


def test_a_source_that_was_cut_is_told() -> None:
    """Rule B39. The notes are those of a copy that had read three records more than the log kept, at its end, in the
    epoch before: it went on behind them once there were more again, and passed over what was written between."""

    async def main(env: Env) -> None:
        await fill(env)
        place = TopicPartition("orders", 1)
        await copier(env, 0).wait()
        async with Admin(env.bootstrap) as admin:
            end = (await admin.list_offsets({place: LATEST}))[place].offset
            env.faults.kill(await env.wait_leader("orders", 1))
            await env.wait_leader("orders", 1)
            await assert_copied(env)
            await copier(env, 1).wait()  # a new leader alone is no cut
            noted = await admin.list_group_offsets(GROUP)
            assert noted[place].leader_epoch >= 0
            text = noted[place].metadata.replace(f'"end":{end}', f'"end":{end + 3}')
            beyond = noted[place]._replace(offset=end + 3, metadata=text)
            await admin.alter_group_offsets(GROUP, noted | {place: beyond})
            async with Producer(env.bootstrap) as producer:
                for _ in range(9):
                    await producer.send("orders", b"more", partition=1)
        with pytest.raises(SourceCut, match=f"orders-1: it was read up to offset {end + 3}, .* cut at offset {end}"):
            await copier(env, 2).wait()

    Simulation(1, settings=SETTINGS).run(main)
