"""Signals at any instant of the blocking calls of `Producer` and `Admin`, by handlers that raise, send and close.

Rule B37. The consumer's storm is in `test_interrupts`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from types import FrameType
from typing import Any

import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer, open_batches_python
from strandline.client.errors import ClientError, ClosedError
from strandline.client.loop_thread import Gate
from strandline.client.producer_batch import RecordFuture
from strandline.client.types import Ack
from strandline.cluster.node.dev import DevCluster
from strandline.log.batch import decode_records, finish_batch
from strandline.log.compression import Codec
from strandline.proto.ids import TopicPartition
from tests.client.conftest import eventually

NUMBER = signal.SIGUSR1
CLIENT = os.path.join("strandline", "client")

lengths = pytest.mark.parametrize("times", [1, 20], ids=["short", "long"])

pytestmark = [
    pytest.mark.timeout(300),
    # Of what was interrupted before it was asked of the loop, and of a loop that was interrupted while it was made.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Alarm(Exception):
    """Raised by the handler."""


@contextmanager
def storm(signals: int, act: Callable[[], None], public: tuple[Any, ...], seed: int = 7) -> Iterator[threading.Event]:
    """So many signals to this thread, whose handler calls `act` inside of these functions; the event: it is over."""
    over = threading.Event()
    codes = [function.__code__ for function in public]
    depth = [0]

    def handler(_: int, frame: FrameType | None) -> None:
        while frame is not None and not depth[0]:
            if frame.f_code in codes:
                depth[0] += 1
                try:
                    act()
                finally:
                    depth[0] -= 1
                return
            frame = frame.f_back

    def blow(of: int) -> None:
        random = Random(seed)
        for _ in range(signals):
            over.wait(random.uniform(0.0001, 0.003))
            signal.pthread_kill(of, NUMBER)
        over.set()

    before = signal.signal(NUMBER, handler)
    thread = threading.Thread(target=blow, args=(threading.get_ident(),), daemon=True)
    thread.start()
    try:
        yield over
    finally:
        thread.join()
        signal.signal(NUMBER, before)


def topic_of(cluster: DevCluster, name: str) -> str:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 3)])
    return name


def values_of(cluster: DevCluster, topic: str) -> list[bytes]:
    with Admin(cluster.bootstrap) as admin, Consumer(cluster.bootstrap) as consumer:
        [end] = [found.offset for found in admin.list_offsets({(topic, 0): -1}).values()]
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        read: list[bytes] = []
        while consumer.position((topic, 0)) < end:
            read += [record.value for record in consumer.poll(5.0)]
        return read


def chooses(*_: object) -> int:
    return 0


PUBLIC = (
    Producer.send, Producer.flush, Producer.partitions_for, Producer.producer_id, RecordFuture.result,
    RecordFuture.exception,
)  # fmt: skip


class Instant:
    """Acts once, behind the n-th step of this thread in files of such names: where CPython runs a signal's handler,
    which is behind calls of C functions, and where a function begins."""

    def __init__(self, number: int, act: Callable[[], None], within: tuple[str, ...] = (CLIENT,)) -> None:
        self.left = number
        self._act = act
        self._within = within

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and any(name in frame.f_code.co_filename for name in self._within):
            self.left -= 1
            if not self.left:
                sys.setprofile(None)
                self._act()


def raises() -> None:
    raise Alarm


def test_an_interrupt_at_each_instant_of_an_iteration(cluster: DevCluster) -> None:
    """Every record comes, once and in order, and what was not handed out is not done."""
    topic, total = topic_of(cluster, "each-instant-of-an-iteration"), 500
    with Producer(cluster.bootstrap) as producer:
        for number in range(total):
            producer.send(topic, b"%d" % number)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "max_poll_records": 50, "enable_auto_commit": False}
    got: list[int] = []
    with Consumer(cluster.bootstrap, group_id=topic, **settings) as consumer:
        consumer.assign([(topic, 0)])
        number = 0
        while len(got) < total:
            number += 1
            for instant in (Instant(number % 120 + 1, raises), None):  # and one call that nothing interrupts
                record = None
                try:
                    sys.setprofile(instant)
                    record = consumer.next_record(0.5)
                except Alarm:
                    consumer.inner._finish()  # as the next poll does
                    done = consumer.inner._group.progress.to_commit()  # type: ignore[union-attr]
                    assert not done or done[TopicPartition(topic, 0)].offset <= len(got)
                finally:
                    sys.setprofile(None)
                if record is not None:
                    got.append(record.offset)
    assert got == list(range(total))
    assert number > 120


def test_an_interrupt_at_each_instant_of_a_wait_leaves_no_lock() -> None:
    """Who opens the gate does not wait for who was to pass it."""
    for number in range(1, 60):
        gate = Gate()
        sys.setprofile(Instant(number, raises, (CLIENT, "queue.py", "threading.py")))
        with suppress(Alarm):
            gate.wait(0.001)
        sys.setprofile(None)
        opener = threading.Thread(target=gate.open, daemon=True)
        opener.start()
        opener.join(5)
        assert not opener.is_alive()
        assert gate.wait(0)


@pytest.mark.parametrize("way", ["fast-path", "partitioner"])
@pytest.mark.parametrize("then", ["raises", "sends", "sends and raises", "sends and flushes"])
def test_a_handler_at_each_instant_of_a_send_that_opens_a_batch(
    cluster: DevCluster, then: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And of the wait for its ack; as in `test_a_storm_over_a_producer`. Nothing fails on the loop."""
    topic = topic_of(cluster, f"each-instant-{way}-{then.replace(' ', '-')}")
    sent: list[tuple[bytes, Future[Ack]]] = []
    inner: list[tuple[bytes, Future[Ack]]] = []
    partition = None if way == "partitioner" else 0
    settings: dict[str, Any] = {"partitioner": chooses} if way == "partitioner" else {}
    producer = Producer(cluster.bootstrap, batch_size=16, linger_ms=0, **settings)
    try:
        producer.send(topic, b"first", partition=0).result(20)

        def act() -> None:
            if "send" in then:
                value = b"inner %d" % number
                inner.append((value, producer.send(topic, value, partition=partition)))
            if "flush" in then:
                producer.flush(10)
            if "raise" in then:
                raise Alarm

        number, instant = 0, None
        while instant is None or instant.left <= 0:
            number += 1
            instant = Instant(number, act, (CLIENT, "asyncio"))
            try:
                sys.setprofile(instant)
                sent.append((b"%d" % number, producer.send(topic, b"%d" % number, partition=partition)))
                sent[-1][1].result(10)
            except Alarm:
                pass
            finally:
                sys.setprofile(None)
            inner and inner[-1][1].result(20)
        producer.flush(20)
        running = producer._running
        assert running is not None
        assert running.core.accumulator.memory.used == 0
        assert not running.core.accumulator._incomplete
    finally:
        producer.close(5)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert number > 40
    there = values_of(cluster, topic)
    assert len(there) == len(set(there)), "doubled"
    own = [int(value) for value in there if value.isdigit()]
    assert own == sorted(own)
    assert {value for value, _ in sent + inner} <= set(there)


@pytest.mark.parametrize("raises", [False, True])
def test_a_handler_at_each_instant_of_an_append_in_python(raises: bool) -> None:
    """The twin of the compiled batches: what is in a batch is whole, counted and in order, the handler's append too."""
    number, instant = 0, None
    while instant is None or instant.left <= 0:
        number += 1
        memory = open_batches_python.Memory(10_000, 1_000, 1_000)
        batch = open_batches_python.OpenBatch(memory, None, open_batches_python.RecordSlot, None, None)
        slots = [batch.append(1, None, b"first", ())]

        def act(batch: open_batches_python.OpenBatch = batch, slots: list[Any] = slots) -> None:
            slots.append(batch.append(5, None, b"inner", ()))
            if raises:
                raise Alarm

        instant = Instant(number, act)
        try:
            sys.setprofile(instant)
            slots.append(batch.append(3, b"key", b"outer", (("name", b"x"),)))
        except Alarm:
            pass
        finally:
            sys.setprofile(None)
        batch.seal()
        done = finish_batch(
            batch.take(), count=batch.count, base_timestamp=batch.base_timestamp, max_timestamp=batch.max_timestamp,
            codec=Codec.NONE, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        )  # fmt: skip
        there = [record.value for record in decode_records(done)]
        assert sorted(there) == sorted(set(there))
        assert there[0] == b"first"
        assert batch.count == len(there) >= len([slot for slot in slots if slot is not None])
        indexes = [slot._index for slot in slots if slot is not None]
        assert len(indexes) == len(set(indexes))
        assert batch.size_bytes == len(done)
        assert memory.used == batch.reserved_bytes
    assert number > 10


@lengths
@pytest.mark.parametrize("way", ["fast-path", "partitioner", "no room"])
def test_a_storm_over_a_producer(cluster: DevCluster, way: str, times: int) -> None:
    """A handler sends a record and raises, at any instant: what `send` has returned a future for comes once and in
    order, what was interrupted once or not at all; no memory, no batch and no lock is left behind."""
    topic = topic_of(cluster, f"storm-over-a-producer-{way.replace(' ', '-')}-{times}")
    settings: dict[str, Any] = {"linger_ms": 1, "batch_size": 200}
    if way == "partitioner":
        settings["partitioner"] = chooses
    if way == "no room":
        settings |= {"buffer_memory": 2_000, "max_request_size": 1_000, "max_block_ms": 20_000}
    sent: list[tuple[bytes, Future[Ack]]] = []
    by_handler: list[tuple[bytes, Future[Ack]]] = []
    tried = 0
    interrupts = [0]
    producer = Producer(cluster.bootstrap, **settings)

    def act() -> None:
        interrupts[0] += 1
        value = b"handler %d" % interrupts[0]
        if interrupts[0] % 3 == 0:
            by_handler.append((value, producer.send(topic, value, partition=0)))
        if interrupts[0] % 2 == 0:
            raise Alarm

    random = Random(11)
    with storm(500 * times, act, PUBLIC) as over:
        while not over.is_set():
            value, kept = b"%d" % tried, None
            tried += 1
            try:
                kept = producer.send(topic, value, partition=None if way == "partitioner" else 0)
                sent.append((value, kept))
                chance = random.random()
                if chance < 0.02:
                    producer.flush(20)
                elif chance < 0.04:
                    kept.result(20)
                elif chance < 0.05:
                    producer.partitions_for(topic)
                elif chance < 0.06:
                    producer.producer_id()
            except Alarm:
                pass
    producer.flush(30)
    running = producer._running
    assert running is not None
    for value, future in sent + by_handler:
        assert future.result(0).offset >= 0, value
    assert running.core.accumulator.memory.used == 0
    assert not running.core.accumulator._incomplete
    producer.close()
    there = values_of(cluster, topic)
    assert len(there) == len(set(there)), "doubled"
    own = [int(value) for value in there if value.isdigit()]
    assert own == sorted(own)
    assert {value for value, _ in sent + by_handler} <= set(there)
    assert interrupts[0] > 20
    assert len(there) <= tried + interrupts[0]


def close(producer: Producer, refused: list[ClientError]) -> None:
    try:
        producer.close(20)
    except ClientError as error:
        refused.append(error)


@lengths
@pytest.mark.parametrize("call", ["send", "flush", "result"])
def test_a_handler_closes_the_producer(cluster: DevCluster, call: str, times: int) -> None:
    """At any instant of another call, which ends: what it has sent is acknowledged, or it is told."""
    topic = topic_of(cluster, f"handler-closes-in-{call}-{times}")
    random = Random(5)
    for count in range(10 * times):
        refused: list[ClientError] = []
        producer = Producer(cluster.bootstrap, linger_ms=random.choice([0, 5]), batch_size=200)

        act = partial(close, producer, refused)
        sent: list[Future[Ack]] = []
        with storm(3, act, PUBLIC, seed=count):
            try:
                while True:
                    sent.append(producer.send(topic, b"%d" % len(sent), partition=0))
                    if call == "flush":
                        producer.flush(20)
                    if call == "result":
                        sent[-1].result(20)
                    if len(sent) > 500:
                        break
            except ClosedError:
                pass
        assert all("signal's handler" in str(error) for error in refused), refused
        producer.close(20)
        assert all(future.result(0).offset >= 0 for future in sent)
    eventually(lambda: not any(thread.name == "strandline-producer" for thread in threading.enumerate()))


@lengths
def test_a_storm_over_the_last_calls(cluster: DevCluster, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is interrupted: a second `close` ends the thread, and none is left."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # what is interrupted in a finalizer is nobody's
    topic = topic_of(cluster, f"storm-over-last-calls-{times}")
    before = threading.enumerate()  # of other tests
    public = (*PUBLIC, Producer.close, Admin.close, Admin.wait, Consumer.close, Consumer.wait)
    with storm(300 * times, raises, public) as over:
        while not over.is_set():
            producer, admin, consumer = (
                Producer(cluster.bootstrap),
                Admin(cluster.bootstrap),
                Consumer(cluster.bootstrap),
            )
            calls: tuple[Callable[[], object], ...] = (
                partial(producer.send, topic, b"x"), admin.list_topics, partial(consumer.end_offsets, [(topic, 0)]),
            )  # fmt: skip
            for step in (*calls, *calls, producer.close, admin.close, consumer.close):
                try:
                    step()
                except Alarm:
                    pass
            for client in (producer, admin, consumer):
                closed = False
                while not closed:
                    try:
                        client.close()
                        closed = True
                    except Alarm:
                        pass

    def left() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name.startswith("strandline-") and one not in before]

    eventually(lambda: not left())


@lengths
def test_a_storm_over_an_admin(cluster: DevCluster, times: int) -> None:
    """Calls that were not interrupted tell what is; one thread, and the connections go on."""
    topic = topic_of(cluster, f"storm-over-an-admin-{times}")
    told, interrupts = [0], [0]

    def act() -> None:
        interrupts[0] += 1
        if interrupts[0] % 3 == 0:
            assert topic in admin.list_topics()
        if interrupts[0] % 2 == 0:
            raise Alarm

    with Admin(cluster.bootstrap) as admin, storm(300 * times, act, (Admin.wait,)) as over:
        while not over.is_set():
            try:
                assert topic in admin.list_topics()
                assert [found.offset for found in admin.list_offsets({(topic, 0): -1}).values()] == [0]
                assert len(admin.describe_cluster().nodes) == 3
                told[0] += 1
            except Alarm:
                pass
        assert sum(thread.name == "strandline-admin" for thread in threading.enumerate()) == 1
    assert told[0] > 0
    assert interrupts[0] > 20


@lengths
def test_a_handler_closes_a_consumer_that_polls(cluster: DevCluster, times: int) -> None:
    """The poll ends with ClosedError, or with its records."""
    topic = topic_of(cluster, f"handler-closes-in-poll-{times}")
    with Producer(cluster.bootstrap) as producer:
        for number in range(200):
            producer.send(topic, b"%d" % number)
    for count in range(20 * times):
        consumer = Consumer(cluster.bootstrap, group_id=topic, enable_auto_commit=False, max_poll_records=7)
        consumer.assign([(topic, 0)])
        with storm(2, consumer.close, (Consumer.poll,), seed=count) as over, suppress(ClosedError):
            while not over.is_set():
                consumer.poll(5.0)
        consumer.close()
        with pytest.raises(ClosedError):
            consumer.poll()
