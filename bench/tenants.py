"""What a tenant at full speed does to another one, and what a quota does for that: `python -m bench --only tenants`.

One tenant sends a 1 KB record every 5 ms; its time from send to ack is the figure: alone, beside a tenant that sends as
fast as it can, and beside the same with a `producer_byte_rate`. The greedy one is a process of its own, so that the two
share the servers and the machine, and no client.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer

from bench.clusters import Cluster
from bench.measures import PARTITIONS, Results, ack_latency, create_topic, producer_settings
from bench.secured import own_settings
from strandline.client import Admin
from strandline.proto.quotas import QuotaEntity, QuotaKey

PACED, GREEDY = "paced", "greedy"
PER_S = 200
QUOTA_MB = 2
"""A second, at each broker."""

VALUE_BYTES = 1000
GREEDY_MAX_BYTES = 4 << 30
COUNTED = 100
"""One record in so many has a callback: the client's own cost, not the server's."""

SETTLE_S = 2.0
"""Until the quota is obeyed, and what the greedy tenant had under way has gone."""


def tenants(cluster: Cluster, results: Results, seconds: float) -> None:
    """Three loads of so many seconds each."""
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, PACED, PARTITIONS)
    create_topic(bootstrap, GREEDY, PARTITIONS)
    _measured(bootstrap, results, "alone", seconds)
    with _greedy(bootstrap, results, "greedy tenant", seconds):
        _measured(bootstrap, results, "beside a greedy one", seconds)
    time.sleep(SETTLE_S)
    with Admin(bootstrap, **own_settings()) as admin:
        quota = {QuotaKey.PRODUCER_BYTE_RATE: QUOTA_MB * 1e6}
        admin.alter_client_quotas({QuotaEntity(client_id=GREEDY): quota})
    time.sleep(SETTLE_S)
    with _greedy(bootstrap, results, f"greedy tenant with {QUOTA_MB} MB/s a broker", seconds):
        _measured(bootstrap, results, "beside it with its quota", seconds)


def _measured(bootstrap: str, results: Results, how: str, seconds: float) -> None:
    times = ack_latency(bootstrap, PACED, PER_S, seconds)
    results.add(f"tenant at {PER_S}/s {how}, p50 ms", times[len(times) // 2])
    results.add(f"tenant at {PER_S}/s {how}, p99 ms", times[int(len(times) * 0.99)])


@contextmanager
def _greedy(bootstrap: str, results: Results, name: str, seconds: float) -> Iterator[None]:
    """The other tenant, from before the block until after it."""
    arguments = [sys.executable, "-m", "bench.tenants", bootstrap, str(seconds + 2 * SETTLE_S)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        try:
            time.sleep(SETTLE_S)
            yield
            said, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    if child.returncode != 0:
        raise RuntimeError(f"the greedy tenant ended with exit code {child.returncode}")
    results.add(f"{name}, MB/s", float(said))


def main(bootstrap: str, seconds: float) -> float:
    """Send as fast as it goes, for so long; MB that were acknowledged a second, from the first ack on."""
    acked = 0
    first_ack = 0.0

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        nonlocal acked, first_ack
        if error is None:
            acked += COUNTED
            first_ack = first_ack or time.perf_counter()

    settings = producer_settings(bootstrap, **{"client.id": GREEDY, "linger.ms": 20, "batch.size": 524_288})
    producer = Producer({**settings, "queue.buffering.max.kbytes": 16_384})
    payload = bytes(VALUE_BYTES)
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < seconds and sent * VALUE_BYTES < GREEDY_MAX_BYTES:
        try:
            producer.produce(GREEDY, payload, on_delivery=on_delivery if sent % COUNTED == COUNTED - 1 else None)
            sent += 1
        except BufferError:
            producer.poll(0.01)
        if sent % 1000 == 0:
            producer.poll(0)
    took = time.perf_counter() - first_ack if first_ack else seconds
    rate = acked * VALUE_BYTES / 1e6 / took
    producer.purge()
    producer.flush(10)
    return rate


if __name__ == "__main__":
    print(main(sys.argv[1], float(sys.argv[2])))
