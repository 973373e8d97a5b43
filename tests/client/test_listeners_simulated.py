"""What interrupts a rebalance, or a reader, costs neither partitions nor records: listeners that raise, polls that are
cancelled inside of them, partitions paused in the middle of an iteration, commits that come too late."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client.aio import Consumer
from strandline.client.errors import ClientTimeout, CommitFailed
from strandline.client.loop_thread import Calls, LoopThread
from strandline.proto.ids import TopicPartition
from strandline.tools.handling import handle_async
from tests.client.members import CONSUMER, Reader, fill, member, simulate, sizes, until

COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}
NODES = (1, 2, 3)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def polled(consumer: Consumer, times: int = 100) -> None:
    """Poll until something is assigned."""
    for _ in range(times):
        await consumer.poll(0.2)
        if consumer.assignment():
            return
    raise AssertionError(consumer.state)


@pytest.mark.parametrize("settings", [COOPERATIVE, CONSUMER, {}], ids=["cooperative", "consumer", "eager"])
def test_limits_hold_to_the_millisecond_while_no_broker_answers(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Of polls, one of which has to rebalance first, and of a close whose listener commits."""

    async def main(env: Env) -> None:
        for topic in ("t", "u"):
            await env.create_topic(topic)
        await fill(env, "t", 100, 1)
        clock = asyncio.get_running_loop().time
        consumer = member(env, **settings)
        refused: list[str] = []

        async def commits(_: list[TopicPartition]) -> None:
            with pytest.raises(ClientTimeout) as caught:
                await consumer.commit()
            refused.append(str(caught.value))

        consumer.subscribe("t")
        while not await consumer.poll(0.5, 10):
            pass
        for node in NODES:
            env.faults.pause(node)
        for number in range(60):
            if number == 10:
                consumer.subscribe(["t", "u"])
            since = clock()
            await consumer.poll(0.5, 10)
            assert clock() - since <= 0.501
        held = consumer.assignment()
        consumer.subscribe("t", on_revoked=commits, on_lost=commits)
        since = clock()
        await consumer.close(3.0)
        assert clock() - since <= 3.001
        assert consumer.state.name == "closed"
        assert len(refused) == (1 if held else 0)
        assert any("what is done could not be committed" in line for line in caplog.messages)
        assert any("was not told that this member left" in line for line in caplog.messages)
        for node in NODES:
            env.faults.resume(node)

    simulate(main)


@pytest.mark.parametrize("settings", [COOPERATIVE, CONSUMER], ids=["cooperative", "consumer"])
def test_a_listener_that_raises_holds_up_nobody(settings: dict[str, Any]) -> None:
    """As in Java's consumer: poll raises it, and the partitions have gone all the same; the other member gets them, and
    what this one is given it has."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        failing = [RuntimeError("revoked"), RuntimeError("revoked")]

        def on_revoked(_: list[TopicPartition]) -> None:
            if failing:
                raise failing.pop()

        consumer = member(env, **settings)
        consumer.subscribe("t", on_revoked=on_revoked)
        await polled(consumer)
        raised: list[Exception] = []

        async def reads() -> None:
            while True:
                try:
                    await consumer.poll(0.2)
                except RuntimeError as error:
                    raised.append(error)

        reading = asyncio.create_task(reads())
        other = Reader(env, **settings)
        await until(lambda: sizes([other]) == [2] and len(consumer.assignment()) == 2)
        assert [str(error) for error in raised] == ["revoked"]
        await other.stop()
        await until(lambda: len(consumer.assignment()) == 4)
        reading.cancel()
        await asyncio.wait([reading])
        with pytest.raises(RuntimeError, match="revoked"):
            await consumer.close()
        assert consumer.assignment() == []

    simulate(main)


@pytest.mark.parametrize("settings", [{}, COOPERATIVE, CONSUMER], ids=["eager", "cooperative", "consumer"])
def test_a_poll_that_is_cancelled_in_a_listener(settings: dict[str, Any]) -> None:
    """The next poll goes on with what the cut one has begun: the listener is told again, before the first record."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        await fill(env, "t", 10, 2)
        begun: list[tuple[str, int]] = []
        ended: list[tuple[str, int]] = []

        async def listens(kind: str, items: list[TopicPartition]) -> None:
            if items:
                begun.append((kind, len(items)))
                await asyncio.sleep(3 if begun.count((kind, len(items))) == 1 else 0)
                ended.append((kind, len(items)))

        consumer = member(env, **settings)
        consumer.subscribe(
            "t",
            on_assigned=lambda items: listens("assigned", items),
            on_revoked=lambda items: listens("revoked", items),
        )

        async def cut() -> None:
            async with asyncio.timeout(2):
                while not await consumer.poll(0.5):
                    pass

        with pytest.raises(TimeoutError):
            await cut()
        assert (begun, ended) == ([("assigned", 2)], [])
        assert await consumer.poll(5.0)
        assert (begun, ended) == ([("assigned", 2)] * 2, [("assigned", 2)])
        other = Reader(env, **settings)
        gone = ("revoked", 1 if settings else 2)
        async with asyncio.timeout(30):
            while gone not in begun:
                try:
                    async with asyncio.timeout(1):
                        await consumer.poll(0.5)
                except TimeoutError:
                    pass
        while sizes([other]) != [1] or len(consumer.assignment()) != 1:
            await consumer.poll(0.2)
        assert begun.count(gone) == 2
        assert ended.count(gone) == 1
        await other.stop()
        await consumer.close()

    simulate(main)


def test_a_pause_holds_what_iteration_has_polled_ahead() -> None:
    """`pause` promises no more records of the partition; an iteration polls many at once. They come after `resume`,
    each once."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        await fill(env, "t", 40, 2)
        async with Consumer(env.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0, T1])
            first = await anext(consumer)
            held = TopicPartition(first.topic, first.partition)
            consumer.pause(held)
            rest = [await consumer.next_record(5.0) for _ in range(20)]
            assert {one.partition for one in rest if one is not None} == {1 - first.partition}
            assert await consumer.next_record(1.0) is None
            assert await consumer.position(held) == 1
            consumer.resume(held)
            offsets = [(await anext(consumer)).offset for _ in range(19)]
            assert offsets == list(range(1, 20))

    simulate(main)


def test_a_commit_that_waits_does_not_come_as_a_later_generation() -> None:
    """An asynchronous commit behind others that are tried again: meanwhile another member may read the partition. It is
    of the generation in which it was asked for, so the coordinator refuses it."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 1)
        await fill(env, "t", 10, 1)
        told: list[Any] = []
        async with member(env, enable_auto_commit=False) as consumer:
            consumer.subscribe("t")
            await polled(consumer)
            generation = consumer.state.generation
            group = consumer._group
            assert group is not None
            async with group.commits._in_turn:  # as if one before waited for its coordinator
                consumer.commit_async({T0: 3}, lambda _, error: told.append(error))
                other = Reader(env, enable_auto_commit=False)
                while consumer.state.generation == generation or consumer.state.name != "stable":
                    await consumer.poll(0.2)
                async with Consumer(env.bootstrap, group_id="g") as asks:
                    assert (await asks.committed([T0]))[T0] is None
            await until(lambda: told)
            assert isinstance(told[0], CommitFailed)
            assert (await consumer.committed([T0]))[T0] is None
            await other.stop()

    simulate(main)


def test_a_reader_from_outside_reads_on_when_its_commits_are_refused() -> None:
    """Partitions assigned by name, in a group that has members: what is refused is the commit alone, and why is told.
    An iteration used to wait for a rebalance that never came."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 1)
        await fill(env, "t", 20, 1)
        inside = Reader(env)
        await until(lambda: inside.numbers == [0])
        async with member(env) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            offsets = [(await anext(consumer)).offset for _ in range(5)]
            with pytest.raises(CommitFailed, match="the group has members, and they alone commit"):
                await consumer.commit()
            await asyncio.sleep(2)  # it commits by itself, too
            async with asyncio.timeout(30):
                offsets += [(await anext(consumer)).offset for _ in range(15)]
            assert offsets == list(range(20))
            assert consumer.state.name == "assigned"
        await inside.stop()

    simulate(main)


def test_a_run_that_is_stopped_leaves_no_partition_paused() -> None:
    """While a record rests before its next attempt its partition is paused; whoever reads on after `stop` gets it."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 1)
        await fill(env, "t", 3, 1)
        async with member(env) as consumer:
            consumer.subscribe("t")

            def handler(_: object) -> None:
                consumer.stop()
                raise ValueError("not now")

            report = await handle_async(consumer, handler, backoff_ms=60_000)
            assert (report.handled, report.failures, report.dead_letters) == (0, 1, 0)
            assert consumer.paused() == []
            assert [(await anext(consumer)).offset for _ in range(3)] == [0, 1, 2]

    simulate(main)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_listener_belongs_to_the_thread(stop: type[BaseException]) -> None:
    """Ctrl-C, or sys.exit, while a listener of the blocking consumer runs: the call ends with it, and the consumer's
    own thread lives, so that `close` comes to an end. It used to wait for ever."""
    thread, calls = LoopThread("listens", []), Calls()
    seen: list[BaseException] = []
    cancelled = threading.Event()

    def listener() -> None:
        raise stop

    async def polls() -> None:
        try:
            await calls.ask(listener)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def waits() -> None:
        try:
            thread.serve(polls, calls)
        except BaseException as error:
            seen.append(error)

    waiting = threading.Thread(target=waits, daemon=True)
    waiting.start()
    waiting.join(10)
    assert [type(error) for error in seen] == [stop]
    assert cancelled.wait(10)
    assert thread.wait(partial(asyncio.sleep, 0, "alive")) == "alive"

    async def farewell() -> None:
        pass

    thread.stop(farewell)
