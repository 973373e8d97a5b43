"""A real node under attack, and what is watched meanwhile: its log, its memory, and a healthy client's latency."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.raw import receive_frame

MIB = 1 << 20

BUSY = 5
"""How many times slower a machine may be because of what else runs on it."""

METADATA = struct.pack(">ihhih1siB", 16, 3, 4, 7, 1, b"h", 0, 0)
"""Metadata v4 for no topic at all: the smallest question that a node answers."""

MISTAKES = re.compile(r"Traceback|internal error|Task exception|was never retrieved|Exception in callback")


def endpoint(cluster: DevCluster) -> tuple[str, int]:
    """The clients' address of node 1."""
    host, _, port = cluster.client(1).rpartition(":")
    return host, int(port)


def internal_endpoint(cluster: DevCluster) -> tuple[str, int]:
    """Where other nodes reach node 1."""
    settings = (cluster.root / "node-1.properties").read_text()
    [(host, port)] = re.findall(r"^listeners=.*INTERNAL://([^,\s:]+):(\d+)", settings, re.MULTILINE)
    return host, int(port)


def frame(key: int, version: int, body: bytes, *, flexible: bool, correlation_id: int = 7) -> bytes:
    """A whole request."""
    head = struct.pack(">hhih", key, version, correlation_id, 1) + b"h" + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def rss_bytes(cluster: DevCluster) -> int:
    """Resident memory of node 1."""
    return int(psutil.Process(cluster.pids()[1]).memory_info().rss)


class Healthy:
    """A client beside the attack: asks for metadata, again and again, and notes how long each answer took, and how much
    of the processor's time the node spent meanwhile."""

    def __init__(self, address: tuple[str, int], pid: int) -> None:
        self.latencies_ms: list[float] = []
        self.spent_ms: list[float] = []
        self._address = address
        self._node = psutil.Process(pid)
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop asking. Raises what went wrong."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the healthy client got no answer for 30 s"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with socket.create_connection(self._address, 20) as connection:
                while not self.latencies_ms or not self._stop.wait(0.005):
                    began, spent_ms = time.perf_counter(), self._spent_ms()
                    connection.sendall(METADATA)
                    receive_frame(connection)
                    self.latencies_ms.append((time.perf_counter() - began) * 1000)
                    self.spent_ms.append(self._spent_ms() - spent_ms)
        except (OSError, AssertionError, psutil.Error) as error:
            self._failure = error

    def _spent_ms(self) -> float:
        times = self._node.cpu_times()
        return (times.user + times.system) * 1000


class Watched:
    """What `attack` saw."""

    def __init__(self) -> None:
        self.log = ""
        self.rss_before = 0
        self.rss_after = 0
        self.rss_max = 0
        self.latencies_ms: list[float] = []


@contextmanager
def attack(cluster: DevCluster, *, worst_ms: float = 2000, grows_mib: float = 64) -> Iterator[Watched]:
    """Watch node 1 while the block runs; afterwards it lives, has logged no mistake, and others were served.

    Args:
        worst_ms: the most processor's time that the node may have spent while a healthy client waited for one answer.
            A loop that is held shows in it, a machine that is busy with something else does not. The wait itself may
            be BUSY times as long.
        grows_mib: how much resident memory may be added, at the peak and at the end.
    """
    pids = cluster.pids()
    log_path = Path(cluster.log_path(1))
    log_start = log_path.stat().st_size
    watched = Watched()
    watched.rss_before = watched.rss_max = rss_bytes(cluster)
    stop = threading.Event()

    def watch_memory() -> None:
        with suppress(psutil.Error, KeyError):
            while not stop.wait(0.02):
                watched.rss_max = max(watched.rss_max, rss_bytes(cluster))

    memory = threading.Thread(target=watch_memory, daemon=True)
    healthy = Healthy(endpoint(cluster), pids[1])
    memory.start()
    healthy.start()
    try:
        yield watched
    finally:
        stop.set()
        memory.join()
        with log_path.open("rb") as log:
            log.seek(log_start)
            watched.log = log.read().decode()
    healthy.end()
    assert cluster.pids() == pids
    watched.rss_after = rss_bytes(cluster)
    watched.latencies_ms = sorted(healthy.latencies_ms)
    mistake = MISTAKES.search(watched.log)
    assert not mistake, watched.log[max(0, mistake.start() - 2000) : mistake.start() + 4000]
    grown = (watched.rss_max - watched.rss_before) / MIB
    assert grown <= grows_mib, f"{grown:.0f} MiB were added, {grows_mib} are allowed"
    assert watched.latencies_ms, "the healthy client was not answered at all"
    assert max(healthy.spent_ms) <= worst_ms, f"a healthy client waited while {max(healthy.spent_ms):.0f} ms were spent"
    assert watched.latencies_ms[-1] <= worst_ms * BUSY, f"a healthy client waited {watched.latencies_ms[-1]:.0f} ms"
