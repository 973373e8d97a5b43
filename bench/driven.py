"""Peers that do not speak Kafka's protocol: the same records and figures, sent by a small Go program (`bench/driver`).

One stream or queue of three copies takes them: six, as Strandline and Kafka have partitions, made neither peer faster.
Every load ends after its count or its time, whichever is first; a figure that a peer cannot give is left out, and the
reason said.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench.clusters import cpu_seconds, rss_mb
from bench.fetched import Unavailable, cache, need, run
from bench.measures import RATES, Results

SOURCES = Path(__file__).parent / "driver"
LOAD_S = 20.0
HALF_LOAD_S = 10.0
FIRST_S = 90.0
SPARE_S = 60.0


class PeerFailed(Exception):
    """The peer did not do what was asked; the message is what its client said."""


class DrivenCluster(Protocol):
    """Three running nodes."""

    name: str
    system: str
    """As the Go program calls it."""
    window: int
    """How many records may wait for their acks: as many as make the peer fast."""

    def start(self) -> None: ...

    @property
    def addresses(self) -> str: ...

    def pids(self) -> dict[int, int]: ...

    def check(self) -> None:
        """Raises PeerFailed where what was made so far has not three copies."""

    def stop(self) -> None: ...


def driver() -> str:
    """The Go program, built once for each version of its sources.

    Raises:
        Unavailable: no Go, or its modules are not reached.
    """
    need("go", what_for="its load")
    sources = sorted(SOURCES.glob("*.go")) + sorted(SOURCES.glob("go.*"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    built = cache() / f"driver-{digest}"
    if not built.exists():
        cache().mkdir(parents=True, exist_ok=True)
        go(["build", "-o", str(built), "."], SOURCES)
    return str(built)


def go(arguments: list[str], where: Path, environment: dict[str, str] | None = None) -> None:
    """Run the Go tool. Raises Unavailable."""
    run(["go", *arguments], where, f"go {arguments[0]}", environment)


def operate(cluster: DrivenCluster, operation: str, name: str, limit_s: float, **settings: int) -> dict[str, float]:
    """One operation of the Go program against the cluster; what it printed. Raises PeerFailed."""
    command = [driver(), "-system", cluster.system, "-addresses", cluster.addresses, "-operation", operation]
    command += ["-name", name, "-limit", f"{int(limit_s * 1000)}ms"]
    for setting, value in settings.items():
        command += [f"-{setting}", str(value)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + SPARE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{operation}: no end within {limit_s + SPARE_S:.0f} s") from error
    if done.returncode:
        raise PeerFailed(f"{operation}: {done.stderr.strip()[-200:]}")
    told: dict[str, float] = json.loads(done.stdout)
    return told


def measure_driven(
    make: Callable[[], DrivenCluster], groups: set[str], scale: float, say: Callable[[str], None]
) -> Results:
    """Start the peer, measure what it shares with Strandline, and stop it. Raises Unavailable."""
    driver()
    results = Results()
    cluster = make()
    try:
        say("cold start")
        began = time.perf_counter()
        cluster.start()
        try:
            operate(cluster, "first", "first", FIRST_S)
            results.add("cold start to the first ack, s", time.perf_counter() - began)
            time.sleep(3)
            results.add("RSS a node at rest, MB", rss_mb(cluster.pids()))
            cluster.check()
        except PeerFailed as reason:
            raise Unavailable(f"{cluster.name} did not start: {reason}") from reason
        if "produce" in groups:
            say("produce")
            _attempt(lambda: _produce(cluster, results, scale), say)
        if "latency" in groups:
            say("ack latency")
            _attempt(lambda: _latency(cluster, results, scale), say)
    finally:
        cluster.stop()
    return results


def _attempt(work: Callable[[], None], say: Callable[[str], None]) -> None:
    try:
        work()
    except PeerFailed as reason:
        say(f"figures left out: {reason}")


def _produce(cluster: DrivenCluster, results: Results, scale: float) -> None:
    for size, count in {100: int(3_000_000 * scale), 1000: int(500_000 * scale)}.items():
        limit_s = max(2.0, LOAD_S * scale)
        load = {"size": size, "window": cluster.window}
        operate(cluster, "load", f"load-{size}", limit_s / 10, count=count // 10, **load)
        before = cpu_seconds(cluster.pids())
        told = operate(cluster, "load", f"load-{size}", limit_s, count=count, **load)
        spent = cpu_seconds(cluster.pids()) - before
        megabytes = size * told["acked"] / 1e6
        results.add(f"produce {size} B, records/s", told["acked"] / told["seconds"])
        results.add(f"produce {size} B, MB/s", megabytes / told["seconds"])
        results.add(f"produce {size} B, server CPU a node, ms/MB", spent * 1000 / len(cluster.pids()) / megabytes)
    half = int(results.figures["produce 1000 B, records/s"] / 2)
    told = operate(cluster, "paced", "load-1000", max(2.0, HALF_LOAD_S * scale), rate=half, size=1000)
    results.add("ack 1000 B at half the rate carried, p50 ms", told["p50_ms"])
    results.add("ack 1000 B at half the rate carried, p99 ms", told["p99_ms"])
    results.add("RSS a node after the load, MB", rss_mb(cluster.pids()))


def _latency(cluster: DrivenCluster, results: Results, scale: float) -> None:
    limit_s = 15 * scale
    for rate in RATES:
        told = operate(cluster, "paced", "latency", limit_s, rate=rate, size=1024)
        results.add(f"ack 1 KB at {rate}/s, p50 ms", told["p50_ms"])
        results.add(f"ack 1 KB at {rate}/s, p99 ms", told["p99_ms"])
    told = operate(cluster, "single", "latency", limit_s, size=1024)
    results.add("ack 1 KB, one after the other, p50 ms", told["p50_ms"])
    results.add("ack 1 KB, one after the other, p99 ms", told["p99_ms"])
