"""Clients that nobody closed: their records are sent, their groups left, and the program is told; on real brokers."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from tests.client.conftest import eventually

_numbers = itertools.count(1)

SENDS = """
import sys
from strandline.client import Producer, unclosed
bootstrap, topic, *rest = sys.argv[1:]
producer = Producer(bootstrap, linger_ms=60_000)
producer.send(topic, b"the first").add_done_callback(lambda _: None)
for number in range(99):
    producer.send(topic, b"%d" % number)
"""
"""It lingers for a minute: nothing of this has left the process when the program ends."""


def run(code: str, *arguments: str, python: tuple[str, ...] = ()) -> str:
    """What a program wrote to its standard error; it ends with 0."""
    done = subprocess.run(
        [sys.executable, *python, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stderr


@pytest.fixture
def topic(cluster: DevCluster) -> Iterator[str]:
    name = f"unclosed-{next(_numbers)}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1)])
        yield name
        admin.delete_topics([name])


def records_in(cluster: DevCluster, topic: str) -> int:
    with Admin(cluster.bootstrap) as admin:
        return sum(found.offset for found in admin.list_offsets({(topic, 0): -1}).values())


def test_what_a_program_has_sent_is_sent_when_it_ends(cluster: DevCluster, topic: str) -> None:
    """No close, no flush: a hundred records used to be lost without a word."""
    assert run(SENDS, cluster.bootstrap, topic) == ""
    assert records_in(cluster, topic) == 100
    told = run(SENDS, cluster.bootstrap, topic, python=("-X", "dev"))
    assert "ResourceWarning: a Producer was still open when the program ended: use `with`" in told
    assert records_in(cluster, topic) == 200


def test_what_a_program_that_fails_has_sent_is_sent(cluster: DevCluster, topic: str) -> None:
    """An exception ends the program as any end does."""
    failing = [sys.executable, "-c", SENDS + "raise SystemExit(7)", cluster.bootstrap, topic]
    assert subprocess.run(failing, timeout=120, check=False).returncode == 7
    assert records_in(cluster, topic) == 100


def test_a_producer_that_is_dropped_sends_what_it_has(cluster: DevCluster, topic: str) -> None:
    """Dropped by a function that made it: its thread ends, too."""

    def send() -> None:
        producer = Producer(cluster.bootstrap, linger_ms=60_000)
        for number in range(100):
            producer.send(topic, b"%d" % number)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        send()
        gc.collect()
        eventually(lambda: records_in(cluster, topic) == 100)
        eventually(lambda: not any("strandline-producer" in thread.name for thread in threading.enumerate()))
    assert any("a Producer was dropped without close()" in str(each.message) for each in told)


LOSES = """
import sys
from strandline.client import Producer, unclosed
import strandline.client.producer as module
module.FLUSH_S = 0.5
producer = Producer(sys.argv[1], delivery_timeout_ms=120_000)
producer.send(sys.argv[2], b"there").result()
print("sent", flush=True)
input()
for number in range(3):
    producer.send(sys.argv[2], b"lost")
"""


def test_what_is_lost_at_the_end_is_told() -> None:
    """Nobody takes the records: the program ends after a bounded while, and says how many were lost."""
    with DevCluster(nodes=1) as lonely:
        with Admin(lonely.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1)])
        with subprocess.Popen(
            [sys.executable, "-c", LOSES, lonely.bootstrap, "t"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "sent\n"
            lonely.pause(1)
            _, told = program.communicate("\n", timeout=120)
        assert program.returncode == 0
        assert "RuntimeWarning: 3 records of a Producer that was not closed are lost" in told


def test_a_consumer_that_is_dropped_leaves_its_group(cluster: DevCluster, topic: str) -> None:
    """Its heartbeats went on for ever, and its partitions were nobody's."""

    def read() -> None:
        consumer = Consumer(cluster.bootstrap, group_id=f"{topic}-group", auto_offset_reset="earliest")
        consumer.subscribe(topic, on_revoked=lambda _: None)
        eventually(lambda: consumer.poll(0.1) or consumer.state.name == "stable")

    with warnings.catch_warnings(record=True) as told, Admin(cluster.bootstrap) as admin:
        warnings.simplefilter("always")
        read()
        gc.collect()
        eventually(lambda: not admin.describe_groups([f"{topic}-group"])[f"{topic}-group"].members)
    assert any("a Consumer was dropped without close()" in str(each.message) for each in told)


AIO = """
import asyncio, sys
from strandline.client.aio import Consumer, Producer

async def main():
    producer = Producer(sys.argv[1], linger_ms=60_000)
    await producer.send(sys.argv[2], b"lost")
    consumer = Consumer(sys.argv[1])
    consumer.assign([(sys.argv[2], 0)])
    await consumer.poll(0.1)

asyncio.run(main())
"""


def test_the_clients_of_an_event_loop_warn(cluster: DevCluster, topic: str) -> None:
    """Nobody can wait for them where they are dropped: what is lost is told, what was left open under -X dev."""
    assert "RuntimeWarning: 1 records of an aio.Producer that was not closed are lost" in run(
        AIO, cluster.bootstrap, topic
    )
    told = run(AIO, cluster.bootstrap, topic, python=("-X", "dev"))
    assert "ResourceWarning: <strandline.client.aio.producer.Producer" in told
    assert "ResourceWarning: <strandline.client.aio.consumer.Consumer" in told


FORKS = """
import os, sys, warnings
from strandline.client import Producer

producer = Producer(sys.argv[1], linger_ms=60_000)
producer.send(sys.argv[2], b"the parent's")
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # from 3.12 on Python warns of any such fork
child = os.fork()
if child == 0:
    sys.exit(0)  # as Python ends a program: what is registered for the end is called
os.waitpid(child, 0)
"""


def test_a_forked_child_ends_nothing_of_its_parents(cluster: DevCluster, topic: str) -> None:
    """Its end is not the parent's: the record is sent once, by the parent, and nothing hangs."""
    assert run(FORKS, cluster.bootstrap, topic) == ""
    assert records_in(cluster, topic) == 1


def test_what_is_closed_is_not_watched(cluster: DevCluster, topic: str) -> None:
    """No warning for who closes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
            producer.send(topic, b"x").result()
            consumer.assign([(topic, 0)])
            consumer.poll(0.1)
        del producer, consumer
        gc.collect()
