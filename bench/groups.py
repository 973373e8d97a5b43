"""Consumer groups, with confluent-kafka as every member: joining, rebalances, reading, idle connections, a coordinator
that dies.

Clients and brokers have their own defaults, heartbeats among them: a rebalance takes as long as members take to hear of
it. Every figure is bounded in time; one that does not come in time is left out, and said.
"""

from __future__ import annotations

import itertools
import resource
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.clusters import Cluster, admin_client, wait_ready
from bench.measures import PARTITIONS, Results, create_topic, produce_load, producer_settings
from bench.members import READ_AHEAD, WAIT_S, consumer_settings, processes, tell, told, wait_until

PROTOCOLS = ("classic", "consumer")
JOINS = 5
SHARED_PARTITIONS, MEMBERS = 100, 10
RECORDS = 2_000_000
CONNECTIONS = 2_000

METADATA = struct.pack(">ihhih1siB", 16, 3, 4, 7, 1, b"b", 0, 0)
"""Metadata v4 for no topic at all: the smallest question that a broker answers."""


def group_figures(make: Callable[[], Cluster], results: Results, scale: float, say: Callable[[str], None]) -> None:
    """Every figure about groups, of a cluster of their own: it loses a broker in the end."""
    cluster = make()
    try:
        cluster.start()
        wait_ready(cluster.bootstrap)
        _measure(cluster, results, scale, say)
    except TimeoutError as late:
        say(f"groups: left out from here: {late}")
    finally:
        cluster.stop()


def _measure(cluster: Cluster, results: Results, scale: float, say: Callable[[str], None]) -> None:
    for protocol in PROTOCOLS:
        say(f"groups: join ({protocol})")
        _join(cluster, results, protocol, max(1, round(JOINS * scale)))
    for protocol in PROTOCOLS:
        say(f"groups: rebalance ({protocol})")
        _rebalance(cluster, results, protocol)
    say("groups: consume")
    _consume(cluster, results, int(RECORDS * scale))
    say("groups: idle connections")
    _idle_connections(cluster, results)
    say("groups: the coordinator is killed")
    _coordinator_killed(cluster, results)


# ---------------------------------------------------------------- joining


def _join(cluster: Cluster, results: Results, protocol: str, times: int) -> None:
    """From the making of a consumer to its first record: alone in a new group."""
    topic = f"join-{protocol}"
    create_topic(cluster.bootstrap, topic, 1)
    produce_load(cluster.bootstrap, topic, 100, 100)
    took = []
    for number in range(times + 1):
        began = time.perf_counter()
        consumer = Consumer(consumer_settings(cluster.bootstrap, f"{topic}-{number}", group_protocol=protocol))
        try:
            consumer.subscribe([topic])
            found: list[Any] = []
            what = f"a first record ({protocol})"
            took.append(wait_until(lambda: bool(found) or _polled(consumer, found), what, began))  # noqa: B023
        finally:
            consumer.close()
    # The first one of all waits for the offsets topic to be made.
    results.add(f"group join to the first record ({protocol}), s", statistics.median(took[1:]))


def _polled(consumer: Consumer, found: list[Any]) -> bool:
    message = consumer.poll(0.1)
    if message is not None and message.error() is None:
        found.append(message)
    return bool(found)


# ---------------------------------------------------------------- rebalances


class _Member:
    """A consumer on a thread of its own, which knows its partitions."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        self.partitions: frozenset[int] = frozenset()
        self._incremental = protocol == "consumer"
        self._stopped = threading.Event()
        self._consumer = Consumer(consumer_settings(bootstrap, group, group_protocol=protocol))
        self._consumer.subscribe([topic], on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _given(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        given = frozenset(one.partition for one in partitions)
        self.partitions = self.partitions | given if self._incremental else given

    def _taken(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.partitions -= frozenset(one.partition for one in partitions)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._consumer.poll(0.05)
        self._consumer.close()

    def close(self) -> None:
        """Leave the group."""
        self._stopped.set()
        self._thread.join(30)


def _shared_out(members: Sequence[_Member]) -> bool:
    """Every partition has one owner, and nobody has two more than another."""
    held = [member.partitions for member in members]
    sizes = [len(one) for one in held]
    return (
        sum(sizes) == SHARED_PARTITIONS
        and len(frozenset().union(*held)) == SHARED_PARTITIONS
        and max(sizes) - min(sizes) <= 1
    )


def _rebalance(cluster: Cluster, results: Results, protocol: str) -> None:
    """Ten members start at once, an eleventh joins, one leaves: each time until everybody has his share."""
    topic = f"shared-{protocol}"
    create_topic(cluster.bootstrap, topic, SHARED_PARTITIONS)
    what = f"{SHARED_PARTITIONS} partitions, {MEMBERS} members"
    with ExitStack() as stack:

        def member() -> _Member:
            one = _Member(cluster.bootstrap, f"group-{topic}", topic, protocol)
            stack.callback(one.close)
            return one

        began = time.perf_counter()
        members = [member() for _ in range(MEMBERS)]
        took = wait_until(lambda: _shared_out(members), f"{what} start ({protocol})", began)
        results.add(f"{what} start ({protocol}), s", took)
        began = time.perf_counter()
        members.append(member())
        took = wait_until(lambda: _shared_out(members), f"an 11th member joins ({protocol})", began)
        results.add(f"{what}, an 11th joins ({protocol}), s", took)
        began = time.perf_counter()
        members.pop(0).close()
        took = wait_until(lambda: _shared_out(members), f"a member leaves ({protocol})", began)
        results.add(f"{what}, one of 11 leaves ({protocol}), s", took)


# ---------------------------------------------------------------- reading


def _read(parent: Connection, bootstrap: str, group: str, topic: str, share: int) -> None:
    """One member in a process of its own: joins, waits for the word, reads its partitions to their ends.

    Before the word it has taken none of them up, so that nothing is fetched: a paused partition would do, too, but
    librdkafka looks once a second whether it is resumed.
    """
    shared_out: list[TopicPartition] = []

    def given(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign([])
        shared_out[:] = [TopicPartition(one.topic, one.partition, 0) for one in partitions]

    consumer = Consumer(consumer_settings(bootstrap, group, **READ_AHEAD))
    consumer.subscribe([topic], on_assign=given)
    deadline = time.perf_counter() + WAIT_S
    while len(shared_out) != share and time.perf_counter() < deadline:
        consumer.poll(0.1)
    wanted = sum(consumer.get_watermark_offsets(one, timeout=10)[1] for one in shared_out)
    parent.send(len(shared_out) == share)
    parent.recv()
    consumer.assign(shared_out)
    seen = 0
    while seen < wanted and time.perf_counter() < deadline + WAIT_S:
        seen += len(consumer.consume(min(10_000, wanted - seen), timeout=0.5))
    parent.send((seen, time.perf_counter()))
    parent.recv()  # who leaves while others read makes them share out anew
    consumer.close()


def _consume(cluster: Cluster, results: Results, count: int) -> None:
    """100 B records, read by groups of one and of two processes that have joined before: all of the records over the
    time from the moment when every member takes its partitions up to the last one's last record."""
    topic = "group-load"
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    produce_load(cluster.bootstrap, topic, 100, count)
    for size in (1, 2):
        arguments = (cluster.bootstrap, f"{topic}-{size}", topic, PARTITIONS // size)
        with processes(_read, size, *arguments) as members:
            joined = [told(member) for member in members]
            if not all(joined):
                raise TimeoutError(f"a group of {size} was not shared out")
            began = time.perf_counter()  # one clock for every process of the machine
            tell(members, "go")
            ends = [told(member) for member in members]
            tell(members, "leave")
            if sum(seen for seen, _ in ends) != count:
                raise TimeoutError(f"a group of {size} read {ends} of {count} records")
            took = max(end for _, end in ends) - began
            results.add(f"consume 100 B in a group of {size}, records/s", count / took)


# ---------------------------------------------------------------- idle connections


@contextmanager
def _open_files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY,) and hard < count:
        raise TimeoutError(f"the machine allows {hard} open files, {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _idle_connections(cluster: Cluster, results: Results) -> None:
    """What connections that have each asked once, and say nothing then, add to a broker's resident memory."""
    node, address = min(cluster.pids()), cluster.bootstrap.split(",")[0]  # both are the first's
    host, _, port = address.rpartition(":")
    process = psutil.Process(cluster.pids()[node])
    with _open_files(CONNECTIONS + 500), ExitStack() as stack:
        before = process.memory_info().rss
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((host, int(port)), 10))
            connection.sendall(METADATA)
            if not connection.recv(4096):
                raise TimeoutError(f"{address} closed a connection")
        grown = process.memory_info().rss - before
    results.add(f"{CONNECTIONS} idle connections, RSS added, MB", grown / 1e6)


# ---------------------------------------------------------------- the coordinator dies


def _coordinator_killed(cluster: Cluster, results: Results) -> None:
    """SIGKILL of the broker that coordinates a group, under a steady load: until records of every partition that were
    sent afterwards are read and their offsets committed."""
    topic, group = "orphans", "orphaned-group"
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    stop = threading.Event()
    feeder = threading.Thread(target=_feed, args=(cluster.bootstrap, topic, stop), daemon=True)
    consumer = Consumer(consumer_settings(cluster.bootstrap, group))
    try:
        consumer.subscribe([topic])
        feeder.start()
        committed: set[int] = set()
        wait_until(lambda: _commit_what_came(consumer, 0.0, committed) == PARTITIONS, "a group that reads")
        admin = admin_client(cluster.bootstrap)
        node = int(admin.describe_consumer_groups([group])[group].result(30).coordinator.id)
        committed.clear()
        killed_ms = time.time() * 1000
        began = time.perf_counter()
        cluster.kill(node)
        took = wait_until(
            lambda: _commit_what_came(consumer, killed_ms, committed) == PARTITIONS, "a new coordinator", began
        )
        results.add("kill -9 of a group's coordinator until it reads and commits, s", took)
    finally:
        stop.set()
        feeder.join(30)
        consumer.close()


def _feed(bootstrap: str, topic: str, stop: threading.Event) -> None:
    producer = Producer(producer_settings(bootstrap, **{"linger.ms": 0}))
    for number in itertools.count():
        if stop.wait(0.01):
            break
        producer.produce(topic, b"x" * 100, partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(10)


def _commit_what_came(consumer: Consumer, since_ms: float, committed: set[int]) -> int:
    """Read what there is and commit it; how many partitions have a commit of a record sent after `since_ms`.

    One commit for all: where a commit takes longer than a record takes to come, one for each would never catch up.
    """
    first = consumer.poll(0.1)
    if first is None:
        return len(committed)
    found = [one for one in [first, *consumer.consume(1000, timeout=0)] if one.error() is None]
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:
        return len(committed)
    committed.update(one.partition() for one in found if one.timestamp()[1] > since_ms)
    return len(committed)
