"""Finding any record in a long log (row S73): `python -m bench.seek`.

One node, one partition of the size asked for, 1 KB records a millisecond apart. Then records at random offsets, and
records of random times, each until it is in the consumer's hands; and what the size costs a start after a clean stop.
Bounded by the size; everything is deleted at the end.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import psutil
from confluent_kafka import Producer
from rich.console import Console

from strandline.client import Admin, Consumer, NewTopic
from strandline.cluster.node.dev import DevCluster

TOPIC = "long"
RECORD_BYTES = 1000
LOOKUPS = 300
P99_MAX_MS = 20.0
FIRST_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Figures:
    """Milliseconds of one look-up, seek and fetch included; bytes that the node read from its files for one."""

    gigabytes: float
    records: int
    by_offset_p50_ms: float
    by_offset_p99_ms: float
    by_time_p50_ms: float
    by_time_p99_ms: float
    read_bytes_a_lookup: float
    empty_start_s: float
    full_start_s: float

    @property
    def held(self) -> bool:
        """Every look-up in time; a start that does not grow with the data."""
        return max(self.by_offset_p99_ms, self.by_time_p99_ms) <= P99_MAX_MS and (
            self.full_start_s <= self.empty_start_s + 1.0
        )


def measure(gigabytes: float, say: Callable[[str], None]) -> Figures:
    """Run it once."""
    records = int(gigabytes * 1e9 / RECORD_BYTES)
    with DevCluster(nodes=1, settings={"default.replication.factor": "1", "min.insync.replicas": "1"}) as cluster:
        empty_start_s = _restart(cluster)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])
        say(f"writing {records:,} records")
        _fill(cluster.bootstrap, records)
        rng = random.Random(73)
        with Consumer(cluster.bootstrap, max_partition_fetch_bytes=1, max_poll_records=1) as consumer:
            consumer.assign([(TOPIC, 0)])
            _find(consumer, 0)
            process = psutil.Process(cluster.pids()[1])
            before = process.io_counters().read_chars
            say("looking up by offset")
            by_offset = sorted(_timed(lambda: _find(consumer, rng.randrange(records))) for _ in range(LOOKUPS))
            read = (process.io_counters().read_chars - before) / LOOKUPS
            say("looking up by time")
            by_time = sorted(_timed(lambda: _find_time(consumer, rng.randrange(records))) for _ in range(LOOKUPS))
        say("stopping and starting")
        full_start_s = _restart(cluster)
    p50, p99 = LOOKUPS // 2, int(LOOKUPS * 0.99)
    return Figures(
        gigabytes,
        records,
        by_offset[p50],
        by_offset[p99],
        by_time[p50],
        by_time[p99],
        read,
        empty_start_s,
        full_start_s,
    )


def _fill(bootstrap: str, records: int) -> None:
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20, "batch.size": 65_536, "log_level": 0}
    producer = Producer(settings)
    payload = bytes(RECORD_BYTES)
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, payload, timestamp=FIRST_MS + number)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all records were acknowledged in 120 s after the last one")


def _find(consumer: Consumer, offset: int) -> None:
    consumer.seek((TOPIC, 0), offset)
    found = consumer.poll(timeout_s=10)
    if not found or found[0].offset != offset:
        raise RuntimeError(f"offset {offset} was not found: {found[:1]}")


def _find_time(consumer: Consumer, number: int) -> None:
    [found] = consumer.offsets_for_times({(TOPIC, 0): FIRST_MS + number}).values()
    if found is None or found.offset != number:
        raise RuntimeError(f"the record of time {FIRST_MS + number} was looked for, and {found} found")
    _find(consumer, number)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _restart(cluster: DevCluster) -> float:
    """Seconds of a start after a clean stop, the median of three: the first after a load shares the disk with it."""
    times = []
    for _ in range(3):
        cluster.stop_node(1)
        began = time.perf_counter()
        cluster.start_node(1)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@click.command(help=__doc__)
@click.option("--gigabytes", default=10.0, show_default=True, help="Size of the partition.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(gigabytes: float, output: str) -> None:
    console = Console(stderr=True)
    figures = measure(gigabytes, console.print)
    if output == "json":
        click.echo(json.dumps(asdict(figures)))
    else:
        for name, value in asdict(figures).items():
            click.echo(f"{name.replace('_', ' '):24} {value:>14,.2f}")
    sys.exit(0 if figures.held else 1)


if __name__ == "__main__":
    main()
