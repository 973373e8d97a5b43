"""NATS JetStream as a peer: three servers, file streams of three replicas."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.clusters import end, free_port
from bench.driven import go
from bench.fetched import cache, need

NATS_VERSION = "2.15.2"


class NatsCluster:
    """Three servers of 127.0.0.1, as they come but for `sync_interval`.

    By default JetStream syncs every two minutes and acknowledges before; with `always` it syncs each record before the
    ack, as Strandline does.
    """

    system = "nats"
    window = 16_384

    def __init__(self, *, sync_always: bool) -> None:
        self.name = name(sync_always=sync_always)
        self._program = nats_server()
        self._root = Path(tempfile.mkdtemp(prefix="nats-bench-"))
        self._ports = {node: free_port() for node in (1, 2, 3)}
        routes = {node: free_port() for node in (1, 2, 3)}
        known = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes.values())
        sync = "sync_interval: always" if sync_always else ""
        for node, port in self._ports.items():
            (self._root / f"n{node}.conf").write_text(
                f"server_name: n{node}\nlisten: 127.0.0.1:{port}\n"
                f'jetstream {{ store_dir: "{self._root}/d{node}"\n {sync}\n}}\n'
                f"cluster {{ name: bench, listen: 127.0.0.1:{routes[node]}, routes: [{known}] }}\n"
            )
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for node in self._ports:
            with (self._root / f"n{node}.out").open("wb") as output:
                self._processes[node] = subprocess.Popen(
                    [self._program, "-c", str(self._root / f"n{node}.conf")],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def pids(self) -> dict[int, int]:
        return {node: process.pid for node, process in self._processes.items() if process.poll() is None}

    def check(self) -> None:
        """A stream of three replicas is refused where there are not three servers."""

    def stop(self) -> None:
        end(self._processes.values())
        shutil.rmtree(self._root, ignore_errors=True)


def name(*, sync_always: bool) -> str:
    return f"nats {NATS_VERSION}, " + ("sync always" if sync_always else "its default sync")


def nats_server() -> str:
    """The server, built by Go once into the user's cache.

    Raises:
        Unavailable: no Go, or the module is not reached.
    """
    need("go", what_for="NATS")
    folder = cache() / f"nats-{NATS_VERSION}"
    program = folder / "nats-server"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        go(["install", f"github.com/nats-io/nats-server/v2@v{NATS_VERSION}"], folder, {"GOBIN": str(folder)})
    return str(program)
