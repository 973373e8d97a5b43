"""Spark reads a real cluster: `spark.read.format("strandline")` in local mode (row S105, batch)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.client import Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.topics import create
from tests.spark.test_streaming import patiently

pytestmark = pytest.mark.timeout(300)  # Spark's own start takes half a minute on a busy machine


@pytest.fixture(scope="module")
def orders(cluster: DevCluster) -> str:
    """Topic of 3 partitions with 900 records: key k<n>, value n, timestamp 1,000,000 + n, every third with headers."""
    create(cluster.bootstrap, "spark-orders", 3, 3, configs={"retention.ms": "-1"})
    create(cluster.bootstrap, "spark-empty", 2, 3)
    with Producer(cluster.bootstrap) as producer:
        for number in range(900):
            producer.send(
                "spark-orders",
                None if number % 10 == 9 else str(number).encode(),
                key=f"k{number}".encode(),
                partition=number % 3,
                timestamp_ms=1_000_000 + number,
                headers=[("n", str(number).encode()), ("none", None)] if number % 3 == 0 else (),
            )
    return "spark-orders"


def read(spark: Any, cluster: DevCluster, **options: object) -> Any:
    reader = spark.read.format("strandline").option("kafka.bootstrap.servers", cluster.bootstrap)
    for key, value in options.items():
        reader = reader.option(key, str(value))
    return patiently(reader.load)


def test_every_column_of_sparks_own_source(spark: Any, cluster: DevCluster, orders: str) -> None:
    frame = read(spark, cluster, subscribe=orders, includeHeaders="true")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = {bytes(row.key): row for row in patiently(frame.collect)}
    assert len(rows) == 900
    for number in range(900):
        row = rows[f"k{number}".encode()]
        assert (row.topic, row.partition, row.offset, row.timestampType) == (orders, number % 3, number // 3, 0)
        assert row.value is None if number % 10 == 9 else bytes(row.value) == str(number).encode()
        assert round(row.timestamp.timestamp() * 1000) == 1_000_000 + number
        headers = None if row.headers is None else [(h.key, h.value and bytes(h.value)) for h in row.headers]
        assert headers == ([("n", str(number).encode()), ("none", None)] if number % 3 == 0 else None)


def test_ranges_split_and_bounded(spark: Any, cluster: DevCluster, orders: str) -> None:
    start, end = json.dumps({orders: {"0": 10, "1": -2, "2": 299}}), json.dumps({orders: {"0": 20, "1": 100, "2": -1}})
    frame = read(spark, cluster, subscribe=orders, startingOffsets=start, endingOffsets=end, minPartitions=8)
    assert patiently(frame.rdd.getNumPartitions) >= 7
    counted = {row.partition: row["count"] for row in patiently(frame.groupBy("partition").count().collect)}
    assert counted == {0: 10, 1: 100, 2: 1}


def test_by_time_and_pattern(spark: Any, cluster: DevCluster, orders: str) -> None:
    frame = read(spark, cluster, subscribePattern="spark-o.*", startingTimestamp=1_000_300, endingTimestamp=1_000_600)
    assert sorted(int(bytes(row.key)[1:]) for row in patiently(frame.select("key").collect)) == list(range(300, 600))


def test_an_empty_topic_has_no_rows(spark: Any, cluster: DevCluster, orders: str) -> None:
    assert patiently(read(spark, cluster, subscribe="spark-empty").count) == 0


def test_sql_over_values(spark: Any, cluster: DevCluster, orders: str) -> None:
    read(spark, cluster, subscribe=orders).selectExpr("CAST(value AS STRING) AS v").createOrReplaceTempView("v")
    summed = patiently(spark.sql("SELECT sum(CAST(v AS BIGINT)) s FROM v").first)
    assert summed.s == sum(n for n in range(900) if n % 10 != 9)


def test_a_batch_is_written_once(spark: Any, cluster: DevCluster, orders: str) -> None:
    create(cluster.bootstrap, "spark-written", 2, 3)
    frame = read(spark, cluster, subscribe=orders, includeHeaders="true").select("key", "value", "headers")
    writer = frame.write.format("strandline").option("kafka.bootstrap.servers", cluster.bootstrap)
    patiently(writer.option("topic", "spark-written").mode("append").save)
    back = read(spark, cluster, subscribe="spark-written", includeHeaders="true").select("key", "value", "headers")
    assert patiently(back.count) == 900
    assert sorted(map(str, patiently(back.collect))) == sorted(map(str, patiently(frame.collect)))
    with pytest.raises(Exception, match="append"):
        writer.option("topic", "spark-written").mode("overwrite").save()


def test_filters_of_a_batch_reach_the_plan(spark: Any, cluster: DevCluster, orders: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, cluster, subscribe=orders, pushFilters="true").where("partition = 1 AND offset >= 290")
        assert patiently(frame.rdd.getNumPartitions) == 1
        assert sorted(row.offset for row in patiently(frame.collect)) == list(range(290, 300))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "nosuch"}, "strandline topic create nosuch"),
        ({"subscribe": "spark-orders", "startingOffset": "earliest"}, "did you mean startingOffsets"),
        (
            {"assign": '{"spark-orders": [0]}', "startingOffsets": '{"spark-orders": {"0": 9999}}'},
            "failOnDataLoss",
        ),
    ],
)
def test_errors_say_what_to_do(
    spark: Any, cluster: DevCluster, orders: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        patiently(read(spark, cluster, **options).count)
