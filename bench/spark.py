"""How fast Spark reads and writes: this project's source and sink beside Spark's own, with the same topics and brokers.

    python -m bench --only spark --scale 0.3 --repeat 3

Each has a Spark of its own (local[2]); Spark's own connector comes from Maven Central. Where there is none for the
PySpark that is installed, both run in the PySpark that it belongs to, which pip puts into the user's cache: sources are
compared in one version of Spark. Rows are read whole and thrown away (Spark's `noop` sink), as a batch, and as a stream
with Trigger.AvailableNow; rows of Parquet files are written likewise. Each is timed from the start of the query to its
end, in warm JVMs, ours and theirs in turns; of ROUNDS turns the median counts. What a query costs without rows stands
beside it: the same with a nearly empty topic. Python finds its bytecode, as it does wherever packages were installed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.clusters import Cluster, maven_jars
from bench.fetched import Unavailable, cache, need, run
from bench.measures import PARTITIONS, Results, create_topic, producer_settings

SIZES = {100: 3_000_000, 1000: 500_000}
"""Bytes of a value, and how many records."""

ROUNDS = 5
BUDGET_S = 110
"""No further round begins after this."""

OURS, THEIRS = "strandline", "kafka"
"""Spark's names of the two sources and sinks."""

SMALL = 1000
"""Records of the nearly empty topic, whose size stands as 0."""

CONNECTOR = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""Spark's own source and what of its needs Spark does not bring along."""

OTHER_SPARK = "4.2.0"
"""Used where there is no connector of the installed PySpark's version: the oldest Spark that ours runs in."""

NEEDS_OF = "4.0.0"
"""Of OTHER_SPARK the connector alone was to be had, and not its token provider, which reads settings: that, and what
else the connector needs, are of this version."""


def spark_figures(
    cluster: Cluster, results: Results, scale: float, whats: Sequence[str], say: Callable[[str], None]
) -> None:
    """Rows and MB a second of both, and ours over Spark's own in the same Spark; `whats` are "read" and "write".

    Raises:
        Unavailable: there is no Spark here at all. Without its connector, only this project's figures are taken.
    """
    peer = Peer(_pyspark_version())
    say("filling topics for Spark")
    counts = {size: int(count * scale) for size, count in SIZES.items()}
    for size, count in {0: SMALL, **counts}.items():
        fill(cluster.bootstrap, topic_of(size), size, count)
        create_topic(cluster.bootstrap, f"{topic_of(size)}-written", PARTITIONS)
    sources = [OURS]
    try:
        peer = spark_with_connector(peer.version, say)
    except Unavailable as reason:
        say(f"left out: {reason}")
    else:
        sources.append(THEIRS)
    with tempfile.TemporaryDirectory(prefix="strandline-bench-rows-") as folder, ExitStack() as stack:
        say(f"Spark {peer.version} starts, for {' and '.join(sources)}")
        started: dict[str, subprocess.Popen[str]] = {}
        for name in sources:  # one after the other: the first one makes the rows to be written
            started[name] = stack.enter_context(_started(name, cluster.bootstrap, counts, peer, folder))
            _line(started[name], name)
        seconds: dict[str, dict[str, list[float]]] = {name: {} for name in sources}
        began = time.perf_counter()
        for number in range(ROUNDS):
            if number and time.perf_counter() - began > BUDGET_S:
                break
            for what, name in itertools.product(whats, sources):
                for query, taken in _round(started[name], what, name).items():
                    seconds[name].setdefault(query, []).append(taken)
    _add(results, peer.version, counts, seconds, say)


def _add(
    results: Results,
    version: str,
    counts: Mapping[int, int],
    seconds: Mapping[str, Mapping[str, Sequence[float]]],
    say: Callable[[str], None],
) -> None:
    for name, queries in seconds.items():
        for query, taken in queries.items():
            say(f"{name}, {query}: {', '.join(f'{each:.2f}' for each in taken)} s")
            how, size = query.rsplit(" ", 1)
            if size == "0":
                results.add(f"Spark {version} {how} without rows, {name}, s", statistics.median(taken))
                continue
            rate = counts[int(size)] / statistics.median(taken)
            results.add(f"Spark {version} {how} {size} B, {name}, rows/s", rate)
            results.add(f"Spark {version} {how} {size} B, {name}, MB/s", rate * int(size) / 1e6)
    for query in seconds[OURS]:
        if THEIRS in seconds and not query.endswith(" 0"):
            ratio = statistics.median(seconds[THEIRS][query]) / statistics.median(seconds[OURS][query])
            results.add(f"Spark {query} B, {OURS} over {THEIRS}", ratio)


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


@contextmanager
def _started(
    source: str, bootstrap: str, counts: Mapping[int, int], peer: Peer, folder: str
) -> Iterator[subprocess.Popen[str]]:
    """A `bench.spark_session` that prepares itself; ended at the end."""
    jars = peer.jars if source == THEIRS else ""
    told = {"source": source, "bootstrap": bootstrap, "jars": jars, "counts": [*counts.items()], "folder": folder}
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache() / "bytecode"), "SPARK_LOCAL_IP": "127.0.0.1"}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    if peer.pyspark is not None:
        environment["PYTHONPATH"] = str(peer.pyspark)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.spark_session", json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env=environment,
    )
    try:
        yield process
    finally:
        with process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _line(process: subprocess.Popen[str], name: str) -> str:
    """What it says next. Raises RuntimeError: it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the Spark of {name} ended with {process.wait()}: see above")
    return line


def _round(process: subprocess.Popen[str], what: str, name: str) -> dict[str, float]:
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    seconds: dict[str, float] = json.loads(_line(process, name))
    return seconds
