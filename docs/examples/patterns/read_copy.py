"""A service that answers from a copy of its own. It may begin with an empty disk: the log holds everything.

python read_copy.py 127.0.0.1:9092 8201 products.db
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence

import web

from strandline.client import ConsumerRecord, TopicPartition
from strandline.client.aio import Consumer

TOPIC = "products"
"""Compacted: the last record of each key stays; one without a value deletes the key."""


class Copy:
    """The rows, and of each partition the offset of the next record, in one database."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("create table if not exists row (key text primary key, value text)")
        self._database.execute("create table if not exists position (part integer primary key, next integer)")

    def next_offset(self, partition: int) -> int:
        """Offset to go on from; 0 on an empty disk."""
        found = self._database.execute("select next from position where part = ?", (partition,)).fetchone()
        return found[0] if found else 0

    def get(self, key: str) -> str | None:
        """The row as this copy has it."""
        found = self._database.execute("select value from row where key = ?", (key,)).fetchone()
        return found[0] if found else None

    def apply(self, records: Sequence[ConsumerRecord]) -> None:
        """Rows and positions in one transaction."""
        with self._database:
            for record in records:
                if record.value is None:
                    self._database.execute("delete from row where key = ?", (record.key.decode(),))
                else:
                    self._database.execute(
                        "replace into row values (?, ?)", (record.key.decode(), record.value.decode())
                    )
                self._database.execute("replace into position values (?, ?)", (record.partition, record.offset + 1))


class Service:
    """Reads, from when the copy has reached what the log held at the start."""

    def __init__(self, path: str) -> None:
        self._copy = Copy(path)
        self._behind: dict[TopicPartition, int] | None = None
        """Records below the end of the start that are not read yet. None: the end is not known."""

    @property
    def ready(self) -> bool:
        """It stays so: later the copy is behind by what is on its way, which each reader of a copy has to bear."""
        return self._behind == {}

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        """GET /readyz, GET /rows/KEY."""
        if path == "/readyz":
            behind = None if self._behind is None else sum(self._behind.values())
            return (200 if self.ready else 503), {"ready": self.ready, "behind": behind}
        if not self.ready:
            return 503, {"error": "the copy is not complete yet: see /readyz"}
        value = self._copy.get(path.removeprefix("/rows/"))
        return (404, {"error": "no such row"}) if value is None else (200, {"value": value})

    async def run(self, bootstrap: str, port: int) -> None:
        """Follow the topic, and answer, until somebody stops it."""
        async with (
            await web.serve(port, self.answer),
            Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=2000) as consumer,
        ):
            partitions = [TopicPartition(TOPIC, number) for number in await consumer.partitions_for(TOPIC)]
            consumer.assign(partitions)
            for item in partitions:
                consumer.seek(item, self._copy.next_offset(item.partition))
            ends = await consumer.end_offsets(partitions)
            while True:
                self._copy.apply(await consumer.poll(1.0 if self.ready else 0.1))
                if not self.ready:
                    left = {item: ends[item] - await consumer.position(item) for item in partitions}
                    self._behind = {item: count for item, count in left.items() if count > 0}


if __name__ == "__main__":
    asyncio.run(Service(sys.argv[3]).run(sys.argv[1], int(sys.argv[2])))
