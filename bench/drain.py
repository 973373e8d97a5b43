"""Rate at which a broker is drained, and what writers notice: `python -m bench.drain`.

Four nodes of `strandline dev`; a topic of two replicas is filled, a second one is written to at a steady rate. First
the rate alone, then while broker 4 is drained, then while a plain program writes as many bytes to the same disk in the
same time: what that costs writers is the disk's doing, and the rest is ours. Beside it what the machine gives: the
disk's sequential writes with a sync each 4 MB, and what one replica catches up at when its broker was away (the same
stream without a move).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import psutil

from strandline.client import Admin, NewTopic, Producer
from strandline.client.types import TopicDescription
from strandline.cluster.node.dev import DevCluster

PARTITIONS = 12
RATE = 200
"""Records of 1 KB a second that are written meanwhile."""

SHARE_MIN, P99_MAX = 0.7, 2.0
"""Promises: a part of the catch-up's rate, and times the p99 without a drain."""

DEADLINE_S = 600.0


@dataclass(frozen=True)
class Figures:
    """Rates in MB/s of bytes that arrived on other brokers; p99 of acknowledgements (acks=all), in ms: alone, while the
    broker was drained, and beside a plain program that wrote as much.

    `busy` is the machine's load average in cores before the run, with which the rest is to be read.
    """

    moved_mb: float
    disk_mb_s: float
    catch_up_mb_s: float
    drain_mb_s: float
    drain_s: float
    p99_alone_ms: float
    p99_drained_ms: float
    p99_beside_ms: float
    busy: float

    @property
    def shown(self) -> dict[str, float]:
        """`share` of the slower of disk and catch-up, `disk_share` of the disk alone; how many times its p99 a writer
        has beside a drain (`p99_ratio`), beside a plain program that writes as much (`p99_floor`), and the first over
        the second (`p99_ours`)."""
        ratio, floor = (ms / self.p99_alone_ms for ms in (self.p99_drained_ms, self.p99_beside_ms))
        share = self.drain_mb_s / min(self.disk_mb_s, self.catch_up_mb_s)
        disk_share = self.drain_mb_s / self.disk_mb_s
        found = {"share": share, "disk_share": disk_share, "p99_ratio": ratio, "p99_floor": floor}
        return {name: round(value, 2) for name, value in (found | {"p99_ours": ratio / floor}).items()}


class Writer:
    """Sends at a steady rate, and keeps the time of each acknowledgement."""

    def __init__(self, bootstrap: str) -> None:
        self.ms: list[float] = []
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._bootstrap) as producer:
            began, number = time.perf_counter(), 0
            while not self._ended.is_set():
                at = time.perf_counter()
                producer.send("live", b"x" * 1000).result(60)
                self.ms.append((time.perf_counter() - at) * 1000)
                number += 1
                self._ended.wait(max(0.0, began + number / RATE - time.perf_counter()))


def p99(ms: list[float]) -> float:
    return sorted(ms)[int(len(ms) * 0.99)]


def disk_mb_s(megabytes: int) -> float:
    """Sequential writes with a sync each 4 MB."""
    block = os.urandom(4 << 20)
    with tempfile.NamedTemporaryFile() as file:
        began = time.perf_counter()
        for _ in range(max(1, megabytes // 4)):
            file.write(block)
            file.flush()
            os.fdatasync(file.fileno())
        return megabytes / (time.perf_counter() - began)


def write_paced(path: str, megabytes: int, mb_s: float) -> None:
    """Write so much at so many MB a second, with a sync each 4 MB, as dd does it."""
    block = os.urandom(4 << 20)
    began = time.perf_counter()
    with open(path, "wb") as file:
        for number in range(max(1, megabytes // 4)):
            file.write(block)
            file.flush()
            os.fdatasync(file.fileno())
            time.sleep(max(0.0, began + (number + 1) * len(block) / 1e6 / mb_s - time.perf_counter()))


def _beside(cluster: DevCluster, megabytes: int, mb_s: float) -> float:
    """p99 of acknowledgements while a program of its own writes beside the nodes' data."""
    with Writer(cluster.bootstrap) as writer:
        time.sleep(1)
        writer.ms.clear()
        code = (
            f"from bench.drain import write_paced; write_paced({str(cluster.root / 'beside')!r}, {megabytes}, {mb_s})"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)
    return p99(writer.ms)


def measure(megabytes: int, throttle_mb: float | None) -> Figures:
    """Run it once."""
    busy, disk = psutil.getloadavg()[0], disk_mb_s(min(megabytes, 256))
    with DevCluster(nodes=4) as cluster:
        _fill(cluster, megabytes)
        catch_up = _catch_up(cluster, megabytes)
        with Writer(cluster.bootstrap) as writer:
            time.sleep(20)
        alone = p99(writer.ms[RATE:])
        with Admin(cluster.bootstrap) as admin:
            size = sum(
                replica.size_bytes
                for one in admin.describe_log_dirs([4])[4]
                for tp, replica in one.replicas.items()
                if tp.topic == "full"
            )
        with Writer(cluster.bootstrap) as writer:
            time.sleep(1)
            writer.ms.clear()
            began = time.perf_counter()
            program = [sys.executable, "-c", "from strandline.cli.main import main; main()"]
            command = [*program, "broker", "drain", "4", "-b", cluster.bootstrap, "--output", "json"]
            command += ["--throttle", str(int(throttle_mb * 1e6))] if throttle_mb else []
            subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
            took = time.perf_counter() - began
        drained, rate = p99(writer.ms), size / 1e6 / took
        beside = _beside(cluster, round(size / 1e6), rate)
    figures = (size / 1e6, disk, catch_up, rate, took, alone, drained, beside, busy)
    return Figures(*(round(one, 2) for one in figures))


def _fill(cluster: DevCluster, megabytes: int) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("full", PARTITIONS, 2), NewTopic("live", 3, 3)])
    with Producer(cluster.bootstrap, linger_ms=20, batch_size=512 << 10, acks=1) as producer:
        for number in range(megabytes * 10):
            producer.send("full", os.urandom(100_000), partition=number % PARTITIONS)
    _until(
        cluster, lambda topics: all(len(part.isr) == len(part.replicas) for one in topics for part in one.partitions)
    )


def _catch_up(cluster: DevCluster, megabytes: int) -> float:
    """MB a second at which a broker gets what was written while it was away."""
    cluster.kill(3)
    missed = megabytes // 2
    others = ",".join(cluster.client(node) for node in (1, 2, 4))
    with Admin(others) as admin:
        _wait(lambda: any(node.fenced for node in admin.describe_cluster().nodes))
        [topic] = admin.describe_topics(["full"])
    mine = [part.partition for part in topic.partitions if 3 in part.replicas]
    with Producer(others, linger_ms=20, batch_size=512 << 10, acks=1) as producer:
        for number in range(missed * 10):
            producer.send("full", os.urandom(100_000), partition=mine[number % len(mine)])
    cluster.start_node(3)
    began = time.perf_counter()
    _until(
        cluster, lambda topics: all(len(part.isr) == len(part.replicas) for one in topics for part in one.partitions)
    )
    return missed / (time.perf_counter() - began)


def _until(cluster: DevCluster, holds: Callable[[list[TopicDescription]], bool]) -> None:
    with Admin(cluster.responsive) as admin:
        _wait(lambda: holds(admin.describe_topics(["full", "live"])))


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


@click.command()
@click.option("--megabytes", default=400, show_default=True, help="That are written before; twice that is stored.")
@click.option("--throttle-mb", type=float, help="MB a second of each broker; all of them share one disk here.")
def main(megabytes: int, throttle_mb: float | None) -> None:
    """Print the figures as JSON; exit 1 where one is out of its bound."""
    figures = measure(megabytes, throttle_mb)
    shown = figures.shown
    print(json.dumps(asdict(figures) | shown, indent=2))
    sys.exit(0 if shown["share"] >= SHARE_MIN and shown["p99_ratio"] <= P99_MAX else 1)


if __name__ == "__main__":
    main()
