"""A copy of the database from which a follower starts: the place in the topic where it goes on is written into it.

python snapshot.py 127.0.0.1:9092 shop.db shop-changes copy.db
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from capture import Source, quoted

from strandline.client import Consumer


def snapshot(bootstrap: str, source: str, topic: str, target: str) -> tuple[int, int]:
    """Write the copy. (offset of the topic from which it goes on, number of the last change that it holds)."""
    with closing(Source(source)) as captured:
        captured.install()  # from here on nothing is missed, also if the capture has never run
    with Consumer(bootstrap) as consumer:
        [offset] = consumer.end_offsets([(topic, 0)]).values()
    return offset, copy(source, target, offset)  # in this order: what lies before that end is in the copy


def copy(source: str, target: str, offset: int) -> int:
    """The tables as they are between two transactions, and the place; whole or not at all. The last change in it."""
    partial = Path(f"{target}.partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as origin, closing(sqlite3.connect(partial)) as made:
        origin.backup(made)
        [change] = made.execute("select coalesce(max(number), 0) from capture_change").fetchone()
        for (name,) in made.execute("select name from sqlite_schema where type = 'trigger'").fetchall():
            made.execute(f"drop trigger {quoted(name)}")  # what the application's own triggers do is in the log, too
        made.execute("drop table capture_change")
        made.execute("drop table capture_place")
        made.execute("create table follower_place (next integer, change integer)")
        made.execute("insert into follower_place values (?, ?)", (offset, change))
        made.commit()
        made.execute("pragma journal_mode = delete")  # one file
    partial.replace(target)
    return int(change)


if __name__ == "__main__":
    sys.stdout.write("from offset {} of the topic, after change {}\n".format(*snapshot(*sys.argv[1:])))
