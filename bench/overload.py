"""Open-loop load above capacity (row S99): `python -m bench.overload`.

Capacity is measured first, with the same client; then records fall due at 120 % of it whether or not earlier ones were
acknowledged, and at 20 % of it afterwards. A record that the client has no room for is dropped and counted, as a caller
with a bounded buffer would. Latency counts from the instant a record was due.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import click
import psutil
from confluent_kafka.admin import AdminClient

from bench.measures import PARTITIONS, create_topic
from bench.paced import PacedLoad, percentile_ms
from strandline.cluster.node.dev import DevCluster

SECONDS = 300.0
OVERLOAD, AFTER = 1.2, 0.2
VALUE_BYTES = 1000
SAMPLE_EVERY = 20
CLIENT_BUFFER_KB = 32 * 1024
CAPACITY_S = 4.0
AFTER_S = 15.0
RECOVERY_MAX_S = 10.0
RECOVERED_MS = 100.0
"""A second counts as recovered when its p99 is no more than this, or than four times that of the time before."""
RSS_MAX_MB = 400.0
SILENCE_MAX_S = 3.0

TOPIC_S = 20.0
"""After so long the load goes on to another topic, and the one before is deleted: the disk is bounded too."""


@dataclass
class Figures:
    """Rates in records a second, memory in MB a node (the largest)."""

    capacity_per_s: float = 0.0
    offered_per_s: float = 0.0
    acked_per_s: float = 0.0
    dropped: int = 0
    failed: int = 0
    longest_silence_s: float = 0.0
    p99_before_ms: float = 0.0
    p99_overload_ms: float = 0.0
    p99_after_ms: float = 0.0
    recovered_after_s: float = 0.0
    rss_before_mb: float = 0.0
    rss_peak_mb: float = 0.0

    @property
    def held(self) -> bool:
        """Acks went on, nothing failed, memory was bounded, latency came back."""
        return (
            self.failed == 0
            and self.acked_per_s > 0
            and self.longest_silence_s <= SILENCE_MAX_S
            and self.rss_peak_mb <= RSS_MAX_MB
            and self.recovered_after_s <= RECOVERY_MAX_S
        )


class _Load(PacedLoad):
    """With a buffer as bounded as the rest."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(
            bootstrap,
            topic,
            VALUE_BYTES,
            SAMPLE_EVERY,
            **{
                "batch.size": 262_144,
                "queue.buffering.max.kbytes": CLIENT_BUFFER_KB,
                "message.timeout.ms": 60_000,
            },
        )
        self._bootstrap = bootstrap

    def run_on(self, topics: list[str], per_s: float, seconds: float) -> None:
        """As `run`, on one topic after the other; each is deleted once the one after the next begins."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        for number, topic in enumerate(topics):
            if number > 1:
                admin.delete_topics([topics[number - 2]], operation_timeout=0)
            self.topic = topic
            self.run(per_s, min(TOPIC_S, seconds - number * TOPIC_S))

    def saturate(self, seconds: float) -> float:
        """As many as go; how many a second were acknowledged."""
        began = time.perf_counter()
        before = self.offered - self.dropped
        while time.perf_counter() - began < seconds:
            for _ in range(500):
                self.offer(time.perf_counter())
            self.poll()
        self.flush()
        return (self.offered - self.dropped - before) / (time.perf_counter() - began)


class _Memory(threading.Thread):
    """The largest RSS of any node, sampled."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        super().__init__(daemon=True)
        self._processes = [psutil.Process(pid) for pid in pids.values()]
        self._over = threading.Event()
        self.before_mb = self.peak_mb = self._now()

    def _now(self) -> float:
        return max(process.memory_info().rss for process in self._processes) / 1e6

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.peak_mb = max(self.peak_mb, self._now())

    def stop(self) -> None:
        self._over.set()
        self.join()


def overload(seconds: float, say: Callable[[str], None]) -> Figures:
    """Run it once on a cluster of its own."""
    figures = Figures()
    with DevCluster() as cluster:
        topics = [f"overload-{number}" for number in range(math.ceil(seconds / TOPIC_S))]
        for topic in ("steady", *topics):
            create_topic(cluster.bootstrap, topic, PARTITIONS)
        memory = _Memory(cluster.pids())
        load = _Load(cluster.bootstrap, "steady")
        load.saturate(1.0)
        say("capacity")
        figures.capacity_per_s = load.saturate(CAPACITY_S)
        load.acks.clear()
        load.run(figures.capacity_per_s * AFTER, 4.0)
        load.flush()
        figures.p99_before_ms = percentile_ms([took for _, took in load.acks], 0.99)
        load.acks.clear()
        memory.before_mb = memory.peak_mb
        memory.start()
        say(f"{figures.capacity_per_s * OVERLOAD:,.0f} records/s for {seconds:g} s")
        offered, dropped, began = load.offered, load.dropped, time.perf_counter()
        load.run_on(topics, figures.capacity_per_s * OVERLOAD, seconds)
        took = time.perf_counter() - began
        figures.offered_per_s = (load.offered - offered) / took
        figures.dropped = load.dropped - dropped
        figures.acked_per_s = len(load.acks) * SAMPLE_EVERY / took
        figures.p99_overload_ms = percentile_ms([late for _, late in load.acks], 0.99)
        figures.longest_silence_s = _longest_silence([began, *(at for at, _ in load.acks)])
        load.acks.clear()
        say("the load drops")
        dropped_at = time.perf_counter()
        load.run(figures.capacity_per_s * AFTER, AFTER_S)
        load.flush()
        memory.stop()
        bound_ms = max(RECOVERED_MS, 4 * figures.p99_before_ms)
        figures.recovered_after_s, figures.p99_after_ms = _recovery(load.acks, dropped_at, bound_ms)
        figures.rss_before_mb, figures.rss_peak_mb = memory.before_mb, memory.peak_mb
        figures.failed = len(load.errors)
    return figures


def _longest_silence(moments: list[float]) -> float:
    moments.sort()
    return max((after - before for before, after in itertools.pairwise(moments)), default=float("inf"))


def _recovery(acks: list[tuple[float, float]], since: float, bound_ms: float) -> tuple[float, float]:
    """Seconds from `since` to the first whole second from which on every second's p99 is within the bound; and the p99
    of the rest."""
    by_second: dict[int, list[float]] = {}
    for at, took in acks:
        by_second.setdefault(int(at - since), []).append(took)
    last_bad = max((second for second, took in by_second.items() if percentile_ms(took, 0.99) > bound_ms), default=-1)
    rest = [took for second, all_took in by_second.items() if second > last_bad for took in all_took]
    return float(last_bad + 1), percentile_ms(rest, 0.99)


@click.command(help=__doc__)
@click.option("--seconds", type=click.FloatRange(1, 3600), default=SECONDS, show_default=True)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(seconds: float, output: str) -> None:
    figures = overload(seconds, lambda line: click.echo(f"... {line}", err=True))
    if output == "json":
        click.echo(json.dumps({**asdict(figures), "held": figures.held}))
    else:
        for name, value in asdict(figures).items():
            click.echo(f"{name:22} {value:14,.1f}")
        click.echo(
            f"bounds: silence <= {SILENCE_MAX_S:g} s, {RSS_MAX_MB:g} MB a node, p99 back within {RECOVERY_MAX_S:g} s, "
            f"no failed record: {'held' if figures.held else 'NOT HELD'}"
        )
    if not figures.held:
        sys.exit(1)


if __name__ == "__main__":
    main()
