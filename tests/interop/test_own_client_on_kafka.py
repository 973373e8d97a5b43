"""Our client's transactions and its reading of them against Apache Kafka, started here where its jars can be had."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.client import Admin, Consumer, NewTopic
from strandline.client.range_reader import RangeReader
from strandline.proto.ids import TopicPartition
from tests.acceptance.foreign import apache_kafka
from tests.acceptance.helpers import eventually

pytestmark = pytest.mark.timeout(400)

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with apache_kafka() as bootstrap:
        yield bootstrap


def topic_of(kafka: str, partitions: int = 1) -> str:
    """A new topic, once every broker knows it: Kafka answers a creation before that."""
    name = f"own-{os.getpid()}-{next(_numbers)}"
    with Admin(kafka) as admin:
        admin.create_topics([NewTopic(name, partitions, -1)])
    for broker in kafka.split(","):
        with Admin(broker) as admin:
            eventually(lambda admin=admin: name in admin.list_topics())
    return name


def by_librdkafka(kafka: str, topic: str, name: str, values: range) -> Any:
    """An open transaction of another client, everything of it acknowledged."""
    from confluent_kafka import Producer as Transactional

    producer = Transactional({"bootstrap.servers": kafka, "transactional.id": f"{topic}-{name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in values:
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush(30)
    return producer


def read_all(kafka: str, topic: str, level: str, way: str) -> list[int]:
    """What a consumer gets up to where it has nothing more to expect."""
    item = TopicPartition(topic, 0)
    found: list[int] = []
    with Consumer(kafka, isolation_level=level, auto_offset_reset="earliest") as consumer:
        consumer.assign([item])
        while consumer.lag()[item]:
            if way == "poll":
                found += [int(record.value) for record in consumer.poll(1.0, 7)]
            else:
                found += map(int, consumer.poll_columns(1.0, 7).to_arrow()["value"].to_pylist())
    return found


@pytest.mark.parametrize("way", ["poll", "columns"])
def test_committed_records_alone_are_read(kafka: str, way: str) -> None:
    """Of transactions that lie across each other: the aborted one is left out, and the open one ends what is read."""
    topic = topic_of(kafka)
    committed = by_librdkafka(kafka, topic, "committed", range(10))
    aborted = by_librdkafka(kafka, topic, "aborted", range(10, 20))
    still_open = by_librdkafka(kafka, topic, "open", range(20, 30))
    committed.commit_transaction(30)
    aborted.abort_transaction(30)
    assert read_all(kafka, topic, "read_committed", way) == list(range(10))
    assert read_all(kafka, topic, "read_uncommitted", way) == list(range(30))
    still_open.commit_transaction(30)
    assert read_all(kafka, topic, "read_committed", way) == [*range(10), *range(20, 30)]


def test_offsets_ranges_and_times_are_those_of_committed_records(kafka: str) -> None:
    """Ends are the last stable offset; no time is found in an open transaction; a range leaves aborted records out."""
    topic = topic_of(kafka)
    item = TopicPartition(topic, 0)
    by_librdkafka(kafka, topic, "aborted", range(5)).abort_transaction(30)
    by_librdkafka(kafka, topic, "committed", range(5, 10)).commit_transaction(30)
    still_open = by_librdkafka(kafka, topic, "open", range(10, 15))
    with Consumer(kafka, isolation_level="read_committed") as consumer:
        assert consumer.end_offsets([item]) == {item: 12}
        consumer.assign([item])
        consumer.seek(item, 12)
        assert consumer.poll(1.0) == []
        with Admin(kafka) as admin:
            newest_ms = admin.list_offsets({item: -3})[item].timestamp_ms
        assert consumer.offsets_for_times({item: newest_ms}) == {item: None}
        still_open.commit_transaction(30)
        assert [int(record.value) for record in consumer.poll(30.0)] == list(range(10, 15))
    with RangeReader(kafka, isolation_level="read_committed") as reader:
        assert [int(record.value) for record in reader.read_records(topic, 0, 0, 18)] == list(range(5, 15))
