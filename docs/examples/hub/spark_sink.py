"""Sink 3: a streaming query of Spark that keeps every record as Parquet, each once.

pip install '.[spark]'                                     # in a checkout of Strandline
python spark_sink.py 127.0.0.1:9092 lake

Its checkpoint holds the offsets of each micro-batch before it is read. Killed at any moment, it repeats the batch that
was under way, over the same offsets; Spark's Parquet sink lists the files of finished batches in `_spark_metadata`, and
`spark.read.parquet` reads those alone. Delete the lake as a whole, with its checkpoint, or not at all.

Repeats are known by origin and position, which are remembered for a day of the records' time. A record that is a day
older than the newest one read would be dropped as late: no partition may be read so far behind the others.
"""

from __future__ import annotations

import os
import sys

from hub import DEPARTURES, PLANES
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": 2,  # each costs a task and a state file in every batch
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}


def once(records: DataFrame) -> DataFrame:
    """The records without repeats, with origin and position as columns."""
    header = f.map_from_entries("headers")
    rows = records.select(
        "topic",
        "timestamp",
        header["origin"].cast("string").alias("origin"),
        header["position"].cast("string").cast("long").alias("position"),
        f.col("key").cast("string").alias("key"),
        f.col("value").cast("string").alias("value"),
    )
    return rows.withWatermark("timestamp", "1 day").dropDuplicatesWithinWatermark(["origin", "position"])


def run(bootstrap: str, directory: str) -> None:
    """Keep what comes, until somebody stops it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").appName("hub").config(map=SETTINGS).getOrCreate()
    reader = spark.readStream.format("strandline").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", f"{DEPARTURES},{PLANES}").option("startingOffsets", "earliest")
    records = reader.option("includeHeaders", "true").option("maxOffsetsPerTrigger", 50_000).load()
    writer = once(records).writeStream.format("parquet").partitionBy("topic")
    writer = writer.option("path", f"{directory}/records").option("checkpointLocation", f"{directory}/checkpoint")
    writer.trigger(processingTime="1 second").start().awaitTermination()


if __name__ == "__main__":
    run(*sys.argv[1:])
