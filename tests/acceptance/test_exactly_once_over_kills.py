"""Row S117: from topic to topic by `process()`, whose program is killed a hundred times, and nodes beside it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest

from strandline.client import Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from tests.acceptance.helpers import QUICK, eventually, make_topic

pytestmark = pytest.mark.timeout(3000)

KILLS = 100
"""Of the program; in every third round a node is killed before it."""

ORDERS = 20_000
"""Records that are sent whenever fewer than half of them are left: the program never runs out of work."""

PARTITIONS = 3
START_S = 120
"""Seconds that a node may take to be back: that a busy machine is slow is not what is judged."""

LATER_S_MAX = 0.03
"""A kill comes so late after its round's first results: anywhere within a transaction."""

PROGRAM = """
import sys
from strandline.client import Send, process
def double(record):
    yield Send("doubled", b"%d" % (2 * int(record.value)), partition=0)
    yield Send("doubled", record.value, partition=1)
reading = {"max.poll.records": 50, "session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
process(sys.argv[1], "orders", double, group_id="doublers", consumer=reading)
"""


class Watcher:
    """A reader of committed records that reads the results from the first one on while all of it happens.

    Attributes:
        seen: how often it has met each result, by partition and value.
    """

    def __init__(self, bootstrap: str) -> None:
        self.seen: Counter[tuple[int, int]] = Counter()
        self._bootstrap = bootstrap
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._failure: BaseException | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._left.set()
            self._thread.join(60)
        assert self._failure is None, self._failure

    def doubled(self) -> int:
        """How many orders have their result."""
        assert self._failure is None, self._failure
        return self.seen.total() // 2

    def _read(self) -> None:
        try:
            with Consumer(self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("doubled", number) for number in (0, 1)])
                while not self._left.is_set():
                    self.seen.update((one.partition, int(one.value or b"")) for one in consumer.poll(0.2))
        except BaseException as error:
            self._failure = error


def committed(bootstrap: str) -> Counter[tuple[int, int]]:
    """The results that another client sees, read anew."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    places = [confluent_kafka.TopicPartition("doubled", number, 0) for number in (0, 1)]
    consumer.assign(places)
    found: Counter[tuple[int, int]] = Counter()
    ended: set[int] = set()
    try:

        def complete() -> bool:
            for message in consumer.consume(5000, timeout=1):
                error = message.error()
                if error is None:
                    found[message.partition(), int(message.value())] += 1
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
            return ended == {0, 1}

        eventually(complete, 120)
    finally:
        consumer.close()
    return found


def start(bootstrap: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, bootstrap], stderr=subprocess.PIPE)


def alive(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        assert process.stderr is not None
        raise RuntimeError(process.stderr.read().decode())
    return True


def test_each_order_is_doubled_once() -> None:
    chance = random.Random(117)
    sent = nodes = 0
    with DevCluster(settings=QUICK | {"group.min.session.timeout.ms": "1000"}) as cluster:
        make_topic(cluster, "orders", PARTITIONS)
        make_topic(cluster, "doubled", 2)
        watcher = Watcher(cluster.bootstrap)
        with Producer(cluster.bootstrap, linger_ms=20) as orders, watcher.watching():
            for kill in range(KILLS):
                if sent - watcher.doubled() < ORDERS / 2:
                    for number in range(sent, sent + ORDERS):
                        orders.send("orders", b"%d" % number, partition=number % PARTITIONS)
                    orders.flush()
                    sent += ORDERS
                goal = watcher.doubled() + chance.randint(1, 200)
                process = start(cluster.bootstrap)
                node = chance.choice(cluster.broker_ids) if kill % 3 == 2 else None
                try:
                    eventually(lambda: alive(process) and watcher.doubled() >= goal, 120, 0.001)  # noqa: B023
                    if node is not None:
                        cluster.kill(node)
                        nodes += 1
                    threading.Event().wait(chance.uniform(0, LATER_S_MAX if node is None else 1.5))
                    assert alive(process)
                finally:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                assert watcher.doubled() < sent, "it was killed with nothing left to do"
                if node is not None:
                    cluster.start_node(node, wait=False)
                    cluster.wait_ready([node], START_S)
            process = start(cluster.bootstrap)
            try:
                eventually(lambda: alive(process) and watcher.doubled() >= sent, 300)
            finally:
                process.kill()
                process.communicate()
        once = Counter([(0, 2 * number) for number in range(sent)] + [(1, number) for number in range(sent)])
        assert watcher.seen == once
        assert committed(cluster.bootstrap) == once
    print(f"{KILLS} kills of the program, {nodes} of nodes; {sent} records, each doubled once")
