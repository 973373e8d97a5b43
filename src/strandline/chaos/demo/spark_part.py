"""Spark part of the demo: it counts the same topic, and copies it by a streaming query that survives the loss of a
leader."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from strandline.chaos.demo.checks import CheckFailed
from strandline.chaos.demo.dataset import Flights
from strandline.client import Admin
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ports import Clock

STREAM_S = 300.0
"""Seconds that the streaming query may take for all rows."""

JAVA_PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")


@dataclass(frozen=True)
class SparkResult:
    """Counts that Spark found, and how fast."""

    rows: int
    departures_by_carrier: dict[str, int]
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Rows of the scan that groups by carrier; Spark is warm by then."""
        return self.rows / self.seconds


@dataclass(frozen=True)
class StreamResult:
    """Work of the streaming query."""

    killed: int
    """The node that was killed while it ran."""
    rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Rows from topic to topic, the kill included."""
        return self.rows / self.seconds


def install_java() -> None:
    """Install Java from Debian's packages where PySpark is and no Java, if this user may."""
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") or os.environ.get("JAVA_HOME"):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    quiet: dict[str, Any] = {
        "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
    }  # fmt: skip
    subprocess.run(["apt-get", "update", "-qq"], check=False, **quiet)
    for package in JAVA_PACKAGES:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(command, check=False, **quiet).returncode == 0 and shutil.which("java"):
            return


def count_with_spark(spark: Any, bootstrap: str, topic: str, clock: Clock) -> SparkResult:
    """Count the rows, and the departures by carrier."""
    from pyspark.sql import functions as f

    flights = (
        spark.read.format("strandline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    )
    rows = flights.count()  # the first scan also starts Spark's Python workers
    fields = flights.select(f.from_json(f.col("value").cast("string"), "carrier STRING, dep_time STRING").alias("f"))
    departed = fields.where((f.col("f.dep_time") != "") & (f.col("f.dep_time") != "NA"))
    began_ms = clock.monotonic_ms()
    counted = departed.groupBy("f.carrier").count().collect()
    seconds = (clock.monotonic_ms() - began_ms) / 1000
    return SparkResult(rows, dict(sorted((row["carrier"], row["count"]) for row in counted)), seconds)


def copy_with_stream(spark: Any, cluster: DevCluster, topics: tuple[str, str], rows: int, clock: Clock) -> StreamResult:
    """A streaming query copies one topic to another; between its micro-batches the leader of partition 0 is killed.

    Args:
        topics: from where to where.
        rows: how many the query must have read before it is stopped.
    """
    source, target = topics
    stream = (
        spark.readStream.format("strandline")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(1, rows // 6))
        .load()
    )
    began_ms = clock.monotonic_ms()
    with tempfile.TemporaryDirectory(prefix="strandline-demo-spark-") as checkpoint:
        query = (
            stream.select("key", "value")
            .writeStream.format("strandline")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            _wait_for_rows(query, 1, clock)
            with Admin(cluster.responsive) as admin:
                leader = admin.describe_topics([source])[0].partitions[0].leader
            if leader is None:
                raise CheckFailed(f"partition 0 of {source} has no leader")
            cluster.kill(leader)
            _wait_for_rows(query, rows, clock)
            query.processAllAvailable()
            seconds = (clock.monotonic_ms() - began_ms) / 1000
            read = sum(progress.numInputRows for progress in query.recentProgress)
        finally:
            query.stop()
    cluster.start_node(leader)
    return StreamResult(leader, read, seconds)


def _wait_for_rows(query: Any, rows: int, clock: Clock) -> None:
    """Return once the query has read `rows` rows. Raises the query's error, if it failed."""
    give_up_ms = clock.monotonic_ms() + STREAM_S * 1000
    while sum(progress.numInputRows for progress in query.recentProgress) < rows:
        if query.awaitTermination(timeout=0.2):
            raise CheckFailed("the streaming query has ended by itself")
        if clock.monotonic_ms() > give_up_ms:
            raise CheckFailed(f"the streaming query has not read {rows:,} rows within {STREAM_S:.0f} s")


def check_stream(result: StreamResult, copied: SparkResult, flights: Flights) -> str:
    """Check that the query read every row once, and that its output equals the CSV."""
    if result.rows != len(flights.values):
        raise CheckFailed(f"the query read {result.rows:,} rows, the CSV has {len(flights.values):,}")
    check_spark(copied, flights)
    return f"{copied.rows:,} rows copied once by a query that stayed up while node {result.killed} was killed"


def check_spark(result: SparkResult, flights: Flights) -> str:
    """Spark's numbers equal those of the CSV."""
    if result.rows != len(flights.values):
        raise CheckFailed(f"Spark counts {result.rows:,} rows, the CSV has {len(flights.values):,}")
    if result.departures_by_carrier != flights.departures_by_carrier:
        raise CheckFailed(f"departures by carrier differ: {result.departures_by_carrier}")
    return f"{result.rows:,} rows and {len(result.departures_by_carrier)} carriers, equal to the CSV"
