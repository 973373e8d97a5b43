"""A buffer for peaks (row S114): ten times the load for half a minute, before a group that handles three times the
load; and the rate of a producer at full throttle beside consumers that read along, are slow, or are stopped.

    python -m bench --only peaks                            # --peers kafka, none; --scale, --repeat

The load is open: a record falls due whether or not earlier ones were acknowledged, and its latency counts from then.
Members of the group are processes that commit what they have handled; lag is what is committed against the ends of the
partitions, as `group describe` tells it. Each figure is bounded in time; those that do not come are left out, and said.
"""

from __future__ import annotations

import statistics
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, TopicPartition

from bench.clusters import Cluster, admin_client, wait_ready
from bench.measures import PARTITIONS, Results, create_topic, produce_load
from bench.members import READ_AHEAD, WAIT_S, consumer_settings, processes, tell, told, wait_until
from bench.paced import NUMBER_BYTES, PacedLoad, percentile_ms

VALUE_BYTES = 1024
STEADY_PER_S = 1_000
TIMES = 10
"""The peak over the steady load."""
BURST_S = 30.0
BEFORE_S = 10.0
WARM_UP_S = 3.0
SAMPLE_EVERY = 5

MEMBERS = 2
HANDLED_TIMES = 3
"""What the group can handle, over the steady load: a peak leaves it 7 x 30 s of that load behind, and it takes 105 s
to catch up beside what still comes."""
BATCH_S = 0.05
"""A slow member handles, and commits, what it can in this time."""

CAUGHT_UP_S = 1.0
"""The group has caught up when its lag is no more than the steady load of this time."""
WATCH_EVERY_S = 0.25

FULL_RECORDS = 200_000
ROUNDS = 3
ALONG, SLOW, STOPPED = "group reads along", "group is slow", "group is stopped"


def peak_figures(make: Callable[[], Cluster], results: Results, scale: float, say: Callable[[str], None]) -> None:
    """Every figure about peaks, of a cluster of their own."""
    cluster = make()
    try:
        cluster.start()
        wait_ready(cluster.bootstrap)
        say(f"peaks: {TIMES} times the load")
        _peak(cluster.bootstrap, results, scale)
        say("peaks: full throttle")
        _full_throttle(cluster.bootstrap, results, int(FULL_RECORDS * scale))
    except TimeoutError as late:
        say(f"peaks: left out from here: {late}")
    finally:
        cluster.stop()


# ---------------------------------------------------------------- the group


def _handle(pipe: Connection, bootstrap: str, group: str, topic: str, per_s: float) -> None:
    """One of the members, in a process of its own: says when it has its share, handles so many records a second at most
    (0: as many as come), commits them, and at the next word leaves and says their numbers."""
    share: list[TopicPartition] = []

    def given(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        share[:] = partitions

    consumer = Consumer(consumer_settings(bootstrap, group, **READ_AHEAD))
    consumer.subscribe([topic], on_assign=given)
    batch = max(1, round(per_s * BATCH_S)) if per_s else 10_000
    numbers = array("Q")
    ready = False
    while not pipe.poll():
        began = time.perf_counter()
        messages = [one for one in consumer.consume(batch, timeout=BATCH_S) if one.error() is None]
        numbers.extend(int.from_bytes((one.value() or b"")[:NUMBER_BYTES], "big") for one in messages)
        if messages:
            consumer.commit(asynchronous=True)
        if not ready and len(share) == PARTITIONS // MEMBERS:
            ready = True
            pipe.send(ready)
        if per_s and (wait := began + len(messages) / per_s - time.perf_counter()) > 0:
            time.sleep(wait)
    consumer.close()
    pipe.send(numbers.tobytes())


@contextmanager
def _group(bootstrap: str, group: str, topic: str, per_s: float) -> Iterator[Sequence[Connection]]:
    """The group's members, each with its share; together they handle so many records a second. Raises TimeoutError."""
    with processes(_handle, MEMBERS, bootstrap, group, topic, per_s / MEMBERS) as members:
        for member in members:
            told(member)
        yield members


def _leave(members: Sequence[Connection]) -> array[int]:
    """The members go; the numbers of all records that they have handled."""
    tell(members, "leave")
    numbers = array("Q")
    for member in members:
        numbers.frombytes(told(member))
    return numbers


class _Lag:
    """A group's lag as anybody can ask for it."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = Consumer(consumer_settings(bootstrap, group))
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def now(self) -> int:
        """Records, over all partitions. Raises KafkaException."""
        # The ends are asked for last: what is committed meanwhile counts as lag, never the other way round.
        committed = self._consumer.committed(self._partitions, timeout=10)
        ends = [self._consumer.get_watermark_offsets(one, timeout=10)[1] for one in self._partitions]
        return sum(end - max(one.offset, 0) for one, end in zip(committed, ends, strict=True))

    def close(self) -> None:
        self._consumer.close()


class _Watch(threading.Thread):
    """Looks at the lag again and again until it is stopped; (seconds, records) as it was seen."""

    def __init__(self, lag: _Lag) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, int]] = []
        self._lag = lag
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(WATCH_EVERY_S):
                self.seen.append((time.perf_counter(), self._lag.now()))
        except BaseException as error:
            self._failure = error

    def first_since(self, moment: float, most: float) -> float | None:
        """When it was first seen to be no more than this, from that moment on."""
        return next((at for at, records in list(self.seen) if at >= moment and records <= most), None)

    def stop(self) -> None:
        """Raises what looking at it did."""
        self._over.set()
        self.join()
        if self._failure is not None:
            raise self._failure


# ---------------------------------------------------------------- a peak


def _peak(bootstrap: str, results: Results, scale: float) -> None:
    """Raises TimeoutError: the group did not catch up in twice the time that it should need, or records were left."""
    topic = group = "peak"
    create_topic(bootstrap, topic, PARTITIONS)
    load = PacedLoad(bootstrap, topic, VALUE_BYTES, SAMPLE_EVERY)
    burst_s = BURST_S * scale
    drain_max_s = 2 * burst_s * (TIMES - HANDLED_TIMES) / (HANDLED_TIMES - 1) + WAIT_S
    caught_up = STEADY_PER_S * CAUGHT_UP_S
    lag = _Lag(bootstrap, group, topic)
    try:
        with _group(bootstrap, group, topic, HANDLED_TIMES * STEADY_PER_S) as members:
            load.run(STEADY_PER_S, WARM_UP_S)
            load.flush()
            load.acks.clear()
            watch = _Watch(lag)
            watch.start()
            load.run(STEADY_PER_S, BEFORE_S * scale)
            burst = time.perf_counter()
            load.run(TIMES * STEADY_PER_S, burst_s)
            after = time.perf_counter()
            load.run(STEADY_PER_S, drain_max_s, lambda: watch.first_since(after, caught_up) is not None)
            unacked = load.flush()
            watch.stop()
            drained = watch.first_since(after, caught_up)
            if drained is None:
                raise TimeoutError(f"a lag of {watch.seen[-1][1]} records {drain_max_s:.0f} s after the peak")
            wait_until(lambda: lag.now() == 0, "a lag of nothing once the load has ended")
            numbers = _leave(members)
    finally:
        lag.close()
    if load.errors or load.dropped or unacked:
        raise TimeoutError(f"{load.dropped} records dropped, {unacked} not acknowledged, errors {load.errors[:1]}")
    _say_latencies(results, load.acks, burst, after)
    acked = sum(burst <= at < after for at, _ in load.acks) * SAMPLE_EVERY
    results.add(f"{TIMES}x peak, acked of what fell due in it, share", acked / (TIMES * STEADY_PER_S * (after - burst)))
    results.add(f"{TIMES}x peak, the group's largest lag, records", max(records for _, records in watch.seen))
    results.add(f"{TIMES}x peak, its end until the group has caught up, s", drained - after)
    results.add(f"{TIMES}x peak, lost, records", load.offered - len(set(numbers)))
    results.add(f"{TIMES}x peak, handled twice, records", len(numbers) - len(set(numbers)))


def _say_latencies(results: Results, acks: list[tuple[float, float]], burst: float, after: float) -> None:
    """Of the records that fell due before, in and after the peak."""
    phases: dict[str, list[float]] = {"before": [], "in": [], "after": []}
    for at, took in acks:
        due = at - took
        phases["before" if due < burst else "in" if due < after else "after"].append(took)
    for phase, times in phases.items():
        for share in (50, 99):
            name = f"ack 1 KB {phase} a {TIMES}x peak of {STEADY_PER_S}/s, p{share} ms"
            results.add(name, percentile_ms(times, share / 100))


# ---------------------------------------------------------------- full throttle


def _full_throttle(bootstrap: str, results: Results, count: int) -> None:
    """MB/s of a producer beside the group in each of its states, in turns; the median of the rounds, and the ratios."""
    produce_load(bootstrap, _topic(bootstrap, "warm-up"), VALUE_BYTES, count)
    states = (ALONG, SLOW, STOPPED)
    took: dict[str, list[float]] = {state: [] for state in states}
    for turn in range(ROUNDS):
        for state in states[turn:] + states[:turn]:
            took[state].append(_beside(bootstrap, f"full-{turn}-{states.index(state)}", state, count))
    rates = {state: count * VALUE_BYTES / 1e6 / statistics.median(times) for state, times in took.items()}
    for state, rate in rates.items():
        results.add(f"produce 1 KB, {state}, MB/s", rate)
    for state in (ALONG, SLOW):
        results.add(f"produce 1 KB, {STOPPED} over {state}", rates[STOPPED] / rates[state])


def _beside(bootstrap: str, topic: str, state: str, count: int) -> float:
    """Seconds to produce so many records beside the group. Whoever reads along reads all of them: TimeoutError."""
    _topic(bootstrap, topic)
    pace = HANDLED_TIMES * STEADY_PER_S if state == SLOW else 0
    with _group(bootstrap, topic, topic, pace) as members:
        if state == STOPPED:
            _leave(members)
        took = produce_load(bootstrap, topic, VALUE_BYTES, count)
        if state == ALONG:
            lag = _Lag(bootstrap, topic, topic)
            try:
                wait_until(lambda: lag.now() == 0, "a lag of nothing of a group that reads along")
            finally:
                lag.close()
        if state != STOPPED:
            handled = len(_leave(members))
            if state == ALONG and handled != count:
                raise TimeoutError(f"a group that reads along has handled {handled} of {count} records")
    admin = admin_client(bootstrap)
    admin.delete_topics([topic])[topic].result(30)
    return took


def _topic(bootstrap: str, name: str) -> str:
    create_topic(bootstrap, name, PARTITIONS)
    return name
