"""Every kind of record through the source and the sink, without Spark's JVM: nulls, empty bytes, headers, times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from strandline.client import Admin, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import ConfigError
from tests.acceptance.raw import produce_with_header_names
from tests.acceptance.topics import create, drain

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType  # noqa: E402

from strandline.spark.arrow import TIMESTAMP_MS_MAX, TimeOutOfRange  # noqa: E402
from strandline.spark.ledger import TaskKey  # noqa: E402
from strandline.spark.options import parse_options  # noqa: E402
from strandline.spark.sink import SinkError, write_rows  # noqa: E402
from strandline.spark.sink_options import check_columns, parse_sink_options  # noqa: E402
from strandline.spark.stream_source import StreamReader  # noqa: E402
from tests.spark.test_stream_reader import SCHEMA  # noqa: E402

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

RECORDS: list[Record] = [
    (None, None, []),
    (b"", b"", [("", b"")]),
    (b"key", None, [("name", None), ("name", b"twice"), ("name", None)]),
    (None, b"value", [("größe", bytes(range(256)))]),
    (bytes(1000), bytes(300_000), [("large", bytes(70_000))] * 3),
    (b"\xff\xfe", b"\x00", []),
]

PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
WITH_HEADERS = StructType([*SCHEMA.fields, StructField("headers", ArrayType(PAIR))])


def everything(
    cluster: DevCluster, topic: str, before_it_is_read: Callable[[], None] = lambda: None, **more: object
) -> Any:
    """All of a topic, as one Arrow table with the columns of a read with headers."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    given |= {"includeHeaders": "true"} | {key: str(value) for key, value in more.items()}
    source = StreamReader(parse_options(given, streaming=True), WITH_HEADERS)
    try:
        start = source.initialOffset()
        end = source.latestOffset(start, ReadAllAvailable())
        before_it_is_read()
        parts = source.partitions(start, end)
        return pa.Table.from_batches([batch for part in parts for batch in source.read(part)])
    finally:
        source.stop()


def test_what_was_sent_is_read_and_written_again(cluster: DevCluster) -> None:
    for topic in ("kinds-in", "kinds-out"):
        create(cluster.bootstrap, topic, 1, 3)
    with Producer(cluster.bootstrap) as producer:
        for key, value, headers in RECORDS:
            producer.send("kinds-in", value, key=key, headers=headers, partition=0)
    read = everything(cluster, "kinds-in")
    rows = read.to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(key, value) for key, value, _ in RECORDS]
    assert [
        None if row["headers"] is None else [(pair["key"], pair["value"]) for pair in row["headers"]] for row in rows
    ] == [headers or None for _, _, headers in RECORDS]
    options = parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": "kinds-out"})
    write_rows(options, TaskKey("query-kinds", 0, 0), iter(read.to_batches()))
    assert [(r.key, r.value, list(r.headers)) for r in drain(cluster.bootstrap, "kinds-out", 1)] == RECORDS


def test_header_names_of_any_bytes_are_read(cluster: DevCluster) -> None:
    """As every reader of Apache Kafka has them: U+FFFD for what is no UTF-8."""
    create(cluster.bootstrap, "kinds-names", 1, 3)
    with Admin(cluster.bootstrap) as admin:
        leader = admin.describe_topics(["kinds-names"])[0].partitions[0].leader
    assert leader is not None
    produce_with_header_names(cluster.client(leader), "kinds-names", [b"plain", b"caf\xe9", b"\xff"], b"odd")
    [row] = everything(cluster, "kinds-names").to_pylist()
    assert [pair["key"] for pair in row["headers"]] == ["plain", "caf\ufffd", "\ufffd"]


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
def test_columns_of_any_width_are_written(cluster: DevCluster, kind: str) -> None:
    """spark.sql.execution.arrow.useLargeVarTypes hands the wide ones to a sink."""
    topic = f"kinds-{kind}".replace("_", "-")
    create(cluster.bootstrap, topic, 1, 3)
    column = pa.array(["größe", None, ""], pa.string()).cast(getattr(pa, kind)())
    batch = pa.RecordBatch.from_pydict({"KEY": column, "Value": column, "other": column})
    options = parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic})
    write_rows(options, TaskKey(f"query-{kind}", 0, 0), iter([batch]))
    expected = ["größe".encode(), None, b""]
    assert [(record.key, record.value) for record in drain(cluster.bootstrap, topic, 1)] == [(v, v) for v in expected]


def test_times_are_the_producers_or_the_brokers(cluster: DevCluster) -> None:
    create(cluster.bootstrap, "kinds-created", 1, 3)
    create(cluster.bootstrap, "kinds-appended", 1, 3, configs={"message.timestamp.type": "LogAppendTime"})
    before_us = time.time_ns() // 1_000_000 * 1000
    with Producer(cluster.bootstrap) as producer:
        for topic in ("kinds-created", "kinds-appended"):
            for time_ms in (0, 1, 1_700_000_000_123):
                producer.send(topic, b"x", timestamp_ms=time_ms, partition=0)
    created, appended = everything(cluster, "kinds-created"), everything(cluster, "kinds-appended")
    assert created["timestamp"].cast(pa.int64()).to_pylist() == [0, 1000, 1_700_000_000_123_000]
    assert set(created["timestampType"].to_pylist()) == {0}
    assert set(appended["timestampType"].to_pylist()) == {1}
    assert min(appended["timestamp"].cast(pa.int64()).to_pylist()) >= before_us


def test_a_time_that_spark_cannot_hold_names_its_record(cluster: DevCluster) -> None:
    """Any producer can send one. Arrow's own words name no record; and a batch behind it goes on."""
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    create(cluster.bootstrap, "kinds-far", 1, 3, configs=any_time)
    with Producer(cluster.bootstrap) as producer:
        for time_ms in (5, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX + 1, 6):
            producer.send("kinds-far", b"x", timestamp_ms=time_ms, partition=0)
    with pytest.raises(TimeOutOfRange, match=f"kinds-far-0, offset 2: .*{TIMESTAMP_MS_MAX + 1} ms.*begins at offset 3"):
        everything(cluster, "kinds-far")
    behind = everything(cluster, "kinds-far", startingOffsets=json.dumps({"kinds-far": {"0": 3}}))
    assert behind["offset"].to_pylist() == [3]

    def trim() -> None:
        with Admin(cluster.bootstrap) as admin:
            admin.delete_records({("kinds-far", 0): 3})

    assert everything(cluster, "kinds-far", trim, failOnDataLoss="false")["offset"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("value", IntegerType()), ("key", LongType()), ("topic", BinaryType()), ("partition", LongType())],
)
def test_columns_of_other_types_are_refused(name: str, kind: Any) -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    fields = {"value": BinaryType()} | {name: kind}
    with pytest.raises(ConfigError, match=f"column {name}"):
        check_columns(StructType([StructField(each, fields[each]) for each in fields]), options)


def test_a_row_of_a_partition_that_is_not_there_is_refused(cluster: DevCluster) -> None:
    create(cluster.bootstrap, "kinds-partition", 2, 3)
    options = parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": "kinds-partition"})
    for number in (-1, 2):
        batch = pa.RecordBatch.from_pydict({"value": [b"x"], "partition": pa.array([number], pa.int32())})
        with pytest.raises(SinkError, match="has partitions 0 to 1"):
            write_rows(options, TaskKey("query-partition", 0, 0), iter([batch]))
