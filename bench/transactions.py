"""Transactions, with confluent-kafka (librdkafka, the first protocol) for every cluster; our own client beside it.

What a transactional producer carries, how long a commit takes alone and among fifty producers, what a reader of
committed records gets, how long a coordinator's death holds up the next commit, and what transactional ids take in
memory. A commit is timed behind a flush: it is the coordinator's part alone. Our client speaks the second protocol
(KIP-890) where the cluster has it. Every figure is bounded in time.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import strandline.client
from bench.clusters import Cluster, cpu_seconds, rss_mb, wait_ready
from bench.measures import DEADLINE_S, PARTITIONS, Results, create_topic, producer_settings
from bench.members import READ_AHEAD, consumer_settings, wait_until
from strandline.proto.errors import StrandlineError

SIZES = {100: 1_000_000, 1000: 300_000}
"""Records of each size that are produced in transactions."""
EACH_MS = 100
EACH_RECORDS = 1_000
COMMIT_S = 10.0
MANY = 50
IDS = 10_000
IDS_AT_ONCE = 500
SILENCE_S = 0.5
TOPIC = "transactions"


def transaction_figures(
    make: Callable[[], Cluster], results: Results, scale: float, say: Callable[[str], None]
) -> None:
    """Every figure about transactions, of a cluster of their own: it loses a broker in the end."""
    cluster = make()
    try:
        cluster.start()
        wait_ready(cluster.bootstrap)
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        for size, count in SIZES.items():
            say(f"transactions: produce {size} B")
            _produce(cluster, results, size, int(count * scale))
        say("transactions: commits")
        _commits(cluster, results, COMMIT_S * scale)
        say(f"transactions: {IDS} ids")
        _ids(cluster, results)
        say("transactions: the coordinator is killed")
        _coordinator_killed(cluster, results)
    except TimeoutError as late:
        say(f"transactions: left out from here: {late}")
    finally:
        cluster.stop()


def transactional(bootstrap: str, name: str, **settings: object) -> Producer:
    """A producer of librdkafka that has its id."""
    producer = Producer(producer_settings(bootstrap, **{"transactional.id": name, "linger.ms": 5, **settings}))
    producer.init_transactions(30)
    return producer


def _produce(cluster: Cluster, results: Results, size: int, count: int) -> None:
    """Records a second in transactions that are committed by time, or by their number; then what reads them back."""
    ways: dict[str, Callable[[int, float], bool]] = {
        f"commit each {EACH_MS} ms": lambda _, began: time.perf_counter() - began >= EACH_MS / 1000,
        f"commit each {EACH_RECORDS:,} records": lambda number, _: number % EACH_RECORDS == 0,
    }
    topic = f"{TOPIC}-{size}"
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    written = 0
    for way, is_due in ways.items():
        producer = transactional(cluster.bootstrap, f"produce-{size}", **{"linger.ms": 20, "batch.size": 524_288})
        payload = bytes(size)
        before = cpu_seconds(cluster.pids())
        began = time.perf_counter()
        sent = commits = 0
        while sent < count and time.perf_counter() < began + DEADLINE_S:
            producer.begin_transaction()
            since = time.perf_counter()
            while sent < count:
                _send(producer, topic, payload)
                sent += 1
                if is_due(sent, since):
                    break
            producer.commit_transaction(30)
            commits += 1
        took = time.perf_counter() - began
        spent = cpu_seconds(cluster.pids()) - before
        written += sent
        results.add(f"transactions {size} B, {way}, records/s", sent / took)
        results.add(f"transactions {size} B, {way}, commits/s", commits / took)
        results.add(f"transactions {size} B, {way}, server CPU a node, ms/MB", spent * 1e9 / 3 / (size * sent))
    for level in ("read_uncommitted", "read_committed"):
        results.add(f"consume {size} B, {level}, records/s", _read(cluster.bootstrap, topic, written, level))


def _send(producer: Producer, topic: str, payload: bytes) -> None:
    while True:
        try:
            producer.produce(topic, payload)
            return
        except BufferError:
            producer.poll(0.01)


def _read(bootstrap: str, topic: str, count: int, level: str) -> float:
    """Records a second at an isolation level, from the first answer to the last; all of the topic is committed."""
    settings = consumer_settings(bootstrap, level, **{"isolation.level": level, **READ_AHEAD})
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        seen = 0
        deadline = time.perf_counter() + DEADLINE_S
        while not seen and time.perf_counter() < deadline:
            seen = len(consumer.consume(1, timeout=0.5))
        began = time.perf_counter()
        while seen < count and time.perf_counter() < deadline:
            seen += len(consumer.consume(10_000, timeout=0.5))
        if seen < count:
            raise TimeoutError(f"read {seen} of {count} records ({level}) in {DEADLINE_S:g} s")
        return (seen - 1) / (time.perf_counter() - began)
    finally:
        consumer.close()


# ---------------------------------------------------------------- commits


def _commits(cluster: Cluster, results: Results, seconds: float) -> None:
    """One record of 1 KB in each of two partitions, a flush, a commit; alone, and fifty producers at it."""
    for producers in (1, MANY):
        name = "alone" if producers == 1 else f"of {producers} producers"
        before = cpu_seconds(cluster.pids())
        times = _committed_by(cluster.bootstrap, producers, seconds)
        spent = cpu_seconds(cluster.pids()) - before
        _add(results, f"commit, {name}", times)
        results.add(f"commit, {name}, CPU a node, ms", spent * 1000 / 3 / max(len(times), 1))
        results.add(f"commit, {name}, commits/s", len(times) / seconds)
    _add(results, "commit, alone, our client (second protocol)", sorted(_own_commits(cluster.bootstrap, seconds)))


def _add(results: Results, name: str, times: list[float]) -> None:
    results.add(f"{name}, p50 ms", times[len(times) // 2])
    results.add(f"{name}, p99 ms", times[int(len(times) * 0.99)])


def _committed_by(bootstrap: str, producers: int, seconds: float) -> list[float]:
    """Milliseconds of each commit, sorted."""
    made = [
        transactional(bootstrap, f"commits-{producers}-{number}", **{"linger.ms": 0}) for number in range(producers)
    ]
    until = time.perf_counter() + seconds
    times: list[float] = []

    def work(number: int, producer: Producer) -> None:
        while time.perf_counter() < until:
            producer.begin_transaction()
            for step in (0, 1):
                producer.produce(TOPIC, bytes(1024), partition=(number + step) % PARTITIONS)
            producer.flush(30)
            began = time.perf_counter()
            producer.commit_transaction(30)
            times.append((time.perf_counter() - began) * 1000)

    threads = [threading.Thread(target=work, args=told) for told in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times)


def _own_commits(bootstrap: str, seconds: float) -> Iterator[float]:
    with strandline.client.Producer(bootstrap, transactional_id="commits-own", linger_ms=0) as producer:
        producer.init_transactions()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send(TOPIC, bytes(1024), partition=partition)
            producer.flush()
            began = time.perf_counter()
            producer.commit_transaction()
            yield (time.perf_counter() - began) * 1000


# ---------------------------------------------------------------- ids, and a coordinator that dies


def _ids(cluster: Cluster, results: Results) -> None:
    """Memory of a node that ten thousand ids take which were given a producer id, and how long that took."""
    before = rss_mb(cluster.pids())
    began = time.perf_counter()
    names = [f"id-{number}" for number in range(IDS)]
    with strandline.client.Admin(cluster.bootstrap) as admin:
        for first in range(0, IDS, IDS_AT_ONCE):
            admin.fence_producers(names[first : first + IDS_AT_ONCE])
    results.add(f"{IDS:,} transactional ids, a second", IDS / (time.perf_counter() - began))
    results.add(f"{IDS:,} transactional ids, RSS a node more, MB", rss_mb(cluster.pids()) - before)


def _coordinator_killed(cluster: Cluster, results: Results) -> None:
    """SIGKILL of the coordinator of a producer that commits without a pause: the longest time between two commits. It
    leads no partition that is written to."""
    create_topic(cluster.bootstrap, "one", 1)
    with strandline.client.Admin(cluster.bootstrap) as admin:
        [described] = admin.describe_topics(["one"])
        names = (f"failover-{number}" for number in itertools.count())
        name, node = next(
            (name, node)
            for name in names
            for node in [_coordinator(admin, name)]
            if node != described.partitions[0].leader
        )
    producer = transactional(cluster.bootstrap, name, **{"linger.ms": 0})
    commits: list[float] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                producer.begin_transaction()
                producer.produce("one", b"x" * 100)
                _until_it_is_done(producer.commit_transaction)
                commits.append(time.perf_counter())
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                _until_it_is_done(producer.abort_transaction)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: len(commits) > 20, "twenty commits")
        killed_at = time.perf_counter()
        cluster.kill(node)
        # A commit that was under way may still be answered: the gap is the longest silence behind the signal.
        wait_until(
            lambda: bool(commits) and commits[-1] > killed_at + SILENCE_S, "a commit behind the coordinator's end"
        )
    finally:
        stop.set()
        thread.join(60)
    times = [killed_at, *[moment for moment in commits if moment > killed_at]]
    gap = max(later - earlier for earlier, later in itertools.pairwise(times))
    results.add("kill -9 of a transaction coordinator to the next commit, s", gap)


def _coordinator(admin: strandline.client.Admin, name: str) -> int:
    """The node that coordinates an id, which it knows from then on."""

    def known() -> bool:
        try:
            admin.fence_producers([name])
        except StrandlineError:
            return False
        return True

    wait_until(known, f"a coordinator of {name}")
    return admin.describe_transactions([name])[name].coordinator.node_id


def _until_it_is_done(call: Callable[[float], None]) -> None:
    while True:
        try:
            call(30)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
