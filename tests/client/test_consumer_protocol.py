"""Our consumer with group.protocol=consumer (KIP-848) on simulated clusters of production nodes, and rolled to and from
the classic protocol: the same listeners, commits and errors as there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.chaos.testing.simulation import Simulation
from strandline.client.aio import Admin, Consumer
from strandline.client.config import ConsumerConfig
from strandline.client.errors import CommitFailed, MembershipLost
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import TopicPartition
from tests.client.test_groups_simulated import Reader, fill, until

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
}
MEMBER: dict[str, Any] = {"group_protocol": "consumer", "session_timeout_ms": 45_000, "heartbeat_interval_ms": 3_000}
"""Over the settings of classic members in `test_groups_simulated`: what the brokers decide is at its default."""


def simulate(main: Callable[[Env], Any], seed: int = 1) -> Any:
    return Simulation(seed, settings=SETTINGS).run(main)


def sizes(readers: list[Reader]) -> list[int]:
    owned = [number for reader in readers for number in reader.numbers]
    return sorted(len(one.numbers) for one in readers) if len(owned) == len(set(owned)) else []


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_and_each_record_is_handled_once(assignor: str) -> None:
    """8 partitions over 1, 3, 4, 3 members; clean departures commit what is done, so nothing repeats."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 8)
        await fill(env, "t", 200, 8)
        settings = MEMBER | {"group_remote_assignor": assignor}
        readers = [Reader(env, **settings)]
        await until(lambda: sizes(readers) == [8])
        readers += [Reader(env, **settings) for _ in range(2)]
        await until(lambda: sizes(readers) == [2, 3, 3])
        readers.append(Reader(env, **settings))
        await fill(env, "t", 200, 8, start=200)
        await until(lambda: sizes(readers) == [2, 2, 2, 2])
        leaver = readers.pop(0)
        await leaver.consumer.commit()
        await leaver.stop()
        await until(lambda: sizes(readers) == [2, 3, 3])
        await fill(env, "t", 200, 8, start=400)
        handled = [*leaver.handled]
        await until(lambda: len({v for one in [leaver, *readers] for _, _, v in one.handled}) == 600)
        for one in readers:
            assert one.consumer.state.name == "stable", one.consumer.state
            handled += one.handled
            await one.consumer.commit()
            await one.stop()
        assert sorted(int(value) for _, _, value in handled) == list(range(600))
        async with Admin(env.bootstrap) as admin:
            found = (await admin.describe_groups(["g"]))["g"]
        assert (found.state, found.members) == ("Empty", ())

    simulate(main)


def test_who_loses_partitions_keeps_the_others() -> None:
    """It is told of those alone that go, while they may be committed, and reads the others all the while."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        first = Reader(env, **MEMBER)
        await until(lambda: first.numbers == [0, 1, 2, 3])
        second = Reader(env, **MEMBER)
        await until(lambda: sizes([first, second]) == [2, 2])
        assert [(kind, len(items)) for kind, items in first.events if items] == [("assigned", 4), ("revoked", 2)]
        assert [(kind, len(items)) for kind, items in second.events if items] == [("assigned", 2)]
        await first.stop()
        assert [kind for kind, _ in first.events][-1] == "revoked"
        await until(lambda: second.numbers == [0, 1, 2, 3])
        await second.stop()

    simulate(main)


def test_who_does_not_poll_leaves_and_his_commit_is_refused() -> None:
    """Heartbeats go on between polls; past max.poll.interval.ms a member leaves, and hears of it plainly."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 20, 1)
        slow = Consumer(
            env.bootstrap,
            group_id="g",
            group_protocol="consumer",
            auto_offset_reset="earliest",
            max_poll_interval_ms=20_000,
        )
        lost: list[Any] = []
        slow.subscribe("t", on_lost=lost.extend)
        while not await slow.poll(1.0, 5):
            pass
        await asyncio.sleep(15)  # more than two sessions
        assert slow.state.name == "stable", slow.state
        await slow.commit()
        quick = Reader(env, **MEMBER)
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
    """A pattern follows new topics, the first one too; the coordinator sees added partitions by itself."""

    async def main(env: Env) -> None:
        reader = Reader(env, re.compile("log-.*"), **MEMBER)
        await until(lambda: reader.consumer.subscription() == () and reader.consumer.state.name != "unassigned")
        await asyncio.sleep(3)
        assert reader.consumer.state.last_error is None, "who reads nothing does not join, and is not refused"
        await env.create_topic("log-a")
        await until(lambda: len(reader.consumer.assignment()) == 1)
        await env.create_topic("log-b", 2)
        await env.create_topic("other")
        await until(lambda: len(reader.consumer.assignment()) == 3, 10)
        async with Admin(env.bootstrap) as admin:
            await admin.create_partitions({"log-a": 3})
        await until(lambda: len(reader.consumer.assignment()) == 5, 10)
        assert reader.consumer.subscription() == ("log-a", "log-b")
        async with Admin(env.bootstrap) as admin:
            await admin.delete_topics(["log-b"])
        await until(lambda: len(reader.consumer.assignment()) == 3, 10)
        await reader.stop()

    simulate(main)


def test_static_members() -> None:
    """KIP-345: a restart within the session moves nothing; of two under one name the second is refused while the first
    lives (KIP-848), and says so."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        other = Reader(env, **MEMBER, group_instance_id="b")
        one = Reader(env, **MEMBER, group_instance_id="a")
        await until(lambda: sizes([one, other]) == [1, 1])
        had, before = one.numbers, other.consumer.state.generation
        await one.stop()
        await asyncio.sleep(3)
        one = Reader(env, **MEMBER, group_instance_id="a")
        await until(lambda: one.numbers == had)
        assert other.consumer.state.generation == before
        twin = Reader(env, **MEMBER, group_instance_id="a")
        with pytest.raises(KafkaError, match="UNRELEASED_INSTANCE_ID"):
            await twin.task
        assert one.numbers == had
        await one.stop()
        await other.stop()

    simulate(main)


@pytest.mark.parametrize("error", ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"])
def test_who_is_none_any_more_hears_of_it_and_joins_anew(error: str) -> None:
    """What it had may be another's: on_lost is told, nothing is committed, and it joins and gets its share."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        one = Reader(env, **MEMBER)
        both = [TopicPartition("t", 0), TopicPartition("t", 1)]
        await until(lambda: one.numbers == [0, 1])
        env.faults.fail_next("CONSUMER_GROUP_HEARTBEAT", error)
        await until(lambda: ("lost", both) in one.events)
        await until(lambda: one.numbers == [0, 1] and one.consumer.state.name == "stable")
        assert one.events[-2:] == [("lost", both), ("assigned", both)]
        last = one.consumer.state.last_error
        assert isinstance(last, KafkaError)
        assert last.code is ErrorCode[error]
        await one.stop()

    simulate(main)


def test_a_commit_between_two_epochs_is_sent_again() -> None:
    """The coordinator is an epoch ahead of the answer that tells the member so: STALE_MEMBER_EPOCH is no refusal."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        one = Consumer(env.bootstrap, group_id="g", group_protocol="consumer", auto_offset_reset="earliest")
        one.subscribe("t")
        while not await one.poll(1.0):
            pass
        env.faults.fail_next("OFFSET_COMMIT", "STALE_MEMBER_EPOCH")
        await one.commit()
        found = (await one.committed())[TopicPartition("t", 0)]
        assert found is not None
        assert found.offset == 10
        await one.close()

    simulate(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_is_rolled_up_and_down_and_no_record_is_skipped(seed: int) -> None:
    """Member by member to the consumer protocol and back, under load, while brokers and members die (KIP-848, "Online
    migration"): every acknowledged record is handled, and no committed offset goes back."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        handled: set[bytes] = set()
        classic = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}
        classic |= {"partition_assignment_strategy": "cooperative-sticky" if seed % 2 else "range"}

        def member(settings: dict[str, Any]) -> Callable[[], Any]:
            async def run() -> None:
                common = {"group_id": "g", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 500}
                async with Consumer(env.bootstrap, **common, **settings) as consumer:
                    consumer.subscribe("t")
                    while True:
                        handled.update(record.value or b"" for record in await consumer.poll(0.5, 20))

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
                    await asyncio.sleep(0.3)

        alive = [env.spawn(member(classic), f"c{number}") for number in range(2)]
        watcher = asyncio.create_task(watch())
        produced = 0
        for turn, settings in enumerate(({"group_protocol": "consumer"},) * 2 + (classic,) * 2):
            await fill(env, "t", 100, 4, start=produced)
            produced += 100
            alive.append(env.spawn(member(settings), f"m{turn}"))
            await asyncio.sleep(env.rng.uniform(0.5, 4))
            alive.pop(0).kill()
            node = env.rng.randint(1, 3)
            env.faults.kill(node)
            await asyncio.sleep(env.rng.uniform(0.5, 3))
            env.faults.start(node)
            await until(lambda count=produced: len(handled) == count, 120)  # type: ignore[misc]
        watcher.cancel()
        await asyncio.wait([watcher])
        if not watcher.cancelled():
            watcher.result()
        async with (
            Admin(env.bootstrap) as admin,
            asyncio.timeout(60),
        ):  # when the session of the last killed one is over
            while [one.type.lower() for one in await admin.list_groups() if one.group_id == "g"] != ["classic"]:
                await asyncio.sleep(0.5)

    simulate(main, seed)


def test_settings() -> None:
    """What the brokers decide in this protocol may not be set; the assignor may only in it."""
    for name, value in (
        ("session.timeout.ms", 10_000),
        ("heartbeat.interval.ms", 100),
        ("partition.assignment.strategy", "range"),
    ):
        with pytest.raises(ConfigError, match="the brokers decide"):
            ConsumerConfig.of({"group.protocol": "consumer", name: value})
    with pytest.raises(ConfigError, match=r"group\.protocol=consumer"):
        ConsumerConfig.of({"group.remote.assignor": "range"})
    with pytest.raises(ConfigError, match="classic, consumer"):
        ConsumerConfig.of({"group.protocol": "streams"})
