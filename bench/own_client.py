"""This project's own client beside confluent-kafka, on one cluster: the same records, in turns.

Both run in this process, with acks=all, idempotent and the same settings. A round is one load of each; shown is the
median of the rounds, the first of which warms up, and the least and the most of ours.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from bench.clusters import Cluster, wait_ready
from bench.measures import (
    PARTITIONS,
    WARM_UP_S,
    Results,
    ack_latency,
    consume_rate,
    create_topic,
    one_after_the_other,
    produce_load,
)
from bench.paced import SAMPLE_EVERY, open_loop
from bench.secured import own_settings
from strandline.client import Ack, Consumer, Producer

ROUNDS = 5
RECORDS = {100: 1_000_000, 1000: 150_000}
LATENCY_S = 3.0
PACED_S = 6.0
PER_S = 5000
HALF_S = 5.0
WARM_UP = 200
POLL_RECORDS = 10_000
OURS, THEIRS, TABLES = "ours", "confluent-kafka", "ours as tables of Arrow"
KEPT = "ours, no batch growing"
DEFAULTS: dict[str, Any] = {"linger_ms": 5, "batch_size": 16_384}
THEIR_DEFAULTS: dict[str, Any] = {"linger.ms": 5, "batch.size": 1_000_000}

Measure = Callable[[], dict[str, float]]


def client_figures(make: Callable[[], Cluster], results: Results, scale: float, say: Callable[[str], None]) -> None:
    """Produce and read records of 100 B and 1 KB, and one record after the other; acks at a steady rate."""
    cluster = make()
    cluster.start()
    try:
        wait_ready(cluster.bootstrap)
        for size, count in RECORDS.items():
            say(f"own client, {size} B")
            load = (cluster.bootstrap, f"client-{size}", size, int(count * scale))
            create_topic(*load[:2], PARTITIONS)
            ours, theirs = partial(_produce, _send_all, *load), partial(_produce, produce_load, *load)
            rates = _in_turns(results, f"client {size} B, produce", {OURS: ours, THEIRS: theirs})
            results.add(f"client {size} B, produce, ours over confluent-kafka", rates["records/s"])
            kept = partial(_produce, partial(_send_all, **DEFAULTS, batch_size_max=DEFAULTS["batch_size"]), *load)
            ours = partial(_produce, partial(_send_all, **DEFAULTS), *load)
            theirs = partial(_produce, partial(produce_load, **THEIR_DEFAULTS), *load)
            _in_turns(results, f"client {size} B, produce by default", {OURS: ours, KEPT: kept, THEIRS: theirs})
            read, consume = partial(_read, _poll_all, *load), partial(_read, consume_rate, *load)
            tables = partial(_read, _poll_tables, *load)
            rates = _in_turns(results, f"client {size} B, read", {OURS: read, THEIRS: consume, TABLES: tables})
            results.add(f"client {size} B, read, ours over confluent-kafka", rates["records/s"])
        say("own client, one record after the other")
        create_topic(cluster.bootstrap, "alone", PARTITIONS)
        lone = (cluster.bootstrap, "alone", LATENCY_S * scale)
        name = "client, ack 1 KB one after the other"
        mine = partial(_percentiles, partial(_alone, *lone))
        theirs = partial(_percentiles, partial(_alone_theirs, *lone))
        _in_turns(results, name, {OURS: mine, THEIRS: theirs})
        less = results.figures[f"{name}, p50 ms, {OURS}"] - results.figures[f"{name}, p50 ms, {THEIRS}"]
        results.add(f"{name}, p50, ours less confluent-kafka, ms", less)
        say(f"own client, {PER_S} records a second")
        paced = (cluster.bootstrap, "alone", PER_S, PACED_S * scale)
        mine = partial(_percentiles, partial(_at_a_rate, *paced))
        theirs = partial(_percentiles, partial(ack_latency, *paced))
        _in_turns(results, f"client, ack 1 KB at {PER_S}/s", {OURS: mine, THEIRS: theirs})
        half = int(results.figures[f"client 1000 B, produce, records/s, {THEIRS}"] / 2)
        say(f"own client, {half} records a second: half of what confluent-kafka carried")
        results.add("client, half of what confluent-kafka carried, records/s", half)
        loaded = (cluster.bootstrap, "client-1000", half, max(2.0, HALF_S * scale))
        mine, theirs = (
            partial(_percentiles, partial(_half, *loaded)),
            partial(_percentiles, partial(_half_theirs, *loaded)),
        )
        _in_turns(results, "client, ack 1 KB at that half", {OURS: mine, THEIRS: theirs})
    finally:
        cluster.stop()


def _in_turns(results: Results, name: str, measures: dict[str, Measure]) -> dict[str, float]:
    """Adds the figures; of each the median of the rounds' ratios, ours to theirs."""
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(ROUNDS + 1):
        rounds.append({})
        for who, measure in measures.items():
            gc.collect()
            rounds[-1][who] = measure()
    del rounds[0]
    for who in measures:
        for key in rounds[0][who]:
            values = [one[who][key] for one in rounds]
            results.add(f"{name}, {key}, {who}", statistics.median(values))
            results.add(f"{name}, {key}, {who}, least", min(values))
            results.add(f"{name}, {key}, {who}, most", max(values))
    return {key: statistics.median(one[OURS][key] / one[THEIRS][key] for one in rounds) for key in rounds[0][OURS]}


def _produce(
    load: Callable[[str, str, int, int], float], bootstrap: str, topic: str, size: int, count: int
) -> dict[str, float]:
    """The rate of a load, which says its seconds; and this process's CPU for each record."""
    before = _cpu_s()
    took = load(bootstrap, topic, size, count)
    return {"records/s": count / took, "client CPU us a record": (_cpu_s() - before) / count * 1e6}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _send_all(bootstrap: str, topic: str, size: int, count: int, **settings: Any) -> float:
    """As `produce_load` does it with confluent-kafka, batch size and linger included."""
    settings = {"linger_ms": 20, "batch_size": 524_288, **own_settings(), **settings}
    payload = bytes(size)

    def check(future: Future[Ack]) -> None:
        failed.extend([] if (error := future.exception()) is None else [error])

    failed: list[BaseException] = []
    with Producer(bootstrap, **settings) as producer:
        producer.partitions_for(topic)
        began = time.perf_counter()
        for index in range(count):
            future = producer.send(topic, payload)
            if index % 1000 == 999:
                future.add_done_callback(check)
        producer.flush()
        took = time.perf_counter() - began
    if failed:
        raise RuntimeError(f"{len(failed)} of the records looked at failed, the first: {failed[0]}")
    return took


def _read(
    rate: Callable[[str, str, int], float], bootstrap: str, topic: str, _size: int, count: int
) -> dict[str, float]:
    return {"records/s": rate(bootstrap, topic, count)}


def _poll_all(bootstrap: str, topic: str, count: int) -> float:
    """As `consume_rate` does it with confluent-kafka."""
    with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS, **own_settings()) as consumer:
        consumer.assign([(topic, number) for number in range(PARTITIONS)])
        first = seen = len(consumer.poll(30, max_records=1))
        began = time.perf_counter()
        while seen < count:
            records = consumer.poll(10)
            if not records:
                raise RuntimeError(f"read {seen} of {count} records, then none for 10 s")
            seen += len(records)
        return (seen - first) / (time.perf_counter() - began)


def _poll_tables(bootstrap: str, topic: str, count: int) -> float:
    """The same as tables of pyarrow."""
    with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS, **own_settings()) as consumer:
        consumer.assign([(topic, number) for number in range(PARTITIONS)])
        first = seen = consumer.poll_columns(30, max_records=1).to_arrow().num_rows
        began = time.perf_counter()
        while seen < count:
            rows = consumer.poll_columns(10).to_arrow().num_rows
            if not rows:
                raise RuntimeError(f"read {seen} of {count} records, then none for 10 s")
            seen += rows
        return (seen - first) / (time.perf_counter() - began)


def _alone(bootstrap: str, topic: str, seconds: float) -> list[float]:
    payload = bytes(1024)
    times = []
    with Producer(bootstrap, linger_ms=0, **own_settings()) as producer:
        for _ in range(WARM_UP):
            producer.send(topic, payload, partition=0).result()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            producer.send(topic, payload, partition=0).result()
            times.append((time.perf_counter() - began) * 1000)
    return sorted(times)


def _at_a_rate(bootstrap: str, topic: str, per_second: int, seconds: float) -> list[float]:
    """As `ack_latency`, through this project's client."""
    latencies: list[float] = []
    warm_up = per_second * WARM_UP_S

    def sender(sent_at: float) -> Callable[[Future[Ack]], None]:
        def on_delivery(future: Future[Ack]) -> None:
            future.result()
            latencies.append((time.perf_counter() - sent_at) * 1000)

        return on_delivery

    with Producer(bootstrap, linger_ms=0, **own_settings()) as producer:
        began = time.perf_counter()
        for index in range(int(per_second * seconds) + warm_up):
            if (wait := began + index / per_second - time.perf_counter()) > 0:
                time.sleep(wait)
            sent_at = time.perf_counter()
            producer.send(topic, bytes(1024), partition=index % PARTITIONS).add_done_callback(sender(sent_at))
    return sorted(latencies[warm_up:])


def _half(bootstrap: str, topic: str, per_second: int, seconds: float) -> list[float]:
    """As `open_loop`, through this project's client: milliseconds, sorted."""
    value = bytes(1000)
    latencies: list[float] = []

    def note(due: float, sent: Future[Ack]) -> None:
        sent.result()
        latencies.append((time.perf_counter() - due) * 1000)

    with Producer(bootstrap, linger_ms=1, **own_settings()) as producer:
        began = time.perf_counter()
        index = 0
        while (now := time.perf_counter() - began) < WARM_UP_S + seconds:
            while index < now * per_second:
                due = began + index / per_second
                sent = producer.send(topic, value, partition=index % PARTITIONS)
                if index % SAMPLE_EVERY == 0 and due - began >= WARM_UP_S:
                    sent.add_done_callback(partial(note, due))
                index += 1
            time.sleep(0.001)
        producer.flush()
    return sorted(latencies)


def _half_theirs(bootstrap: str, topic: str, per_second: int, seconds: float) -> list[float]:
    return sorted(took * 1000 for took in open_loop(bootstrap, topic, per_second, seconds))


def _alone_theirs(bootstrap: str, topic: str, seconds: float) -> list[float]:
    return one_after_the_other(bootstrap, topic, seconds)[0]


def _percentiles(load: Callable[[], list[float]]) -> dict[str, float]:
    """Of the sorted times that a load took; and how much of a processor this process used meanwhile."""
    began, before = time.perf_counter(), _cpu_s()
    times = load()
    used = (_cpu_s() - before) / (time.perf_counter() - began)
    quantiles = {"p50 ms": times[len(times) // 2], "p99 ms": times[int(len(times) * 0.99)]}
    return {**quantiles, "client CPU, processors": used}
