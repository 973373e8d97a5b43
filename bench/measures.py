"""What is measured, with confluent-kafka as the client for every cluster: one function a figure or group of figures.

Every load is bounded in count and in time. Client work runs in this process; servers are other processes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import click
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters import Cluster, admin_client, cpu_seconds, rss_mb, wait_ready
from bench.secured import librdkafka_settings

PARTITIONS = 6
DEADLINE_S = 120.0
RATES = (200, 1000, 5000)
WARM_UP_S = 2
"""Latencies of the first seconds are left out: the client connects and gets its producer id then."""


@dataclass
class Results:
    """Figures of one cluster: name -> value; names end in their unit."""

    figures: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.figures[name] = value


def producer_settings(bootstrap: str, **settings: object) -> dict[str, object]:
    """acks=all and idempotent, the same for every cluster."""
    return {
        "bootstrap.servers": bootstrap,
        **librdkafka_settings(),
        "acks": "all",
        "enable.idempotence": True,
        "log_level": 0,
        "queue.buffering.max.messages": 2_000_000,
        "queue.buffering.max.kbytes": 262_144,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        **settings,
    }


def create_topic(bootstrap: str, name: str, partitions: int) -> None:
    """Replication 3, min.insync.replicas 2; returns when its leaders are known."""
    admin = admin_client(bootstrap)
    admin.create_topics([NewTopic(name, partitions, 3, config={"min.insync.replicas": "2"})])[name].result(30)
    deadline = time.perf_counter() + 30
    while leaders(admin, name) != partitions:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"topic {name} has not all its leaders after 30 s")
        time.sleep(0.02)


def leaders(admin: AdminClient, name: str) -> int:
    """How many partitions of the topic have a leader."""
    topic = admin.list_topics(name, timeout=10).topics[name]
    return sum(partition.leader >= 0 for partition in topic.partitions.values())


def produce_load(bootstrap: str, topic: str, size: int, count: int, **settings: object) -> float:
    """Send `count` records of `size` bytes as fast as they go; seconds until all are acknowledged."""
    producer = Producer(producer_settings(bootstrap, **{"linger.ms": 20, "batch.size": 524_288, **settings}))
    payload = bytes(size)
    failed: list[str] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer.list_topics(topic, timeout=10)
    # One record first: before it asks for its id, librdkafka may wait for half a second by a timer of its own.
    producer.produce(topic, payload)
    producer.flush(DEADLINE_S)
    began = time.perf_counter()
    for index in range(count):
        while True:
            try:
                # Only the last record of each thousand carries a callback: the client's own cost, not the server's.
                producer.produce(topic, payload, on_delivery=on_delivery if index % 1000 == 999 else None)
                break
            except BufferError:
                producer.poll(0.01)
        if index % 1000 == 0:
            producer.poll(0)
    left = producer.flush(DEADLINE_S)
    took = time.perf_counter() - began
    if left or failed:
        raise RuntimeError(f"{left} records not acknowledged in {DEADLINE_S} s, errors: {failed[:1]}")
    return took


def consume_rate(bootstrap: str, topic: str, count: int) -> float:
    """Read `count` records of the topic from the beginning; records a second, from the first answer to the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **librdkafka_settings(),
            "group.id": "bench",
            "enable.auto.commit": False,
            "log_level": 0,
            "fetch.message.max.bytes": 1_048_576,
            "queued.max.messages.kbytes": 65_536,
            "fetch.queue.backoff.ms": 10,  # a second by default, in which nothing is asked for once the queue is full
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    deadline = time.perf_counter() + DEADLINE_S
    before_clock = 0
    while not before_clock and time.perf_counter() < deadline:
        before_clock = len(consumer.consume(1, timeout=0.5))
    began = time.perf_counter()
    seen = before_clock
    while seen < count and time.perf_counter() < deadline:
        seen += len(consumer.consume(10_000, timeout=0.5))
    took = time.perf_counter() - began
    consumer.close()
    if seen < count:
        raise RuntimeError(f"read {seen} of {count} records in {DEADLINE_S} s")
    return (seen - before_clock) / took


def throughput(cluster: Cluster, results: Results, sizes: dict[int, int]) -> None:
    """Produce and consume for each record size -> count; and what it cost the servers."""
    for size, count in sizes.items():
        topic = f"load-{size}"
        create_topic(cluster.bootstrap, topic, PARTITIONS)
        produce_load(cluster.bootstrap, topic, size, count // 10)
        before = cpu_seconds(cluster.pids())
        took = produce_load(cluster.bootstrap, topic, size, count)
        spent = cpu_seconds(cluster.pids()) - before
        megabytes = size * count / 1e6
        results.add(f"produce {size} B, records/s", count / took)
        results.add(f"produce {size} B, MB/s", megabytes / took)
        results.add(f"produce {size} B, server CPU a node, ms/MB", spent * 1000 / len(cluster.pids()) / megabytes)
        rate = consume_rate(cluster.bootstrap, topic, count + count // 10)
        results.add(f"consume {size} B, records/s", rate)
        results.add(f"consume {size} B, MB/s", rate * size / 1e6)
    results.add("RSS a node after the load, MB", rss_mb(cluster.pids()))


def ack_latency(
    bootstrap: str, topic: str, per_second: int, seconds: float, size: int = 1024, warm_up_s: float = WARM_UP_S
) -> list[float]:
    """Milliseconds from send to ack of records sent one at a time at a steady rate (open loop), sorted."""
    producer = Producer(producer_settings(bootstrap, **{"linger.ms": 0}))
    producer.list_topics(topic, timeout=10)
    payload = bytes(size)
    latencies: list[float] = []
    stop = threading.Event()

    def sender(sent_at: float) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                raise RuntimeError(str(error))
            latencies.append((time.perf_counter() - sent_at) * 1000)

        return on_delivery

    def poll() -> None:
        while not stop.is_set():
            producer.poll(0.05)

    poller = threading.Thread(target=poll)
    poller.start()
    warm_up = int(per_second * warm_up_s)
    began = time.perf_counter()
    try:
        for index in range(int(per_second * seconds) + warm_up):
            due = began + index / per_second
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            producer.produce(topic, payload, partition=index % PARTITIONS, on_delivery=sender(time.perf_counter()))
        producer.flush(30)
    finally:  # a run that is ended by a signal shall not wait for this thread
        stop.set()
        poller.join()
    return sorted(latencies[warm_up:])


def rounds_of(rounds: int, layouts: Mapping[str, Callable[[], Mapping[str, float]]]) -> None:
    """Measure layouts in turns, each with a new cluster, and print the median of each figure and its spread."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for _ in range(rounds):
        for name, measure in layouts.items():
            figures = measure()
            click.echo(f"{name}: {', '.join(f'{key} {value:,.2f}' for key, value in figures.items())}", err=True)
            found.setdefault(name, []).append(figures)
    for name, runs in found.items():
        click.echo(name)
        for key in runs[0]:
            values = sorted(run[key] for run in runs)
            click.echo(f"    {key}: {median(values):,.2f} ({values[0]:,.2f} to {values[-1]:,.2f})")


def latency(cluster: Cluster, results: Results, seconds: float) -> None:
    """Ack latency of 1 KB records, at steady rates and of one record at a time (row S124); what a record costs."""
    create_topic(cluster.bootstrap, "latency", PARTITIONS)
    pids = cluster.pids()
    for rate in RATES:
        before = cpu_seconds(pids)
        times = ack_latency(cluster.bootstrap, "latency", rate, seconds)
        add_acks(results, f"ack 1 KB at {rate}/s", times, rate * (seconds + WARM_UP_S), pids, before)
    before = cpu_seconds(pids)
    times, count = one_after_the_other(cluster.bootstrap, "latency", seconds)
    add_acks(results, "ack 1 KB, one after the other", times, count, pids, before)


def add_acks(
    results: Results, name: str, times: list[float], count: float, pids: dict[int, int], cpu_before_s: float
) -> None:
    """Percentiles of sorted milliseconds, and what each of `count` records has cost a node since `cpu_before_s`."""
    spent = cpu_seconds(pids) - cpu_before_s
    results.add(f"{name}, p50 ms", times[len(times) // 2])
    results.add(f"{name}, p99 ms", times[int(len(times) * 0.99)])
    results.add(f"{name}, CPU a node, ms a record", spent * 1000 / len(pids) / count)


def one_after_the_other(
    bootstrap: str, topic: str, seconds: float, size: int = 1024, warm_up_s: float = WARM_UP_S
) -> tuple[list[float], int]:
    """Milliseconds from send to ack of records of partition 0, each sent when the one before it is acked, sorted; and
    how many were sent, those of the warm-up included."""
    producer = Producer(producer_settings(bootstrap, **{"linger.ms": 0}))
    payload = bytes(size)
    latencies: list[float] = []
    acked: list[float] = []
    count = 0

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        acked.append(time.perf_counter())

    began = time.perf_counter()
    while (sent_at := time.perf_counter()) < began + warm_up_s + seconds:
        producer.produce(topic, payload, partition=0, on_delivery=on_delivery)
        count += 1
        while not acked:
            if not producer.poll(30):
                raise RuntimeError("no ack within 30 s")
        took = acked.pop() - sent_at
        if sent_at > began + warm_up_s:
            latencies.append(took * 1000)
    return sorted(latencies), count


def failover(cluster: Cluster, results: Results) -> None:
    """SIGKILL of a partition's leader under a steady acks=all load: the longest time without an ack."""
    create_topic(cluster.bootstrap, "failover", 1)
    admin = admin_client(cluster.bootstrap)
    leader = admin.list_topics("failover", timeout=10).topics["failover"].partitions[0].leader
    producer = Producer(producer_settings(cluster.bootstrap, **{"linger.ms": 0, "message.timeout.ms": 60_000}))
    acks: list[float] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        acks.append(time.perf_counter())

    def run_until(deadline: float) -> None:
        while time.perf_counter() < deadline:
            producer.produce("failover", b"x" * 100, on_delivery=on_delivery)
            producer.poll(0.005)

    run_until(time.perf_counter() + 2)
    killed_at = time.perf_counter()
    cluster.kill(leader)
    before = len(acks)
    while len(acks) == before and time.perf_counter() < killed_at + 60:
        run_until(time.perf_counter() + 0.05)
    run_until(time.perf_counter() + 1)
    producer.flush(30)
    # Acks already under way when the signal went out may still arrive: the gap is the longest silence after it.
    times = [killed_at, *[moment for moment in acks if moment > killed_at]]
    results.add("kill -9 of a leader to the next ack, s", max(b - a for a, b in itertools.pairwise(times)))


def cold_start(make: Callable[[], Cluster], results: Results) -> Cluster:
    """Three empty nodes to the first acks=all ack. Returns the cluster, running."""
    cluster = make()
    began = time.perf_counter()
    cluster.start()
    try:
        wait_ready(cluster.bootstrap)
        results.add("cold start to three brokers, s", time.perf_counter() - began)
        create_topic(cluster.bootstrap, "first", 1)
        # librdkafka's idempotent producer waits for half a second of its own before it asks for its id.
        producer = Producer(producer_settings(cluster.bootstrap, **{"linger.ms": 0, "enable.idempotence": False}))
        producer.produce("first", b"x")
        if producer.flush(30):
            raise RuntimeError("no ack within 30 s")
        results.add("cold start to the first ack, s", time.perf_counter() - began)
        time.sleep(3)
        results.add("RSS a node at rest, MB", rss_mb(cluster.pids()))
    except BaseException:
        cluster.stop()
        raise
    return cluster
