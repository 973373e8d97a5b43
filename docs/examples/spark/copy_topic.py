"""Copies a topic to another one: the job of docs/spark.md, for `spark-submit`.

    spark-submit --master spark://HOST:7077 --py-files strandline.zip copy_topic.py BOOTSTRAP FROM TO

With --stream CHECKPOINT it goes on where its last run ended. It prints which executors read how many rows, where their
`strandline` comes from, and whether they have its compiled record codec.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from strandline.spark.source import StrandlineDataSource


def who(rows: Iterator[Any]) -> Iterator[tuple[str, str, str, int]]:
    """Runs in a task: its executor's directory, its package and codec, and how many rows it has."""
    import strandline
    from strandline.log.batch import COMPILED

    codec = "compiled" if COMPILED else "python"
    yield os.getcwd(), str(strandline.__file__), codec, sum(1 for _ in rows)


def read(reader: Any, options: argparse.Namespace) -> Any:
    named = reader.format("strandline").option("kafka.bootstrap.servers", options.bootstrap)
    named = named.option("subscribe", options.source).option("startingOffsets", "earliest")
    return named.option("minPartitions", options.tasks).option("maxOffsetsPerTrigger", options.most).load()


def write(writer: Any, options: argparse.Namespace) -> Any:
    named = writer.format("strandline").option("kafka.bootstrap.servers", options.bootstrap)
    return named.option("topic", options.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--tasks", type=int, default=4, help="tasks at least: one partition is read by several")
    parser.add_argument("--most", type=int, default=100_000, help="rows of a micro-batch at most")
    parser.add_argument("--stream", metavar="CHECKPOINT", help="as a streaming query, up to what is there now")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("copy a topic").getOrCreate()
    spark.dataSource.register(StrandlineDataSource)
    if options.stream:
        writer = write(read(spark.readStream, options).writeStream, options)
        query = writer.option("checkpointLocation", options.stream).trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        sys.stdout.write(f"copied {rows} rows\n")
    else:
        frame = read(spark.read, options)
        write(frame.write, options).mode("append").save()
        for told in frame.select("offset").rdd.mapPartitions(who).collect():
            sys.stdout.write(f"task: {' '.join(map(str, told))}\n")
    spark.stop()


if __name__ == "__main__":
    main()
