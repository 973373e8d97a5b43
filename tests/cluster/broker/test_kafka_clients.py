"""Other people's clients, unmodified, against the listener: librdkafka (confluent-kafka, kcat) and aiokafka."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from kafka_node import KafkaNode, kafka_node

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def run(path: Path, work: Callable[[str], Any]) -> KafkaNode:
    """A node in this loop, and a blocking client beside it."""

    async def main() -> KafkaNode:
        async with kafka_node(path) as node:
            await asyncio.get_running_loop().run_in_executor(None, work, str(node.listener.endpoint))
            return node

    return asyncio.run(main())


def drain(bootstrap: str, partitions: list[TopicPartition], count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign(partitions)
    messages: list[Any] = []
    try:
        while len(messages) < count:
            message = consumer.poll(10)
            assert message is not None, f"{len(messages)} of {count} came"
            assert message.error() is None, message.error()
            messages.append(message)
    finally:
        consumer.close()
    return messages


def test_confluent_idempotent_producer_and_assigned_consumer(tmp_path: Path) -> None:
    """Every record once and in order, for each codec; offsets by time; watermarks."""

    def work(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic("orders", 2, 1, config={"retention.ms": "-1"})]).values():
            future.result(10)
        delivered: list[tuple[int, int]] = []

        def told(error: Any, message: Any) -> None:
            assert error is None, error
            delivered.append((message.partition(), message.offset()))

        for codec in CODECS:
            producer = Producer(
                {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "compression.type": codec}
            )
            for number in range(500):
                value = f"{codec} {number}".encode()
                producer.produce("orders", value, b"key", number % 2, told, timestamp=1_000_000 + number)
            assert producer.flush(20) == 0
        assert len(set(delivered)) == len(delivered) == 2500
        messages = drain(bootstrap, [TopicPartition("orders", one, 0) for one in (0, 1)], 2500)
        for partition in (0, 1):
            values = [one.value().decode() for one in messages if one.partition() == partition]
            assert values == [f"{codec} {number}" for codec in CODECS for number in range(partition, 500, 2)]
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (0, 1250)
        (found,) = consumer.offsets_for_times([TopicPartition("orders", 0, 1_000_003)], timeout=10)
        assert found.offset == 2
        consumer.close()

    node = run(tmp_path, work)
    assert any(software.startswith("confluent-kafka-python") for software, _ in node.listener.stats.software)


def test_confluent_admin(tmp_path: Path) -> None:
    """Create, describe, alter, grow, delete, through any client's admin API."""

    def work(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 2, 1, config={"retention.ms": "60000"})])["t"].result(10)
        with pytest.raises(KafkaException) as taken:
            admin.create_topics([NewTopic("t", 2, 1)])["t"].result(10)
        assert taken.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
        listed = admin.list_topics(timeout=10)
        assert listed.cluster_id == "a-cluster-of-one-node"
        assert len(listed.topics["t"].partitions) == 2
        admin.create_partitions([NewPartitions("t", 5)])["t"].result(10)
        assert len(admin.list_topics("t", timeout=10).topics["t"].partitions) == 5
        resource = ConfigResource("topic", "t")
        (described,) = admin.describe_configs([resource]).values()
        assert described.result(10)["retention.ms"].value == "60000"
        assert [node.id for node in admin.describe_cluster().result(10).nodes] == [1]
        admin.delete_topics(["t"])["t"].result(10)
        assert "t" not in admin.list_topics(timeout=10).topics

    run(tmp_path, work)


def test_confluent_transactions_fail_at_once(tmp_path: Path) -> None:
    """At level 0 of transaction.version the client says so in words and does not try for a minute."""

    def work(bootstrap: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", "logger": quiet()})
        with pytest.raises(KafkaException) as refused:
            producer.init_transactions(20)
        assert refused.value.args[0].fatal()
        assert "has no transactions yet" in str(refused.value)

    run(tmp_path, work)


def quiet() -> Any:
    import logging

    logger = logging.getLogger("tests.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(tmp_path: Path) -> None:
    """List, produce, consume (rows S01, S09)."""

    def kcat(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["kcat", *arguments], input=stdin, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def work(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(10)
        assert 'topic "t" with 3 partitions' in kcat("-b", bootstrap, "-L")
        kcat("-b", bootstrap, "-P", "-t", "t", "-p", "1", "-K:", stdin="".join(f"k{n}:v{n}\n" for n in range(50)))
        read = kcat("-b", bootstrap, "-C", "-t", "t", "-e", "-q", "-f", "%k=%s@%o\n")
        assert read.splitlines() == [f"k{number}=v{number}@{number}" for number in range(50)]
        assert kcat("-b", bootstrap, "-C", "-t", "t", "-p", "1", "-o", "34", "-c", "1", "-q", "-f", "%k") == "k34"

    run(tmp_path, work)


def test_aiokafka(tmp_path: Path) -> None:
    """Pure Python, old versions: ApiVersions 0, Produce 7, Metadata 5; transactions are refused at once."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            bootstrap = str(node.listener.endpoint)
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            await admin.create_topics([AioNewTopic("t", 2, 1)])
            assert len((await admin.describe_topics(["t"]))[0]["partitions"]) == 2
            await admin.close()
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
            await producer.start()
            for number in range(100):
                told = await producer.send_and_wait("t", b"v%d" % number, partition=1)
                assert told.offset == number
            await producer.stop()
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
            await consumer.start()
            consumer.assign([AioTopicPartition("t", 1)])
            values = []
            async with asyncio.timeout(20):
                while len(values) < 100:
                    values.append((await consumer.getone()).value)
            assert values == [b"v%d" % number for number in range(100)]
            await consumer.stop()
            transactional = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="tx")
            try:
                async with asyncio.timeout(20):
                    with pytest.raises(TransactionalIdAuthorizationFailed):
                        await transactional.start()
            finally:
                await transactional.stop()

    asyncio.run(main())
