"""Expected results of the pipelines, computed from the data set without Spark and without the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.spark.pipelines.dataset import Departure, day_of, hour_of
from strandline.spark.pipelines.delays import DELAYED_MINUTES


@dataclass
class Totals:
    """Flights of one window or day."""

    flights: int = 0
    departed: int = 0
    delayed: int = 0
    delay_minutes: int = 0
    max_delay: int | None = None

    def add(self, flight: Departure) -> None:
        """Count one more."""
        self.flights += 1
        if flight.delay is not None:
            self.departed += 1
            self.delayed += flight.delay >= DELAYED_MINUTES
            self.delay_minutes += flight.delay
            self.max_delay = flight.delay if self.max_delay is None else max(self.max_delay, flight.delay)


def hourly(flights: Iterable[Departure]) -> dict[tuple[str, int], Totals]:
    """Totals by airport and hour of departure (ms since 1970)."""
    found: dict[tuple[str, int], Totals] = {}
    for flight in flights:
        found.setdefault((flight.origin, hour_of(flight.event_ms)), Totals()).add(flight)
    return found


def daily(flights: Iterable[Departure]) -> dict[tuple[str, str], Totals]:
    """Totals by airport and scheduled day."""
    found: dict[tuple[str, str], Totals] = {}
    for flight in flights:
        found.setdefault((flight.origin, day_of(flight.scheduled_ms)), Totals()).add(flight)
    return found
