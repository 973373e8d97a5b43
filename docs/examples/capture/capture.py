"""Every committed change of a SQLite database to a topic of one partition, in the order of the database.

strandline topic create shop-changes --partitions 1
python capture.py 127.0.0.1:9092 shop.db shop-changes

A record: key ["orders",{"id":7}], value the row as JSON, or null when the row was deleted. Two headers: `change`, the
number of the change, and `until`, the number at which the database stood between two transactions again.
"""

from __future__ import annotations

import base64
import json
import math
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from strandline.client import Producer

PAGE = 1_000
"""Changes that are sent before their acknowledgements are waited for: at most so many are sent again after a kill."""

PAUSE_S = 0.1
"""How long to wait when there was nothing new."""


class Change(NamedTuple):
    """One row that was written or deleted."""

    number: int
    key: bytes
    value: bytes | None


class Source:
    """The database with its triggers, which write each change into `capture_change`, in the application's transaction.

    - Numbers have no gap, and none is given twice: the last row is never deleted, and the next number is one more.
    - Changes up to `capture_place.sent` are in the log.
    """

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            sys.exit(f"there is no database {path}")
        self._database = sqlite3.connect(path, isolation_level=None, timeout=60)

    def install(self) -> None:
        """Triggers on every table, in one transaction; anew when they are there, as columns may have come.

        Raises:
            ValueError: a table has no primary key.
        """
        self._database.execute("begin immediate")
        with self._database:  # commits
            tables = self._tables()
            self._database.execute("create table if not exists capture_change (number integer primary key, head text)")
            self._database.execute("create table if not exists capture_place (sent integer)")
            self._database.execute("insert into capture_place select 0 where not exists (select 1 from capture_place)")
            there = len(self._database.execute("select name from pragma_table_info('capture_change')").fetchall()) - 2
            for place in range(there, max(len(columns) for _, columns in tables.values())):
                self._database.execute(f"alter table capture_change add column c{place}")
            for table, (key, columns) in tables.items():
                for event, body in trigger_bodies(table, key, columns).items():
                    name = quoted(f"capture_{event}_{table}")
                    self._database.execute(f"drop trigger if exists {name}")
                    self._database.execute(f"create trigger {name} after {event} on {quoted(table)} begin {body} end")

    def last(self) -> int:
        """The number of the last change. Whoever reads sees whole transactions, so this is the end of one."""
        [number] = self._database.execute("select coalesce(max(number), 0) from capture_change").fetchone()
        return int(number)

    def unsent(self, until: int, most: int = PAGE) -> list[Change]:
        """The next changes that are not known to be in the log, up to number `until`."""
        rows = self._database.execute(
            "select * from capture_change where number > (select sent from capture_place) and number <= ? "
            "order by number limit ?",
            (until, most),
        )
        return [change_of(*row) for row in rows]

    def mark_sent(self, number: int) -> None:
        """Everything up to this change is in the log: forget it, but for the last one."""
        self._database.execute("begin immediate")
        with self._database:
            self._database.execute("update capture_place set sent = max(sent, ?)", (number,))
            self._database.execute("delete from capture_change where number < (select sent from capture_place)")

    def close(self) -> None:
        self._database.close()

    def _tables(self) -> dict[str, tuple[list[str], list[str]]]:
        """Table -> its key, and all its columns, those of the key first."""
        found = {}
        for (table,) in self._database.execute(
            "select name from pragma_table_list where schema = 'main' and type = 'table' "
            "and name not like 'sqlite!_%' escape '!' and name not like 'capture!_%' escape '!'"
        ).fetchall():
            columns = self._database.execute("select name, pk from pragma_table_info(?)", (table,)).fetchall()
            key = [name for name, place in sorted(columns, key=lambda column: column[1]) if place]
            if not key:
                raise ValueError(f"table {table} has no primary key: give it one, or its rows have no name in the log")
            found[table] = (key, key + [name for name, place in columns if not place])
        if not found:
            raise ValueError("there is no table in this database yet")
        return found


def trigger_bodies(table: str, key: list[str], columns: list[str]) -> dict[str, str]:
    """What the triggers do. They look at the row as it is now, not at `new`: another trigger of the same table, which
    may have run before, may have changed or deleted it."""

    def write(names: list[str], values: str, image: bool) -> str:
        head = json.dumps({"table": table, "key": key, "columns": names if image else None}).replace("'", "''")
        places = "".join(f", c{place}" for place in range(len(names)))
        return f"insert into capture_change (head{places}) select '{head}', {values}"

    def same(row: str) -> str:
        return f"from {quoted(table)} where " + " and ".join(f"{quoted(name)} is {row}.{quoted(name)}" for name in key)

    put = write(columns, ", ".join(map(quoted, columns)), True) + f" {same('new')};"
    gone = write(key, ", ".join(f"old.{quoted(name)}" for name in key), False)
    gone += f" where not exists (select 1 {same('old')});"
    return {"insert": put, "update": gone + put, "delete": gone}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def change_of(number: int, head: str, *values: Any) -> Change:
    """A row of `capture_change` as a record."""
    names = json.loads(head)
    key = dict(zip(names["key"], map(cell, values), strict=False))
    row = None if names["columns"] is None else dict(zip(names["columns"], map(cell, values), strict=False))
    return Change(number, to_json([names["table"], key]), None if row is None else to_json(row))


def cell(value: Any) -> Any:
    """SQLite's value in JSON, which has neither bytes nor infinity."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and math.isinf(value):
        return {"real": str(value)}
    return value


def to_json(thing: Any) -> bytes:
    return json.dumps(thing, ensure_ascii=False, separators=(",", ":")).encode()


def send_new(source: Source, producer: Producer, topic: str) -> bool:
    """Send what is not sent yet, in order. False: there was nothing."""
    until = source.last()
    busy = False
    while changes := source.unsent(until):
        acks = [
            producer.send(
                topic, value, key=key, partition=0, headers=[("change", b"%d" % number), ("until", b"%d" % until)]
            )
            for number, key, value in changes
        ]
        for ack in acks:
            ack.result()
        source.mark_sent(changes[-1].number)
        busy = True
    return busy


def run(bootstrap: str, path: str, topic: str) -> None:
    """Send what comes, until somebody stops it."""
    source = Source(path)
    source.install()
    with Producer(bootstrap) as producer:
        partitions = producer.partitions_for(topic)
        if partitions != 1:
            sys.exit(f"{topic} has {partitions} partitions; the order of a database needs a topic of one")
        while True:
            if not send_new(source, producer, topic):
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    run(*sys.argv[1:])
