"""Balances in a database: every transfer counts exactly once, although this program may be killed at any moment.

python ledger.py 127.0.0.1:9092 ledger.db
"""

from __future__ import annotations

import sqlite3
import sys

from strandline.client import Consumer, TopicPartition

TOPIC = "transfers"


class Ledger:
    """The database: balances, and of each partition the offset behind the last record that is booked."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("pragma journal_mode = wal")  # whoever reads the balances keeps nobody waiting
        self._database.execute("create table if not exists balance (account text primary key, cents integer)")
        self._database.execute("create table if not exists position (part integer primary key, next integer)")

    def next_offset(self, partition: int) -> int:
        """Where to go on."""
        row = self._database.execute("select next from position where part = ?", (partition,)).fetchone()
        return row[0] if row else 0

    def book(self, account: str, cents: int, partition: int, offset: int) -> None:
        """One transfer, and that it is booked, in one transaction; one that was booked before is left out."""
        with self._database:
            moved = self._database.execute(
                "insert into position values (:part, :next) "
                "on conflict do update set next = excluded.next where next < excluded.next",
                {"part": partition, "next": offset + 1},
            )
            if moved.rowcount:
                self._database.execute(
                    "insert into balance values (:account, :cents) "
                    "on conflict do update set cents = cents + excluded.cents",
                    {"account": account, "cents": cents},
                )


def run(bootstrap: str, path: str) -> None:
    """Book what comes, until somebody stops it."""
    ledger = Ledger(path)
    settings = {"group_id": "ledger", "group_instance_id": "ledger-1", "enable_auto_commit": False}
    with Consumer(bootstrap, **settings) as consumer:

        def go_on(partitions: list[TopicPartition]) -> None:
            for item in partitions:
                consumer.seek(item, ledger.next_offset(item.partition))

        consumer.subscribe(TOPIC, on_assigned=go_on)
        for record in consumer:
            ledger.book(record.key.decode(), int(record.value), record.partition, record.offset)


if __name__ == "__main__":
    run(*sys.argv[1:])
