"""Schedule 67: a callback calls back into its own client. Refuse, do not wait for oneself. And forks: a client in a
forked child works, or says at once that it is the parent's.

Each program runs in a process of its own, which must end: what waits for itself would wait for ever.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from strandline.client import Admin, NewTopic
from strandline.cluster.node.dev import DevCluster

WITHIN_S = 120
"""What hangs is found out; a machine that is busy is not."""

HEAD = """
import os, sys, threading
from concurrent.futures import Future
from strandline.client import Admin, ClientError, ClosedError, Consumer, Producer, TopicPartition
bootstrap, topic = sys.argv[1:]
said = []

def tries(name, call):
    try:
        call()
    except Exception as error:
        said.append(f"{name}: {type(error).__name__}: {error}")
    else:
        said.append(f"{name}: done")
"""


def run(cluster: DevCluster, topic: str, program: str) -> list[str]:
    """The lines that the program prints."""
    with Admin(cluster.bootstrap) as admin:
        if topic not in admin.list_topics():
            admin.create_topics([NewTopic(topic, 1, 3)])
    try:
        done = subprocess.run(
            [sys.executable, "-c", HEAD + textwrap.dedent(program), cluster.bootstrap, topic],
            capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as hung:
        pytest.fail(f"it hangs; it had said {hung.stdout!r}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_67_a_producers_callback_does_not_wait_for_its_producer(cluster: DevCluster) -> None:
    """It may send; what would wait for the very thread that calls it is refused, with the way out, and the producer
    goes on."""
    lines = run(
        cluster,
        "callback-producer",
        """
        called = threading.Event()
        with Producer(bootstrap, linger_ms=0) as producer:
            def callback(_future):
                sent = producer.send(topic, b"from the callback")
                tries("flush", producer.flush)
                tries("result", sent.result)
                tries("close", producer.close)
                tries("partitions_for", lambda: producer.partitions_for("another"))
                said.append("sent")
                called.set()
            producer.send(topic, b"first").add_done_callback(callback)
            called.wait()
            producer.send(topic, b"goes on").result()
            producer.flush()
        with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            values = []
            while len(values) < 3:
                values += [record.value for record in consumer.poll(5.0)]
        print(*said, *values, sep="\\n")
        """,
    )
    refused = [line for line in lines if "ClientError" in line or "ClientTimeout" in line]
    assert [line.partition(":")[0] for line in refused] == ["flush", "result", "close", "partitions_for"]
    for line in refused[:3]:
        assert "a callback" in line
        assert "from another thread" in line
    assert sorted(lines[5:]) == ["b'first'", "b'from the callback'", "b'goes on'"]


def test_67_a_commits_callback_does_not_wait_for_its_consumer(cluster: DevCluster) -> None:
    """Each call of the consumer is refused there; `stop` is not, and the consumer goes on."""
    lines = run(
        cluster,
        "callback-consumer",
        """
        with Producer(bootstrap) as producer:
            for _ in range(10):
                producer.send(topic, b"x")
        called = threading.Event()
        with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest", max_poll_records=3) as consumer:
            consumer.assign([(topic, 0)])
            def callback(offsets, error):
                tries("commit", consumer.commit)
                tries("poll", consumer.poll)
                tries("position", lambda: consumer.position((topic, 0)))
                tries("seek", lambda: consumer.seek((topic, 0), 0))
                tries("next", lambda: consumer.next_record(1.0))
                tries("close", consumer.close)
                consumer.stop()
                called.set()
            while not consumer.poll(5.0):
                pass
            consumer.commit_async(callback=callback)
            called.wait()
            assert consumer.stopped
            print(consumer.committed()[TopicPartition(topic, 0)].offset, consumer.position((topic, 0)))
        print(*said, sep="\\n")
        """,
    )
    assert lines[0] == "3 3"
    assert [line.partition(":")[0] for line in lines[1:]] == ["commit", "poll", "position", "seek", "next", "close"]
    for line in lines[1:]:
        assert "ClientError: " in line
        assert "a callback" in line
        assert "from another thread" in line


def test_67_what_a_commits_callback_raises_the_next_poll_raises(cluster: DevCluster) -> None:
    """Once; it is told in the log, too."""
    lines = run(
        cluster,
        "callback-raises",
        """
        with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            consumer.poll(0.1)
            called = threading.Event()
            def callback(offsets, error):
                called.set()
                raise ValueError("mine")
            consumer.commit_async({(topic, 0): 0}, callback)
            called.wait()
            for _ in range(2):
                tries("poll", lambda: consumer.poll(1.0))
        print(*said, sep="\\n")
        """,
    )
    assert lines == ["poll: ClientError: a callback failed: ValueError('mine')", "poll: done"]


FORK = """
def in_child(call):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            call()
            print(*said, sep="\\n", flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


def test_67_blocking_clients_work_in_a_forked_child(cluster: DevCluster) -> None:
    """All three, in use before the fork, and by the parent after it."""
    lines = run(
        cluster,
        "forked",
        FORK
        + """
with Admin(bootstrap) as admin, Producer(bootstrap) as producer, Consumer(bootstrap) as consumer:
    admin.list_topics()
    producer.send(topic, b"parent").result()
    consumer.assign([(topic, 0)])
    consumer.seek_to_beginning()
    assert consumer.position((topic, 0)) == 0
    def child():
        said.append("child: " + str(topic in admin.list_topics()))
        said.append("child: " + str(producer.send(topic, b"child").result().offset))
        values = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll(5.0)]
        said.append("child: " + str(values))
        for client in (admin, producer, consumer):
            tries("close", client.close)
    in_child(child)
    print("parent:", topic in admin.list_topics())
    print("parent:", producer.send(topic, b"again").result().offset)
    values = []
    while len(values) < 3:
        values += [record.value for record in consumer.poll(5.0)]
    print("parent:", values)
""",
    )
    assert lines == [
        "child: True", "child: 1", "child: [b'parent', b'child']", "close: done", "close: done", "close: done",
        "parent: True", "parent: 2", "parent: [b'parent', b'child', b'again']",
    ]  # fmt: skip


def test_67_what_cannot_work_in_a_forked_child_says_so(cluster: DevCluster) -> None:
    """A range reader's thread stayed behind; clients of coroutines belong to the parent's loop, whose connections a
    child must not touch. All say it at once, close quietly, and the parent's go on."""
    lines = run(
        cluster,
        "forked-not",
        FORK
        + """
import asyncio
from strandline.client import aio
from strandline.client.range_reader import RangeReader

reader = RangeReader(bootstrap)
with Producer(bootstrap) as blocking:
    blocking.send(topic, b"x").result()
assert len(list(reader.read_records(topic, 0, 0, 1))) == 1

async def main():
    producer, consumer, admin = aio.Producer(bootstrap), aio.Consumer(bootstrap, group_id=topic), aio.Admin(bootstrap)
    await producer.send_and_wait(topic, b"y")
    consumer.assign([(topic, 0)])
    await consumer.poll(0.1)
    await admin.list_topics()
    def child():
        tries("reader", lambda: list(reader.read_records(topic, 0, 0, 1)))
        tries("reader close", reader.close)
        tries("producer", lambda: asyncio.run(producer.send(topic, b"z")))
        tries("flush", lambda: asyncio.run(producer.flush()))
        tries("producer close", lambda: asyncio.run(producer.close()))
        tries("consumer", lambda: asyncio.run(consumer.poll(1.0)))
        tries("commit", lambda: asyncio.run(consumer.commit()))
        tries("consumer close", lambda: asyncio.run(consumer.close()))
        tries("admin", lambda: asyncio.run(admin.list_topics()))
        tries("admin close", lambda: asyncio.run(admin.close()))
    in_child(child)
    print((await producer.send_and_wait(topic, b"z")).offset)
    print(len(await admin.list_topics()) > 0)
    consumer.seek((topic, 0), 0)
    print(len(await consumer.poll(10.0)) > 0)
    for client in (producer, consumer, admin):
        await client.close()

asyncio.run(main())
print(len(list(reader.read_records(topic, 0, 0, 1))))
reader.close()
""",
    )
    child, parent = lines[:10], lines[10:]
    for line in child:
        name, _, what = line.partition(": ")
        if name.endswith("close"):
            assert what == "done", line
        else:
            assert what.startswith("ClosedError: "), line
            assert "the parent of this process" in what
            assert "Make one here" in what
    assert parent == ["2", "True", "True", "1"]
