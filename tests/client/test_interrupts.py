"""An interrupt of a blocking call (Ctrl-C, a handler that raises) costs no record, whenever it comes."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from random import Random
from types import FrameType
from typing import Any

import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.client.loop_thread import Calls, LoopThread
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition


async def nothing() -> None:
    """No farewell."""


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("interrupted")
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
        thread.serve(polls(), calls, lost.append)
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
        thread.serve(polls(), calls, lost.append)
    assert lost == ["records"]
    assert thread.wait(asyncio.sleep(0, "alive")) == "alive"


def test_what_leaves_the_interpreter_belongs_to_the_caller(thread: LoopThread) -> None:
    """`sys.exit` in what runs on the client's thread (a deserializer): raised to the caller, and the thread lives."""

    def exits() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        thread.call(exits)
    assert thread.wait(asyncio.sleep(0, "alive")) == "alive"


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
        for _ in range(8):  # polls until the group is there, one that leaves, one that brings the rest
            try:
                got += [record.value for record in reader.poll(timeout_s=1)]
            except SystemExit:
                reader.commit()
    assert got == [b"%d" % count for count in range(6)]
    assert not leaves


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
