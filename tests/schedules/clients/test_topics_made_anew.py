"""Schedule 63: a topic is deleted and made anew under committed offsets, a living consumer, a copy. A position belongs
to a topic id: a reader at 100 in the old topic begins the new one by its policy, and misses none of its records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client.aio import Admin, Consumer
from strandline.client.errors import TopicReplaced, UnknownTopic
from strandline.client.types import LATEST, NewTopic
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.tools.copy.engine import Engine
from strandline.tools.copy.errors import CopyRefused
from strandline.tools.copy.target import TargetSpec
from tests.client.members import fill, member, simulate
from tests.schedules.helpers import schedule

WHERE = TopicPartition("t", 0)


async def make_anew(env: Env, topic: str = "t", partitions: int = 1) -> None:
    """Delete the topic, and create another one of that name."""
    async with Admin(env.bootstrap) as admin:
        await admin.delete_topics([topic])
    await create(env, topic, partitions)


async def create(env: Env, topic: str, partitions: int = 1) -> None:
    """As soon as the cluster takes the name again, with whoever is up."""
    async with Admin(env.bootstrap) as admin:
        while True:
            try:
                await admin.create_topics([NewTopic(topic, partitions, 3)])
                return
            except StrandlineError as error:
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
            await asyncio.sleep(0.2)


async def read_all(consumer: Consumer, count: int, within_s: float = 60.0) -> list[int]:
    """The values of the next records."""
    values: list[int] = []
    until = asyncio.get_running_loop().time() + within_s
    while len(values) < count:
        assert asyncio.get_running_loop().time() < until, f"{len(values)} of {count} came"
        values += [int(record.value or b"") for record in await consumer.poll(1.0)]
    return values


def coordinator(env: Env, group: str = "g") -> int:
    from strandline.cluster.groups.partitions import OFFSETS_TOPIC, partition_of

    found = env.leader(OFFSETS_TOPIC, partition_of(group, 2))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
@schedule(63, rule="an offset belongs to a topic id", mutant="offset-committed-without-its-topic")
def test_63_committed_offsets_end_with_their_topic_over_a_failover(seed: int) -> None:
    """The topic goes while nobody coordinates, so nobody forgets its offsets: who loads them does."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 100, 1)
        async with member(env) as consumer:
            consumer.assign([WHERE])
            assert len(await read_all(consumer, 100)) == 100
            await consumer.commit()
        victim = coordinator(env)
        env.faults.kill(victim)
        await make_anew(env)
        await fill(env, "t", 50, 1)
        async with member(env) as consumer:
            consumer.assign([WHERE])
            assert (await consumer.committed())[WHERE] is None
            assert await read_all(consumer, 50) == list(range(50))
        env.faults.start(victim)

    simulate(main, seed)


WAYS: dict[str, dict[str, Any]] = {
    "assigned": {"group_id": None, "metadata_max_age_ms": 1_000},
    "assigned, with a group": {"metadata_max_age_ms": 1_000},
    "subscribed": {"metadata_max_age_ms": 1_000},
    "subscribed, KIP-848": {"group_protocol": "consumer", "metadata_max_age_ms": 1_000},
}


@pytest.mark.parametrize("way", WAYS)
@schedule(63, rule="a position belongs to a topic id", mutant="position-kept-over-a-topic-made-anew")
def test_63_a_living_consumer_begins_anew(way: str) -> None:
    """It read 100 records of the old topic; of the new one, which follows at once, it reads every record."""
    simulate(lambda env: _lives_through(env, way, 0.0))


@pytest.mark.parametrize("way", WAYS)
def test_63_a_living_consumer_waits_for_the_name(way: str) -> None:
    """The same where the name was free for long: a group notices, and shares out anew."""
    simulate(lambda env: _lives_through(env, way, 8.0))


async def _lives_through(env: Env, way: str, gap_s: float) -> None:
    await env.create_topic("t")
    await fill(env, "t", 100, 1)
    async with member(env, **WAYS[way]) as consumer:
        if "subscribed" in way:
            consumer.subscribe("t")
        else:
            consumer.assign([WHERE])
        assert len(await read_all(consumer, 100)) == 100
        async with Admin(env.bootstrap) as admin:
            await admin.delete_topics(["t"])
        reading = asyncio.create_task(_read_on(consumer, 150))
        await asyncio.sleep(gap_s)
        await create(env, "t")
        await fill(env, "t", 150, 1, start=1000)
        assert (await reading)[:150] == list(range(1000, 1150))


async def _read_on(consumer: Consumer, count: int, at_once: int | None = None) -> list[int]:
    """As a service does that survives errors: what poll raises is looked at, and it polls again."""
    values: list[int] = []
    until = asyncio.get_running_loop().time() + 90
    while len(values) < count:
        assert asyncio.get_running_loop().time() < until, f"{len(values)} of {count} came"
        try:
            values += [int(record.value or b"") for record in await consumer.poll(1.0, at_once)]
        except StrandlineError:
            await asyncio.sleep(0.2)
    return values


@schedule(106, rule="a group's consumer begins where the group has committed", mutant="begins-while-its-group-is-asked")
def test_106_a_topic_is_made_anew_while_a_leader_is_asked_about_it() -> None:
    """A new leader is asked about the old topic, and is slow. The name goes to a new topic, of which the group has
    committed something; the answer about the old one comes while the coordinator is asked."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 100, 1)
        asked_leader, asked_group, told = asyncio.Event(), asyncio.Event(), asyncio.Event()
        async with member(env, auto_offset_reset="latest", enable_auto_commit=False) as consumer:
            consumer.assign([WHERE])
            consumer.seek(WHERE, 0)
            assert len(await read_all(consumer, 100)) == 100
            group, leaders = consumer._group, consumer._leaders
            assert group is not None
            epoch_ends, stored = leaders.epoch_ends, group.commits.stored

            async def slow_leader(*arguments: Any) -> Any:
                asked_leader.set()
                await asked_group.wait()
                return await epoch_ends(*arguments)

            async def slow_group(*arguments: Any) -> Any:
                asked_group.set()
                await told.wait()
                return await stored(*arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(leaders, "epoch_ends", slow_leader)
                patch.setattr(group.commits, "stored", slow_group)
                leader = await env.wait_leader("t")
                env.faults.kill(leader)
                reading = asyncio.create_task(_read_on(consumer, 50))
                await asked_leader.wait()
                env.faults.start(leader)
                await make_anew(env)
                await fill(env, "t", 60, 1, start=1000)
                async with Admin(env.bootstrap) as admin:
                    await admin.alter_group_offsets("g", {WHERE: 10})
                await asked_group.wait()
                await asyncio.sleep(5)
                told.set()
                assert await reading == list(range(1010, 1060))

    simulate(main)


def test_63_it_is_told_in_an_event_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """The listener hears of it once, before any record of the new topic, and may seek."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        await fill(env, "t", 100, 2)
        told: list[Any] = []
        async with member(env, group_id=None, metadata_max_age_ms=1_000) as consumer:

            async def replaced(partitions: list[TopicPartition]) -> None:
                told.append(sorted(partitions))
                consumer.seek(("t", 1), 20)

            consumer.assign([("t", 0), ("t", 1)], on_replaced=replaced)
            assert len(await read_all(consumer, 100)) == 100
            await make_anew(env, "t", 2)
            await fill(env, "t", 100, 2, start=1000)
            values = await _read_on(consumer, 80)
            assert told == [[TopicPartition("t", 0), TopicPartition("t", 1)]]
            assert sorted(values) == sorted([*range(1000, 1100, 2), *range(1041, 1100, 2)])

    simulate(main)
    lines = [record.getMessage() for record in caplog.records if record.name == "strandline.client"]
    assert len(lines) == 2
    assert "topic t was deleted and made anew: the position 50 in t-0 was one of topic id" in lines[0]
    assert "auto.offset.reset=earliest" in lines[0]


def test_63_a_listener_that_was_cut_short_is_told_again() -> None:
    """As with partitions that come and go: a poll that is cancelled in the middle has not told it."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        told: list[str] = []
        async with member(env, metadata_max_age_ms=1_000) as consumer:

            async def replaced(_partitions: list[TopicPartition]) -> None:
                told.append("begun")
                if len(told) == 1:
                    await asyncio.sleep(1_000)
                told.append("ended")

            consumer.assign([WHERE], on_replaced=replaced)
            assert len(await read_all(consumer, 10)) == 10
            await make_anew(env)
            await fill(env, "t", 10, 1, start=1000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await _read_on(consumer, 10)
            assert told == ["begun"]
            assert await _read_on(consumer, 10) == list(range(1000, 1010))
            assert told == ["begun", "begun", "ended"]

    simulate(main)


def test_63_without_a_policy_each_poll_says_so_until_a_seek() -> None:
    """auto.offset.reset=none: TopicReplaced, with both ids (schedule 68, too)."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        async with member(env, group_id=None, auto_offset_reset="none", metadata_max_age_ms=1_000) as consumer:
            consumer.assign([WHERE])
            consumer.seek(WHERE, 3)
            assert await read_all(consumer, 7) == list(range(3, 10))
            await make_anew(env)
            await fill(env, "t", 50, 1, start=1000)
            for _ in range(3):
                with pytest.raises(TopicReplaced) as caught:
                    await read_all(consumer, 1)
                assert caught.value.expected != caught.value.found
            consumer.seek(WHERE, 0)
            assert await read_all(consumer, 50) == list(range(1000, 1050))

    simulate(main)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_63_offsets_of_the_old_topic_are_not_committed_to_the_new_one(protocol: str) -> None:
    """Records of the old topic are still being handled when it goes. Their offsets are refused, those of other topics
    in the same commit are not; and the next reader of the group reads every record of the new topic."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await env.create_topic("u")
        await fill(env, "t", 100, 1)
        await fill(env, "u", 10, 1)
        settings: dict[str, Any] = {"group_protocol": protocol, "enable_auto_commit": False}
        async with member(env, **settings) as consumer:
            consumer.subscribe(["t", "u"])
            assert len(await read_all(consumer, 110)) == 110
            await make_anew(env)
            await fill(env, "t", 150, 1, start=1000)
            with pytest.raises((TopicReplaced, UnknownTopic)):
                await consumer.commit()
            stored = await consumer.committed([WHERE, ("u", 0)])
            assert stored[WHERE] is None
            found = stored[TopicPartition("u", 0)]
            assert found is not None
            assert found.offset == 10
        async with member(env, **settings) as consumer:
            consumer.subscribe("t")
            assert await read_all(consumer, 150) == list(range(1000, 1150))

    simulate(main)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_63_a_broker_that_hears_nothing_tells_of_the_old_topic(policy: str) -> None:
    """It is cut off from the others, not from the consumer, and names the old topic whenever it is asked. Nothing of
    the new one is skipped for that, whatever the policy, and nothing read twice."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 100, 1)
        async with member(env, group_id=None, auto_offset_reset=policy) as consumer:
            consumer.assign([WHERE])
            consumer.seek_to_beginning()
            assert len(await read_all(consumer, 100)) == 100
            metadata = consumer.session.metadata
            old = metadata.topics["t"]
            await make_anew(env)
            while metadata.topic_id("t") in (None, old.topic_id):
                await metadata.update(5_000)
            assert await consumer.poll(0.0) == []
            assert await consumer.position(WHERE) == 0
            await fill(env, "t", 50, 1, start=1000)
            values = await _read_on(consumer, 20, at_once=20)
            for _ in range(3):
                metadata.topics = {"t": old}  # what such a broker tells
                assert await consumer.poll(0.0) == []
                await metadata.update(5_000)
                values += await _read_on(consumer, 10, at_once=10)
            assert values == list(range(1000, 1050))

    simulate(main)


SMALL = {"request_timeout_ms": 3000}


def copying(env: Env) -> Engine:
    return Engine(
        env.bootstrap, "t", "copy", group="copier", wish=TargetSpec(partitions=1), transform=None, follow=True,
        accept_deleted=False, settings=SMALL, on_progress=lambda _done, _all: None,
    )  # fmt: skip


@pytest.mark.parametrize("which", ["t", "copy"])
@schedule(63, rule="a copy's notes belong to topic ids", mutant="copy-follows-into-another-topic")
def test_63_a_copy_that_follows_stops_when_a_topic_is_made_anew(which: str) -> None:
    """Its notes are of the old topic: it says so and ends, and so does one that is started again. Nothing of the new
    topic is left out, or mixed in, silently."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 100, 1)
        running = asyncio.create_task(copying(env).run())
        async with member(env, group_id=None) as reader:
            await env.wait_for(lambda: env.leader("copy") is not None, "the copy is made")
            reader.assign([("copy", 0)])
            assert await read_all(reader, 100) == list(range(100))
        await make_anew(env, which)
        await fill(env, "t", 150, 1, start=1000)
        for copy in (running, None):
            copy = copy or asyncio.create_task(copying(env).run())  # noqa: PLW2901
            ended, _ = await asyncio.wait([copy], timeout=60)
            assert ended, "it goes on in another topic"
            with pytest.raises(
                CopyRefused, match="To begin anew: strandline topic delete copy --yes; strandline group"
            ):
                copy.result()
        async with Admin(env.bootstrap) as admin:
            end = (await admin.list_offsets({("copy", 0): LATEST}))[TopicPartition("copy", 0)].offset
        assert end == (100 if which == "t" else 0)

    simulate(main)


@pytest.mark.parametrize("known", [True, False])
def test_63_a_deletion_that_comes_late_does_not_hit_the_new_topic(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is sent again, or is slow, and arrives when the name has gone to another topic: it named the old one
    by its id."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        async with Admin(env.bootstrap) as admin:
            if known:
                await admin.describe_topics(["t"])
            once = admin._call

            async def twice(api: Api, *arguments: Any, **values: Any) -> Any:
                answer = await once(api, *arguments, **values)
                if api is Api.DELETE_TOPICS:
                    await create(env, "t")
                    await once(api, *arguments, **values)
                return answer

            monkeypatch.setattr(admin, "_call", twice)
            assert await admin.delete_topics(["t"]) == ["t"]
            monkeypatch.undo()
            await asyncio.sleep(5)
            assert await admin.list_topics() == ["t"]
            with pytest.raises(UnknownTopic, match="nope"):
                await admin.delete_topics(["nope"])

    simulate(main)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_63_a_topic_that_is_gone_costs_the_others_nothing(protocol: str) -> None:
    """One of two topics is deleted for good. A member that joins later reads the other one all the same, and the group
    gives the partitions of the deleted one up; when it is made anew it is shared out again."""

    async def main(env: Env) -> None:
        for topic in ("t", "u"):
            await env.create_topic(topic, 2)
        settings: dict[str, Any] = {"group_protocol": protocol, "metadata_max_age_ms": 1_000}
        async with member(env, **settings) as first, member(env, **settings) as second:
            first.subscribe(["t", "u"])
            while len(first.assignment()) < 4:
                await first.poll(0.2)
            async with Admin(env.bootstrap) as admin:
                await admin.delete_topics(["t"])
            second.subscribe(["t", "u"])
            handled: dict[int, Consumer] = {}

            def owned() -> list[TopicPartition]:
                return sorted([*first.assignment(), *second.assignment()])

            async def both(holds: Callable[[], bool]) -> None:
                nonlocal handled
                until = asyncio.get_running_loop().time() + 60
                while not holds():
                    assert asyncio.get_running_loop().time() < until, owned()
                    for one in (first, second):
                        try:
                            handled |= {int(record.value or b""): one for record in await one.poll(0.2)}
                        except UnknownTopic:
                            continue

            await both(lambda: bool(first.assignment()) and bool(second.assignment()))
            await fill(env, "u", 20, 2)
            await both(lambda: sorted(handled) == list(range(20)))
            await both(lambda: owned() == [TopicPartition("u", 0), TopicPartition("u", 1)])
            await fill(env, "u", 20, 2, start=20)
            await both(lambda: sorted(handled) == list(range(40)))
            assert {handled[number] for number in range(20, 40)} == {first, second}
            await create(env, "t", 2)
            await both(lambda: len(set(owned())) == 4)

    simulate(main)
