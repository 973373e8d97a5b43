"""Schedule 64: a handler is cancelled, or its dead letter refused; the next run goes on at that record."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client import Admin, Consumer, KafkaError, NewTopic, Producer
from strandline.client.aio import Consumer as AsyncConsumer
from strandline.client.loop_thread import Calls
from strandline.client.types import ConsumerRecord
from strandline.cluster.node.dev import DevCluster
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.tools.handling import handle, handle_async
from tests.client.members import fill, member, simulate
from tests.schedules.helpers import schedule

WHERE = TopicPartition("t", 0)


async def stored(env: Env, consumer: AsyncConsumer) -> int:
    """What the group has committed, once nothing more can be."""
    await asyncio.sleep(3)
    found = (await consumer.committed([WHERE]))[WHERE]
    return 0 if found is None else found.offset


@schedule(64, rule="what was not handled comes again", mutant="unsettled-record-counts-as-done")
def test_64_a_record_whose_dead_letter_is_refused_comes_again() -> None:
    """The topic of dead letters takes no record as large: `run` raises; the next run meets the record once more."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await env.create_topic("t.dead", configs={"max.message.bytes": "100"})
        await fill(env, "t", 10, 1)
        seen: list[bytes] = []

        def handler(record: ConsumerRecord) -> None:
            seen.append(record.value or b"")
            if record.value == b"4":
                raise RuntimeError("x" * 300)

        async with member(env) as consumer:
            consumer.subscribe("t")
            for again in (1, 2):
                with pytest.raises(KafkaError) as caught:
                    await handle_async(consumer, handler, attempts=1, idle_s=5.0)
                assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
                assert seen.count(b"4") == again
                assert await stored(env, consumer) <= 4
            report = await handle_async(consumer, lambda record: seen.append(record.value or b""), idle_s=2.0)
            assert report.handled == 6
            assert [int(value) for value in seen] == [0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9]

    simulate(main)


@pytest.mark.parametrize("group", ["g", None])
@schedule(64, rule="what was not handled comes again", mutant="unsettled-record-counts-as-done")
def test_64_a_cancelled_handler_has_not_handled(group: str | None) -> None:
    """The task that runs is cancelled while the handler works, as at the end of a service: the record comes again, with
    a group and without."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        begun: list[int] = []
        ended: list[int] = []

        async def handler(record: ConsumerRecord) -> None:
            begun.append(record.offset)
            await asyncio.sleep(1.0)
            ended.append(record.offset)

        async with member(env, group_id=group) as consumer:
            consumer.assign([WHERE])
            for until in (0, 3, 3, 6):
                running = asyncio.create_task(handle_async(consumer, handler, idle_s=5.0))
                while until not in begun or len(begun) == len(ended):
                    await asyncio.sleep(0.1)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                if group is not None:
                    assert await stored(env, consumer) == until
                begun.clear()
                ended.clear()
            await handle_async(consumer, handler, idle_s=5.0)
            assert ended == [6, 7, 8, 9]

    simulate(main)


@pytest.mark.parametrize("seed", range(6))
def test_64_cancelled_anywhere(seed: int) -> None:
    """A run is cancelled again and again, at any await; the partitions move between two members meanwhile. Every record
    is handled to its end, and none is committed before."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 3)
        await fill(env, "t", 120, 3)
        handled: set[bytes] = set()
        committed_early: list[str] = []
        stop = False

        async def handler(record: ConsumerRecord) -> None:
            await asyncio.sleep(env.rng.choice((0.0, 0.02)))
            if env.rng.random() < 0.1:
                raise RuntimeError("now and then")
            handled.add(record.value or b"")

        async def service(name: str) -> None:
            async with member(env, client_id=name) as consumer:
                consumer.subscribe("t")
                while not stop:
                    running = asyncio.create_task(
                        handle_async(consumer, handler, attempts=50, backoff_ms=20, idle_s=2.0)
                    )
                    await asyncio.wait([running], timeout=env.rng.uniform(0.0, 0.8))
                    running.cancel()
                    await asyncio.wait([running])
                    if not running.cancelled():
                        running.result()

        async def watch() -> None:
            places = [TopicPartition("t", number) for number in range(3)]
            async with AsyncConsumer(env.bootstrap, group_id="g") as other:
                while not stop:
                    for item, found in (await other.committed(places)).items():
                        for offset in range(0 if found is None else found.offset):
                            value = b"%d" % (offset * 3 + item.partition)
                            if value not in handled:
                                committed_early.append(f"{item} {offset}")
                    await asyncio.sleep(0.2)

        tasks = [asyncio.create_task(work) for work in (service("a"), service("b"), watch())]
        until = asyncio.get_running_loop().time() + 120
        while len(handled) < 120 and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.1)
        stop = True
        for task in tasks:
            await task
        assert not committed_early
        assert len(handled) == 120

    simulate(main, seed)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_64_an_interrupted_handler_has_not_handled(cluster: DevCluster, kind: type[BaseException]) -> None:
    """Blocking, on real brokers: Ctrl-C and sys.exit in the middle of a handler, and a dead letter that is refused."""
    topic = f"handled-{kind.__name__}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3), NewTopic(f"{topic}.dead", 1, 3, {"max.message.bytes": "100"})])
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    seen: list[bytes | None] = []

    def handler(record: ConsumerRecord) -> None:
        seen.append(record.value)
        if record.value == b"4" and seen.count(b"4") <= 2:
            raise kind("x" * 300)

    expected = KafkaError if kind is RuntimeError else kind
    settings: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 100}
    with Consumer(cluster.bootstrap, **settings) as consumer:
        consumer.subscribe(topic)
        for _ in range(2):
            with pytest.raises(expected):
                handle(consumer, handler, attempts=1, idle_s=30.0)
            threading.Event().wait(0.5)
            found = consumer.committed()[TopicPartition(topic, 0)]
            assert found is None or found.offset <= 4
        assert handle(consumer, handler, attempts=1, idle_s=3.0).handled == 6
        assert [int(value or b"") for value in seen] == [0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("call", ["poll", "next_record", "next"])
def test_64_what_an_interrupted_poll_brought_comes_again(
    cluster: DevCluster, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the very instant when records have come: they were handed out, and nobody has them."""
    topic = f"polled-{call}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)

    class Interrupted(Calls):
        def answer(self) -> None:
            super().answer()
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest", "max_poll_records": 3}
    with Consumer(cluster.bootstrap, **settings) as consumer:
        consumer.assign([(topic, 0)])
        calls = {
            "poll": lambda: consumer.poll(30.0),
            "next_record": lambda: consumer.next_record(30.0),
            "next": lambda: next(consumer),
        }
        with monkeypatch.context() as patched:
            patched.setattr("strandline.client.consumer.Calls", Interrupted)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    calls[call]()
        values = [record.value for record in [*consumer.poll(30.0), *consumer.poll(30.0)]]
        assert values == [b"%d" % number for number in range(6)]
