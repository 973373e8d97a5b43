"""Groups of our consumers on simulated clusters of production nodes: deaths, commits, elections (rows S54 to S66),
under the classic protocol. What both protocols share: `test_groups_both_protocols`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client.aio import Admin, Consumer
from strandline.client.errors import Disconnected, LogTruncated, UnknownTopic
from strandline.client.types import LATEST, ConsumerRecord, OffsetAndMetadata
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.tools.handling import handle_async
from tests.client.members import Reader, commits_only_grow, fill, member, simulate, until


def test_only_what_is_done_is_committed() -> None:
    """Rows S63 to S65: the records of the last poll are not done; iteration counts one by one; commit() says all is
    done."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 100, 1)
        where = TopicPartition("t", 0)

        async def stored() -> int | None:
            async with Consumer(env.bootstrap, group_id="g") as other:
                found = (await other.committed([where]))[where]
                return None if found is None else found.offset

        consumer = member(env)
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


def test_a_run_is_not_idle_before_it_has_joined() -> None:
    """`idle_s` is over long before the group can be joined, for no broker runs: every record is handled in the end."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        for node in (1, 2, 3):
            env.faults.kill(node)
        consumer, handled = member(env), list[ConsumerRecord]()
        consumer.subscribe("t")
        running = asyncio.ensure_future(handle_async(consumer, handled.append, dead_letters=False, idle_s=1.0))
        await asyncio.sleep(5)
        for node in (1, 2, 3):
            env.faults.start(node)
        assert (await running).handled == len(handled) == 10
        await consumer.close()

    simulate(main)


@pytest.mark.parametrize("seed", range(2))
def test_no_record_is_skipped_while_brokers_and_members_die(seed: int) -> None:
    """Rows S59, S60, S66: brokers and members are killed; every acknowledged record is handled, each partition's
    offsets of one member in order, polled or iterated, and no committed offset goes back unless the generation
    changed."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        handled: set[bytes] = set()

        def reading(name: str) -> Callable[[], Any]:
            async def run() -> None:
                consumer = member(env, client_id=name)
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

        processes = {name: env.spawn(reading(name), name) for name in ("m1", "m2", "m3")}
        async with commits_only_grow(env, "t", 4):
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
                    processes[name] = env.spawn(reading(name), name)
            await fill(env, "t", 100, 4, start=produced)
            produced += 100
            await until(lambda: len(handled) == produced, 120)

    simulate(main, seed)


def test_an_iteration_that_begins_with_the_first_assignment_loses_nothing() -> None:
    """Records that the very call brings that also takes partitions up are kept."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 3)
        await fill(env, "t", 30, 3)
        async with member(env) as consumer:
            consumer.subscribe("t")
            values = [int((await anext(consumer)).value or b"") for _ in range(30)]
        assert sorted(values) == list(range(30))

    simulate(main)


@pytest.mark.parametrize("cut", ["dead letter lost", "all is well"])
def test_a_record_is_done_only_when_its_dead_letter_is_safe(cut: str) -> None:
    """Offsets are committed behind the acknowledged dead letter; a consumer killed before meets the
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

            async with member(env) as consumer:
                consumer.subscribe("t")
                await handle_async(consumer, handler, attempts=3, backoff_ms=2_000)

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


def test_of_two_under_one_name_the_older_is_fenced() -> None:
    """KIP-345: and says so."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        one = Reader(env, group_instance_id="a")
        await until(lambda: one.numbers == [0, 1])
        twin = Reader(env, group_instance_id="a")
        await until(lambda: twin.numbers == [0, 1])
        with pytest.raises(KafkaError, match="another consumer runs under this name"):
            await one.task
        await twin.stop()

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
        async with member(env, partition_assignment_strategy="roundrobin") as odd:
            odd.subscribe("t")
            with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL"):
                await odd.poll(30.0)
        await reader.stop()

    simulate(main)


def test_partitions_by_name_begin_at_the_committed_offset() -> None:
    """Row S63: assign with a group.id goes on where the group has committed; a seek goes before it."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        await fill(env, "t", 20, 2)
        async with member(env) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            await consumer.commit({("t", 0): 4})
        async with member(env) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            assert await consumer.position(("t", 0)) == 4
            assert await consumer.position(("t", 1)) == 0
            records: list[Any] = []
            while len(records) < 16:
                records += await consumer.poll(2.0)
            assert {record.offset for record in records if record.partition == 0} == set(range(4, 10))
            assert consumer.state.name == "assigned"
        async with member(env) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 9)
            assert [record.offset for record in await consumer.poll(5.0)] == [9]

    simulate(main)


def test_a_topic_that_there_is_not_keeps_no_loop_busy() -> None:
    """A group's consumer is told, and a poll waits until there is something new to say (seed 3108)."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 1)
        async with member(env) as consumer:
            consumer.assign([("nope", 0), ("t", 0)])
            loop, told = asyncio.get_running_loop(), 0
            until = loop.time() + 10
            while loop.time() < until:
                try:
                    await consumer.poll(1.0)
                except UnknownTopic:
                    told += 1
            assert 1 <= told <= 20

    simulate(main)


@pytest.mark.parametrize("policy", ["none", "earliest"])
def test_a_committed_offset_behind_a_cut_is_noticed_at_the_start(policy: str) -> None:
    """Rule B39: a group had read three records more than the log kept, and there are more again when it comes back. The
    epoch beside the commit tells (KIP-320): it fails, or reads on from the cut, and passes over nothing."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        where = TopicPartition("t", 0)
        async with Admin(env.bootstrap) as admin:
            [told] = (await admin.list_offsets({where: LATEST})).values()
            await admin.alter_group_offsets("g", {where: OffsetAndMetadata(told.offset + 3, "", told.leader_epoch)})
        env.faults.kill(await env.wait_leader("t"))
        await env.wait_leader("t")
        await fill(env, "t", 9, 1)
        async with Consumer(env.bootstrap, group_id="g", auto_offset_reset=policy) as consumer:
            consumer.subscribe("t")
            found: list[ConsumerRecord] = []
            if policy == "none":
                with pytest.raises(LogTruncated) as caught:
                    await read_on(consumer, found)
                assert caught.value.args == LogTruncated(*where, 13, 10).args
            else:
                await read_on(consumer, found)
            assert [record.offset for record in found] == ([] if policy == "none" else list(range(10, 19)))

    async def read_on(consumer: Consumer, found: list[ConsumerRecord]) -> None:
        async with asyncio.timeout(60):
            while not found or found[-1].offset < 18:
                found += await consumer.poll(1.0)

    simulate(main)


def test_who_shares_out_asks_again_where_metadata_failed() -> None:
    """The leader of a group cannot have the metadata of the topic when it is to share it out: of what did not answer it
    makes no topic without partitions. One generation, with the partition."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        async with member(env, metadata_max_age_ms=300_000) as consumer:
            metadata, failed = consumer.session.metadata, []
            ask = metadata._ask

            async def fail_at_first(topics: list[str] | None, timeout_ms: float) -> Any:
                if topics and len(failed) < 3:
                    failed.append(topics)
                    raise Disconnected("the broker went away")
                return await ask(topics, timeout_ms)

            metadata._ask = fail_at_first  # type: ignore[method-assign]
            consumer.subscribe("t")
            while len(await consumer.poll(1.0)) < 10:
                pass
            assert len(failed) == 3
            assert consumer.group_metadata().generation == 1

    simulate(main)


def test_a_topic_that_grows_while_it_is_shared_out_is_shared_out_again() -> None:
    """It has one partition when the leader of its group looks, two before that has its own share; what tells of the
    second comes while the group still joins."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        async with member(env, metadata_max_age_ms=300_000) as consumer, Admin(env.bootstrap) as admin:
            consumer.subscribe("t")
            for _ in range(6):  # a topic that was not known at first is asked about once more
                await consumer.poll(0.5)
            group, grown = consumer._group, []
            assert group is not None
            group.member.needs_join = True
            held = group.member._held  # type: ignore[attr-defined]

            async def grow_first(api: Api, values: Mapping[str, Any]) -> Any:
                if api is Api.SYNC_GROUP and not grown:
                    grown.append(await admin.create_partitions({"t": 2}))
                    while consumer.session.metadata.topics["t"].partition_count < 2:
                        await consumer.session.metadata.update(10_000)
                return await held(api, values)

            group.member._held = grow_first  # type: ignore[attr-defined]
            async with asyncio.timeout(20):
                while len(consumer.assignment()) < 2:
                    await consumer.poll(0.5)

    simulate(main)
