"""Sink 1: departures, planes and the airports' totals in SQLite.

python sqlite_sink.py 127.0.0.1:9092 airports.db

Results, places and offsets are one transaction. Killed at any moment, it goes on at the offsets that the database has;
a record whose position is not above its origin's place is a repeat, and changes nothing.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterable

from hub import DEPARTURES, PLANES, origin_of

from strandline.client import Consumer, ConsumerRecord, TopicPartition

TABLES = """
create table if not exists departure (id text primary key, airport text, delay integer);
create table if not exists airport (name text primary key, departures integer, delay_minutes integer);
create table if not exists plane (tailnum text primary key, plane text);
create table if not exists place (origin text primary key, position integer);
create table if not exists next_offset (topic text, part integer, next integer, primary key (topic, part));
"""


class Database:
    """The results, and how far they go."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("pragma journal_mode = wal")  # whoever reads the results keeps nobody waiting
        self._database.executescript(TABLES)

    def next_offset(self, topic: str, part: int) -> int:
        """Where to go on."""
        query = "select next from next_offset where topic = ? and part = ?"
        row = self._database.execute(query, (topic, part)).fetchone()
        return row[0] if row else 0

    def apply(self, records: Iterable[ConsumerRecord]) -> None:
        """All of them, their places and offsets, in one transaction."""
        with self._database:
            for record in records:
                if self._is_new(record):
                    (self._departed if record.topic == DEPARTURES else self._changed)(record)
                self._database.execute(
                    "insert into next_offset values (?, ?, ?) on conflict do update set next = excluded.next",
                    (record.topic, record.partition, record.offset + 1),
                )

    def _is_new(self, record: ConsumerRecord) -> bool:
        """Move the place of the record's origin to it; a repeat does not move it."""
        moved = self._database.execute(
            "insert into place values (?, ?) on conflict do update set position = excluded.position "
            "where position < excluded.position",
            origin_of(record),
        )
        return moved.rowcount == 1

    def _departed(self, record: ConsumerRecord) -> None:
        flight = json.loads(record.value)
        delay = flight["delay"] or 0
        self._database.execute("insert into departure values (?, ?, ?)", (flight["id"], flight["from"], delay))
        self._database.execute(
            "insert into airport values (?, 1, ?) on conflict do update set "
            "departures = departures + 1, delay_minutes = delay_minutes + excluded.delay_minutes",
            (flight["from"], delay),
        )

    def _changed(self, record: ConsumerRecord) -> None:
        self._database.execute("replace into plane values (?, ?)", (record.key.decode(), record.value.decode()))


def run(bootstrap: str, path: str) -> None:
    """Apply what comes, until somebody stops it."""
    database = Database(path)
    settings = {
        "group_id": "hub-sqlite",
        "group_instance_id": "hub-sqlite-1",  # the next run takes the killed one's place at once
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "max_poll_records": 1000,
    }
    with Consumer(bootstrap, **settings) as consumer:

        def go_on(partitions: list[TopicPartition]) -> None:
            for topic, part in partitions:
                consumer.seek((topic, part), database.next_offset(topic, part))

        consumer.subscribe([DEPARTURES, PLANES], on_assigned=go_on)
        while True:
            database.apply(consumer.poll(timeout_s=1.0))


if __name__ == "__main__":
    run(*sys.argv[1:])
