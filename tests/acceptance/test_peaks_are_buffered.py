"""Row S114: the log as a buffer for peaks. Rates and latencies: `python -m bench --only peaks`."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from strandline.cli.main import main as program
from strandline.client import Ack, Consumer, ConsumerRecord, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.tools.handling import handle
from tests.acceptance.helpers import eventually, make_topic

pytestmark = pytest.mark.timeout(180)

TOPIC, GROUP = "peak", "kitchen"
KEYS, PARTITIONS, MEMBERS = 60, 6, 2
STEADY, BURST = 1_200, 12_000
PADDING = b" " * 1_000


class _Handled:
    """Every record that any member has handled, in the order of handling."""

    def __init__(self, pause_s: float) -> None:
        self.numbers: dict[bytes, list[int]] = defaultdict(list)
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __call__(self, record: ConsumerRecord) -> None:
        self._over.wait(self._pause_s)
        with self._lock:
            self.numbers[record.key or b""].append(int(record.value))

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.numbers.values()))


@contextmanager
def _group(cluster: DevCluster, handler: _Handled) -> Iterator[None]:
    """Two members run; at the end they stop, commit and leave."""

    def run(consumer: Consumer) -> None:
        with consumer:
            handle(consumer, handler, dead_letters=False)

    with ThreadPoolExecutor(MEMBERS) as pool:
        consumers = [
            Consumer(
                cluster.bootstrap,
                group_id=GROUP,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=200,
                auto_commit_interval_ms=200,
            )
            for _ in range(MEMBERS)
        ]
        for consumer in consumers:
            consumer.subscribe(TOPIC)
        running = [pool.submit(run, consumer) for consumer in consumers]
        try:
            yield
        finally:
            for consumer in consumers:
                consumer.stop()
            for one in running:
                one.result(60)


def _lag(cluster: DevCluster) -> tuple[str, int]:
    """State and lag of the group, as `group describe` tells them."""

    told = CliRunner().invoke(program, ["group", "describe", GROUP, "--output", "json", "-b", cluster.bootstrap])
    assert told.exit_code == 0, told.output
    [group] = json.loads(told.stdout)
    return group["state"], group["lag"]


class _Source:
    """A producer of records whose value is the number within their key."""

    def __init__(self, producer: Producer) -> None:
        self.sent = 0
        self._producer = producer

    def send(self, count: int) -> None:
        """So many more, and every one of them acknowledged."""
        futures: list[Future[Ack]] = []
        for number in range(self.sent, self.sent + count):
            value = b"%d" % (number // KEYS) + PADDING
            futures.append(self._producer.send(TOPIC, value, key=b"key-%d" % (number % KEYS)))
        self.sent += count
        self._producer.flush(60)
        assert all(future.result(0).offset >= 0 for future in futures)


def test_s114_a_peak_waits_for_a_group_that_is_stopped(cluster: DevCluster) -> None:
    """Row S114: ten times the records while every consumer is stopped: all are acknowledged, the lag rises by exactly
    as many. The group starts again, slow, while records go on coming: the lag drains to 0, every record is handled,
    none twice, each key's in the order in which they were sent."""
    make_topic(cluster, TOPIC, PARTITIONS)
    with Producer(cluster.bootstrap, linger_ms=5) as producer:
        source = _Source(producer)
        source.send(STEADY)
        handled = _Handled(pause_s=0.0)
        with _group(cluster, handled):
            eventually(lambda: handled.count == source.sent)
        assert _lag(cluster) == ("Empty", 0)
        for step in range(1, 5):
            source.send(BURST // 4)
            assert _lag(cluster) == ("Empty", step * BURST // 4)
        slow = _Handled(pause_s=0.001)
        slow.numbers = handled.numbers
        with _group(cluster, slow):
            eventually(lambda: slow.count > STEADY)
            source.send(STEADY)
            eventually(lambda: 0 < _lag(cluster)[1] < BURST // 2)
            eventually(lambda: _lag(cluster)[1] == 0, 90)
        assert _lag(cluster) == ("Empty", 0)
    assert source.sent == 2 * STEADY + BURST
    assert slow.numbers == {b"key-%d" % key: list(range(source.sent // KEYS)) for key in range(KEYS)}
