"""An interrupt of a blocking call (Ctrl-C, a handler that raises) costs no record, whenever it comes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from types import FrameType
from typing import Any

import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.client.loop_thread import Calls, LoopThread
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from tests.client.conftest import eventually


async def nothing() -> None:
    """No farewell."""


@pytest.fixture(scope="module")
def topic(cluster: DevCluster) -> str:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("interrupted", 1, 3)])
    return "interrupted"


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("interrupted", [])
    yield made
    made.stop(nothing)


class Interrupted(Calls):
    """Its waiting thread is interrupted when the loop says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = threading.Event()

    def answer(self) -> None:
        self.now.wait()
        raise KeyboardInterrupt


def test_an_interrupt_when_the_task_has_ended_and_nobody_was_told(thread: LoopThread) -> None:
    """The task has its result, and the loop has not come to its callbacks: the result goes back all the same, and
    before the call ends."""
    calls = Interrupted()
    lost: list[str] = []

    async def polls() -> str:
        calls.now.set()
        threading.Event().wait(0.3)  # the waiting thread asks to cancel meanwhile
        return "records"

    with pytest.raises(KeyboardInterrupt):
        thread.serve(polls, calls, lost.append)
    assert lost == ["records"]


def test_an_interrupted_call_has_ended_when_the_next_begins(thread: LoopThread) -> None:
    """A cancelled coroutine may take its time: the caller waits for its end, and what it brings goes back."""
    calls = Interrupted()
    lost: list[str] = []

    async def polls() -> str:
        calls.now.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
        return "records"

    with pytest.raises(KeyboardInterrupt):
        thread.serve(polls, calls, lost.append)
    assert lost == ["records"]
    assert thread.wait(partial(asyncio.sleep, 0, "alive")) == "alive"


def test_what_leaves_the_interpreter_belongs_to_the_caller(thread: LoopThread) -> None:
    """`sys.exit` in what runs on the client's thread (a deserializer): raised to the caller, and the thread lives."""

    def exits() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        thread.call(exits)
    assert thread.wait(partial(asyncio.sleep, 0, "alive")) == "alive"


def test_a_deserializer_that_leaves_costs_no_record(cluster: DevCluster) -> None:
    """`sys.exit` in it reaches the caller of `poll`; the records of that poll come with the next one."""
    topic, leaves = "leaves-in-a-deserializer", [True]

    def value(data: bytes) -> bytes:
        if leaves and data == b"3":
            leaves.clear()
            raise SystemExit(3)
        return data

    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])
    with Producer(cluster.bootstrap) as producer:
        for count in range(6):
            producer.send(topic, b"%d" % count)
    with Consumer(cluster.bootstrap, group_id=topic, auto_offset_reset="earliest", value_deserializer=value) as reader:
        reader.subscribe(topic)
        got: list[bytes] = []
        ends = time.monotonic() + 30
        while len(got) < 6 and time.monotonic() < ends:  # until the group is there, one that leaves, and the rest
            try:
                got += [record.value for record in reader.poll(timeout_s=1)]
            except SystemExit:
                reader.commit()
        got += [record.value for record in reader.poll(timeout_s=0.5)]  # none comes twice
    assert got == [b"%d" % count for count in range(6)]
    assert not leaves


class Left(BaseException):
    """As SystemExit, and unknown to asyncio."""


LEAVING = [SystemExit, KeyboardInterrupt, Left]


def leaves(kind: type[BaseException]) -> Callable[..., None]:
    def callback(*_: object) -> None:
        raise kind(3)

    return callback


@pytest.mark.parametrize("kind", LEAVING)
def test_what_a_futures_callback_leaves_with_belongs_to_the_next_call(
    cluster: DevCluster, topic: str, kind: type[BaseException]
) -> None:
    """`sys.exit` in a delivery callback: raised by the next `send`, `flush` or `close`, once; the others of its
    batch are called, and the producer goes on."""
    told: list[int] = []
    producer = Producer(cluster.bootstrap, linger_ms=200)
    producer.send(topic, b"the first").result(30)
    for act in (producer.flush, lambda: producer.send(topic, b"not sent"), lambda: producer.partitions_for(topic)):
        producer.send(topic, b"0").add_done_callback(leaves(kind))
        second = producer.send(topic, b"1")
        second.add_done_callback(lambda future: told.append(future.result().offset))
        second.result(30)
        if act is not producer.flush:
            eventually(lambda: len(told) == 1)
        with pytest.raises(kind) as caught:
            act()
        assert caught.value.args == (3,)
        assert producer.send(topic, b"2").result(30).offset == told.pop() + 1
    producer.send(topic, b"3").add_done_callback(leaves(kind))
    with pytest.raises(kind):
        producer.close()
    producer.close()


def test_a_flush_returns_when_the_callbacks_have_run(cluster: DevCluster, topic: str) -> None:
    """And when futures are done: not between the answer and them."""
    told: list[object] = []

    def slow(future: object) -> None:
        threading.Event().wait(0.3)
        told.append(future)

    with Producer(cluster.bootstrap) as producer:
        future = producer.send(topic, b"")
        future.add_done_callback(slow)
        producer.flush()
        assert told == [future]


@pytest.mark.parametrize("kind", LEAVING)
def test_what_a_commits_callback_leaves_with_belongs_to_the_next_poll(
    cluster: DevCluster, topic: str, kind: type[BaseException]
) -> None:
    """Or to `close`; the consumer goes on."""
    consumer = Consumer(cluster.bootstrap, group_id=f"leaves-in-a-commit-{kind.__name__}")
    consumer.assign([(topic, 0)])
    consumer.commit_async({(topic, 0): 0}, leaves(kind))
    with pytest.raises(kind):
        consumer.poll(30)
    consumer.poll(0.1)
    consumer.commit_async({(topic, 0): 0}, leaves(kind))
    with pytest.raises(kind):
        consumer.close()
    consumer.close()


@pytest.mark.parametrize("kind", LEAVING)
def test_what_a_listener_leaves_with_belongs_to_the_poll(
    cluster: DevCluster, topic: str, kind: type[BaseException]
) -> None:
    """It is called again by the next one."""
    group, told = f"leaves-in-a-listener-{kind.__name__.lower()}", list[Any]()

    def listener(partitions: list[TopicPartition]) -> None:
        told.append(partitions)
        if len(told) == 1:
            raise kind(3)

    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"0").result(30)
    with Consumer(cluster.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic, on_assigned=listener)
        with pytest.raises(kind):
            eventually(lambda: consumer.poll(1))
        eventually(lambda: consumer.poll(1))
    assert told == [[TopicPartition(topic, 0)]] * 2


def test_what_a_partitioner_leaves_with_belongs_to_the_send(cluster: DevCluster, topic: str) -> None:
    """The record is not queued, and the next one is."""
    with Producer(cluster.bootstrap, partitioner=leaves(SystemExit)) as producer:
        with pytest.raises(SystemExit):
            producer.send(topic, b"")
        first = producer.send(topic, b"", partition=0).result(30)
        with pytest.raises(SystemExit):
            producer.send(topic, b"")
        assert producer.send(topic, b"", partition=0).result(30).offset == first.offset + 1


def test_what_escapes_on_the_thread_belongs_to_the_next_call(thread: LoopThread) -> None:
    """Whatever brings it there (a handler of logging, say), and also while the thread is to end."""
    thread.loop.call_soon_threadsafe(leaves(SystemExit))
    with pytest.raises(SystemExit):
        eventually(lambda: thread.wait(partial(asyncio.sleep, 0)))
    assert thread.wait(partial(asyncio.sleep, 0, "alive")) == "alive"

    async def farewell() -> None:
        thread.loop.call_soon(thread.loop.call_soon, leaves(SystemExit))

    thread.stop(farewell)
    assert thread.closed


EXITS = """
import sys
from strandline.client import Producer, unclosed
producer = Producer(sys.argv[1])
future = producer.send("interrupted", b"")
future.add_done_callback(lambda _: sys.exit(5))
future.result()
producer.send("interrupted", b"").result() if sys.argv[2] == "goes on" else None
"""


@pytest.mark.parametrize(("way", "code"), [("goes on", 5), ("ends", 0)])
def test_a_program_whose_callback_exits_comes_to_its_end(cluster: DevCluster, topic: str, way: str, code: int) -> None:
    """By the next call, with that code; or, where none comes, by its own end."""
    done = subprocess.run(
        [sys.executable, "-c", EXITS, cluster.bootstrap, way], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr


class Alarm(Exception):
    """Raised by the handler of a signal."""


PUBLIC = (Consumer.poll.__code__, Consumer.poll_columns.__code__, Consumer.next_record.__code__)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize("call", ["poll", "columns", "iteration"])
def test_a_storm_of_signals_loses_no_record(cluster: DevCluster, kind: type[BaseException], call: str) -> None:
    """Signals at any instant of a reader's calls: every record comes once, in order, to a call that was not
    interrupted; and none is committed before."""
    topic = f"storm-{call}-{kind.__name__.lower()}"
    total, storm = 3000, 400
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])
    with Producer(cluster.bootstrap) as producer:
        for count in range(total):
            producer.send(topic, b"%d" % count)
    number = signal.SIGINT if kind is KeyboardInterrupt else signal.SIGUSR1
    over = threading.Event()

    def handler(_: int, frame: FrameType | None) -> None:
        """Raise inside of the calls: what the caller's own lines lose is the caller's."""
        while frame is not None:
            if frame.f_code in PUBLIC:
                raise kind
            frame = frame.f_back

    def storms(of: int) -> None:
        random = Random(7)
        for _ in range(storm):
            over.wait(random.uniform(0.0001, 0.004))
            signal.pthread_kill(of, number)
        over.set()

    def read(consumer: Consumer) -> list[int]:
        if call == "poll":
            return [record.offset for record in consumer.poll(5.0)]
        if call == "columns":
            polled = consumer.poll_columns(5.0)
            return [offset for part in polled.parts for offset in memoryview(part.columns.offsets).cast("q").tolist()]
        record = consumer.next_record(5.0)
        return [] if record is None else [record.offset]

    settings: dict[str, Any] = {
        "group_id": topic, "auto_offset_reset": "earliest", "max_poll_records": 10, "auto_commit_interval_ms": 20,
        "fetch_max_bytes": 1024,
    }  # fmt: skip
    noted: list[int] = []
    interrupts = 0
    before = signal.signal(number, handler)
    thread = threading.Thread(target=storms, args=(threading.get_ident(),), daemon=True)
    try:
        with Consumer(cluster.bootstrap, **settings) as consumer:
            consumer.assign([(topic, 0)])
            thread.start()
            while len(noted) < total or not over.is_set():
                try:
                    found = read(consumer) if len(noted) < total else consumer.poll(0.01) and [-1]
                except kind:
                    interrupts += 1
                    if interrupts % 20 == 0:
                        committed = consumer.committed()[TopicPartition(topic, 0)]
                        assert committed is None or committed.offset <= len(noted)
                else:
                    noted += found
    finally:
        thread.join()
        signal.signal(number, before)
    assert noted == list(range(total))
    assert interrupts > 0
