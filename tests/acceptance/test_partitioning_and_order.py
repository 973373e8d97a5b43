"""Rows S06 to S10: where records go, and in which order, on clusters of real processes."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import confluent_kafka

from strandline.client import Ack, Admin, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.faults import FaultyCluster
from tests.acceptance.foreign import java_class_path, kcat, needs_kcat
from tests.acceptance.helpers import read_all
from tests.acceptance.topics import create, drain

# Where records go


def test_equal_keys_reach_equal_partitions(cluster: DevCluster) -> None:
    """Row S06: our client and librdkafka (murmur2_random) put 1,000 keys into identical partitions."""
    assert keys_by_us(cluster) == keys_by_librdkafka(cluster)


def test_equal_keys_reach_equal_partitions_from_java(cluster: DevCluster) -> None:
    """Row S06: so does Apache Kafka's Java client."""
    jars = java_class_path()
    create(cluster.bootstrap, "s06-java", 6)
    program = str(Path(__file__).with_name("Send.java"))
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx200m")
    done = subprocess.run(
        ["java", *quick, "-cp", jars, program, cluster.bootstrap, "s06-java"],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    placed = dict(line.split() for line in done.stdout.splitlines())
    assert {key: int(partition) for key, partition in placed.items()} == keys_by_us(cluster)


def keys_by_us(cluster: DevCluster) -> dict[str, int]:
    with Admin(cluster.bootstrap) as admin:
        made = "s06-ours" in admin.list_topics()
    if not made:
        create(cluster.bootstrap, "s06-ours", 6)
    with Producer(cluster.bootstrap) as producer:
        sent = {f"key-{n}": producer.send("s06-ours", b"value", key=b"key-%d" % n) for n in range(1000)}
        return {key: future.result(30).partition for key, future in sent.items()}


def keys_by_librdkafka(cluster: DevCluster) -> dict[str, int]:
    create(cluster.bootstrap, "s06-rdkafka", 6)
    placed: dict[str, int] = {}

    def told(error: Any, message: Any) -> None:
        assert error is None, error
        placed[message.key().decode()] = message.partition()

    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2_random"})
    for number in range(1000):
        producer.produce("s06-rdkafka", b"value", b"key-%d" % number, on_delivery=told)
    assert producer.flush(30) == 0
    return placed


@needs_kcat
def test_partition_of_ones_own_choice(cluster: DevCluster) -> None:
    """Row S07: a partitioner of one's own, an explicit partition, and kcat's -p."""
    create(cluster.bootstrap, "s07", 3)

    def by_value(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return 2 if value == b"two" else 0

    with Producer(cluster.bootstrap, partitioner=by_value) as producer:
        acks = [producer.send("s07", value).result(20) for value in (b"two", b"one", b"two")]
        assert [ack.partition for ack in acks] == [2, 0, 2]
        assert producer.send("s07", b"two", partition=1).result(20).partition == 1
    kcat("-b", cluster.bootstrap, "-P", "-t", "s07", "-p", "1", stdin=b"from kcat\n")
    assert read_all(cluster, "s07", 1) == [b"two", b"from kcat"]
    assert read_all(cluster, "s07", 2) == [b"two", b"two"]


def test_records_without_a_key_are_spread(cluster: DevCluster) -> None:
    """Row S08: each of 3 partitions gets 20 to 47 % of 9,000 records without a key from one producer."""
    create(cluster.bootstrap, "s08", 3)
    with Producer(cluster.bootstrap) as producer:
        futures = [producer.send("s08", b"value %d" % number) for number in range(9000)]
        counts = Counter(future.result(30).partition for future in futures)
    assert sorted(counts) == [0, 1, 2]
    assert all(1800 <= count <= 4230 for count in counts.values()), counts


@needs_kcat
def test_partition_and_offset_are_the_identity(cluster: DevCluster) -> None:
    """Row S09: no (partition, offset) twice among 10,000 acks; kcat finds the very record by them."""
    create(cluster.bootstrap, "s09", 3)
    with Producer(cluster.bootstrap) as producer:
        futures = [producer.send("s09", b"%d" % number, partition=number % 3) for number in range(10_000)]
        acks = [future.result(30) for future in futures]
    identities = {(ack.partition, ack.offset): number for number, ack in enumerate(acks)}
    assert len(identities) == 10_000
    for partition in range(3):
        offsets = [ack.offset for ack in acks if ack.partition == partition]
        assert offsets == list(range(len(offsets)))
    found = kcat("-b", cluster.bootstrap, "-C", "-t", "s09", "-p", "0", "-o", "1234", "-c", "1", "-q")
    assert int(found) == identities[0, 1234]


def test_order_inside_a_partition(faulty: FaultyCluster) -> None:
    """Row S10: each of 3 producers' numbers ascend in each partition, without a gap, over a leader kill."""
    create(faulty.bootstrap, "s10", replicas=[[1, 2, 3], [2, 3, 1]])
    producers = [Producer(faulty.bootstrap) for _ in range(3)]
    futures: list[Future[Ack]] = []
    for number in range(1000):
        for name, producer in enumerate(producers):
            futures.append(producer.send("s10", b"%d:%d" % (name, number), partition=number % 2))
        if number == 500:
            futures[-1].result(30)
            faulty.nodes.kill(1)
    assert all(future.result(60).offset >= 0 for future in futures)
    for producer in producers:
        producer.close()
    seen: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for record in drain(faulty.bootstrap, "s10", 2):
        assert record.value is not None
        sender, _, count = record.value.partition(b":")
        seen[record.partition, sender].append(int(count))
    assert len(seen) == 6
    for (partition, _), numbers in seen.items():
        assert numbers == list(range(partition, 1000, 2))
