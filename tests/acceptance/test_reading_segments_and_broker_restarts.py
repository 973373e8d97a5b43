"""Rows S51 to S53, S71 to S73, S84, S87 live: reading at one's own pace, segments on disk, brokers that come and go."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.client import Admin, Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.log.dump import DumpedBatch, Problem, dump_log
from strandline.log.real_disk import RealDisk
from tests.acceptance.helpers import QUICK, eventually, make_topic, read_all, send_all, wait_isr

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def own() -> Iterator[DevCluster]:
    """Three nodes of this module's own."""
    with DevCluster(settings=QUICK) as cluster:
        yield cluster


def test_s51_a_slow_consumer_disturbs_nobody_and_stays_small(cluster: DevCluster) -> None:
    """Row S51: a consumer that hardly polls keeps no more than its bound in memory while another drains the topic."""
    make_topic(cluster, "s51", partitions=2)
    value = bytes(10_000)
    with Producer(cluster.bootstrap) as producer:
        for number in range(3000):
            producer.send("s51", value, partition=number % 2)
    partitions = [("s51", 0), ("s51", 1)]
    bound = {"fetch_max_bytes": 1_000_000, "max_partition_fetch_bytes": 200_000}
    with Consumer(cluster.bootstrap, **bound) as slow, Consumer(cluster.bootstrap) as quick:
        for consumer in (slow, quick):
            consumer.assign(partitions)
            consumer.seek_to_beginning()
        assert len(slow.poll(timeout_s=10, max_records=1)) == 1
        drained = 0
        while drained < 3000:
            got = quick.poll(timeout_s=10)
            assert got
            drained += len(got)
        rest = 1
        while rest < 3000:
            got = slow.poll(timeout_s=10)
            assert got
            rest += len(got)


def test_s52_a_long_poll_waits_without_asking_again_and_hears_at_once(cluster: DevCluster) -> None:
    """Row S52: an idle poll of 2 s costs a handful of requests; a record that comes meanwhile is there within
    moments."""
    make_topic(cluster, "s52")
    with Consumer(cluster.bootstrap) as consumer, Producer(cluster.bootstrap, linger_ms=0) as producer:
        consumer.assign([("s52", 0)])
        consumer.seek_to_end()
        assert consumer.position(("s52", 0)) == 0
        producer.send("s52", b"warm").result(10)
        assert [record.value for record in consumer.poll(timeout_s=10)] == [b"warm"]
        before = fetches(cluster)
        assert consumer.poll(timeout_s=2) == []
        assert fetches(cluster) - before <= 10
    # So long would a poll take that only the broker's patience ends.
    patience = {"fetch_max_wait_ms": 5000, "auto_offset_reset": "latest"}
    with Consumer(cluster.bootstrap, **patience) as consumer, Producer(cluster.bootstrap, linger_ms=0) as producer:
        consumer.assign([("s52", 0)])
        assert consumer.position(("s52", 0)) == 1
        delays = []
        for _ in range(20):
            sent = time.monotonic()
            future = producer.send("s52", b"now")
            assert [record.value for record in consumer.poll(timeout_s=10)] == [b"now"]
            delays.append(time.monotonic() - sent)
            future.result(10)
        assert sorted(delays)[len(delays) // 2] < 1  # the figure itself is the benchmark's


def fetches(cluster: DevCluster) -> float:
    """Fetch requests that all nodes have answered."""
    from urllib.request import urlopen

    total = 0.0
    for node in cluster.broker_ids:
        with urlopen(f"http://{cluster.http(node)}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("kafka_network_requestmetrics_requests_total") and 'request="Fetch"' in line:
                    total += float(line.rpartition(" ")[2])
    return total


def test_s53_max_poll_records_bounds_a_poll(cluster: DevCluster) -> None:
    """Row S53: 1,000 records and a bound of 100: ten polls of 100, no gap, no repeat."""
    make_topic(cluster, "s53")
    send_all(cluster, "s53", [b"%d" % number for number in range(1000)])
    with Consumer(cluster.bootstrap, max_poll_records=100) as consumer:
        consumer.assign([("s53", 0)])
        consumer.seek_to_beginning()
        polls: list[list[int]] = []
        while sum(map(len, polls)) < 1000:
            got = consumer.poll(timeout_s=10)
            assert 0 < len(got) <= 100
            polls.append([record.offset for record in got])
    assert [offset for poll in polls for offset in poll] == list(range(1000))
    assert len(polls) == 10


def test_s71_s9_any_record_by_its_offset_across_a_restart(own: DevCluster) -> None:
    """Rows S71, S09: the broker keeps no state of a reader: it asks by offset, before and after a rolling restart."""
    make_topic(own, "s71")
    send_all(own, "s71", [b"%d" % number for number in range(500)])
    rng = random.Random(71)
    with Consumer(own.bootstrap) as consumer:
        consumer.assign([("s71", 0)])
        for restart in (None, *own.broker_ids):
            if restart is not None:
                own.stop_node(restart)
                own.start_node(restart)
            for offset in rng.sample(range(500), 20):
                consumer.seek(("s71", 0), offset)
                [record] = consumer.poll(timeout_s=20, max_records=1)
                assert (record.offset, record.value) == (offset, b"%d" % offset)


def test_s72_a_partition_is_a_list_of_segments(own: DevCluster) -> None:
    """Row S72: 1 MB segments and 10 MB of data: ten files or more, named by their first offset, each readable alone."""
    make_topic(own, "s72", segment_bytes="1048576")
    with Producer(own.bootstrap, batch_size=65_536) as producer:
        for number in range(1000):
            producer.send("s72", b"%d:" % number + bytes(10_000), partition=0)
    wait_isr(own, "s72", set(own.broker_ids))
    disk = RealDisk()
    for node in own.broker_ids:
        names = sorted(Path(own.data_dir(node), "s72-0").glob("*.log"))
        assert len(names) >= 9
        following = 0
        for path in names:
            assert path.stem == f"{following:020d}"
            for entry in dump_log(disk, str(path)):
                assert not isinstance(entry, Problem), entry
                if isinstance(entry, DumpedBatch):
                    assert entry.header.base_offset == following
                    following = entry.header.next_offset
        assert following == 1000


def test_s73_s2_find_by_time_and_never_rewrite(own: DevCluster) -> None:
    """Row S73: the first record at or after a time is found through the index. Row S02: what was written is never
    rewritten."""
    make_topic(own, "s73", segment_bytes="1048576", retention_ms="-1")
    path = Path(own.data_dir(1), "s73-0", f"{0:020d}.log")
    with Producer(own.bootstrap, batch_size=16_384) as producer:
        for number in range(2000):
            producer.send("s73", bytes(1000), partition=0, timestamp_ms=1_000_000 + 10 * number)
        producer.flush()
        wait_isr(own, "s73", set(own.broker_ids))  # node 1 may have been out of it for a moment, and behind
        prefix = path.read_bytes()[:500_000]
        producer.send("s73", b"more", partition=0, timestamp_ms=2_000_000).result(10)
    assert path.read_bytes()[:500_000] == prefix
    rng = random.Random(73)
    with Consumer(own.bootstrap) as consumer:
        for _ in range(50):
            time_ms = rng.randrange(1_000_000, 1_019_990)
            found = consumer.offsets_for_times({("s73", 0): time_ms})
            [where] = found.values()
            assert where is not None
            assert where.offset == -(-(time_ms - 1_000_000) // 10)


def test_s84_membership_is_liveness(own: DevCluster) -> None:
    """Row S84: a paused broker is fenced within its session timeout and gone from the metadata; resumed, it is back,
    under the same process."""
    with Admin(",".join(own.client(node) for node in own.broker_ids[:2])) as admin:
        silent = own.broker_ids[2]

        def listed() -> set[int]:
            return {node.node_id for node in admin.describe_cluster().nodes if not node.fenced}

        eventually(lambda: listed() == set(own.broker_ids))
        pid = own.pids()[silent]
        own.pause(silent)
        try:
            eventually(lambda: silent not in listed())
        finally:
            own.resume(silent)
        eventually(lambda: silent in listed())
        assert own.pids()[silent] == pid


def test_s87_a_new_broker_joins_a_running_cluster(own: DevCluster) -> None:
    """Row S87: broker 4 is registered and listed in seconds, and new topics use it; old ones stay as they were."""
    make_topic(own, "s87-before")
    send_all(own, "s87-before", [b"x"])
    added = own.add_broker()
    with Admin(own.bootstrap) as admin:
        eventually(lambda: added in {node.node_id for node in admin.describe_cluster().nodes if not node.fenced})
        make_topic(own, "s87-after", partitions=8)
        [description] = admin.describe_topics(["s87-after"])
    assert any(added in partition.replicas for partition in description.partitions)
    assert any(partition.leader == added for partition in description.partitions)
    assert read_all(own, "s87-before") == [b"x"]
