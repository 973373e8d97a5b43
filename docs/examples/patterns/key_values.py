"""One replica of a small key-value service. The log is the service: each replica applies the same commands in the same
order, so that all of them come to the same state, and none of them has to ask another one.

python key_values.py 127.0.0.1:9092 8101 replica-1.db
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import sys
from collections.abc import Sequence
from uuid import uuid4

import web

from strandline.client import ClientError, ConsumerRecord
from strandline.client.aio import Consumer, Producer

TOPIC = "key-values"
"""One partition: one order. It keeps all of its records."""

MARK_EVERY = 100
"""Records from one mark to the next: there replicas can be compared while commands come."""


class State:
    """The entries, and the offset of the next command, in one database."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("create table if not exists entry (key text primary key, value text)")
        self._database.execute("create table if not exists mark (next integer primary key, hash text)")
        self._database.execute("create table if not exists applied (one integer primary key, next integer)")
        self._database.execute("insert or ignore into applied values (1, 0)")
        self._database.commit()

    def next_offset(self) -> int:
        """Offset to go on from."""
        return int(self._database.execute("select next from applied").fetchone()[0])

    def get(self, key: str) -> str | None:
        """The value of a key."""
        row = self._database.execute("select value from entry where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def hash(self) -> str:
        """One hash of all entries: equal states have equal ones."""
        rows = self._database.execute("select key, value from entry order by key")
        return hashlib.sha256(json.dumps(rows.fetchall()).encode()).hexdigest()

    def marks(self) -> dict[int, str]:
        """Offset -> hash of the state before it."""
        return dict(self._database.execute("select next, hash from mark"))

    def apply(self, records: Sequence[ConsumerRecord]) -> dict[str, object]:
        """Apply commands, and that they are applied, in one transaction; the outcome of each by its id."""
        outcomes = {}
        with self._database:
            for record in records:
                command = json.loads(record.value)
                outcomes[command["id"]] = self._apply_one(command)
                next_offset = record.offset + 1
                self._database.execute("update applied set next = ?", (next_offset,))
                if next_offset % MARK_EVERY == 0:
                    self._database.execute("insert into mark values (?, ?)", (next_offset, self.hash()))
        return outcomes

    def _apply_one(self, command: dict[str, str]) -> object:
        """The outcome depends on the entries and the command alone: no clock, no chance, nothing of this machine."""
        key, found = command["key"], self.get(command["key"])
        if "expected" in command and command["expected"] != found:
            return {"done": False, "found": found}
        if command["value"] is None:
            self._database.execute("delete from entry where key = ?", (key,))
        else:
            self._database.execute("replace into entry values (?, ?)", (key, command["value"]))
        return {"done": True}


class Replica:
    """The state, kept up to date, and its HTTP."""

    def __init__(self, path: str) -> None:
        self._state = State(path)
        self._waiting: dict[str, asyncio.Future[object]] = {}
        self._producer: Producer

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        """GET /keys/K, PUT /keys/K, GET /state, GET /marks."""
        if path == "/state":
            return 200, {"next": self._state.next_offset(), "hash": self._state.hash()}
        if path == "/marks":
            return 200, self._state.marks()
        key = path.removeprefix("/keys/")
        if method == "PUT":
            return await self._put(key, json.loads(body))
        value = self._state.get(key)
        return (404, {"error": f"no key {key}"}) if value is None else (200, {"value": value})

    async def _put(self, key: str, asked: dict[str, str]) -> tuple[int, object]:
        """Append the command; the outcome is known once this replica has come to it."""
        command = {"id": str(uuid4()), "key": key, **asked}
        outcome = self._waiting[command["id"]] = asyncio.get_running_loop().create_future()
        try:
            await self._producer.send_and_wait(TOPIC, json.dumps(command).encode(), partition=0)
            async with asyncio.timeout(30):
                return 200, await outcome
        except (ClientError, TimeoutError) as error:
            return 503, {"error": f"it is not known whether it is done: {error}"}
        finally:
            del self._waiting[command["id"]]

    async def run(self, bootstrap: str, port: int) -> None:
        """Apply what comes, and answer, until somebody stops it. Records that are gone end it: it never skips one."""
        async with Producer(bootstrap) as self._producer, Consumer(bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([(TOPIC, 0)])
            consumer.seek((TOPIC, 0), self._state.next_offset())
            async with await web.serve(port, self.answer):
                while True:
                    for name, outcome in self._state.apply(await consumer.poll(1.0)).items():
                        if name in self._waiting:
                            self._waiting[name].set_result(outcome)


if __name__ == "__main__":
    asyncio.run(Replica(sys.argv[3]).run(sys.argv[1], int(sys.argv[2])))
