"""What the programs of the hub share: its topics, where a record comes from, and how a source keeps its place.

A source reads *origins*: files, a table. Each of its records says in two headers which origin it is of, and which
position it has there: a number that only rises (the byte behind a line, the id of a change). All records of an origin
lie in one partition, in order. So everybody can tell a repeat: its position is not above the last one of its origin.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence

from strandline.client import Consumer, ConsumerRecord, Producer, TopicPartition

DEPARTURES, PLANES = "departures", "planes"
PARTITIONS = {DEPARTURES: 4, PLANES: 1}
"""The topics. Files are spread over partitions; the changes of a table are one sequence."""

NEVER_GIVE_UP = {
    # Were a record given up while the ones behind it are stored, a restart would take it for sent.
    "delivery_timeout_ms": 2**31 - 1,
    # A record that is too large for the topic is refused before anything behind it is sent.
    "max_request_size": 1_000_000,
}


def origin_of(record: ConsumerRecord) -> tuple[str, int]:
    """Which origin a record is of, and its position there."""
    headers = {name: (value or b"").decode() for name, value in record.headers}
    return headers["origin"], int(headers["position"])


class Feed:
    """Sends records to a topic, and knows how far each origin is, whenever this program is killed.

    The topic itself says how far: its records are read at the start. So that it need not be read from its beginning
    each time, a small file keeps the places and up to where the topic was looked at. The file may be old, or lost: then
    more of the topic is read.

    What this cannot see is a record that was under way when the last run was killed and reaches the log after this one
    has looked. Then the topic holds it twice, and readers know it for a repeat.
    """

    def __init__(self, bootstrap: str, topic: str, path: str) -> None:
        self._topic = topic
        self._file = sqlite3.connect(path)
        self._file.execute("create table if not exists place (origin text primary key, part integer, position integer)")
        self._file.execute("create table if not exists looked_at (part integer primary key, next integer)")
        self._look_at_the_topic(bootstrap)
        self._producer = Producer(bootstrap, **NEVER_GIVE_UP)
        self._partitions = self._producer.partitions_for(topic)

    def place(self, origin: str) -> int:
        """The position of the last record of this origin that the topic has; 0: it has none."""
        return self._place(origin)[1]

    def send(self, origin: str, records: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Send (position, key, value), in this order; returns once every in-sync replica has all of them."""
        part, _ = self._place(origin)
        acks = []
        for position, key, value in records:
            headers = [("origin", origin.encode()), ("position", b"%d" % position)]
            acks.append(self._producer.send(self._topic, value, key=key, partition=part, headers=headers))
        last_offset = max(ack.result().offset for ack in acks)
        self._keep([(origin, records[-1][0], part, last_offset)])

    def _place(self, origin: str) -> tuple[int, int]:
        """Partition and position. An origin stays in its partition, although the topic may be given more of them."""
        row = self._file.execute("select part, position from place where origin = ?", (origin,)).fetchone()
        return row or (zlib.crc32(origin.encode()) % self._partitions, 0)

    def _look_at_the_topic(self, bootstrap: str) -> None:
        with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=5000) as consumer:
            parts = [TopicPartition(self._topic, part) for part in consumer.partitions_for(self._topic)]
            consumer.assign(parts)
            for part, next_offset in self._file.execute("select part, next from looked_at"):
                consumer.seek((self._topic, part), next_offset)
            ends = consumer.end_offsets(parts)
            while any(consumer.position(part) < end for part, end in ends.items()):
                records = consumer.poll(timeout_s=1.0)
                self._keep([(*origin_of(record), record.partition, record.offset) for record in records])

    def _keep(self, seen: Iterable[tuple[str, int, int, int]]) -> None:
        """Origin, position, partition and offset of records that the topic has; places move only forward."""
        with self._file:
            for origin, position, part, offset in seen:
                self._file.execute(
                    "insert into place values (?, ?, ?) on conflict do update set position = excluded.position, "
                    "part = excluded.part where position < excluded.position",
                    (origin, part, position),
                )
                self._file.execute(
                    "insert into looked_at values (?, ?) on conflict do update set next = excluded.next "
                    "where next < excluded.next",
                    (part, offset + 1),
                )
