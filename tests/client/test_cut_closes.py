"""Closes that are cut short, by an interrupt or a cancellation, at each of their steps (rule B43)."""

from __future__ import annotations

import asyncio
import dis
import gc
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client import Admin, Consumer, NewTopic, Producer, aio
from strandline.client.errors import ClientTimeout, ClosedError
from strandline.client.loop_thread import LoopThread
from strandline.client.range_reader import RangeReader
from strandline.client.types import Ack
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api
from strandline.tools.copy.topic_copy import TopicCopy
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play
from tests.client.conftest import eventually
from tests.client.test_signal_storms import CLIENT, Alarm, Instant, raises


def left(before: list[threading.Thread]) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("strandline-") and one not in before]


def test_an_interrupt_at_each_instant_of_a_close_answers_every_record(cluster: DevCluster) -> None:
    """By the time that the repeated close returns; the thread has ended then."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("cut-closes", 1, 3)])
    number, instant = 0, None
    while instant is None or instant.left <= 0:
        number += 1
        before = threading.enumerate()
        producer = Producer(cluster.bootstrap, linger_ms=60_000)
        sent: list[Future[Ack]] = [producer.send("cut-closes", b"%d" % count, partition=0) for count in range(3)]
        instant = Instant(number, raises, (CLIENT,))
        try:
            sys.setprofile(instant)
            producer.close(0.0)
        except (Alarm, ClientTimeout):
            pass
        finally:
            sys.setprofile(None)
        with suppress(ClientTimeout):
            producer.close(0.0)
        assert [future.done() for future in sent] == [True] * 3, number
        assert not left(before)
    assert number > 40


def test_a_close_waits_for_the_end_that_another_one_has_left(cluster: DevCluster) -> None:
    """One whose every wait was interrupted: the thread is on its way to its end, and callbacks take their time."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("left-closes", 2, 3)])
    producer = Producer(cluster.bootstrap, linger_ms=60_000)
    sent = [producer.send("left-closes", b"", partition=number) for number in range(2)]
    for future in sent:
        future.add_done_callback(lambda _: threading.Event().wait(0.3) and None)
    running = producer._running
    assert running is not None
    running.thread.end()
    eventually(lambda: running.thread.closed)
    producer.close()
    assert [future.done() for future in sent] == [True, True]
    assert all(isinstance(future.exception(0), ClosedError) for future in sent)


async def cut(close: Callable[[], Awaitable[None]], steps: int) -> bool:
    """Cancel a close after so many steps; whether it had begun."""
    begun: list[bool] = []

    async def closes() -> None:
        begun.append(True)
        await close()

    closing = asyncio.ensure_future(closes())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    return bool(begun)


@pytest.mark.parametrize("mute", [Api.API_VERSIONS, Api.PRODUCE, Api.INIT_PRODUCER_ID], ids=lambda api: api.name)
def test_a_cancellation_at_each_step_of_a_close_answers_every_record(mute: Api) -> None:
    """Whatever the producer waits for then."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        for steps in range(10):
            cluster.mute.clear()
            producer = aio.Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng)
            await producer.partitions_for("t")
            cluster.mute.add(mute)
            sent = [await producer.send("t", b"%d" % count, partition=count) for count in range(2)]
            await asyncio.sleep(0.1)
            await cut(partial(producer.close, 0.0), steps)
            with suppress(ClientTimeout):
                await producer.close(0.0)
            assert [future.done() for future in sent] == [True] * 2, steps
            await asyncio.sleep(0.1)
            assert not cluster.connections, steps

    play(scenario, {"t": 2})


def test_a_cancelled_close_leaves_no_connection() -> None:
    """Of a client whose metadata are asked for just then."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        for steps in range(10):
            cluster.mute.clear()
            consumer = aio.Consumer(BOOTSTRAP, clock=ports.clock, rng=ports.rng)
            await consumer.partitions_for("t")
            cluster.mute.add(Api.METADATA)
            asked = asyncio.ensure_future(consumer.partitions_for("u"))
            await asyncio.sleep(0.1)
            if not await cut(consumer.close, steps):
                await consumer.close()
            await asyncio.sleep(0.1)
            assert not cluster.connections, steps
            with pytest.raises(ClosedError):
                await asked

    play(scenario, {"t": 2})


class BehindCall:
    """Raises behind the n-th call in one function, where CPython looks for signals."""

    def __init__(self, code: CodeType, number: int) -> None:
        self.left = number
        self._code = code
        self._behind = {one.offset for one in dis.get_instructions(code) if one.opname.startswith("CALL")}
        self._last = -1

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not self._code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            was, self._last = self._last, frame.f_lasti
            if was in self._behind:
                self.left -= 1
                if not self.left:
                    sys.settrace(None)
                    raise Alarm
        return self


def uses_a_consumer(bootstrap: str) -> None:
    with Consumer(bootstrap) as consumer:
        consumer.assign([])


def uses_a_producer(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        producer.partitions_for("cut-closes")


def uses_an_admin(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        admin.list_topics()


def uses_a_range_reader(bootstrap: str) -> None:
    RangeReader(bootstrap).close()


def uses_a_copy(bootstrap: str) -> None:
    TopicCopy(bootstrap, "cut-closes", "another", settings={}).preview()


@pytest.mark.parametrize(
    ("use", "makes"),
    [
        (uses_a_consumer, Consumer._running),
        (uses_a_producer, Producer._start),
        (uses_an_admin, Admin.wait),
        (uses_a_range_reader, RangeReader.__init__),
        (uses_a_copy, TopicCopy.__init__),
    ],
    ids=["consumer", "producer", "admin", "range reader", "copy"],
)
def test_an_interrupt_at_each_instant_of_making_a_thread_leaves_none(
    cluster: DevCluster, use: Callable[[str], None], makes: Callable[..., Any]
) -> None:
    """A thread that was made and is nobody's ends."""
    with Admin(cluster.bootstrap) as admin, suppress(KafkaError):  # of another case of this test
        admin.create_topics([NewTopic("cut-closes", 1, 3)])
    before = threading.enumerate()
    number, tracer = 0, None
    while tracer is None or tracer.left <= 0:
        number += 1
        tracer = BehindCall(makes.__code__, number)
        try:
            sys.settrace(tracer)
            use(cluster.bootstrap)
        except Alarm:
            pass
        finally:
            sys.settrace(None)
        gc.collect()
        eventually(lambda: not left(before))
    assert number > 2


def drops_a_consumer(bootstrap: str) -> None:
    Consumer(bootstrap).assign([])


def drops_a_producer(bootstrap: str) -> None:
    Producer(bootstrap).partitions_for("cut-closes")


def drops_an_admin(bootstrap: str) -> None:
    Admin(bootstrap).list_topics()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("use", "makes"),
    [(drops_a_consumer, Consumer._running), (drops_a_producer, Producer._start), (drops_an_admin, Admin.wait)],
    ids=["consumer", "producer", "admin"],
)
def test_a_client_whose_first_call_was_interrupted_ends_when_it_is_dropped(
    cluster: DevCluster, use: Callable[[str], None], makes: Callable[..., Any]
) -> None:
    """It is watched over from the moment that it has its thread."""
    test_an_interrupt_at_each_instant_of_making_a_thread_leaves_none(cluster, use, makes)


def test_a_thread_that_ends_without_a_farewell_ends_its_calls() -> None:
    """Whoever waits for one is told that the client is closed."""
    thread = LoopThread("ends", [])
    told: list[BaseException] = []

    def waits() -> None:
        try:
            thread.wait(lambda: asyncio.sleep(60))
        except ClosedError as error:
            told.append(error)

    waiting = threading.Thread(target=waits)
    waiting.start()
    eventually(lambda: bool(thread._calls))
    thread.end()
    waiting.join(10)
    assert told
