"""A whole application that nobody here wrote: a worker of Kafka Connect, with its file connectors.

It keeps its settings, offsets and states in three compacted topics of its own, joins a group of its own kind
(protocol type "connect"), and runs a producer and a consumer group for its connectors. Where it is asked for, the
producer of a source writes records and the source's offsets in one transaction (KIP-618).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

from bench.clusters import free_port

from interop.applications import Program, Reader, broker_down, transaction_is_open
from interop.driver import ClientError, ToolDriver
from interop.install import APPLICATION
from interop.logins import OPEN, Login, as_properties
from interop.suite import World, eventually, same

START_S = 120.0
COPY_S = 60.0
LINES = 100
BOUNDARY_S = 0.7
"""Seconds for which a source's transaction is open."""


class ConnectWorker(ToolDriver):
    """One worker process, told what to do through its REST interface."""

    def __init__(self, bootstrap: str, jars: str, login: Login = OPEN) -> None:
        self._port = free_port()
        self._root = Path(tempfile.mkdtemp(prefix="interop-connect-"))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = [*APPLICATION, "-cp", jars, main, str(self._root / "worker.properties")]
        self._worker = Program(command, self._root / "worker.out", login.environment())
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"connect-{self._port}",
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled",
        }
        for kind in ("config", "offset", "status"):
            settings[f"{kind}.storage.topic"] = f"connect-{self._port}-{kind}"
            settings[f"{kind}.storage.replication.factor"] = "3"
            if kind != "config":
                settings[f"{kind}.storage.partitions"] = "2"
        for part in ("", "producer.", "consumer."):  # of the worker, and of its connectors
            settings |= {f"{part}{name}": value for name, value in login.java().items()}
        (self._root / "worker.properties").write_text(as_properties(settings))

    def op_start(self) -> None:
        self._worker.start()
        eventually(self._works, START_S, 0.2)

    def _works(self) -> bool:
        self._worker.check()
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._ask("GET", "/connectors")[0] == 200
        return False

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def op_file(self, name: str) -> dict[str, Any]:
        return {"path": str(self._root / name)}

    def op_connector(self, name: str, configs: dict[str, str]) -> None:
        status, told = self._ask("PUT", f"/connectors/{name}/config", configs)
        if status not in (200, 201):
            raise ClientError(-1, f"{status}: {told}")

    def op_check(self) -> None:
        """Raises ClientError where the worker ended by itself, or a task of it failed."""
        self._worker.check()
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, told = self._ask("GET", "/connectors?expand=status")
            if status == 200 and b'"FAILED"' in told:
                raise ClientError(-1, f"a task failed: {told[-600:]!r}")

    def kill(self) -> None:
        self._worker.kill()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)


def copies_through_a_topic(world: World) -> None:
    """A file is copied through a topic; a worker that was killed goes on where it was (at least once)."""
    worker, topic = world.client, world.topic()
    source, copy = (Path(worker.call("file", name=name)["path"]) for name in ("source.txt", "copy.txt"))
    source.write_text(lines(0))
    worker.call("start")
    worker.call("connector", name="source", configs={**of_kind("Source"), "file": str(source), "topic": topic})
    worker.call("connector", name="sink", configs={**of_kind("Sink"), "file": str(copy), "topics": topic})
    eventually(lambda: copy.exists() and copy.read_text() == lines(0), COPY_S)
    worker.kill()
    with source.open("a") as file:
        file.write(lines(1))
    worker.call("start")
    wanted = {*lines(0).split(), *lines(1).split()}
    eventually(lambda: wanted == set(copy.read_text().split()), START_S)
    worker.stop()


def of_kind(kind: str) -> dict[str, str]:
    """Settings of a file connector: a Source or a Sink."""
    return {"tasks.max": "1", "connector.class": f"org.apache.kafka.connect.file.FileStream{kind}Connector"}


def each_line_once(world: World) -> None:
    """A source that writes in transactions is killed with its worker in the midst of one, again and again, and each
    broker once; a reader of committed data sees each line of the file once, in its order."""
    worker, topic = world.another(), world.topic()
    source = Path(worker.call("file", name="source.txt")["path"])
    source.write_text("")
    reader = Reader(world.bootstrap, topic, 1)
    transactions = {"exactly.once.support": "required", "transaction.boundary": "interval", "batch.size": "20"}
    transactions["transaction.boundary.interval.ms"] = f"{BOUNDARY_S * 1000:.0f}"
    with Growing(source) as growing:

        def moves_on() -> None:
            wanted = len(growing.lines)

            def there() -> bool:
                worker.call("check")
                return reader.read(wanted)

            eventually(there, START_S)

        def midst() -> None:
            eventually(lambda: transaction_is_open(world.bootstrap, topic, 1), START_S)

        worker.call("start")
        given = {**of_kind("Source"), **transactions, "file": str(source), "topic": topic}
        worker.call("connector", name="source", configs=given)
        moves_on()
        for _ in range(3):
            midst()
            worker.kill()
            worker.call("start")
            moves_on()
        for node_id in (1, 2, 3) if world.nodes is not None else ():
            midst()
            with broker_down(world, node_id):
                moves_on()
    total = len(growing.lines)

    def to_the_end() -> bool:
        growing.add()  # a transaction that is due is committed with the next line, not before
        return reader.read(total)

    eventually(to_the_end, START_S, 1.0)
    worker.stop()
    reader.rest()
    seen = [each.decode() for each in reader.values()]
    same(seen, growing.lines[: len(seen)], "lines")
    everything = Reader(world.bootstrap, topic, 1, committed=False)
    everything.rest()
    sent = everything.values()
    assert len(sent) > len(set(sent)), "no kill met an open transaction"
    everything.close()
    reader.close()


class Growing:
    """A file that has a hundred lines more each second, until the block ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.lines: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="growing file")

    def add(self) -> None:
        """One line more."""
        line = f"line-{len(self.lines)}"
        with self._file.open("a") as more:
            more.write(f"{line}\n")
        self.lines.append(line)

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            self.add()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


def lines(part: int) -> str:
    return "".join(f"line-{number}\n" for number in range(part * LINES, (part + 1) * LINES))
