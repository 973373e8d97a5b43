"""Source 2: a database's table of changes into a topic, in the order of their ids.

python table_source.py 127.0.0.1:9092 inputs/planes.db table.place

The application writes each new state of a plane into its table `plane` and, in the same transaction, into the table
`outbox`, under an id that only rises. A record's position is that id. Killed at any moment, this program loses no
change, and repeats none that the log had taken before the next run looked (see `hub.Feed`).

SQLite has one writer at a time, so that ids appear in their order. In a database with several, 8 may be seen before 7,
which would be passed over for ever: there, read only up to the id below which no transaction is open any more.
"""

from __future__ import annotations

import sqlite3
import sys
import time

from hub import PLANES, Feed

ORIGIN = "outbox"
CHANGES = "select id, tailnum, plane from outbox where id > ? order by id limit 1000"
PAUSE_S = 0.2


def run(bootstrap: str, database: str, place: str) -> None:
    """Follow the table until somebody stops it."""
    feed = Feed(bootstrap, PLANES, place)
    table = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    while True:
        changes = table.execute(CHANGES, (feed.place(ORIGIN),)).fetchall()
        if changes:
            feed.send(ORIGIN, [(number, tailnum.encode(), plane.encode()) for number, tailnum, plane in changes])
        else:
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    run(*sys.argv[1:])
