"""What each sink holds, read as its users would read it, and whether it is exactly what the inputs hold."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import search_sink
from hub import DEPARTURES, PLANES
from inputs import Inputs
from pyarrow import parquet
from tantivy import Index

Places = dict[str, int]
"""Origin -> position of the last record that a sink has applied."""


@dataclass
class Verdict:
    """One kind of result in one sink, beside what the inputs say it must be."""

    sink: str
    what: str
    expected: Counter[tuple[Any, ...]]
    held: Counter[tuple[Any, ...]]

    @property
    def missing(self) -> int:
        """How many are not there, or are not as they must be."""
        return (self.expected - self.held).total()

    @property
    def too_many(self) -> int:
        """How many are there again, or are not as they must be."""
        return (self.held - self.expected).total()

    @property
    def right(self) -> bool:
        """Exactly the expected ones, and at least one."""
        return bool(self.expected) and self.expected == self.held


def verdicts(directory: Path, inputs: Inputs) -> list[Verdict]:
    """Every sink against the inputs."""
    lines = [(name, line) for name, lines in inputs.lines().items() for line in lines]
    flights = [json.loads(line) for _, line in lines]
    planes = {tailnum: plane for _, tailnum, plane in inputs.changes()}  # of each the last
    delays: Counter[str] = Counter()
    for flight in flights:
        delays[flight["from"]] += flight["delay"] or 0
    departures = Counter(flight["from"] for flight in flights)
    airports = Counter((name, number, delays[name]) for name, number in departures.items())
    changes = Counter(("outbox", *change) for change in inputs.changes())

    database, index, lake = directory / "airports.db", directory / "index", directory / "lake"
    return [
        Verdict(
            "sqlite",
            "departures",
            Counter((flight["id"], flight["from"], flight["delay"] or 0) for flight in flights),
            Counter(select(database, "select id, airport, delay from departure")),
        ),
        Verdict(
            "sqlite",
            "airports' totals",
            airports,
            Counter(select(database, "select name, departures, delay_minutes from airport")),
        ),
        Verdict(
            "sqlite",
            "planes",
            Counter(planes.items()),
            Counter(select(database, "select tailnum, plane from plane")),
        ),
        Verdict(
            "search",
            "departures",
            Counter((flight["id"], line) for flight, (_, line) in zip(flights, lines, strict=True)),
            Counter(documents(index, DEPARTURES)),
        ),
        Verdict(
            "search",
            "planes",
            Counter((tailnum, plane.encode()) for tailnum, plane in planes.items()),
            Counter(documents(index, PLANES)),
        ),
        Verdict("spark", "departures", Counter(numbered(inputs)), Counter(rows(lake, DEPARTURES))),
        Verdict("spark", "changes of planes", changes, Counter(rows(lake, PLANES))),
    ]


def numbered(inputs: Inputs) -> Iterator[tuple[Any, ...]]:
    """Each line of the files, as Spark keeps it: file, the byte behind it, flight, line."""
    for name, lines in inputs.lines().items():
        place = 0
        for line in lines:
            place += len(line) + 1
            yield name, place, json.loads(line)["id"], line.decode()


# SQLite


def select(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of the database; none before its sink has made the tables."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error) or "unable to open" in str(error):
            return []
        raise


# The search index


def documents(index: Path, kind: str) -> list[tuple[str, bytes]]:
    """Ids and sources of the documents of a kind; none before its sink has made the index."""
    return search_sink.read(Index.open(str(index)), kind) if (index / "meta.json").exists() else []


# Parquet


def finished_files(lake: Path) -> Iterator[Path]:
    """The files that count: those that Spark's own log of the directory lists, by which `spark.read.parquet` goes."""
    found = set()
    for batch in (lake / "records" / "_spark_metadata").glob("[0-9]*"):
        _version, *entries = batch.read_text().splitlines()
        found |= {json.loads(entry)["path"] for entry in entries}
    yield from (Path(name.removeprefix("file://")) for name in sorted(found))


def rows(lake: Path, topic: str) -> Iterator[tuple[Any, ...]]:
    """Origin, position, key and value of every row of a topic."""
    for path in finished_files(lake):
        if path.parent.name == f"topic={topic}":
            columns = content(path)
            yield from zip(*(columns[name].to_pylist() for name in ("origin", "position", "key", "value")), strict=True)


@cache
def content(path: Path) -> pa.Table:
    """A file that is listed does not change any more."""
    return parquet.ParquetFile(path).read()


# How far each sink is


def places(sink: str, directory: Path) -> Places:
    """The last position of each origin that a sink has applied."""
    if sink == "sqlite":
        return dict(select(directory / "airports.db", "select origin, position from place"))
    if sink == "search":
        index = directory / "index"
        return search_sink.places(Index.open(str(index))) if (index / "meta.json").exists() else {}
    last: Places = {}
    for path in finished_files(directory / "lake"):
        for origin, position in last_positions(path).items():
            last[origin] = max(last.get(origin, 0), position)
    return last


@cache
def last_positions(path: Path) -> Places:
    """Of a file of Parquet."""
    columns = content(path).group_by("origin").aggregate([("position", "max")])
    return dict(zip(columns["origin"].to_pylist(), columns["position_max"].to_pylist(), strict=True))
