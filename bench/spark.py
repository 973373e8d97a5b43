"""How fast Spark reads: this project's source beside Spark's own Kafka source, on the same topics of the same cluster.

    python -m bench --only spark --scale 0.3 --repeat 3

Each source has a Spark of its own (local[2], the PySpark that is installed); Spark's own connector comes from Maven
Central as `--packages` gets it, in PySpark's version if that is published, else in the newest before. Rows are read
whole and thrown away (Spark's `noop` sink): as a batch, and as a stream with Trigger.AvailableNow, each from the start
of the query to its end. A few reads warm the JVM and the Python workers up; of the others the median counts. What
a query costs without rows stands beside it: the same reads of a nearly empty topic.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.clusters import Cluster, Unavailable
from bench.measures import PARTITIONS, Results, create_topic, producer_settings

SIZES = {100: 3_000_000, 1000: 500_000}
"""Bytes of a value, and how many records."""

READS = ("batch", "stream")
ROUNDS = 3
BUDGET_S = 120
"""No further round of one source begins after this."""

OURS, THEIRS = "strandline", "kafka"
"""Spark's names of the two sources."""

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
NEWEST_CONNECTOR = "4.2.0"
"""Used where there is none of PySpark's own version."""

_SMALL = 1000
"""Records of the nearly empty topic."""


def spark_reads(cluster: Cluster, results: Results, scale: float, say: Callable[[str], None]) -> None:
    """Rows and MB a second of both sources, and ours over Spark's own.

    Raises:
        Unavailable: there is no Spark here at all. Without its connector, only this project's source is measured.
    """
    version = _pyspark_version()
    say("filling topics for Spark")
    counts = {size: int(count * scale) for size, count in SIZES.items()}
    for size, count in {0: _SMALL, **counts}.items():
        fill(cluster.bootstrap, topic_of(size), size, count)
    rates: dict[tuple[str, str, int], float] = {}
    for source, packages in {
        OURS: [""],
        THEIRS: [f"{CONNECTOR}:{each}" for each in dict.fromkeys((version, NEWEST_CONNECTOR))],
    }.items():
        say(f"Spark {version} reads with format({source!r})")
        try:
            seconds = _with_one_of(packages, source, cluster.bootstrap, counts)
        except Unavailable as reason:
            say(f"left out: {reason}")
            continue
        for how in READS:
            results.add(f"Spark {how} without rows, format {source}, s", statistics.median(seconds[f"{how} 0"]))
        for size, count in counts.items():
            for how in READS:
                rate = count / statistics.median(seconds[f"{how} {size}"])
                rates[source, how, size] = rate
                results.add(f"Spark {how} {size} B, format {source}, rows/s", rate)
                results.add(f"Spark {how} {size} B, format {source}, MB/s", rate * size / 1e6)
    for (source, how, size), rate in rates.items():
        if source == OURS and (THEIRS, how, size) in rates:
            results.add(f"Spark {how} {size} B, {OURS} over {THEIRS}", rate / rates[THEIRS, how, size])


def topic_of(size: int) -> str:
    """The topic with values of this size; of size 0 it is nearly empty."""
    return f"spark-{size}"


def fill(bootstrap: str, topic: str, size: int, count: int) -> None:
    """Create a topic with so many records of random bytes, in batches as a busy producer makes them."""
    from confluent_kafka import Producer

    create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer(producer_settings(bootstrap, **{"linger.ms": 20, "batch.size": 131_072}))
    values = [os.urandom(size) for _ in range(1000)]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, values[number % 1000], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise TimeoutError(f"{topic} was not filled within 120 s")


def _pyspark_version() -> str:
    """PySpark's version. Raises Unavailable."""
    if shutil.which("java") is None:
        raise Unavailable("Spark needs Java, which is not installed")
    try:
        import pyspark
    except ImportError:
        raise Unavailable("PySpark is not installed: pip install 'strandline[spark]'") from None
    return str(pyspark.__version__)


def _with_one_of(packages: list[str], source: str, bootstrap: str, counts: dict[int, int]) -> dict[str, list[float]]:
    """`read_all` in a process with a Spark of its own, with the first of the packages that can be had.

    Raises:
        Unavailable: none of them.
    """
    for package in packages:
        told = {"source": source, "bootstrap": bootstrap, "package": package, "counts": [*counts.items()]}
        done = subprocess.run(
            [sys.executable, "-m", "bench.spark", json.dumps(told)],
            check=False,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
            timeout=900,
        )
        if not done.returncode:
            seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
            return seconds
        if not package or "unresolved dependenc" not in (done.stdout + done.stderr).lower():
            raise RuntimeError(f"reading with format({source!r}) failed:\n{done.stderr[-3000:]}")
    raise Unavailable(f"Spark's own source, {packages[-1]}, cannot be had from Maven Central")


def read_all(source: str, bootstrap: str, package: str, counts: list[tuple[int, int]]) -> dict[str, list[float]]:
    """Seconds of each read, as "batch 100". Raises ValueError: a read did not see every row."""
    spark = _session(package)

    def load(reader: Any, size: int) -> Any:
        named = reader.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic_of(size))
        return named.option("startingOffsets", "earliest").load()

    def batch(size: int) -> None:
        load(spark.read, size).write.format("noop").mode("overwrite").save()

    def stream(size: int) -> int:
        with tempfile.TemporaryDirectory(prefix="strandline-bench-spark-") as checkpoint:
            writer = load(spark.readStream, size).writeStream.format("noop")
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            return sum(progress.numInputRows for progress in query.recentProgress)

    batch(0)
    stream(0)
    for size, count in counts:
        if (found := load(spark.read, size).count()) != count:
            raise ValueError(f"a batch of {source} has {found} of {count} rows")
    sizes = {0: _SMALL, **dict(counts)}
    seconds: dict[str, list[float]] = {f"{how} {size}": [] for size in sizes for how in READS}
    began = time.perf_counter()
    for number in range(ROUNDS):
        if number and time.perf_counter() - began > BUDGET_S:
            break
        for size, count in sizes.items():
            at = time.perf_counter()
            batch(size)
            between = time.perf_counter()
            found = stream(size)
            seconds[f"stream {size}"].append(time.perf_counter() - between)
            seconds[f"batch {size}"].append(between - at)
            if found != count:
                raise ValueError(f"a stream of {source} has {found} of {count} rows")
    spark.stop()
    return seconds


def _session(package: str) -> Any:
    from pyspark.sql import SparkSession

    from strandline.spark.pipelines.session import LOOPBACK, SETTINGS

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    builder = SparkSession.builder.master("local[2]").appName("strandline bench")
    for key, value in (SETTINGS | ({"spark.jars.packages": package} if package else {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    print(json.dumps(read_all(**json.loads(sys.argv[1]))))
