"""From a topic to typed columns, from columns to records, and one row for each flight."""

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
    """The topic as a stream, from its beginning or from what `starting` says."""
    reader = spark.readStream.format("strandline").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", starting)
    return reader.option("maxOffsetsPerTrigger", records_per_batch).load()


def batch_of(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """The topic as it is now, as a batch."""
    return (
        spark.read.format("strandline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    )


def flights(records: DataFrame) -> DataFrame:
    """The columns of a flight, with `departed` and `scheduled_hour` as times, beside where each record lies.

    A value that is not a flight is a row of nulls; `readable` leaves those out.
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
    """The columns of an observation of the weather, with `observed` as a time."""
    from pyspark.sql import functions as f

    parsed = f.from_json(f.col("value").cast("string"), WEATHER).alias("weather")
    return records.select(parsed).select("weather.*").withColumn("observed", f.timestamp_millis("observed_ms"))


def readable(rows: DataFrame, name: str) -> DataFrame:
    """The rows that could be read; on a stream, the metrics `name` of its progress count all and the others."""
    from pyspark.sql import functions as f

    unreadable = f.count_if(f.col("origin").isNull())
    counted = rows.observe(name, f.count(f.lit(1)).alias("records"), unreadable.alias("unreadable"))
    return counted.where(f.col("origin").isNotNull())


def once(rows: DataFrame, event_time: str, lateness: str) -> DataFrame:
    """One row for each flight: a report sent twice counts once.

    On a stream the ids are forgotten when the watermark, `lateness` behind the latest `event_time`, has passed them;
    what comes later than that is dropped, and counted as numRowsDroppedByWatermark in the query's progress.
    """
    if not rows.isStreaming:
        return rows.dropDuplicates(["id"])
    return rows.withWatermark(event_time, lateness).dropDuplicatesWithinWatermark(["id"])


def to_records(rows: DataFrame, *key: str) -> DataFrame:
    """Columns `key` and `value` for the sink: the key's columns joined by "|", the value all columns as JSON."""
    from pyspark.sql import functions as f

    return rows.select(
        f.concat_ws("|", *key).cast("binary").alias("key"),
        f.to_json(f.struct("*")).cast("binary").alias("value"),
    )


def start_revisions(rows: DataFrame, bootstrap: str, topic: str, checkpoint: Path, *key: str) -> Any:
    """A query that writes each row which a batch has changed to a topic, up to the log's present end.

    Spark lets Python sinks take new rows only (append mode), so each batch is written as a batch. One that is repeated
    after a crash writes the same revisions once more, which changes nothing for who takes the last of each.
    """

    def write(changed: DataFrame, _batch: int) -> None:
        writer = to_records(changed, *key).write.format("strandline").mode("append")
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()

    writer = rows.writeStream.foreachBatch(write).outputMode("update")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def latest_by_key(records: DataFrame, schema: str, *identity: str) -> DataFrame:
    """What a topic of revisions says last: of the records with the same `identity` the one with the highest offset.

    Revisions of one thing must lie in one partition, as those with the same key do.
    """
    from pyspark.sql import functions as f

    parsed = f.from_json(f.col("value").cast("string"), schema).alias("row")
    rows = records.select("offset", parsed).select("offset", "row.*")
    columns = [name for name in rows.columns if name != "offset"]
    newest = f.max_by(f.struct(*columns), "offset").alias("newest")
    return rows.groupBy(*[f.col(name).alias(f"_{name}") for name in identity]).agg(newest).select("newest.*")
