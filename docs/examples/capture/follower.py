"""Keeps a copy of the database equal: starts from a snapshot, then applies the topic, whole transactions at once.

cp snapshot.db copy.db
python follower.py 127.0.0.1:9092 shop-changes copy.db
"""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from strandline.client import Consumer


class Follower:
    """The copy, and in it the place: the offset to read next, and the number of the last change that it has."""

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            sys.exit(f"there is no {path}: a copy begins as a snapshot, which snapshot.py makes")
        self._database = sqlite3.connect(path, isolation_level=None, timeout=60)
        self._database.execute("pragma journal_mode = wal")  # whoever reads the copy keeps nobody waiting
        self.next, self.change = self._database.execute("select next, change from follower_place").fetchone()

    def take(self, number: int, until: int, key: bytes, value: bytes | None, offset: int) -> bool:
        """Apply a change, if it is the one that is due. What was applied is seen by others when change `until` is.

        False: it is not due. It was applied before (a capture that is killed sends some again), or one before it has
        failed and is about to be sent again, and this one after it.
        """
        if number != self.change + 1:
            return False
        self.begin()
        self.write(key, value)
        self.change = number
        if number == until:
            self.commit(offset + 1, number)
        return True

    def begin(self) -> None:
        """Open the transaction, unless it is open."""
        if not self._database.in_transaction:
            self._database.execute("begin immediate")

    def write(self, key: bytes, value: bytes | None) -> None:
        """The row as it is now."""
        table, name = json.loads(key)
        if value is None:
            where = " and ".join(f"{quoted(column)} is ?" for column in name)
            self._database.execute(f"delete from {quoted(table)} where {where}", [cell(each) for each in name.values()])
        else:
            row = json.loads(value)
            self._database.execute(
                f"insert or replace into {quoted(table)} ({', '.join(map(quoted, row))}) "
                f"values ({', '.join('?' * len(row))})",
                [cell(each) for each in row.values()],
            )

    def commit(self, next_offset: int, change: int) -> None:
        """The rows and the place in one transaction."""
        self._database.execute("update follower_place set next = ?, change = ?", (next_offset, change))
        self._database.execute("commit")
        self.next, self.change = next_offset, change

    def close(self) -> None:
        """What is not committed is undone, and comes again."""
        self._database.close()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def cell(value: Any) -> Any:
    """The value for SQLite; see `cell` in capture.py."""
    if not isinstance(value, dict):
        return value
    return base64.b64decode(value["base64"]) if "base64" in value else float(value["real"])


def run(bootstrap: str, topic: str, path: str) -> None:
    """Apply what comes, until somebody stops it."""
    follower = Follower(path)
    waiting_for = 0
    with Consumer(bootstrap, auto_offset_reset="none", enable_auto_commit=False) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), follower.next)
        for record in consumer:
            headers: dict[str, Any] = dict(record.headers)
            number, until = int(headers["change"]), int(headers["until"])
            follower.take(number, until, record.key, record.value, record.offset)
            if number > follower.change and waiting_for != follower.change + 1:
                waiting_for = follower.change + 1
                sys.stderr.write(
                    f"change {number} at offset {record.offset}, where {waiting_for} is due: nothing is applied before "
                    "that comes. If it never does, take a new snapshot.\n"
                )


if __name__ == "__main__":
    run(*sys.argv[1:])
