"""The transformations over the full data set, against the same counted from the CSV files with pandas."""

from __future__ import annotations

from typing import Any

import pandas
import pytest

from strandline.spark.pipelines import dataset, delays, frames, replay, weather
from strandline.spark.pipelines.weather import CLASSES
from tests.spark.pipelines.conftest import FileLog

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def csv() -> pandas.DataFrame:
    rows = pandas.read_csv(dataset.data_directory() / "flights.csv.zip")
    hour = pandas.to_datetime(rows["time_hour"])
    rows["left"] = hour + pandas.to_timedelta(rows["minute"] + rows["dep_delay"].fillna(0), unit="min")
    return rows


def test_hourly_delays_equal_pandas(spark: Any, flights: FileLog, csv: pandas.DataFrame) -> None:
    """Row S105: windowed counts over a real data set equal a batch group-by."""
    from pyspark.sql import functions as f

    got = delays.delays(frames.once(frames.flights(flights.batch(spark)), "departed", "1 hour"))
    timed = got.withColumn("start", f.unix_millis("window_start")).collect()
    found = {
        (row.origin, row.start): (row.flights, row.departed, row.delayed, row.delay_minutes, row.max_delay)
        for row in timed
    }
    hours = csv["left"].dt.floor("h").dt.tz_localize(None).astype("datetime64[ms]").astype("int64")
    grouped = csv.groupby(["origin", hours])["dep_delay"]
    sums = grouped.agg(["size", "count", "sum", "max"])
    sums["delayed"] = grouped.agg(lambda values: (values >= 15).sum())
    want = {
        key: (
            int(row["size"]),
            int(row["count"]),
            int(row["delayed"]),
            int(row["sum"]),
            None if pandas.isna(row["max"]) else int(row["max"]),
        )
        for key, row in sums.iterrows()
    }
    assert found == want
    assert len(found) > 19_000


@pytest.mark.parametrize("version", [replay.BLUE, replay.GREEN])
def test_daily_delays_of_both_versions(spark: Any, flights: FileLog, csv: pandas.DataFrame, version: str) -> None:
    """Row S115: the fixed version equals the data set's own delays, the other one its bug."""
    found = {
        (row.origin, str(row.day)): (row.flights, row.departed, row.delay_minutes)
        for row in replay.totals(flights.batch(spark), version).collect()
    }
    rows = csv.assign(minutes=csv["dep_delay"] if version == replay.GREEN else csv["dep_time"] - csv["sched_dep_time"])
    grouped = rows.groupby(["origin", rows["time_hour"].str[:10]])["minutes"].agg(["size", "count", "sum"])
    want = {key: (int(row["size"]), int(row["count"]), int(row["sum"])) for key, row in grouped.iterrows()}
    assert found == want


def test_flights_with_weather_equal_pandas(
    spark: Any, flights: FileLog, weather_rows: pandas.DataFrame, csv: pandas.DataFrame, sky: FileLog
) -> None:
    once = frames.once(frames.flights(flights.batch(spark)), "scheduled_hour", "1 hour")
    found = {
        tuple(row)[:2]: tuple(row)[2:]
        for row in weather.by_class(weather.enrich(once, frames.observations(sky.batch(spark)))).collect()
    }
    joined = csv.merge(weather_rows, on=["origin", "time_hour"], how="left", indicator=True)
    kind = pandas.Series("fair", index=joined.index)
    kind[joined["wind_speed"] >= 20] = "wind"
    kind[joined["precip"] > 0] = "rain or snow"
    kind[joined["visib"] < 2] = "fog"
    kind[joined["_merge"] == "left_only"] = "not observed"
    grouped = joined.groupby([kind, "origin"])["dep_delay"].agg(["size", "count", "sum"])
    want = {key: (int(row["size"]), int(row["count"]), int(row["sum"])) for key, row in grouped.iterrows()}
    assert found == want
    assert {kind for kind, _ in found} == {*(name for name, _ in CLASSES), "not observed"}
    assert sum(row[0] for (kind, _), row in found.items() if kind == "not observed") == 1556


@pytest.fixture(scope="module")
def weather_rows() -> pandas.DataFrame:
    return pandas.read_csv(dataset.data_directory() / "weather.csv")[
        ["origin", "time_hour", "wind_speed", "precip", "visib"]
    ]


def test_revisions_leave_the_last_of_each(spark: Any) -> None:
    rows = spark.createDataFrame(
        [
            (0, '{"origin":"JFK","day":"2013-01-01","flights":1,"departed":1,"delay_minutes":5}'),
            (7, '{"origin":"JFK","day":"2013-01-01","flights":3,"departed":2,"delay_minutes":9}'),
            (3, '{"origin":"JFK","day":"2013-01-01","flights":2,"departed":1,"delay_minutes":5}'),
            (1, '{"origin":"LGA","day":"2013-01-01","flights":1,"departed":0,"delay_minutes":0}'),
        ],
        "offset BIGINT, value STRING",
    )
    found = {row.origin: row.flights for row in replay.results(rows).collect()}
    assert found == {"JFK": 3, "LGA": 1}


def test_a_value_that_is_no_flight_is_left_out(spark: Any) -> None:
    rows = spark.createDataFrame(
        [("t", 0, 0, "no flight"), ("t", 0, 1, '{"origin":"JFK","departed_ms":0}')],
        "topic STRING, partition INT, offset BIGINT, value STRING",
    ).selectExpr("*", "now() AS timestamp")
    assert [row.offset for row in frames.readable(frames.flights(rows), "read").collect()] == [1]
