"""Compacted topics on real nodes, with foreign clients (row S108): of each key the last value stays, on every replica,
and Apache Kafka reads what is left from our files."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from strandline.client import Admin
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import segment_contents, stored_batches
from tests.acceptance.helpers import QUICK, eventually, make_topic

SETTINGS = QUICK | {"log.cleaner.backoff.ms": "200"}
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": "4096",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "0",
}
KEYS = 20

Table = dict[bytes, bytes]


@pytest.fixture(scope="module")
def compacting() -> Iterator[DevCluster]:
    """Three nodes that look for what is to be compacted every 200 ms."""
    with DevCluster(settings=SETTINGS) as cluster:
        yield cluster


def send(bootstrap: str, topic: str, rounds: int, first: int = 0, **settings: object) -> Table:
    """So many rounds over all keys, in small batches of an idempotent producer; what stands in the end."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, **settings})
    table: Table = {}
    for number in range(first, first + rounds):
        for key in range(KEYS):
            table[b"k%d" % key] = b"%d:%d" % (key, number) * 3
            producer.produce(topic, table[b"k%d" % key], b"k%d" % key, partition=0)
        assert producer.flush(20) == 0
    return table


def read(bootstrap: str, topic: str, start: int = 0) -> tuple[Table, int]:
    """The last value of each key, and how many records there were; tombstones delete."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"reads-{time.monotonic_ns()}", "enable.auto.commit": False,
         "enable.partition.eof": True, "check.crcs": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, start)])
    table: Table = {}
    count = 0
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, "neither a record nor the end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return table, count
            count += 1
            key = message.key()
            assert key is not None
            value = message.value()
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
    finally:
        consumer.close()


def stored_count(cluster: DevCluster, node: int, topic: str) -> int:
    """Records in the files of a node's partition 0, by the headers of their batches."""
    return sum(int.from_bytes(batch[57:61], "big") for batch in stored_batches(cluster.data_dir(node), topic))


def wait_compacted(cluster: DevCluster, topic: str, records_max: int) -> None:
    """Until each replica has no more records than that."""
    eventually(lambda: all(stored_count(cluster, node, topic) <= records_max for node in cluster.node_ids))


def test_the_last_value_of_each_key_stays(compacting: DevCluster) -> None:
    """Written and read by confluent-kafka, plain and compressed; from the middle too; after kill -9 of all, and by a
    new leader."""
    tables: dict[str, Table] = {}
    for codec in ("none", "zstd"):
        topic = f"table-{codec}"
        make_topic(compacting, topic, **COMPACTED)
        tables[topic] = send(compacting.bootstrap, topic, 100, **{"compression.type": codec})
    for topic, table in tables.items():
        wait_compacted(compacting, topic, 15 * KEYS)
        found, count = read(compacting.bootstrap, topic)
        assert found == table
        assert count <= 15 * KEYS
        assert read(compacting.bootstrap, topic, start=777)[0] == table
        with pytest.raises(KafkaException) as refused:
            raise_of_send(compacting.bootstrap, topic)
        assert refused.value.args[0].code() == KafkaError.INVALID_RECORD
    for node in compacting.node_ids:
        compacting.kill(node)
    for node in compacting.node_ids:
        compacting.start_node(node, wait=False)
    compacting.wait_ready()
    for topic, table in tables.items():
        eventually(lambda topic=topic, table=table: read(compacting.bootstrap, topic)[0] == table)  # type: ignore[misc]
        more = send(compacting.bootstrap, topic, 3, first=100)
        assert read(compacting.bootstrap, topic)[0] == table | more


def raise_of_send(bootstrap: str, topic: str) -> None:
    """Send a record without a key. Raises what the broker answered."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"no key", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    [error] = errors
    if error is not None:
        raise KafkaException(error)


def test_tombstones_delete_and_go(compacting: DevCluster) -> None:
    """A key whose last record has no value is gone, and after delete.retention.ms so is that record (KIP-534)."""
    topic = "forgetful"
    make_topic(compacting, topic, **COMPACTED, delete_retention_ms="1000")
    table = send(compacting.bootstrap, topic, 30)
    producer = Producer({"bootstrap.servers": compacting.bootstrap})
    for key in range(5):
        producer.produce(topic, None, b"k%d" % key, partition=0)
        del table[b"k%d" % key]
    assert producer.flush(20) == 0

    def compacted() -> bool:
        filler = Producer({"bootstrap.servers": compacting.bootstrap})
        for number in range(40):
            filler.produce(topic, b"." * 30, b"filler%d" % (number % 3), partition=0)
        assert filler.flush(20) == 0
        contents = [b"".join(segment_contents(compacting.data_dir(node), topic))
                    for node in compacting.node_ids]  # fmt: skip
        return all(b"\x04k0" not in content for content in contents)

    eventually(compacted, pause_s=1.0)
    found, _ = read(compacting.bootstrap, topic)
    assert {key: value for key, value in found.items() if not key.startswith(b"filler")} == table


def test_of_a_thousand_updates_the_last_of_each_key_stay(compacting: DevCluster) -> None:
    """Row S75: 1,000 updates over 10 keys leave 10 values, under the offsets and in the order in which they were
    written, and a key that was deleted leaves nothing."""
    topic = "updates"
    make_topic(compacting, topic, **COMPACTED, delete_retention_ms="1000")
    producer = Producer({"bootstrap.servers": compacting.bootstrap, "linger.ms": 0})
    for number in range(1000):
        producer.produce(topic, b"%d" % number, b"k%d" % (number * 7 % 10), partition=0)
        if number % 20 == 19:
            assert producer.flush(20) == 0
    producer.produce(topic, None, b"k3", partition=0)
    assert producer.flush(20) == 0

    def left() -> list[tuple[int, bytes | None, bytes | None]]:
        for number in range(200):  # the segment with the last updates is closed, and what comes is not one of them
            producer.produce(topic, b"." * 30, b"filler%d" % (number % 3), partition=0)
            if number % 20 == 19:  # or all of them come as one batch, and the segment with it is not closed
                assert producer.flush(20) == 0
        consumer = Consumer(
            {"bootstrap.servers": compacting.bootstrap, "group.id": "left", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[int, bytes | None, bytes | None]] = []
        while (message := consumer.poll(20)) is not None and message.error() is None:
            key, value, offset = message.key(), message.value(), message.offset()
            if key is not None and offset is not None and not key.startswith(b"filler"):
                found.append((offset, key, value))
        consumer.close()
        return found

    expected = [(number, b"k%d" % (number * 7 % 10), b"%d" % number) for number in range(990, 1000)]
    expected = [item for item in expected if item[1] != b"k3"]
    eventually(lambda: left() == expected, timeout_s=120, pause_s=1.0)


def test_the_offsets_of_groups_stay_in_bounded_space() -> None:
    """`__consumer_offsets` is compacted from the first day: thousands of commits leave a few records, and a new
    coordinator has the last ones."""
    settings = SETTINGS | {"offsets.topic.num.partitions": "1", "offsets.topic.segment.bytes": "8192"}
    with DevCluster(settings=settings) as cluster:
        make_topic(cluster, "read")
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False})
        for number in range(600):
            consumer.commit(offsets=[TopicPartition("read", 0, number)], asynchronous=False)
        consumer.close()
        wait_compacted(cluster, "__consumer_offsets", 300)
        for node in cluster.node_ids:
            cluster.kill(node)
        for node in cluster.node_ids:
            cluster.start_node(node, wait=False)
        cluster.wait_ready()

        def committed() -> bool:
            with Admin(cluster.bootstrap) as admin:
                [found] = admin.list_group_offsets("g").values()
            return found is not None and found.offset == 599

        eventually(committed)
