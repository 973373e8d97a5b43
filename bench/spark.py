"""How fast Spark reads: this project's source beside Spark's own Kafka source, on the same topics of the same cluster.

    python -m bench --only spark --scale 0.3 --repeat 3

Each source has a Spark of its own (local[2]); Spark's own connector comes from Maven Central. Where there is none for
the PySpark that is installed, it runs in the PySpark that it belongs to, which pip puts into the user's cache, and ours
runs in both: sources are compared in one version of Spark. Rows are read whole and thrown away (Spark's `noop` sink),
as a batch, and as a stream with Trigger.AvailableNow, each from the start of the query to its end. A few reads warm the
JVM and the Python workers up; of the others the median counts. What a query costs without rows stands beside it: the
same reads of a nearly empty topic. Python finds its bytecode, as it does wherever packages were installed.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clusters import Cluster, maven_jars
from bench.fetched import Unavailable, cache, need, run
from bench.measures import PARTITIONS, Results, create_topic, producer_settings

SIZES = {100: 3_000_000, 1000: 500_000}
"""Bytes of a value, and how many records."""

READS = ("batch", "stream")
ROUNDS = 3
BUDGET_S = 120
"""No further round of one source begins after this."""

OURS, THEIRS = "strandline", "kafka"
"""Spark's names of the two sources."""

CONNECTOR = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""Spark's own source and what of its needs Spark does not bring along."""

OTHER_SPARK = "4.2.0"
"""Used where there is no connector of the installed PySpark's version: the oldest Spark that ours runs in."""

NEEDS_OF = "4.0.0"
"""Of OTHER_SPARK the connector alone was to be had, and not its token provider, which reads settings: that, and what
else the connector needs, are of this version."""

_SMALL = 1000
"""Records of the nearly empty topic."""


def spark_reads(cluster: Cluster, results: Results, scale: float, say: Callable[[str], None]) -> None:
    """Rows and MB a second of both sources, and ours over Spark's own in the same Spark.

    Raises:
        Unavailable: there is no Spark here at all. Without its connector, only this project's source is measured.
    """
    installed = Peer(_pyspark_version())
    say("filling topics for Spark")
    counts = {size: int(count * scale) for size, count in SIZES.items()}
    for size, count in {0: _SMALL, **counts}.items():
        fill(cluster.bootstrap, topic_of(size), size, count)
    runs = [(OURS, installed)]
    try:
        other = spark_with_connector(installed.version, say)
    except Unavailable as reason:
        say(f"left out: {reason}")
    else:
        runs += [(OURS, other)] if other.version != installed.version else []
        runs.append((THEIRS, other))
    rates: dict[tuple[str, str, str, int], float] = {}
    for source, peer in runs:
        spark = f"Spark {peer.version}"
        say(f"{spark} reads with format({source!r})")
        seconds = _in_a_process(source, cluster.bootstrap, counts, peer)
        for how in READS:
            results.add(f"{spark} {how} without rows, format {source}, s", statistics.median(seconds[f"{how} 0"]))
        for size, count in counts.items():
            for how in READS:
                rate = count / statistics.median(seconds[f"{how} {size}"])
                rates[peer.version, source, how, size] = rate
                results.add(f"{spark} {how} {size} B, format {source}, rows/s", rate)
                results.add(f"{spark} {how} {size} B, format {source}, MB/s", rate * size / 1e6)
    for (version, source, how, size), rate in rates.items():
        theirs = rates.get((version, THEIRS, how, size))
        if source == OURS and theirs is not None:
            results.add(f"Spark {how} {size} B, {OURS} over {THEIRS}", rate / theirs)


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
    need("java", what_for="Spark")
    try:
        import pyspark
    except ImportError:
        raise Unavailable("PySpark is not installed: pip install '.[spark]' in a checkout of Strandline") from None
    return str(pyspark.__version__)


@dataclass(frozen=True)
class Peer:
    """A Spark to read with."""

    version: str
    jars: str = ""
    """As spark.jars wants them."""
    pyspark: Path | None = None
    """Where another PySpark lies than the installed one."""


def spark_with_connector(version: str, say: Callable[[str], None]) -> Peer:
    """A Spark that has its own Kafka source. Raises Unavailable."""
    try:
        return Peer(version, connector_jars(version))
    except Unavailable as reason:
        say(str(reason))
    jars = connector_jars(OTHER_SPARK, NEEDS_OF)
    say(f"Spark's own source runs in Spark {OTHER_SPARK}")
    return Peer(OTHER_SPARK, jars, other_pyspark(OTHER_SPARK))


def connector_jars(version: str, needs_of: str | None = None) -> str:
    """Spark's own Kafka source of this version with its needs, or those of another version. Raises Unavailable."""
    other = needs_of or version
    artifact = f"org.apache.spark:{CONNECTOR[0]}:"
    folder = maven_jars("Spark's own source", f"spark-kafka-{other}", (artifact + other,), CONNECTOR)
    jars = sorted(folder.glob("*.jar"))
    if needs_of is not None:
        jar = cache() / f"{CONNECTOR[0]}-{version}.jar"
        if not jar.exists():
            copy = [
                "mvn",
                "-q",
                "-B",
                "dependency:copy",
                f"-Dartifact={artifact}{version}",
                f"-DoutputDirectory={cache()}",
            ]
            run(copy, cache(), f"Spark's own source: fetching {artifact}{version} with Maven")
        jars = [jar, *(each for each in jars if not each.name.startswith(CONNECTOR[0]))]
    return ",".join(map(str, jars))


def other_pyspark(version: str) -> Path:
    """Another PySpark than the installed one, put by pip into the user's cache once. Raises Unavailable."""
    folder = cache() / f"pyspark-{version}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        cache().mkdir(parents=True, exist_ok=True)
        run([*install, "--target", str(part), f"pyspark=={version}"], cache(), f"pip install pyspark=={version}")
        part.rename(folder)
    return folder


def _in_a_process(source: str, bootstrap: str, counts: dict[int, int], peer: Peer) -> dict[str, list[float]]:
    """`read_all` in a process with a Spark of its own."""
    jars = peer.jars if source == THEIRS else ""
    told = {"source": source, "bootstrap": bootstrap, "jars": jars, "counts": [*counts.items()]}
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache() / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if peer.pyspark is not None:
        environment["PYTHONPATH"] = str(peer.pyspark)
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark", json.dumps(told)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env=environment,
        timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"reading with format({source!r}) failed:\n{done.stderr[-3000:]}")
    seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def read_all(source: str, bootstrap: str, jars: str, counts: list[tuple[int, int]]) -> dict[str, list[float]]:
    """Seconds of each read, as "batch 100". Raises ValueError: a read did not see every row."""
    spark = _session(jars)

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


def _session(jars: str) -> Any:
    from pyspark.sql import SparkSession

    from strandline.spark.pipelines.session import LOOPBACK, SETTINGS

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    builder = SparkSession.builder.master("local[2]").appName("strandline bench")
    for key, value in {**SETTINGS, **({"spark.jars": jars} if jars else {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    print(json.dumps(read_all(**json.loads(sys.argv[1]))))
