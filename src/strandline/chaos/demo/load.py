"""The load: the records that are sent, and when each was acknowledged."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from strandline.chaos.demo.dataset import Flights
from strandline.client import Ack, Producer
from strandline.proto.ports import Clock

PROGRESS_EVERY = 2000


class FlightLoad:
    """Sends every flight once, in the order of the file, and remembers each acknowledgement.

    Callbacks run on the producer's thread, one at a time; the arrays are read only after `flush`.
    """

    def __init__(self, flights: Flights, topic: str, partitions: int, clock: Clock) -> None:
        self._flights = flights
        self._topic = topic
        self._clock = clock
        count = len(flights.values)
        self.partitions = array("i", [-1]) * count
        self.offsets = array("q", [-1]) * count
        self.latencies_ms = array("d", [-1.0]) * count
        self.ack_times_ms: list[array[float]] = [array("d") for _ in range(partitions)]
        """Times of each partition's acks, in order."""
        self.acked = 0
        self.errors: list[str] = []

    def send(self, producer: Producer, first: int, last: int, progress: Callable[[int], None]) -> None:
        """Send rows [first, last); blocks where the producer's buffer is full."""
        keys, values = self._flights.keys, self._flights.values
        for row in range(first, last):
            future = producer.send(self._topic, values[row], key=keys[row])
            future.add_done_callback(partial(self._on_done, row, self._clock.monotonic_ms()))
            if row % PROGRESS_EVERY == 0:
                progress(self.acked)

    def busiest_partition(self) -> int:
        """The partition with most acks so far."""
        counts = [len(times) for times in self.ack_times_ms]
        return counts.index(max(counts))

    def longest_silence_ms(self, partition: int, since_ms: float) -> float:
        """The longest time without an ack in the partition from `since_ms` to its last ack."""
        moments = [since_ms, *(moment for moment in self.ack_times_ms[partition] if moment > since_ms)]
        return max((after - before for before, after in itertools.pairwise(moments)), default=0.0)

    def latency_ms(self, quantile: float) -> float:
        """Time from send to ack at this quantile, under full load (waiting in the producer's buffer included)."""
        known = sorted(value for value in self.latencies_ms if value >= 0)
        return known[int(quantile * (len(known) - 1))] if known else 0.0

    def _on_done(self, row: int, sent_ms: float, future: Future[Ack]) -> None:
        error = future.exception()
        if error is not None:
            self.errors.append(f"row {row}: {error}")
            return
        ack = future.result()
        now_ms = self._clock.monotonic_ms()
        self.partitions[row] = ack.partition
        self.offsets[row] = ack.offset
        self.latencies_ms[row] = now_ms - sent_ms
        self.ack_times_ms[ack.partition].append(now_ms)
        self.acked += 1
