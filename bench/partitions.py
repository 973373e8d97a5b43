"""What many partitions cost when a broker dies (row S19): `python -m bench.partitions`.

Three nodes of `strandline dev` hold the partitions, three replicas each, all with data; one node is killed with SIGKILL
and started again. Every load is bounded; the cluster is deleted at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import psutil

from bench.clusters import rss_mb
from strandline.client import Admin, NewTopic, Producer
from strandline.client.types import PartitionDescription
from strandline.cluster.node.dev import DevCluster

PARTITIONS = 1000
LEADERS_PLACED_MAX_S = 15.0
READY_MAX_S = 30.0
IN_SYNC_MAX_S = 60.0
"""What is promised for 1,000 partitions on two cores, brokers' sessions as they are by default (9 s, unused where the
process is gone and its connections with it)."""

DEADLINE_S = 120.0
TOPIC = "many"


@dataclass(frozen=True)
class Figures:
    """Seconds. `created_s` counts until all replicas of each partition have acknowledged a record, `leaders_placed_s`
    and `next_acks_s` from the kill, `ready_s` and `in_sync_s` from the restart.

    What a node holds, once all partitions have a record: `rss_mb` is the mean of the three, and the two counts of files
    are the most of one.
    """

    partitions: int
    created_s: float
    rss_mb: float
    files: int
    open_files: int
    leaders_placed_s: float
    next_acks_s: float
    ready_s: float
    in_sync_s: float

    @property
    def held(self) -> bool:
        """All bounds, which are those of 1,000 partitions."""
        return (
            self.leaders_placed_s <= LEADERS_PLACED_MAX_S
            and self.ready_s <= READY_MAX_S
            and self.in_sync_s <= IN_SYNC_MAX_S
        )


def measure(partitions: int, say: Callable[[str], None]) -> Figures:
    """Run it once."""
    with DevCluster() as cluster:
        say(f"creating {partitions} partitions")
        with Admin(cluster.bootstrap, default_api_timeout_ms=120_000, request_timeout_ms=60_000) as admin:
            began = time.perf_counter()
            admin.create_topics([NewTopic(TOPIC, partitions, 3)])
            _until(lambda: all(len(part.isr) == 3 for part in _describe(admin)), "every partition is in sync")
            _send_to_all(cluster.bootstrap, partitions)  # the metadata say so sooner than the logs are made
            created_s = time.perf_counter() - began
        pids = cluster.pids()
        resident_mb = rss_mb(pids)
        files = max(_files_below(cluster.data_dir(node)) for node in pids)
        open_files = max(psutil.Process(pid).num_fds() for pid in pids.values())
        victim = cluster.broker_ids[-1]
        survivors = ",".join(cluster.client(node) for node in cluster.broker_ids if node != victim)
        say(f"SIGKILL of node {victim}")
        with Admin(survivors) as admin:
            began = time.perf_counter()
            cluster.kill(victim)
            _until(lambda: all(part.leader not in (None, victim) for part in _describe(admin)), "leaders are placed")
            leaders_placed_s = time.perf_counter() - began
            _send_to_all(survivors, partitions)
            next_acks_s = time.perf_counter() - began
            say("starting it again")
            began = time.perf_counter()
            cluster.start_node(victim, wait=False)
            cluster.wait_ready([victim], DEADLINE_S)
            ready_s = time.perf_counter() - began
            _until(lambda: all(len(part.isr) == 3 for part in _describe(admin)), "every replica is in sync again")
            in_sync_s = time.perf_counter() - began
    return Figures(
        partitions,
        round(created_s, 2),
        round(resident_mb, 1),
        files,
        open_files,
        *(round(each, 2) for each in (leaders_placed_s, next_acks_s, ready_s, in_sync_s)),
    )


def _files_below(directory: str) -> int:
    return sum(len(files) for _, _, files in os.walk(directory))


def _describe(admin: Admin) -> tuple[PartitionDescription, ...]:
    [topic] = admin.describe_topics([TOPIC])
    return topic.partitions


def _send_to_all(bootstrap: str, partitions: int) -> None:
    with Producer(bootstrap, linger_ms=20, request_timeout_ms=10_000) as producer:
        for future in [producer.send(TOPIC, b"x" * 100, partition=number) for number in range(partitions)]:
            future.result(DEADLINE_S)


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.perf_counter() + DEADLINE_S
    while not holds():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.1)


@click.command(help=__doc__)
@click.option("--partitions", type=click.IntRange(1, 20_000), default=PARTITIONS, show_default=True)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(partitions: int, output: str) -> None:
    figures = measure(partitions, lambda line: click.echo(f"... {line}", err=True))
    if output == "json":
        click.echo(json.dumps({**asdict(figures), "held": figures.held}))
    else:
        click.echo(f"{figures.partitions} partitions, 3 replicas each, on three nodes of this machine")
        click.echo(f"created, an ack in each      {figures.created_s:7.2f} s")
        click.echo(f"memory of a node             {figures.rss_mb:7.1f} MB")
        click.echo(f"files of a node, open ones   {figures.files:7}, {figures.open_files}")
        click.echo(f"kill -9 to all leaders       {figures.leaders_placed_s:7.2f} s  (<= {LEADERS_PLACED_MAX_S:g})")
        click.echo(f"kill -9 to an ack in each    {figures.next_acks_s:7.2f} s")
        click.echo(f"restart to ready             {figures.ready_s:7.2f} s  (<= {READY_MAX_S:g})")
        click.echo(f"restart to all in sync       {figures.in_sync_s:7.2f} s  (<= {IN_SYNC_MAX_S:g})")
    if partitions <= PARTITIONS and not figures.held:
        sys.exit(1)


if __name__ == "__main__":
    main()
