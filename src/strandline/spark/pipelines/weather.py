"""(c) Flights with the weather of their hour: a stream joined to a stream, both kept until the watermark has passed.

A flight waits for the observation of its airport and scheduled hour, an observation for the flights of its hour. Both
watermarks are on the hour, which is a key of the join, so Spark knows when neither can find a partner any more: then a
flight without weather is given out with nulls, and both are forgotten. The lower of the two watermarks counts: where
one topic has ended, the last flights without a partner keep waiting, as they must.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.spark.pipelines import frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLIGHT_LATENESS = "24 hours"
"""A report comes when the aircraft leaves, its hour is the scheduled one: delays of up to 22 hours are no lateness."""

WEATHER_LATENESS = "2 hours"

CLASSES = (
    ("fog", "visib < 2"),
    ("rain or snow", "precip > 0"),
    ("wind", "wind_speed >= 20"),
    ("fair", "true"),
)
"""Kinds of weather, the first that holds: visibility in miles, wind in miles an hour, precipitation in inches."""


def enrich(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Each flight with the weather of its airport and scheduled hour; nulls where none was observed."""
    from pyspark.sql import functions as f

    if weather.isStreaming:
        weather = weather.withWatermark("observed", WEATHER_LATENESS)
    seen = weather.select(f.col("origin").alias("station"), "observed", "temp", "wind_speed", "precip", "visib")
    same = (f.col("origin") == f.col("station")) & (f.col("scheduled_hour") == f.col("observed"))
    joined = flights.join(seen, same, "leftOuter")
    return joined.select(
        "id",
        "carrier",
        "origin",
        "dest",
        "scheduled_hour",
        "dep_delay",
        "observed",
        "temp",
        "wind_speed",
        "precip",
        "visib",
    )


def enriched(flight_records: DataFrame, weather_records: DataFrame) -> DataFrame:
    """From the records of both topics to enriched flights."""
    readable = frames.readable(frames.flights(flight_records), "flights")
    flights = frames.once(readable, "scheduled_hour", FLIGHT_LATENESS)
    return enrich(flights, frames.readable(frames.observations(weather_records), "weather"))


def start(flight_records: DataFrame, weather_records: DataFrame, directory: Path, checkpoint: Path) -> Any:
    """The query that writes enriched flights to Parquet, partitioned by the scheduled day."""
    from pyspark.sql import functions as f

    rows = enriched(flight_records, weather_records).withColumn("date", f.to_date("scheduled_hour"))
    writer = rows.writeStream.format("parquet").outputMode("append").partitionBy("date")
    writer = writer.option("path", str(directory)).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def by_class(rows: DataFrame) -> DataFrame:
    """Flights, departures and delay minutes by kind of weather and airport."""
    from pyspark.sql import functions as f

    kind = f.lit("not observed")
    for name, condition in reversed(CLASSES):
        kind = f.when(f.col("observed").isNotNull() & f.expr(condition), f.lit(name)).otherwise(kind)
    return (
        rows.groupBy(kind.alias("weather"), "origin")
        .agg(
            f.count(f.lit(1)).alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.sum("dep_delay").alias("delay_minutes"),
        )
        .orderBy("weather", "origin")
    )
