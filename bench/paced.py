"""A producer under an open loop: records fall due whether or not earlier ones were acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from bench.clusters import Cluster
from bench.measures import PARTITIONS, WARM_UP_S, Results, producer_settings

TICK_S = 0.001
FLUSH_S = 60.0
NUMBER_BYTES = 8
SAMPLE_EVERY = 20


class PacedLoad:
    """One producer and what became of its records. Each value begins with the record's number, from 0, big-endian.

    Latency counts from the instant a record was due. A record that the client has no room for is dropped and counted,
    as a caller with a bounded buffer would.

    Attributes:
        topic: where the next records go.
        offered, dropped: records so far.
        acks: when acknowledged, and how long after it was due, seconds; every `sample_every`-th record.
        errors: of those.
    """

    def __init__(self, bootstrap: str, topic: str, value_bytes: int, sample_every: int, **settings: object) -> None:
        self.topic = topic
        self.offered = 0
        self.dropped = 0
        self.acks: list[tuple[float, float]] = []
        self.errors: list[str] = []
        self._sample_every = sample_every
        self._producer = Producer(producer_settings(bootstrap, **{"linger.ms": 5, **settings}))
        self._producer.list_topics(topic, timeout=10)
        self._padding = bytes(value_bytes - NUMBER_BYTES)

    def run(self, per_s: float, seconds: float, over: Callable[[], bool] = lambda: False) -> None:
        """Offer so many records a second, for so long, or until it is over."""
        began = time.perf_counter()
        sent = 0
        while (now := time.perf_counter() - began) < seconds and not over():
            due = int(now * per_s)
            while sent < due:
                self.offer(began + sent / per_s)
                sent += 1
            self._producer.poll(TICK_S)

    def offer(self, due: float) -> None:
        """One record, to the partition whose turn it is."""
        number = self.offered
        self.offered += 1
        told = self._note(due) if self.offered % self._sample_every == 0 else None
        value = number.to_bytes(NUMBER_BYTES, "big") + self._padding
        try:
            self._producer.produce(self.topic, value, partition=number % PARTITIONS, on_delivery=told)
        except BufferError:
            self.dropped += 1
            self._producer.poll(0)

    def poll(self) -> None:
        """Hear of acks for a moment."""
        self._producer.poll(TICK_S)

    def flush(self) -> int:
        """Wait until everything is acknowledged; how many records are not, after `FLUSH_S`."""
        left: int = self._producer.flush(FLUSH_S)
        return left

    def _note(self, due: float) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            now = time.perf_counter()
            if error is not None:
                self.errors.append(str(error))
            self.acks.append((now, now - due))

        return on_delivery


def percentile_ms(seconds: list[float], share: float) -> float:
    """The time that this share of them did not exceed; infinite where there are none."""
    return sorted(seconds)[int(share * (len(seconds) - 1))] * 1000 if seconds else float("inf")


def open_loop(bootstrap: str, topic: str, per_second: float, seconds: float) -> list[float]:
    """Seconds from when a record of 1,000 B was due to its ack, of every `SAMPLE_EVERY`-th, once it has warmed up."""
    load = PacedLoad(bootstrap, topic, 1000, SAMPLE_EVERY, **{"linger.ms": 1})
    load.run(per_second, WARM_UP_S)
    load.acks.clear()
    load.run(per_second, seconds)
    load.flush()
    if load.errors or load.dropped:
        raise RuntimeError(f"{load.dropped} records dropped, errors: {load.errors[:1]}")
    return [took for _, took in load.acks]


def half_load(cluster: Cluster, results: Results, seconds: float) -> None:
    """Ack latency at half of the rate that was carried, counted from when a record was due."""
    times = open_loop(cluster.bootstrap, "load-1000", results.figures["produce 1000 B, records/s"] / 2, seconds)
    results.add("ack 1000 B at half the rate carried, p50 ms", percentile_ms(times, 0.5))
    results.add("ack 1000 B at half the rate carried, p99 ms", percentile_ms(times, 0.99))
