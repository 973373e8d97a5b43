"""(a) Live delays: hourly windows per airport, by when the aircraft left, to a topic and to Parquet.

Two queries over the same transformation. The live one (update mode) writes every window that a batch changed to a topic
with the airport as key: the last revision of a window stands. The final one (append mode) writes each window once, to
Parquet, when the watermark has passed its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.spark.pipelines import frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW = "1 hour"
LATENESS = "2 hours"
"""Maximum delay of a report in event time; an id is remembered as long."""

DELAYED_MINUTES = 15
"""From here on a departure counts as delayed, as in the statistics of the US Department of Transportation."""

RESULT = (
    "origin STRING, window_start TIMESTAMP, flights BIGINT, departed BIGINT, delayed BIGINT, delay_minutes BIGINT, "
    "max_delay INT, mean_delay DOUBLE"
)
"""The columns of the result. Sums beside the mean: windows can be added up to days."""


def delays(flights: DataFrame, window: str = WINDOW) -> DataFrame:
    """Delays per airport and window, of flights that are there once; the columns are `RESULT`'s."""
    from pyspark.sql import functions as f

    delay = f.col("dep_delay")
    counted = flights.groupBy(f.window("departed", window), "origin").agg(
        f.count(f.lit(1)).alias("flights"),
        f.count(delay).alias("departed"),
        f.count_if(delay >= DELAYED_MINUTES).alias("delayed"),
        f.coalesce(f.sum(delay), f.lit(0)).cast("bigint").alias("delay_minutes"),
        f.max(delay).alias("max_delay"),
    )
    mean = f.when(f.col("departed") > 0, f.round(f.col("delay_minutes") / f.col("departed"), 2))
    named = counted.select("origin", f.col("window.start").alias("window_start"), *counted.columns[2:])
    return named.withColumn("mean_delay", mean)


def windows(records: DataFrame, name: str = "delays") -> DataFrame:
    """From the records of the topic to delays per window."""
    readable = frames.readable(frames.flights(records), name)
    return delays(frames.once(readable, "departed", LATENESS))


def start_live(records: DataFrame, bootstrap: str, topic: str, checkpoint: Path) -> Any:
    """The query that keeps the topic current."""
    return frames.start_revisions(windows(records), bootstrap, topic, checkpoint, "origin")


def start_final(records: DataFrame, directory: Path, checkpoint: Path) -> Any:
    """The query that writes closed windows to Parquet, partitioned by day."""
    from pyspark.sql import functions as f

    closed = windows(records).withColumn("date", f.to_date("window_start"))
    writer = closed.writeStream.format("parquet").outputMode("append").partitionBy("date")
    writer = writer.option("path", str(directory)).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()
