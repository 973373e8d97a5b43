"""Streaming queries on a real Spark and a real cluster: from topic to topic, each row once (row S105)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from strandline.client import Admin, Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create

T = TypeVar("T")

pytestmark = pytest.mark.timeout(600)  # as in test_batch_read


def make(cluster: DevCluster, *topics: str) -> None:
    for topic in topics:
        create(cluster.responsive, topic, 3, 3)


def fill(bootstrap: str, topic: str, numbers: Sequence[int]) -> None:
    with Producer(bootstrap) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, key=b"k%d" % number)


def copying(spark: Any, bootstrap: str, source: str, target: str, checkpoint: Path, **options: object) -> Any:
    """The query that copies topics to a topic; not started."""
    reader = spark.readStream.format("strandline").option("kafka.bootstrap.servers", bootstrap)
    for key, value in ({"subscribe": source, "startingOffsets": "earliest"} | options).items():
        reader = reader.option(key, str(value))
    writer = patiently(reader.load).writeStream.format("strandline").option("kafka.bootstrap.servers", bootstrap)
    return writer.option("topic", target).option("checkpointLocation", str(checkpoint))


def patiently(act: Callable[[], T]) -> T:
    """Spark gives each of its Python workers ten seconds to come up, and no setting changes that: on a machine that is
    busier than that an action ends with an error, and a query goes on from its checkpoint when it is started again."""
    for _ in range(3):
        try:
            return act()
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
    return act()


def run(query: Any) -> list[dict[str, Any]]:
    """Run a query over what is there; its progress."""
    progress: list[dict[str, Any]] = []

    def once() -> None:
        running = query.trigger(availableNow=True).start()
        try:
            running.awaitTermination()
        finally:
            progress.extend(json.loads(each.json) for each in running.recentProgress)

    patiently(once)
    return progress


def keys(spark: Any, bootstrap: str, topic: str) -> Counter[bytes]:
    def read() -> list[Any]:
        frame = spark.read.format("strandline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        rows: list[Any] = frame.load().select("key").collect()
        return rows

    return Counter(bytes(row.key) for row in patiently(read))


def expected(count: int) -> Counter[bytes]:
    return Counter(b"k%d" % number for number in range(count))


def test_topic_to_topic_each_row_once(spark: Any, cluster: DevCluster, tmp_path: Path) -> None:
    """Limits, a restart from the checkpoint, and an epoch that is repeated because its commit was lost."""
    make(cluster, "stream-in", "stream-out")
    fill(cluster.bootstrap, "stream-in", range(900))
    checkpoint = tmp_path / "checkpoint"
    query = copying(spark, cluster.bootstrap, "stream-in", "stream-out", checkpoint, maxOffsetsPerTrigger=500)
    progress = run(query)
    assert sum(each["numInputRows"] for each in progress) == 900
    assert max(each["numInputRows"] for each in progress) <= 503
    source = progress[-1]["sources"][0]
    assert source["latestOffset"]["topics"] == source["endOffset"]["topics"]
    assert keys(spark, cluster.bootstrap, "stream-out") == expected(900)

    fill(cluster.bootstrap, "stream-in", range(900, 1000))
    last = run(query)[-1]["batchId"]
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    assert sum(each["numInputRows"] for each in run(query)) == 100
    assert keys(spark, cluster.bootstrap, "stream-out") == expected(1000)


def test_who_comes_when_production_has_stopped_misses_nothing(spark: Any, cluster: DevCluster, tmp_path: Path) -> None:
    """Row S69: a group, a batch and a streaming query that begin after the producer has gone read one range."""
    make(cluster, "late-in", "late-out")
    fill(cluster.bootstrap, "late-in", range(300))
    query = copying(spark, cluster.bootstrap, "late-in", "late-out", tmp_path / "checkpoint")
    assert sum(each["numInputRows"] for each in run(query)) == 300
    assert keys(spark, cluster.bootstrap, "late-out") == expected(300), "the streaming query"
    assert keys(spark, cluster.bootstrap, "late-in") == expected(300), "the batch"
    found: Counter[bytes] = Counter()
    with Consumer(cluster.bootstrap, group_id="late", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["late-in"])
        while found.total() < 300:
            found.update(record.key or b"" for record in consumer.poll(10))
    assert found == expected(300)


_DRIVER = """
import sys
from pathlib import Path
from tests.spark.conftest import SETTINGS
from tests.spark.test_streaming import copying, patiently
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]")
for key, value in SETTINGS.items():
    builder = builder.config(key, value)
bootstrap, checkpoint = sys.argv[1:]
query = copying(builder.getOrCreate(), bootstrap, "kill-in", "kill-out", Path(checkpoint), maxOffsetsPerTrigger=300)
patiently(lambda: query.start().awaitTermination())
"""


def test_a_driver_and_then_a_leader_killed(spark: Any, tmp_path: Path) -> None:
    """kill -9 of Spark in mid-stream; a new query goes on, and stays up over a leader's kill: no loss, no duplicate."""
    with DevCluster() as own:
        make(own, "kill-in", "kill-out")
        fill(own.bootstrap, "kill-in", range(3000))
        checkpoint = tmp_path / "checkpoint"
        killed_in_mid_stream([_DRIVER, own.bootstrap, str(checkpoint)], checkpoint, tmp_path / "driver.log")
        query = patiently(lambda: begun(copying(spark, own.bootstrap, "kill-in", "kill-out", checkpoint)))
        try:
            with Admin(own.bootstrap) as admin:
                [described] = admin.describe_topics(["kill-in"])
            leader = described.partitions[0].leader
            assert leader is not None
            own.kill(leader)
            fill(own.responsive, "kill-in", range(3000, 4000))
            query.processAllAvailable()
            assert query.isActive
            assert keys(spark, own.responsive, "kill-out") == expected(4000)
        finally:
            query.stop()


def begun(query: Any) -> Any:
    """The query once it has read something. Raises what it ended with."""
    running = query.start()
    eventually(lambda: not running.isActive or any(each.numInputRows for each in running.recentProgress), 200)
    if not running.isActive:
        running.awaitTermination()
    return running


def killed_in_mid_stream(program: Sequence[str], checkpoint: Path, log_path: Path) -> None:
    """Run a query (a program of Python, then its arguments) in a Spark of its own until its second micro-batch is
    committed; then kill it, workers and all."""
    command = [sys.executable, "-c", *program]
    with log_path.open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(lambda: driver.poll() is not None or (checkpoint / "commits" / "1").exists(), timeout_s=300)
            assert driver.poll() is None, log_path.read_text()[-3000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
