"""What goes on between a consumer's calls: heartbeats, automatic commits, look-outs, look-ups. One that ends on a
mistake of ours is told by poll and in the log, not by silence; and a commit that was delayed sets no newer one back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client.aio import Consumer
from strandline.client.errors import ClientError, CommitFailed
from strandline.client.groups.commits import Progress
from strandline.client.types import OffsetAndMetadata
from strandline.proto.ids import TopicPartition
from tests.client.members import fill, member, simulate, until

WHERE = TopicPartition("t", 0)


def breaks(*_arguments: Any, **_values: Any) -> Any:
    raise ZeroDivisionError("a mistake of ours")


BROKEN: dict[str, tuple[str, Callable[[Consumer], tuple[object, str]]]] = {
    "heartbeats": ("the heartbeats of group g", lambda one: (one._group.member, "_ask")),  # type: ignore[union-attr]
    "commits": (
        "the automatic commits of group g",
        lambda one: (one._group.commits.progress, "to_commit"),  # type: ignore[union-attr]
    ),
    "renewal": (
        "the renewal of commits of group g",
        lambda one: (one._group.commits.progress, "known_committed"),  # type: ignore[union-attr]
    ),
    "look-out": ("the look-out for topics of group g", lambda one: (one._group, "_refresh")),  # type: ignore[union-attr]
    "look-up": ("a look-up of positions", lambda one: (one._fetcher._lookups, "_offsets_at")),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_task_that_ends_unforeseen_is_told(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By each poll from then on, with the cause; by a line of the log; and the consumer can be closed."""
    name, where = BROKEN[what]

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        consumer = member(env, metadata_max_age_ms=1_000)
        if what == "renewal":
            consumer.assign([WHERE])
        else:
            consumer.subscribe("t")
        while not await consumer.poll(1.0):
            pass
        monkeypatch.setattr(*where(consumer), breaks)
        if what == "look-up":
            consumer.seek_to_beginning()
        for _ in range(2):
            with pytest.raises(ClientError, match=f"internal error: {name} ended on ZeroDivisionError") as caught:
                await poll_for(consumer, 30.0)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        monkeypatch.undo()
        await consumer.close()

    simulate(main)
    lines = [record for record in caplog.records if record.name == "strandline.client"]
    assert {record.getMessage() for record in lines} == {f"internal error: {name} ended"}
    assert len(lines) <= 2, "it is not begun again and again"
    assert lines[0].exc_info is not None


def test_a_delayed_commit_sets_no_newer_one_back() -> None:
    """KIP-848: a member's epoch moves on between two polls, so a commit that waits is signed with the new one. But this
    partition was another's meanwhile, who has committed more: the old commit is refused."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        told: list[Any] = []
        settings: dict[str, Any] = {"group_protocol": "consumer", "enable_auto_commit": False}
        async with member(env, **settings) as one, member(env, **settings) as other:
            one.subscribe("t")
            await polled(one, 3)
            group = one._group
            assert group is not None
            async with group.commits._in_turn:  # as if its coordinator did not answer
                one.commit_async({WHERE: 3}, lambda _offsets, error: told.append(error))
                await one.unsubscribe()
                other.subscribe("t")
                await polled(other, 10)
                await other.commit()
                await other.unsubscribe()
                one.subscribe("t")
                while one.assignment() != [WHERE]:
                    await one.poll(0.5)
            await until(lambda: told)
            assert isinstance(told[0], CommitFailed)
            found = (await one.committed())[WHERE]
            assert found is not None
            assert found.offset == 10

    simulate(main)


def test_a_commit_without_an_answer_may_have_been_made() -> None:
    """All is committed, the caller goes back, and the coordinator's answer to that is lost. He reads to the end again:
    what was committed before is to be committed once more."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        async with member(env, auto_commit_interval_ms=100) as consumer:
            consumer.subscribe("t")
            await polled(consumer, 10)
            await consumer.commit()
            assert consumer._group is not None
            coordinator, lost = consumer._group.commits._coordinator, asyncio.Event()
            commits = coordinator.commit

            async def answer_is_lost(*arguments: Any) -> None:
                await commits(*arguments)
                lost.set()
                await asyncio.sleep(3600)

            coordinator.commit = answer_is_lost  # type: ignore[method-assign]
            consumer.seek(WHERE, 5)
            async with asyncio.timeout(10):
                await lost.wait()
            coordinator.commit = commits  # type: ignore[method-assign]
            found = (await consumer.committed())[WHERE]
            assert found is not None
            assert found.offset == 5
            await polled(consumer, 5)
            await poll_for(consumer, 5)
            found = (await consumer.committed())[WHERE]
            assert found is not None
            assert found.offset == 10

    simulate(main)


async def poll_for(consumer: Consumer, duration_s: float) -> None:
    until_s = asyncio.get_running_loop().time() + duration_s
    while asyncio.get_running_loop().time() < until_s:
        await consumer.poll(1.0)


async def polled(consumer: Consumer, count: int) -> None:
    """Read so many records."""
    while count:
        count -= len(await consumer.poll(1.0, count))


def test_a_tenure_ends_when_a_partition_is_given_up() -> None:
    """Not when it begins elsewhere, by a seek or in a topic that was made anew."""
    progress = Progress()
    progress.take_up(WHERE)
    held = progress.tenures([WHERE, TopicPartition("t", 1)])
    assert list(held) == [WHERE]
    progress.start(WHERE, OffsetAndMetadata(5))
    progress.move(WHERE, 3)
    progress.take_up(WHERE)
    assert progress.tenures([WHERE]) == held
    assert progress.known_committed(found_too=True) == {WHERE: 5}
    assert progress.known_committed(found_too=False) == {}
    progress.forget([WHERE])
    assert progress.tenures([WHERE]) == {}
    progress.take_up(WHERE)
    assert progress.tenures([WHERE]) != held


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_join_that_takes_long_while_nobody_polls_costs_no_time(protocol: str) -> None:
    """No broker answers, and the caller has not polled for longer than max.poll.interval.ms: heartbeats wait for the
    join. (They looked again and again, as fast as a processor can; the simulator takes that for a busy loop.)"""

    async def main(env: Env) -> None:
        for topic in ("t", "u"):
            await env.create_topic(topic)
        settings: dict[str, Any] = {"group_protocol": protocol, "max_poll_interval_ms": 6_000}
        async with member(env, **settings) as consumer:
            consumer.subscribe("t")
            while consumer.state.name != "stable":
                await consumer.poll(0.5)
            for node in (1, 2, 3):
                env.faults.kill(node)
            consumer.subscribe(["t", "u"])
            await consumer.poll(0.5)
            await asyncio.sleep(20)
            env.faults.start()
            await fill(env, "u", 10, 1)
            await polled(consumer, 10)

    simulate(main)
