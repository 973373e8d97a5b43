"""What a node does with cores: one node or several, pinned to cores, and which of a node's threads is the busy one.

    python -m bench.cores --rounds 3

Needs two cores. Producers (confluent-kafka) fill topics of six partitions with acks=all; nodes sync before the
ack. Replication is 1 with one and two nodes (what a node carries on its own), and 3 with three. Layouts take turns,
each with a new cluster.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic

from bench.measures import produce_load, rounds_of
from strandline.cluster.node.dev import DevCluster

SIZE = 1000


@dataclass(frozen=True)
class Load:
    """What producers send, each on a thread and with connections of its own."""

    producers: int
    records: int
    """Of all of them."""
    settings: Mapping[str, object]

    def send(self, bootstrap: str, topic: str, share: float = 1.0) -> float:
        """Send a share of it; seconds until all is acknowledged."""
        each = int(self.records * share) // self.producers
        began = time.perf_counter()
        with ThreadPoolExecutor(self.producers) as pool:
            running = [
                pool.submit(produce_load, bootstrap, topic, SIZE, each, **self.settings) for _ in range(self.producers)
            ]
            for load in running:
                load.result()
        return time.perf_counter() - began


LOADS = {
    "full batches": Load(1, 100_000, {}),
    "a record a request": Load(8, 6_000, {"linger.ms": 0, "batch.num.messages": 1}),
}
"""The first is bound by the producer, the second by nodes and disk."""

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Layout:
    """Nodes, and where they and the producer may run."""

    name: str
    cores: tuple[frozenset[int], ...]
    """Of each node."""
    producer: frozenset[int]


def layouts(first: int, second: int) -> list[Layout]:
    """What is compared, on two cores."""
    one, other, both = frozenset({first}), frozenset({second}), frozenset({first, second})
    return [
        Layout("1 node on one core, producer on the other", (one,), other),
        Layout("1 node on both cores, producer too", (both,), both),
        Layout("2 nodes, a core each, producer on both", (one, other), both),
        Layout("2 nodes on both cores, producer too", (both, both), both),
        Layout("3 nodes (replication 3) on one core, producer on the other", (one,) * 3, other),
        Layout("3 nodes (replication 3) on both cores, producer too", (both,) * 3, both),
    ]


def cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of a process so far, and those of its main thread, which runs the loop."""
    spent = []
    for place in (Path(f"/proc/{pid}"), Path(f"/proc/{pid}/task/{pid}")):
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        spent.append((int(fields[11]) + int(fields[12])) * TICK_S)
    return spent[0], spent[1]


def pin(pid: int, cores: frozenset[int]) -> None:
    """Every thread of a process; those to come inherit it."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def measure(layout: Layout) -> Mapping[str, float]:
    """One new cluster in this layout, each size once. Figures are of all nodes together."""
    figures: dict[str, float] = {}
    nodes = len(layout.cores)
    copies = 3 if nodes == 3 else 1
    kept = os.sched_getaffinity(0)
    with DevCluster(nodes=nodes) as cluster:
        pids = cluster.pids()
        for (_, pid), cores in zip(sorted(pids.items()), layout.cores, strict=True):
            pin(pid, cores)
        pin(os.getpid(), layout.producer)
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
            for name, load in LOADS.items():
                topic = name.replace(" ", "-")
                limits = {"min.insync.replicas": str(min(copies, 2))}
                admin.create_topics([NewTopic(topic, 6, copies, config=limits)])[topic].result(30)
                time.sleep(0.5)
                load.send(cluster.bootstrap, topic, 0.1)
                before = [cpu_s(pid) for pid in pids.values()]
                took = load.send(cluster.bootstrap, topic)
                after = [cpu_s(pid) for pid in pids.values()]
                total, loop = (
                    sum(now[at] - then[at] for now, then in zip(after, before, strict=True)) for at in (0, 1)
                )
                figures[f"{name}, records/s"] = load.records / took
                figures[f"{name}, CPU a node, us a record"] = total / nodes / load.records * 1e6
                figures[f"{name}, cores busy a node"] = total / nodes / took
                figures[f"{name}, of it the loop's thread, %"] = 100 * loop / total
        finally:
            pin(os.getpid(), frozenset(kept))
    return figures


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
def main(rounds: int) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    rounds_of(rounds, {layout.name: partial(measure, layout) for layout in layouts(first, second)})


if __name__ == "__main__":
    main()
