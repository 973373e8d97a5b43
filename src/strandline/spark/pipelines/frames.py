"""Conversions of data frames: a topic to typed columns, columns to records, and repeated reports to one per flight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHT = (
    "id STRING, carrier STRING, origin STRING, dest STRING, scheduled_ms BIGINT, departed_ms BIGINT, "
    "sched_dep_time INT, dep_time INT, dep_delay INT"
)
WEATHER = "origin STRING, observed_ms BIGINT, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE"


def stream_of(
    spark: SparkSession, bootstrap: str, topic: str, records_per_batch: int, starting: str = "earliest"
) -> DataFrame:
    """The topic as a stream, read from `starting` (the option startingOffsets)."""
    reader = spark.readStream.format("strandline").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", starting)
    return reader.option("maxOffsetsPerTrigger", records_per_batch).load()


def batch_of(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """All records that the topic has now, as a batch."""
    return (
        spark.read.format("strandline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    )


def flights(records: DataFrame) -> DataFrame:
    """Parse flights: their columns, with `departed` and `scheduled_hour` as timestamps, and each record's position.

    A value that is not a flight gives a row of nulls; `readable` removes those.
    """
    from pyspark.sql import functions as f

    parsed = f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")
    columns = records.select("topic", "partition", "offset", "timestamp", parsed)
    return columns.select("topic", "partition", "offset", "timestamp", "flight.*").withColumns(
        {
            "departed": f.timestamp_millis("departed_ms"),
            "scheduled_hour": f.date_trunc("hour", f.timestamp_millis("scheduled_ms")),
        }
    )


def observations(records: DataFrame) -> DataFrame:
    """Parse observations of the weather: their columns, with `observed` as a timestamp."""
    from pyspark.sql import functions as f

    parsed = f.from_json(f.col("value").cast("string"), WEATHER).alias("weather")
    return records.select(parsed).select("weather.*").withColumn("observed", f.timestamp_millis("observed_ms"))


def readable(rows: DataFrame, name: str) -> DataFrame:
    """Rows whose value could be parsed. On a stream, the observed metrics `name` count all rows and the others."""
    from pyspark.sql import functions as f

    unreadable = f.count_if(f.col("origin").isNull())
    counted = rows.observe(name, f.count(f.lit(1)).alias("records"), unreadable.alias("unreadable"))
    return counted.where(f.col("origin").isNotNull())


def once(rows: DataFrame, event_time: str, lateness: str) -> DataFrame:
    """Keep one row for each flight, if a report was sent twice.

    On a stream an id is remembered until the watermark (`lateness` behind the latest `event_time`) has passed it. Later
    rows are dropped, and counted as numRowsDroppedByWatermark in the query's progress.
    """
    if not rows.isStreaming:
        return rows.dropDuplicates(["id"])
    return rows.withWatermark(event_time, lateness).dropDuplicatesWithinWatermark(["id"])


def to_records(rows: DataFrame, *key: str) -> DataFrame:
    """Columns `key` and `value` for the sink. The key consists of the columns named in `key`, joined by "|"; the value
    is all columns as JSON."""
    from pyspark.sql import functions as f

    return rows.select(
        f.concat_ws("|", *key).cast("binary").alias("key"),
        f.to_json(f.struct("*")).cast("binary").alias("value"),
    )


def start_revisions(rows: DataFrame, bootstrap: str, topic: str, checkpoint: Path, *key: str) -> Any:
    """Start a query that writes every row changed by a micro-batch to a topic, and stops at the log's present end.

    Spark allows Python sinks only in append mode, so each micro-batch is written by a batch write. After a crash a
    repeated one writes the same revisions again, which does not matter to a reader that takes the last of each.
    """

    def write(changed: DataFrame, _batch: int) -> None:
        writer = to_records(changed, *key).write.format("strandline").mode("append")
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()

    writer = rows.writeStream.foreachBatch(write).outputMode("update")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def latest_by_key(records: DataFrame, schema: str, *identity: str) -> DataFrame:
    """Latest revision of each row in a topic of revisions: the record with the highest offset for each `identity`.

    All revisions of one row must be in one partition, as records with the same key are.
    """
    from pyspark.sql import functions as f

    parsed = f.from_json(f.col("value").cast("string"), schema).alias("row")
    rows = records.select("offset", parsed).select("offset", "row.*")
    columns = [name for name in rows.columns if name != "offset"]
    newest = f.max_by(f.struct(*columns), "offset").alias("newest")
    return rows.groupBy(*[f.col(name).alias(f"_{name}") for name in identity]).agg(newest).select("newest.*")
