"""The source beside transactions that are open, aborted and committed: batches, streams, and offsets by time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from strandline.client import Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.proto.system import SystemClock
from strandline.spark.options import parse_options
from strandline.spark.source import BatchReader
from tests.spark.test_stream_reader import SCHEMA, reader, values

TIMES = SystemClock().wall_ms() + 600_000
"""Later than the markers' own times, which the search by time sees as it sees records', in Kafka too."""

UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


def batch_values(cluster: DevCluster, topic: str, **more: object) -> list[int]:
    """What a batch read shows."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic} | more
    source = BatchReader(parse_options({key: str(value) for key, value in given.items()}), SCHEMA)
    return sorted(
        int(value.as_py())
        for part in source.partitions()
        for batch in source.read(part)
        for value in batch.column("value")
    )


def write(producer: Producer, topic: str, numbers: range) -> None:
    """Records in two partitions, each with its number as its time; returns once all lie in the log."""
    for number in numbers:
        producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=TIMES + number)
    producer.flush()


@contextmanager
def three_transactions(cluster: DevCluster, topic: str) -> Iterator[Producer]:
    """10 records committed, 10 aborted, 10 committed, and 10 of a transaction that is open."""
    create(cluster.bootstrap, topic, 2, 3, configs={"retention.ms": "-1"})
    with (
        Producer(cluster.bootstrap, transactional_id=f"{topic}-first") as producer,
        Producer(cluster.bootstrap, transactional_id=f"{topic}-open") as opened,
    ):
        for first, ends in ((0, producer.commit_transaction), (10, producer.abort_transaction)):
            producer.begin_transaction()
            write(producer, topic, range(first, first + 10))
            ends()
        with producer.transaction():
            write(producer, topic, range(20, 30))
        opened.begin_transaction()
        write(opened, topic, range(30, 40))
        yield opened


def test_what_is_read_is_committed(cluster: DevCluster) -> None:
    """Unless the option of Spark's own source says otherwise, in whatever spelling the client takes it."""
    seen = [*range(10), *range(20, 30)]
    topic = "spark-committed"
    with three_transactions(cluster, topic) as opened:
        assert batch_values(cluster, topic) == seen
        assert batch_values(cluster, topic, minPartitions=7) == seen
        assert batch_values(cluster, topic, **UNCOMMITTED) == list(range(40))
        assert batch_values(cluster, topic, **{"kafka.isolation_level": "read_uncommitted"}) == list(range(40))
        stream, every = reader(cluster, subscribe=topic), reader(cluster, subscribe=topic, **UNCOMMITTED)
        try:
            start = stream.initialOffset()
            first = stream.latestOffset(start, ReadAllAvailable())
            assert values(stream, start, first) == seen
            assert values(every, start, every.latestOffset(start, ReadAllAvailable())) == list(range(40))
            assert stream.latestOffset(first, ReadAllAvailable()) is first, "an open transaction is not waited for"
            opened.commit_transaction()

            def both_have_ended() -> dict[str, Any] | None:
                found = stream.latestOffset(first, ReadAllAvailable())
                return found if found["topics"][topic]["offsets"] == {"0": 24, "1": 24} else None

            second = eventually(both_have_ended)
            assert values(stream, first, second) == list(range(30, 40))
        finally:
            stream.stop()
            every.stop()


def test_times_lead_to_committed_records_alone(cluster: DevCluster) -> None:
    """A time within an open transaction is past the last record that may be read."""
    topic = "spark-committed-by-time"
    with three_transactions(cluster, topic):
        assert batch_values(cluster, topic, startingTimestamp=TIMES + 15, endingTimestamp=TIMES + 26) == list(
            range(20, 26)
        )
        assert batch_values(cluster, topic, startingTimestamp=TIMES + 5, endingTimestamp=TIMES + 35) == [
            *range(5, 10),
            *range(20, 30),
        ]
        late = {"startingTimestamp": TIMES + 34, "startingOffsetsByTimestampStrategy": "latest"}
        assert batch_values(cluster, topic, **late) == []
        assert batch_values(cluster, topic, **late, **UNCOMMITTED) == list(range(34, 40))
        assert batch_values(cluster, topic, startingOffsets=json.dumps({topic: {"0": 5, "1": 5}})) == list(
            range(20, 30)
        )
        start = reader(cluster, subscribe=topic, startingOffsets="latest")
        try:
            [first] = {json.dumps(start.initialOffset()["topics"][topic]["offsets"])}
        finally:
            start.stop()
        assert json.loads(first) == {"0": 18, "1": 18}, "behind three markers, before the open transaction"
