"""The same topic counted by Spark, through `spark.read.format("strandline")`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from strandline.chaos.demo.checks import CheckFailed
from strandline.chaos.demo.dataset import Flights
from strandline.proto.ports import Clock

LOOPBACK = "127.0.0.1"
JAVA_PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")


class SparkMissing(Exception):
    """Spark cannot run here; the message says what to install."""


@dataclass(frozen=True)
class SparkResult:
    """What Spark found, and how fast."""

    rows: int
    departures_by_carrier: dict[str, int]
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Rows of the scan that groups by carrier; Spark is warm by then."""
        return self.rows / self.seconds


def ensure_spark() -> None:
    """Make sure that PySpark and a Java are here; Java is installed from Debian's packages where this user may.

    Raises:
        SparkMissing: says what to install.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed: pip install 'strandline[spark]'")
    if shutil.which("java") or os.environ.get("JAVA_HOME"):
        return
    advice = f"Java is not installed: apt-get install {JAVA_PACKAGES[0]} (any Java 17 or 21)"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SparkMissing(advice)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False, stdout=subprocess.DEVNULL)
    for package in JAVA_PACKAGES:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        done = subprocess.run(
            command, env=environment, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if done.returncode == 0 and shutil.which("java"):
            return
    raise SparkMissing(advice)


def count_with_spark(bootstrap: str, topic: str, clock: Clock) -> SparkResult:
    """Count the rows, and the departures by carrier."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    settings = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("strandline demo")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        flights = (
            spark.read.format("strandline")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .load()
        )
        rows = flights.count()  # the first scan also starts Spark's Python workers
        fields = flights.select(
            f.from_json(f.col("value").cast("string"), "carrier STRING, dep_time STRING").alias("f")
        )
        departed = fields.where((f.col("f.dep_time") != "") & (f.col("f.dep_time") != "NA"))
        began_ms = clock.monotonic_ms()
        counted = departed.groupBy("f.carrier").count().collect()
        seconds = (clock.monotonic_ms() - began_ms) / 1000
        return SparkResult(rows, dict(sorted((row["carrier"], row["count"]) for row in counted)), seconds)
    finally:
        spark.stop()


def check_spark(result: SparkResult, flights: Flights) -> str:
    """Spark's numbers equal those of the CSV."""
    if result.rows != len(flights.values):
        raise CheckFailed(f"Spark counts {result.rows:,} rows, the CSV has {len(flights.values):,}")
    if result.departures_by_carrier != flights.departures_by_carrier:
        raise CheckFailed(f"departures by carrier differ: {result.departures_by_carrier}")
    return f"{result.rows:,} rows and {len(result.departures_by_carrier)} carriers, equal to the CSV"
