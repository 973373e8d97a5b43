"""The floor under a lone record: the least that a program in Python does for what acks=all promises here.

    python -m bench --only latency --peers floor --repeat 3

A leader, two followers and their client, each a process, over plain TCP on this machine: `floor_node.py` says what
they do. The client is this process, with a blocking socket. Each way to write the nodes is a column of the table.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.clusters import cpu_seconds
from bench.fetched import Unavailable
from bench.floor_node import Log, Way, connected, next_offset, run_node
from bench.measures import RATES, WARM_UP_S, Results, add_acks
from bench.members import processes, told
from bench.paced import percentile_ms

VALUE_BYTES = 1024
ACK_S = 30.0
"""A client that has no ack for so long gives up."""
SYNCS_MAX = 2_000

WAYS = {
    "floor: sockets": Way(loop=False, sync="in place"),
    "floor: asyncio": Way(loop=True, sync="in place"),
    "floor: asyncio, sync thread": Way(loop=True, sync="thread"),
    "floor: sockets, no sync": Way(loop=False, sync="none"),
    "floor: asyncio, no sync": Way(loop=True, sync="none"),
}


def floor_figures(way: Way, groups: set[str], scale: float, say: Callable[[str], None]) -> Results:
    """The figures of `latency` under the same names, and those of a sync while nobody else syncs. Raises Unavailable:
    `latency` is not asked for."""
    if "latency" not in groups:
        raise Unavailable("it is measured with --only latency")
    results = Results()
    seconds = 15 * scale
    with tempfile.TemporaryDirectory(prefix="strandline-floor-") as root:
        if way.sync != "none":
            say("fdatasync")
            times = _sync_times(Log(Path(root) / "alone"), seconds)
            results.add("fdatasync of 1 KB, one after the other, p50 ms", percentile_ms(times, 0.5))
            results.add("fdatasync of 1 KB, one after the other, p99 ms", percentile_ms(times, 0.99))
        say("ack latency")
        with floor_nodes(way, Path(root)) as (client, pids):
            for rate in RATES:
                before = cpu_seconds(pids)
                acks, count = client.at_a_rate(rate, seconds)
                add_acks(results, f"ack 1 KB at {rate}/s", acks, count, pids, before)
            before = cpu_seconds(pids)
            acks, count = client.one_after_the_other(seconds)
            add_acks(results, "ack 1 KB, one after the other", acks, count, pids, before)
    return results


@contextmanager
def floor_nodes(way: Way, root: Path) -> Iterator[tuple[Client, dict[int, int]]]:
    """The client of three running nodes, and node -> process id. Node 1 leads; the file of node n is `root`/n."""
    with ExitStack() as stack:

        def start(node: int, *followers: int) -> tuple[int, int]:
            [pipe] = stack.enter_context(processes(run_node, 1, way, root / str(node), followers))
            pid, port = told(pipe)
            return pid, port

        (second, port_2), (third, port_3) = start(2), start(3)
        first, port = start(1, port_2, port_3)
        yield stack.enter_context(Client(port)), {1: first, 2: second, 3: third}


def _sync_times(log: Log, seconds: float) -> list[float]:
    """Seconds of each of `SYNCS_MAX` syncs, or of as many as the time allows."""
    value = memoryview(bytes(VALUE_BYTES))
    times: list[float] = []
    ends_at = time.perf_counter() + seconds
    while not times or (len(times) < SYNCS_MAX and time.perf_counter() < ends_at):
        log.append(value)
        began = time.perf_counter()
        os.fdatasync(log.fd)
        times.append(time.perf_counter() - began)
    os.close(log.fd)
    return times


class Client:
    """Sends records to the leader over one connection, and hears up to which offset they are safe."""

    def __init__(self, port: int) -> None:
        self.socket = connected(port)
        # A timeout of Python's own would cost a poll before each call.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(ACK_S), 0))
        self._value = bytes(VALUE_BYTES)
        self._end = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send(self, value: bytes) -> int:
        """One record; the offset behind it: the record is safe once an ack is no less."""
        self.socket.sendall(value)
        self._end += len(value)
        return self._end

    def ack(self) -> int:
        """The next one. Raises BlockingIOError: none within `ACK_S`; ConnectionError: the leader is gone."""
        return next_offset(self.socket)

    def one_after_the_other(self, seconds: float) -> tuple[list[float], int]:
        """Milliseconds from send to ack of records, each sent when the one before it is acked, sorted; and how many
        were sent, those of the warm-up included."""
        latencies: list[float] = []
        count = 0
        began = time.perf_counter()
        while (sent_at := time.perf_counter()) < began + WARM_UP_S + seconds:
            end = self.send(self._value)
            while self.ack() < end:
                pass
            count += 1
            if sent_at > began + WARM_UP_S:
                latencies.append((time.perf_counter() - sent_at) * 1000)
        return sorted(latencies), count

    def at_a_rate(self, per_second: int, seconds: float) -> tuple[list[float], int]:
        """The same of records that are sent when they are due, whatever was acked (open loop)."""
        latencies: list[float] = []
        waiting: deque[tuple[int, float]] = deque()
        warm_up = int(per_second * WARM_UP_S)
        count = int(per_second * seconds) + warm_up
        sent = 0
        acks = selectors.DefaultSelector()
        acks.register(self.socket, selectors.EVENT_READ)
        began = time.perf_counter()
        while sent < count or waiting:
            wait = began + sent / per_second - time.perf_counter() if sent < count else ACK_S
            if acks.select(max(0.0, wait)):
                acked, now = self.ack(), time.perf_counter()
                while waiting and waiting[0][0] <= acked:
                    latencies.append((now - waiting.popleft()[1]) * 1000)
            elif sent == count:
                raise TimeoutError(f"no ack within {ACK_S:g} s")
            now = time.perf_counter()
            if sent < count and now >= began + sent / per_second:
                waiting.append((self.send(self._value), now))
                sent += 1
        acks.close()
        return sorted(latencies[warm_up:]), count
