"""A whole application that nobody here wrote: a worker of Kafka Connect, with its file connectors.

It keeps its settings, offsets and states in three compacted topics of its own, joins a group of its own kind
(protocol type "connect"), and runs a producer and a consumer group for its connectors.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.clusters import free_port

from interop.driver import ClientError, ToolDriver
from interop.install import JAVA
from interop.logins import OPEN, Login, as_properties
from interop.suite import World, eventually

START_S = 120.0
COPY_S = 60.0
LINES = 100


class ConnectWorker(ToolDriver):
    """One worker process, told what to do through its REST interface."""

    def __init__(self, bootstrap: str, jars: str, login: Login = OPEN) -> None:
        self._jars = jars
        self._environment = login.environment()
        self._port = free_port()
        self._root = Path(tempfile.mkdtemp(prefix="interop-connect-"))
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"connect-{self._port}",
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
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
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with (self._root / "worker.out").open("ab") as output:
            self._process = subprocess.Popen(
                [*JAVA, "-cp", self._jars, main, str(self._root / "worker.properties")],
                stdout=output,
                stderr=output,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        eventually(self._works, START_S, 0.2)

    def _works(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ClientError(-1, f"the worker ended: {(self._root / 'worker.out').read_text()[-300:]}")
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

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)


def copies_through_a_topic(world: World) -> None:
    """A file is copied through a topic; a worker that was killed goes on where it was (at least once)."""
    worker, topic = world.client, world.topic()
    source, copy = (Path(worker.call("file", name=name)["path"]) for name in ("source.txt", "copy.txt"))
    source.write_text(lines(0))
    worker.call("start")
    both = {"tasks.max": "1"}
    kind = "org.apache.kafka.connect.file.FileStream"
    worker.call(
        "connector",
        name="source",
        configs={**both, "connector.class": f"{kind}SourceConnector", "file": str(source), "topic": topic},
    )
    worker.call(
        "connector",
        name="sink",
        configs={**both, "connector.class": f"{kind}SinkConnector", "file": str(copy), "topics": topic},
    )
    eventually(lambda: copy.exists() and copy.read_text() == lines(0), COPY_S)
    worker.kill()
    with source.open("a") as file:
        file.write(lines(1))
    worker.call("start")
    wanted = {*lines(0).split(), *lines(1).split()}
    eventually(lambda: wanted == set(copy.read_text().split()), START_S)


def lines(part: int) -> str:
    return "".join(f"line-{number}\n" for number in range(part * LINES, (part + 1) * LINES))
