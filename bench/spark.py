"""How fast Spark reads: this project's source beside Spark's own Kafka source, on the same topics of the same cluster.

    python -m bench.spark                                          this project's source alone
    python -m bench.spark --peer-packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 --peer-python PATH

Each source has a Spark of its own (local[2]); PATH is a Python whose PySpark is of the connector's version. Rows are
read whole and thrown away (Spark's `noop` sink): a batch read, and a stream with Trigger.AvailableNow. The first, small
read warms the JVM and the Python workers up and is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

PARTITIONS = 6
SIZES = {100: 3_000_000, 1000: 500_000}
"""Bytes of a value, and how many records."""


def fill(bootstrap: str, size: int, count: int) -> str:
    """A topic with so many records of random bytes; its name."""
    from confluent_kafka import Producer

    from bench.measures import create_topic, producer_settings

    topic = f"spark-{size}"
    create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer(producer_settings(bootstrap, **{"linger.ms": 5, "batch.size": 131_072}))
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
    return topic


def read_all(source: str, bootstrap: str, counts: dict[str, int], packages: str) -> dict[str, float]:
    """Seconds for each topic's batch read and stream. Runs in the process that has the Spark."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    } | ({"spark.jars.packages": packages} if packages else {})
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    seconds: dict[str, float] = {}

    def options(reader: Any, topic: str) -> Any:
        named = reader.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        return named.option("startingOffsets", "earliest").load()

    def batch(topic: str) -> None:
        options(spark.read, topic).write.format("noop").mode("overwrite").save()

    def stream(topic: str) -> None:
        with tempfile.TemporaryDirectory(prefix="strandline-bench-spark-") as checkpoint:
            writer = options(spark.readStream, topic).writeStream.format("noop")
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            rows = sum(progress.numInputRows for progress in query.recentProgress)
        if topic in counts and rows != counts[topic]:
            raise ValueError(f"the stream read {rows} of {counts[topic]} rows")

    batch("spark-warm")
    stream("spark-warm")
    for topic, count in counts.items():
        for name, read in (("batch", batch), ("available now", stream)):
            began = time.perf_counter()
            read(topic)
            seconds[f"{topic} {name}"] = time.perf_counter() - began
        if options(spark.read, topic).count() != count:
            raise ValueError(f"{source} does not read all rows of {topic}")
    spark.stop()
    return seconds


@click.command(help=__doc__)
@click.option("--scale", default=1.0, show_default=True, help="Multiplies the number of records.")
@click.option("--peer-packages", default="", help="Maven coordinates of Spark's own Kafka connector.")
@click.option("--peer-python", default=sys.executable, help="A Python with PySpark of the connector's version.")
@click.option("--task", default="", hidden=True, help="What one process shall read, as JSON.")
def main(scale: float, peer_packages: str, peer_python: str, task: str) -> None:
    if task:
        click.echo(json.dumps(read_all(**json.loads(task))))
        return
    from bench.clusters import StrandlineCluster, wait_ready

    cluster = StrandlineCluster()
    cluster.start()
    try:
        wait_ready(cluster.bootstrap)
        counts = {
            fill(cluster.bootstrap, size, int(count * scale)): int(count * scale) for size, count in SIZES.items()
        }
        warm(cluster.bootstrap)
        sources = [("strandline", sys.executable, "")]
        if peer_packages:
            sources.append(("kafka", peer_python, peer_packages))
        for source, python, packages in sources:
            told = {"source": source, "bootstrap": cluster.bootstrap, "counts": counts, "packages": packages}
            command = [python, "-m", "bench.spark", "--task", json.dumps(told)]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], timeout=1200
            )
            for name, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                topic = name.split()[0]
                rows, size = counts[topic], int(topic.rpartition("-")[2])
                rates = f"{rows / seconds / 1e6:6.2f} M rows/s {rows * size / seconds / 1e6:7.0f} MB/s"
                click.echo(f"{source:>10}  {name:<28}{rates}")
    finally:
        cluster.stop()


def warm(bootstrap: str) -> None:
    """The small topic of the first read."""
    from confluent_kafka import Producer

    from bench.measures import create_topic, producer_settings

    create_topic(bootstrap, "spark-warm", PARTITIONS)
    producer = Producer(producer_settings(bootstrap))
    for number in range(1000):
        producer.produce("spark-warm", b"warm", partition=number % PARTITIONS)
    producer.flush(30)


if __name__ == "__main__":
    main()
