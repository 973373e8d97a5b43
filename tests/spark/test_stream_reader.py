"""The streaming source against a real cluster, without Spark's JVM: faults between a plan and its reading."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from strandline.client import Admin, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import wait_gone, wait_led
from tests.acceptance.topics import create

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandline.spark.options import parse_options
from strandline.spark.planner import DataLossError
from strandline.spark.stream_source import StreamReader

TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
SCHEMA = StructType([StructField(name, kind) for name, kind in TYPES.items()])


def reader(cluster: DevCluster, **options: object) -> StreamReader:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "startingOffsets": "earliest"} | options
    parsed = parse_options({key: str(value) for key, value in given.items()}, streaming=True)
    return StreamReader(parsed, SCHEMA)


def fill(cluster: DevCluster, topic: str, numbers: range, partition: int | None = None) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, str(number).encode(), partition=number % 2 if partition is None else partition)


def make(cluster: DevCluster, topic: str) -> None:
    create(cluster.bootstrap, topic, 2, 3)


def values(source: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """What the tasks of one batch read, each on a copy of the reader as Spark sends it to the executors."""
    task = pickle.loads(pickle.dumps(source))
    return sorted(
        int(value.as_py())
        for partition in source.partitions(start, end)
        for batch in task.read(partition)
        for value in batch.column("value")
    )


def test_a_query_meets_new_partitions_and_new_topics(cluster: DevCluster) -> None:
    make(cluster, "reader-grow-1")
    fill(cluster, "reader-grow-1", range(100))
    source = reader(cluster, subscribePattern="reader-grow-.*", minPartitions=5)
    try:
        start = source.initialOffset()
        first = source.latestOffset(start, ReadAllAvailable())
        assert len(source.partitions(start, first)) >= 5
        assert values(source, start, first) == list(range(100))
        assert source.latestOffset(first, ReadAllAvailable()) is first
        make(cluster, "reader-grow-2")
        with Admin(cluster.bootstrap) as admin:
            admin.create_partitions({"reader-grow-1": 3})
        wait_led(cluster.bootstrap, "reader-grow-1", lambda parts: len(parts) == 3)
        fill(cluster, "reader-grow-1", range(100, 120), partition=2)
        fill(cluster, "reader-grow-2", range(120, 140))
        second = source.latestOffset(first, ReadAllAvailable())
        assert values(source, first, second) == list(range(100, 140))
        lag = {"reader-grow-1": {"0": 0, "1": 0, "2": 0}, "reader-grow-2": {"0": 0, "1": 0}}
        assert second["tasks"] == {"count": len(source.partitions(first, second)), "minPartitions": 5}
        del second["tasks"]
        assert source.reportLatestOffset() == second | {"lag": lag}
    finally:
        source.stop()


def test_a_topic_created_anew_is_not_read_under_old_offsets(cluster: DevCluster) -> None:
    """The new topic is longer than the old one: by offsets alone nothing would be noticed."""
    make(cluster, "reader-anew")
    fill(cluster, "reader-anew", range(40))
    source = reader(cluster, subscribe="reader-anew")
    lenient = reader(cluster, subscribe="reader-anew", failOnDataLoss="false")
    try:
        start = source.initialOffset()
        first = source.latestOffset(start, ReadAllAvailable())
        tasks = source.partitions(start, first)
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topics(["reader-anew"])
        wait_gone(cluster.bootstrap, "reader-anew")
        make(cluster, "reader-anew")
        fill(cluster, "reader-anew", range(1000, 1100))
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            list(pickle.loads(pickle.dumps(source)).read(tasks[0]))
        assert list(pickle.loads(pickle.dumps(lenient)).read(tasks[0])) == []
        with pytest.raises(DataLossError):
            source.latestOffset(first, ReadAllAvailable())
        second = lenient.latestOffset(first, ReadAllAvailable())
        assert values(lenient, first, second) == list(range(1000, 1100))
    finally:
        source.stop()
        lenient.stop()


def test_records_deleted_past_the_offset(cluster: DevCluster) -> None:
    """DeleteRecords under a query: the loss is told with its figures, or what is left is read; then it goes on."""
    make(cluster, "reader-trim")
    fill(cluster, "reader-trim", range(100))
    source = reader(cluster, subscribe="reader-trim")
    lenient = reader(cluster, subscribe="reader-trim", failOnDataLoss="false")
    try:
        start = source.initialOffset()
        first = source.latestOffset(start, ReadAllAvailable())
        tasks = source.partitions(start, first)
        with Admin(cluster.bootstrap) as admin:
            admin.delete_records({("reader-trim", 0): 20})
        with pytest.raises(DataLossError, match=r"offset 0 .* holds \[20, 50\).*failOnDataLoss=false"):
            source.partitions(start, first)
        with pytest.raises(DataLossError):  # between the plan and the task
            list(pickle.loads(pickle.dumps(source)).read(tasks[0]))
        left = [number for number in range(100) if number % 2 or number >= 40]
        assert values(lenient, start, first) == left
        fill(cluster, "reader-trim", range(100, 110))
        for each in (source, lenient):  # what was read before is no loss
            assert values(each, first, each.latestOffset(first, ReadAllAvailable())) == list(range(100, 110))
    finally:
        source.stop()
        lenient.stop()


def test_a_topic_deleted_under_a_query(cluster: DevCluster) -> None:
    make(cluster, "reader-gone-1")
    make(cluster, "reader-gone-2")
    fill(cluster, "reader-gone-1", range(20))
    fill(cluster, "reader-gone-2", range(100, 120))
    source = reader(cluster, subscribePattern="reader-gone-.*")
    lenient = reader(cluster, subscribePattern="reader-gone-.*", failOnDataLoss="false")
    try:
        start = source.initialOffset()
        first = source.latestOffset(start, ReadAllAvailable())
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topics(["reader-gone-1"])
        wait_gone(cluster.bootstrap, "reader-gone-1")
        fill(cluster, "reader-gone-2", range(120, 130))
        with pytest.raises(DataLossError, match="reader-gone-1"):
            source.latestOffset(first, ReadAllAvailable())
        with pytest.raises(DataLossError, match="reader-gone-1"):
            source.partitions(start, first)
        assert values(lenient, start, first) == list(range(100, 120))
        assert values(lenient, first, lenient.latestOffset(first, ReadAllAvailable())) == list(range(120, 130))
    finally:
        source.stop()
        lenient.stop()


def test_limits_of_rows_and_bytes_end_and_lose_nothing(cluster: DevCluster) -> None:
    make(cluster, "reader-limits")
    fill(cluster, "reader-limits", range(1000))
    for options, limit in (
        ({"maxOffsetsPerTrigger": 300, "kafka.isolation.level": "read_committed"}, ReadMaxRows(300)),
        ({"maxBytesPerTrigger": 3000}, ReadMaxBytes(3000)),
    ):
        source = reader(cluster, subscribe="reader-limits", **options)
        try:
            assert source.getDefaultReadLimit() == limit
            source.prepareForTriggerAvailableNow()
            offset, seen, batches = source.initialOffset(), [], 0
            while (end := source.latestOffset(offset, limit)) is not offset:
                seen += values(source, offset, end)
                offset, batches = end, batches + 1
            assert sorted(seen) == list(range(1000))
            assert 4 <= batches < 40
        finally:
            source.stop()
