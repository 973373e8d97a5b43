"""What old records cost new ones, and what it takes to be rid of them: `python -m bench --only storage`.

A topic of one partition and one copy is filled with 20 GB times the scale, and produced to and read from at its end, in
turns with an empty one. Then half of another such log is deleted, and a third is compacted, while a second load goes on
beside it: 200 records a second to a topic of three copies, whose time from send to ack is the figure. The compacted
log has as many keys as fit into a pass of either cleaner. Loads are bounded by counts, waits by time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from bench.clusters import Cluster, admin_client, cpu_seconds, wait_ready
from bench.measures import Results, ack_latency, create_topic, producer_settings
from bench.secured import librdkafka_settings, own_settings
from strandline.client import Admin

GIGABYTES = 20
VALUE_BYTES = 1000
PROBE = 200_000
"""Records of one measured load."""

KEYS_MAX = 500_000
WRITES_A_KEY = 10
ROUNDS = 3
SIDE, SIDE_PER_S = "side", 200
WAIT_S = 600.0
STILL_S = 10.0
"""A log whose size has not changed for so long is done with."""

CHUNK = 100_000
SETTINGS = {
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "log.segment.bytes": str(128 << 20),
    "log.segment.delete.delay.ms": "1000",
}


@dataclass
class _Watch:
    """What is seen while a log shrinks: from when to when its size changed, and the largest memory of a node."""

    began: float = 0.0
    ended: float = 0.0
    before_bytes: int = 0
    after_bytes: int = 0
    cpu_s: float = 0.0
    rss_mb: float = 0.0


def storage(make: Callable[..., Cluster], results: Results, scale: float, say: Callable[[str], None]) -> None:
    """All of it, on one cluster."""
    records = int(GIGABYTES * 1e9 * scale / VALUE_BYTES)
    cluster = make(SETTINGS)
    cluster.start()
    try:
        wait_ready(cluster.bootstrap)
        create_topic(cluster.bootstrap, SIDE, 6)
        say(f"a log of {records:,} records")
        _long_log(cluster.bootstrap, results, records)
        alone = ack_latency(cluster.bootstrap, SIDE, SIDE_PER_S, 15)
        add_times(results, "alone", alone)
        say("retention")
        alter(cluster.bootstrap, "long", {"retention.bytes": str(records * VALUE_BYTES // 2)})
        with beside(cluster, results, "while half of it is deleted"):
            watch = _shrinks(cluster, "long")
        results.add("deleted, GB", (watch.before_bytes - watch.after_bytes) / 1e9)
        _delete(cluster.bootstrap, "long")
        say("compaction")
        create_on_one(cluster.bootstrap, "keyed")
        fill(cluster.bootstrap, "keyed", records, keys=min(KEYS_MAX, records // WRITES_A_KEY))
        alter(cluster.bootstrap, "keyed", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        with beside(cluster, results, "while it is compacted"):
            watch = _shrinks(cluster, "keyed")
        took = watch.ended - watch.began
        results.add("compacted, MB/s", watch.before_bytes / 1e6 / took)
        results.add("compacted, CPU of all nodes, ms/MB", watch.cpu_s * 1000 / (watch.before_bytes / 1e6))
        results.add("compacted to, share of the log", watch.after_bytes / watch.before_bytes)
        results.add("RSS of the largest node meanwhile, MB", watch.rss_mb)
    finally:
        cluster.stop()


def _long_log(bootstrap: str, results: Results, records: int) -> None:
    """Produce and fetch at the end of a long log, and in an empty one, in turns; the ratios of the medians."""
    create_on_one(bootstrap, "long")
    fill(bootstrap, "long", records)
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(ROUNDS):
        for name, topic, start in (("empty", f"empty-{number}", 0), ("long", "long", records + number * PROBE)):
            if name == "empty":
                create_on_one(bootstrap, topic)
            rates.setdefault(("produce", name), []).append(PROBE / fill(bootstrap, topic, PROBE))
            rates.setdefault(("fetch", name), []).append(fetch(bootstrap, topic, start))
    for what in ("produce", "fetch"):
        long, empty = (sorted(rates[what, name])[ROUNDS // 2] for name in ("long", "empty"))
        results.add(f"{what} at the end of a long log, records/s", long)
        results.add(f"{what}, long log over empty one", long / empty)


def create_on_one(bootstrap: str, topic: str) -> None:
    """A topic of one partition and one copy."""
    admin = admin_client(bootstrap)
    admin.create_topics([NewTopic(topic, 1, 1, config={"min.insync.replicas": "1"})])[topic].result(30)
    time.sleep(1)


def _delete(bootstrap: str, topic: str) -> None:
    admin = admin_client(bootstrap)
    admin.delete_topics([topic])[topic].result(30)
    time.sleep(3)


def alter(bootstrap: str, topic: str, settings: dict[str, str]) -> None:
    """Set settings of a topic."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = admin_client(bootstrap)
    admin.incremental_alter_configs([resource])[resource].result(30)


def fill(bootstrap: str, topic: str, count: int, *, keys: int = 0) -> float:
    """Send so many records, in the order of their keys if they have some; seconds until all are acknowledged."""
    producer = Producer(producer_settings(bootstrap, **{"linger.ms": 20, "batch.size": 524_288}))
    payload = os.urandom(VALUE_BYTES)
    began = time.perf_counter()
    for number in range(count):
        key = f"key-{number * 7919 % keys:012}" if keys else None
        while True:
            try:
                producer.produce(topic, payload, key, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        if number % CHUNK == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all records were acknowledged in 120 s after the last one")
    return time.perf_counter() - began


def fetch(bootstrap: str, topic: str, start: int, count: int = PROBE) -> float:
    """Read so many records from an offset on; records a second, from the first answer to the last."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, **librdkafka_settings()})
    consumer.assign([TopicPartition(topic, 0, start)])
    seen, deadline = 0, time.perf_counter() + WAIT_S
    while not seen and time.perf_counter() < deadline:
        seen = len(consumer.consume(1, timeout=0.5))
    began = time.perf_counter()
    while seen < count and time.perf_counter() < deadline:
        seen += len(consumer.consume(10_000, timeout=0.5))
    took = time.perf_counter() - began
    consumer.close()
    if seen < count:
        raise RuntimeError(f"read {seen} of {count} records in {WAIT_S:g} s")
    return seen / took


@contextmanager
def beside(cluster: Cluster, results: Results, how: str) -> Iterator[None]:
    """Paced records from before the block until after it."""
    times: list[float] = []
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            times.extend(ack_latency(cluster.bootstrap, SIDE, SIDE_PER_S, 5))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
    add_times(results, how, sorted(times))


def add_times(results: Results, how: str, times: list[float]) -> None:
    """The median and a tail of sorted times from send to ack."""
    results.add(f"ack at {SIDE_PER_S}/s {how}, p50 ms", times[len(times) // 2])
    results.add(f"ack at {SIDE_PER_S}/s {how}, p99 ms", times[int(len(times) * 0.99)])


def _shrinks(cluster: Cluster, topic: str) -> _Watch:
    """Watch a log until it has shrunk, and its size has not changed for a while. Raises TimeoutError."""
    watch = _Watch()
    processes = [psutil.Process(pid) for pid in cluster.pids().values()]
    with Admin(cluster.bootstrap, **own_settings()) as admin:
        watch.before_bytes = watch.after_bytes = _size(admin, topic)
        cpu = cpu_seconds(cluster.pids())
        watch.began = watch.ended = time.perf_counter()
        while time.perf_counter() - watch.began < WAIT_S:
            time.sleep(0.25)
            watch.rss_mb = max(watch.rss_mb, *(process.memory_info().rss / 1e6 for process in processes))
            size, now = _size(admin, topic), time.perf_counter()
            if size != watch.after_bytes:
                watch.after_bytes, watch.ended = size, now
                watch.cpu_s = cpu_seconds(cluster.pids()) - cpu
            elif watch.after_bytes < watch.before_bytes and now - watch.ended > STILL_S:
                return watch
    raise TimeoutError(f"{topic} did not come to rest within {WAIT_S:g} s")


def _size(admin: Admin, topic: str) -> int:
    """Bytes of its one replica, as its broker tells them."""
    found = [
        replica.size_bytes
        for directories in admin.describe_log_dirs().values()
        for directory in directories
        for (name, _), replica in directory.replicas.items()
        if name == topic
    ]
    return max(found, default=0)
