"""The streaming queries over the full data set: what is late, what is a duplicate, and what remains, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.spark.pipelines import dataset, delays, expected, weather
from strandline.spark.pipelines.expected import Totals
from tests.spark.pipelines.conftest import FileLog

pytestmark = pytest.mark.timeout(600)

TWO_HOURS_MS = 120 * dataset.MINUTE_MS


def counted_by_hand(batches: list[list[dataset.Event]]) -> tuple[dict[str, dataset.Departure], int, int, int]:
    """The rule of Spark's watermark, step by step: (flights counted, duplicates, late rows, the last watermark).

    A batch drops what is older than the watermark of the batch before, which follows from the batches before that one.
    """
    kept: dict[str, dataset.Departure] = {}
    duplicates = late = latest_ms = 0
    watermarks = [0]
    for events in batches:
        limit = watermarks[-2] if len(watermarks) > 1 else 0
        for event in events:
            flight = event.flight
            assert flight is not None
            if flight.event_ms <= limit:
                late += 1
            elif flight.flight_id in kept:
                duplicates += 1
            else:
                kept[flight.flight_id] = flight
            latest_ms = max(latest_ms, flight.event_ms)
        watermarks.append(max(watermarks[-1], latest_ms - TWO_HOURS_MS))
    return kept, duplicates, late, watermarks[-1]


def run(query: Any) -> list[Any]:
    """Wait for its end; its batches."""
    query.awaitTermination()
    return [progress for progress in query.recentProgress if "addBatch" in progress["durationMs"]]


def test_closed_windows_hold_all_but_the_late_once(spark: Any, flights: FileLog, tmp_path: Path) -> None:
    """Row S105: every record is counted once, is a duplicate, or is late; the windows are those of what was counted."""
    from pyspark.sql import functions as f

    progress = run(delays.start_final(flights.stream(spark), tmp_path / "out", tmp_path / "checkpoint"))
    kept, duplicates, late, watermark_ms = counted_by_hand(flights.micro_batches())
    states = [state for batch in progress for state in batch["stateOperators"]]
    assert sum(state["numRowsDroppedByWatermark"] for state in states) == late
    assert sum(state["customMetrics"].get("numDroppedDuplicateRows", 0) for state in states) == duplicates
    assert late > 20
    assert duplicates > 3000
    assert len(kept) + duplicates + late == len(flights.events) == sum(batch["numInputRows"] for batch in progress)
    rows = spark.read.parquet(str(tmp_path / "out")).withColumn("start", f.unix_millis("window_start")).collect()
    found = {
        (row.origin, row.start): Totals(row.flights, row.departed, row.delayed, row.delay_minutes, row.max_delay)
        for row in rows
    }
    assert len(found) == len(rows), "a window was given out twice"
    closed_ms = watermark_ms - 60 * dataset.MINUTE_MS
    want = {key: totals for key, totals in expected.hourly(kept.values()).items() if key[1] <= closed_ms}
    assert found == want


def test_each_flight_meets_its_weather_once(spark: Any, flights: FileLog, sky: FileLog, tmp_path: Path) -> None:
    """Flights without an observation come with nulls once the watermark has passed, or wait; none comes twice."""
    run(weather.start(flights.stream(spark), sky.stream(spark), tmp_path / "out", tmp_path / "checkpoint"))
    rows = spark.read.parquet(str(tmp_path / "out")).select("id", "origin", "observed").collect()
    given = {row.id: row.observed is not None for row in rows}
    assert len(given) == len(rows)
    observed = {(event.key.decode(), event.arrival_ms - 5 * dataset.MINUTE_MS) for event in sky.events}
    known = dataset.reported(flights.events)
    partner = {name: (each.origin, dataset.hour_of(each.scheduled_ms)) in observed for name, each in known.items()}
    assert {name for name, has in given.items() if has != partner[name]} == set()
    reported_ms = {event.key.decode(): event.arrival_ms for event in reversed(flights.events)}
    lost = [name for name in known if partner[name] and name not in given]
    assert all(reported_ms[name] - known[name].event_ms > 20 * dataset.DAY_MS for name in lost)
    assert 0 < len(lost) < 334
    assert sum(given.values()) + len(lost) == 335_220
    assert sum(1 for has in given.values() if not has) > 500
