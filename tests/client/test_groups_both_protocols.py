"""What holds of our consumer's groups under the classic protocol and under KIP-848's alike, on simulated clusters of
production nodes (rows S35, S54 to S66)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client.aio import Admin
from strandline.client.aio.consumer import ConsumerState
from strandline.client.errors import CommitFailed, MembershipLost
from strandline.proto.ids import TopicPartition
from tests.client.members import CLASSIC, CONSUMER, Reader, fill, member, simulate, sizes, until

both_protocols = pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])


@pytest.mark.parametrize(
    "settings",
    [
        *(
            {"partition_assignment_strategy": strategy}
            for strategy in ("range,cooperative-sticky", "roundrobin", "sticky", "cooperative-sticky")
        ),
        *(CONSUMER | {"group_remote_assignor": assignor} for assignor in ("uniform", "range")),
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_members_share_and_each_record_is_handled_once(settings: dict[str, Any]) -> None:
    """Rows S56, S57, S59: 8 partitions over 1, 3, 4, 3 members; clean departures commit what is done, so nothing
    repeats."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 8)
        await fill(env, "t", 200, 8)
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
        await until(lambda: {one.consumer.state.name for one in readers} == {"stable"})
        for one in readers:
            handled += one.handled
            await one.consumer.commit()
            await one.stop()
        assert sorted(int(value) for _, _, value in handled) == list(range(600))
        assert all(one.consumer.state.name == "closed" for one in readers)
        async with Admin(env.bootstrap) as admin:
            found = (await admin.describe_groups(["g"]))["g"]
        assert (found.state, found.members) == ("Empty", ())

    simulate(main)


@pytest.mark.parametrize(
    "settings", [{"partition_assignment_strategy": "cooperative-sticky"}, CONSUMER], ids=["cooperative", "consumer"]
)
def test_who_loses_partitions_keeps_the_others(settings: dict[str, Any]) -> None:
    """KIP-429, KIP-848: it is told of those alone that go, while they may be committed, and reads the others all the
    while."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        first = Reader(env, **settings)
        await until(lambda: first.numbers == [0, 1, 2, 3])
        second = Reader(env, **settings)
        await until(lambda: sizes([first, second]) == [2, 2])
        await until(lambda: first.consumer.state.name == "stable")
        assert [(kind, len(items)) for kind, items in first.events if items] == [("assigned", 4), ("revoked", 2)]
        assert [(kind, len(items)) for kind, items in second.events if items] == [("assigned", 2)]
        assert set(first.numbers) | set(second.numbers) == {0, 1, 2, 3}
        await first.stop()
        assert [kind for kind, _ in first.events][-1] == "revoked"
        await until(lambda: second.numbers == [0, 1, 2, 3])
        await second.stop()

    simulate(main)


@both_protocols
def test_who_does_not_poll_leaves_and_his_commit_is_refused(protocol: dict[str, Any]) -> None:
    """Rows S61, S85: heartbeats go on between polls; past max.poll.interval.ms a member leaves, and hears of it
    plainly."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 20, 1)
        slow = member(env, **protocol, max_poll_interval_ms=20_000)
        lost: list[Any] = []
        slow.subscribe("t", on_lost=lost.extend)
        while not await slow.poll(1.0, 5):
            pass
        await asyncio.sleep(15)  # more than two sessions
        assert slow.state.name == "stable", slow.state
        await slow.commit()
        quick = Reader(env, **protocol)
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


@both_protocols
def test_topics_that_come_grow_and_go(protocol: dict[str, Any]) -> None:
    """Rows S35, S54: a pattern follows new topics, the first one too, and partitions that are added, within
    metadata.max.age.ms; while it matches nothing the state says so, before the first topic and after the last."""

    async def main(env: Env) -> None:
        reader = Reader(env, re.compile("log-.*"), **protocol)

        def state() -> ConsumerState:
            return reader.consumer.state

        await until(lambda: state().name == "unmatched", 10)
        await asyncio.sleep(3)
        assert state().name == "unmatched"
        assert state().last_error is None, "who reads nothing is not refused"
        assert state().generation == (-1 if protocol is CONSUMER else 1)
        assert str(state()).endswith(": no topic matches 'log-.*'; looked for every 2000 ms (metadata.max.age.ms)")
        await env.create_topic("log-a")
        await until(lambda: len(reader.consumer.assignment()) == 1)
        assert (state().name, state().waits_for) == ("stable", "")
        await env.create_topic("log-b", 2)
        await env.create_topic("other")
        await until(lambda: len(reader.consumer.assignment()) == 3, 10)
        async with Admin(env.bootstrap) as admin:
            await admin.create_partitions({"log-a": 3})
            await until(lambda: len(reader.consumer.assignment()) == 5, 10)
            assert reader.consumer.subscription() == ("log-a", "log-b")
            await admin.delete_topics(["log-b"])
            await until(lambda: len(reader.consumer.assignment()) == 3, 10)
            await admin.delete_topics(["log-a"])
            await until(lambda: state().name == "unmatched" and not reader.consumer.assignment(), 10)
        await reader.stop()

    simulate(main)


@both_protocols
def test_a_static_member_that_comes_back_moves_nothing(protocol: dict[str, Any]) -> None:
    """KIP-345: within its session it gets what it had, and the others notice nothing."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        other = Reader(env, **protocol, group_instance_id="b")
        one = Reader(env, **protocol, group_instance_id="a")
        await until(lambda: sizes([one, other]) == [1, 1])
        had, before = one.numbers, other.consumer.state.generation
        await one.stop()
        await asyncio.sleep(3)
        one = Reader(env, **protocol, group_instance_id="a")
        await until(lambda: one.numbers == had)
        assert other.consumer.state.generation == before
        await one.stop()
        await other.stop()

    simulate(main)
