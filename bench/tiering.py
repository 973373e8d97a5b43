"""What an object store costs and gives: `python -m bench.tiering` (a directory), `python -m bench.tiering --s3`.

A topic of one partition and one copy is filled, and then told to go to the store (`remote.storage.enable`): how fast is
it copied, what does that cost producers beside it (200 records a second to a topic of three copies, from send to ack),
and what of the CPU. Then the log leaves the disk, and a consumer reads it all again, from the store, beside the same
producers; at the start it has read it from the disk. With `--s3` the store is moto's S3 server, in Python on the same
cores: its figures say that the way through HTTP works, and not what S3 could do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click

from bench.clusters import StrandlineCluster, cpu_seconds, free_port, wait_ready
from bench.measures import Results, ack_latency, create_topic
from bench.storage import (
    PROBE,
    SIDE,
    SIDE_PER_S,
    VALUE_BYTES,
    add_times,
    alter,
    beside,
    create_on_one,
    fetch,
    fill,
)
from strandline.client import EARLIEST_LOCAL, LATEST_TIERED, Admin

TOPIC = "old"
SEGMENT_BYTES = 32 << 20
WAIT_S = 300.0
SETTINGS = {
    "log.retention.check.interval.ms": "1000",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "log.segment.delete.delay.ms": "1000",
    "remote.log.manager.task.interval.ms": "500",
}


@contextmanager
def _directory() -> Iterator[dict[str, str]]:
    """The settings of a store that is a directory."""
    root = tempfile.mkdtemp(prefix="strandline-bench-store-")
    try:
        yield {"remote.log.storage.url": f"file://{root}"}
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _moto() -> Iterator[dict[str, str]]:
    """The settings of a store that is moto's S3 server."""
    import boto3

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint, key = f"http://127.0.0.1:{port}", "bench"
        client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=key
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                client.create_bucket(Bucket="bench")
                break
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        options = f"aws_endpoint={endpoint},aws_region=us-east-1,aws_access_key_id={key},aws_secret_access_key={key}"
        yield {"remote.log.storage.url": "s3://bench/log", "remote.log.storage.options": options}
    finally:
        server.terminate()
        server.wait()


def _until(what: str, admin: Admin, spec: int, at_least: int) -> float:
    """Seconds until a special offset of the topic is so high. Raises TimeoutError."""
    began = time.perf_counter()
    while time.perf_counter() - began < WAIT_S:
        if admin.list_offsets({(TOPIC, 0): spec})[TOPIC, 0].offset >= at_least:
            return time.perf_counter() - began
        time.sleep(0.1)
    raise TimeoutError(f"not {what} within {WAIT_S:g} s")


def measure(records: int, store: dict[str, str]) -> Results:
    """All figures, on one cluster."""
    results, cluster = Results(), StrandlineCluster({**SETTINGS, **store})
    cluster.start()
    try:
        wait_ready(cluster.bootstrap)
        create_topic(cluster.bootstrap, SIDE, 6)
        create_on_one(cluster.bootstrap, TOPIC)
        fill(cluster.bootstrap, TOPIC, records)
        results.add("read from the disk, MB/s", fetch(cluster.bootstrap, TOPIC, 0, records) * VALUE_BYTES / 1e6)
        add_times(results, "alone", ack_latency(cluster.bootstrap, SIDE, SIDE_PER_S, 10))
        closed = records - 2 * SEGMENT_BYTES // VALUE_BYTES
        with Admin(cluster.bootstrap) as admin:
            cpu = cpu_seconds(cluster.pids())
            with beside(cluster, results, "while it is copied"):
                alter(cluster.bootstrap, TOPIC, {"remote.storage.enable": "true"})
                took = _until("copied", admin, LATEST_TIERED, closed)
            results.add("copied, MB/s", closed * VALUE_BYTES / 1e6 / took)
            spent = cpu_seconds(cluster.pids()) - cpu
            results.add("copied, CPU of all nodes, ms/MB", spent * 1000 / (closed * VALUE_BYTES / 1e6))
            alter(cluster.bootstrap, TOPIC, {"local.retention.bytes": "0"})
            _until("gone from the disk", admin, EARLIEST_LOCAL, closed)
        with beside(cluster, results, "while it is read from the store"):
            rate = fetch(cluster.bootstrap, TOPIC, 0, closed)
        results.add("read from the store, MB/s", rate * VALUE_BYTES / 1e6)
    finally:
        cluster.stop()
    return results


@click.command()
@click.option("--records", type=click.IntRange(PROBE), default=1_000_000, help="Of 1,000 bytes.", show_default=True)
@click.option("--s3", is_flag=True, help="moto's S3 server instead of a directory.")
def main(records: int, s3: bool) -> None:
    with ExitStack() as stack:
        found = measure(records, stack.enter_context(_moto() if s3 else _directory()))
    for name, value in found.figures.items():
        click.echo(f"{name}: {value:,.2f}")


if __name__ == "__main__":
    main()
