"""Groups of our consumers on simulated clusters of production nodes: joins, deaths, commits, elections (S54 to S66)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.chaos.testing.simulation import Simulation
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.errors import CommitFailed, MembershipLost
from strandline.client.types import ConsumerRecord
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}
MEMBER: dict[str, Any] = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
    "auto_commit_interval_ms": 500,
    "metadata_max_age_ms": 2_000,
}


def simulate(main: Callable[[Env], Any], seed: int = 1) -> Any:
    return Simulation(seed, settings=SETTINGS).run(main)


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
        self.consumer = Consumer(env.bootstrap, **MEMBER | settings)
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


@pytest.mark.parametrize("strategy", ["range,cooperative-sticky", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_and_each_record_is_handled_once(strategy: str) -> None:
    """S56, S57, S59: 8 partitions over 1, 3, 4, 3 members; clean departures commit what is done, so nothing repeats."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 8)
        await fill(env, "t", 200, 8)
        settings = {"partition_assignment_strategy": strategy}
        readers = [Reader(env, **settings)]
        await until(lambda: len(readers[0].numbers) == 8)
        readers += [Reader(env, **settings) for _ in range(2)]
        await until(lambda: sorted(len(one.numbers) for one in readers) == [2, 3, 3])
        readers.append(Reader(env, **settings))
        await fill(env, "t", 200, 8, start=200)
        await until(lambda: sorted(len(one.numbers) for one in readers) == [2, 2, 2, 2])
        leaver = readers.pop(0)
        await leaver.consumer.commit()
        await leaver.stop()
        await until(lambda: sorted(len(one.numbers) for one in readers) == [2, 3, 3])
        await fill(env, "t", 200, 8, start=400)
        handled = [*leaver.handled]
        await until(lambda: len({v for one in [leaver, *readers] for _, _, v in one.handled}) == 600)
        for one in readers:
            assert one.consumer.state.name == "stable", one.consumer.state
            handled += one.handled
            await one.consumer.commit()
            await one.stop()
        assert sorted(int(value) for _, _, value in handled) == list(range(600))
        assert all(one.consumer.state.name == "closed" for one in readers)

    simulate(main)


def test_only_what_is_done_is_committed() -> None:
    """S63 to S65: the records of the last poll are not done; iteration counts one by one; commit() says all is done."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 100, 1)
        where = TopicPartition("t", 0)

        async def stored() -> int | None:
            async with Consumer(env.bootstrap, group_id="g") as other:
                found = (await other.committed([where]))[where]
                return None if found is None else found.offset

        consumer = Consumer(env.bootstrap, **MEMBER)
        consumer.subscribe("t")
        first: list[Any] = []
        while not first:
            first = await consumer.poll(1.0, 10)
        await asyncio.sleep(3)
        assert await stored() in (None, 0)  # fetched and handed out, but not done
        assert len(await consumer.poll(1.0, 10)) == 10
        await asyncio.sleep(3)
        assert await stored() == 10
        record = await anext(consumer)
        assert record.offset == 20
        await asyncio.sleep(3)
        assert await stored() == 20
        await consumer.commit()
        assert await stored() == 21
        await consumer.commit({("t", 0): 15})
        assert await stored() == 15
        results: list[Any] = []
        await anext(consumer)
        consumer.commit_async(callback=lambda offsets, error: results.append((offsets[where].offset, error)))
        await until(lambda: results)
        assert results == [(22, None)]
        assert await consumer.lag() == {where: 78}
        await anext(consumer)
        await consumer.close()
        assert await stored() == 22

    simulate(main)


def test_who_does_not_poll_leaves_and_his_commit_is_refused() -> None:
    """S61, S85: heartbeats go on between polls; past max.poll.interval.ms a member leaves, and hears of it plainly."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 20, 1)
        slow = Consumer(env.bootstrap, **MEMBER, max_poll_interval_ms=20_000)
        lost: list[Any] = []
        slow.subscribe("t", on_lost=lost.extend)
        while not await slow.poll(1.0, 5):
            pass
        await asyncio.sleep(15)  # more than two sessions
        assert slow.state.name == "stable", slow.state
        await slow.commit()
        quick = Reader(env)
        await asyncio.sleep(25)
        assert slow.state.name == "lost"
        assert isinstance(slow.state.last_error, MembershipLost)
        assert quick.numbers == [0]
        with pytest.raises(CommitFailed, match="no member any more"):
            await slow.commit()
        await quick.stop()
        assert [offset for _, offset, _ in quick.handled] == list(range(5, 20))
        await slow.poll(0.1)
        assert lost == [TopicPartition("t", 0)]
        await slow.close()

    simulate(main)


def test_topics_that_come_and_grow() -> None:
    """S35, S54: a pattern follows new topics, and partitions that are added are read, within metadata.max.age.ms."""

    async def main(env: Env) -> None:
        await env.create_topic("log-a")
        reader = Reader(env, re.compile("log-.*"))
        await until(lambda: len(reader.consumer.assignment()) == 1)
        await env.create_topic("log-b", 2)
        await env.create_topic("other")
        await until(lambda: len(reader.consumer.assignment()) == 3, 10)
        async with Admin(env.bootstrap) as admin:
            await admin.create_partitions({"log-a": 3})
        await until(lambda: len(reader.consumer.assignment()) == 5, 10)
        assert reader.consumer.subscription() == ("log-a", "log-b")
        await reader.stop()

    simulate(main)


@pytest.mark.parametrize("seed", range(2))
def test_no_record_is_skipped_while_brokers_and_members_die(seed: int) -> None:
    """S59, S60, S66: brokers and members are killed; every acknowledged record is handled, each partition's offsets of
    one member in order, polled or iterated, and no committed offset goes back unless the generation changed."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        handled: set[bytes] = set()
        commits: list[tuple[int, TopicPartition, int]] = []

        def member(name: str) -> Callable[[], Any]:
            async def run() -> None:
                consumer = Consumer(env.bootstrap, client_id=name, **MEMBER)
                consumer.subscribe("t")
                last: dict[tuple[int, int], int] = {}

                def handle(record: ConsumerRecord) -> None:
                    key = (consumer.state.generation, record.partition)
                    assert last.get(key, -1) < record.offset
                    last[key] = record.offset
                    handled.add(record.value or b"")

                if seed % 2:
                    async for record in consumer:
                        handle(record)
                        await asyncio.sleep(0.002)
                while True:
                    for record in await consumer.poll(0.5, 20):
                        handle(record)

            return run

        async def watch() -> None:
            seen: dict[TopicPartition, int] = {}
            wanted = [TopicPartition("t", number) for number in range(4)]
            async with Consumer(env.bootstrap, group_id="g") as other:
                while True:
                    for item, found in (await other.committed(wanted)).items():
                        if found is not None:
                            assert found.offset >= seen.get(item, 0), f"{item} went back to {found.offset}"
                            seen[item] = found.offset
                            commits.append((0, item, found.offset))
                    await asyncio.sleep(0.3)

        processes = {name: env.spawn(member(name), name) for name in ("m1", "m2", "m3")}
        watcher = asyncio.create_task(watch())
        produced = 0
        for turn in range(4):
            await fill(env, "t", 100, 4, start=produced)
            produced += 100
            await asyncio.sleep(env.rng.uniform(0.5, 4))
            name = f"m{env.rng.randint(1, 3)}"
            if turn % 2:
                node = env.rng.randint(1, 3)
                env.faults.kill(node)
                await asyncio.sleep(env.rng.uniform(0.5, 3))
                env.faults.start(node)
            else:
                processes[name].kill()
                await asyncio.sleep(env.rng.uniform(0.5, 3))
                processes[name] = env.spawn(member(name), name)
        await fill(env, "t", 100, 4, start=produced)
        produced += 100
        await until(lambda: len(handled) == produced, 120)
        watcher.cancel()
        await asyncio.wait([watcher])
        if not watcher.cancelled():
            watcher.result()
        assert commits

    simulate(main, seed)


def test_an_iteration_that_begins_with_the_first_assignment_loses_nothing() -> None:
    """Records that the very call brings that also takes partitions up are kept."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 3)
        await fill(env, "t", 30, 3)
        async with Consumer(env.bootstrap, **MEMBER) as consumer:
            consumer.subscribe("t")
            values = [int((await anext(consumer)).value or b"") for _ in range(30)]
        assert sorted(values) == list(range(30))

    simulate(main)


@pytest.mark.parametrize("cut", ["dead letter lost", "all is well"])
def test_a_record_is_done_only_when_its_dead_letter_is_safe(cut: str) -> None:
    """Issue 5, part 4: offsets are committed behind the acknowledged dead letter; a consumer killed before meets the
    record again; other partitions go on while one rests."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        await fill(env, "t", 10, 2)
        tried: list[bytes] = []

        async def run() -> None:
            async def handler(record: ConsumerRecord) -> None:
                tried.append(record.value or b"")
                if record.value == b"4":
                    raise RuntimeError("never")

            async with Consumer(env.bootstrap, **MEMBER) as consumer:
                consumer.subscribe("t")
                await consumer.run(handler, attempts=3, backoff_ms=2_000)

        process = env.spawn(run, "app-1")
        await until(lambda: len(tried) == 8)  # 4 has failed once; the other partition is through
        assert sorted(tried) == [b"0", b"1", b"2", b"3", b"4", b"5", b"7", b"9"]
        if cut == "dead letter lost":
            await asyncio.sleep(3)
            process.kill()
            tried.clear()
            process = env.spawn(run, "app-1")
        async with Consumer(env.bootstrap, group_id="other", auto_offset_reset="earliest") as dead:
            await until(lambda: tried.count(b"4") == 3)
            await until(lambda: b"8" in tried)
            dead.assign([("t.dead", 0)])
            [letter] = await dead.poll(30.0)
            headers = dict(letter.headers)
            assert headers["dead-letter.offset"] == b"2"
            assert headers["dead-letter.error"] == b"RuntimeError"
            assert headers["dead-letter.attempts"] == b"3"
            assert b"0" not in tried if cut == "dead letter lost" else tried.count(b"0") == 1

    simulate(main)


def test_cooperative_members_keep_what_stays() -> None:
    """KIP-429: who loses two of four partitions is told of these two alone, and reads the others all the while."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        settings = {"partition_assignment_strategy": "cooperative-sticky"}
        first = Reader(env, **settings)
        await until(lambda: first.numbers == [0, 1, 2, 3])
        second = Reader(env, **settings)
        await until(lambda: len(first.numbers) == len(second.numbers) == 2)
        await until(lambda: first.consumer.state.name == "stable")
        assert [(kind, len(items)) for kind, items in first.events if items] == [("assigned", 4), ("revoked", 2)]
        assert [(kind, len(items)) for kind, items in second.events if items] == [("assigned", 2)]
        assert set(first.numbers) | set(second.numbers) == {0, 1, 2, 3}
        await first.stop()
        await second.stop()

    simulate(main)


def test_static_members() -> None:
    """KIP-345: a restart within the session moves nothing; of two under one name the older is fenced, and says so."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        other = Reader(env, group_instance_id="b")
        one = Reader(env, group_instance_id="a")
        await until(lambda: one.numbers == [0] and other.numbers == [1])
        before = other.consumer.state.generation
        await one.stop()
        one = Reader(env, group_instance_id="a")
        await until(lambda: one.numbers == [0])
        assert other.consumer.state.generation == before
        twin = Reader(env, group_instance_id="a")
        await until(lambda: twin.numbers == [0])
        with pytest.raises(KafkaError, match="another consumer runs under this name"):
            await one.task
        await twin.stop()
        await other.stop()

    simulate(main)


def test_who_may_not_join_is_told_why() -> None:
    """A session timeout that the brokers do not allow, strategies that nobody shares: the coordinator's own error."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        async with Consumer(env.bootstrap, group_id="g", session_timeout_ms=500, heartbeat_interval_ms=100) as short:
            short.subscribe("t")
            with pytest.raises(KafkaError, match="INVALID_SESSION_TIMEOUT"):
                await short.poll(30.0)
            assert isinstance(short.state.last_error, KafkaError)
        reader = Reader(env, partition_assignment_strategy="range")
        await until(lambda: reader.numbers == [0])
        async with Consumer(env.bootstrap, **MEMBER, partition_assignment_strategy="roundrobin") as odd:
            odd.subscribe("t")
            with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL"):
                await odd.poll(30.0)
        await reader.stop()

    simulate(main)


def test_partitions_by_name_begin_at_the_committed_offset() -> None:
    """S63: assign with a group.id goes on where the group has committed; a seek goes before it."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        await fill(env, "t", 20, 2)
        async with Consumer(env.bootstrap, **MEMBER) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            await consumer.commit({("t", 0): 4})
        async with Consumer(env.bootstrap, **MEMBER) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            assert await consumer.position(("t", 0)) == 4
            assert await consumer.position(("t", 1)) == 0
            records: list[Any] = []
            while len(records) < 16:
                records += await consumer.poll(2.0)
            assert {record.offset for record in records if record.partition == 0} == set(range(4, 10))
            assert consumer.state.name == "assigned"
        async with Consumer(env.bootstrap, **MEMBER) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 9)
            assert [record.offset for record in await consumer.poll(5.0)] == [9]

    simulate(main)
