"""Kafka's system tests transactions_test and group_mode_transactions_test, against three processes of ours: topics are
copied in transactions, while brokers or copiers are killed or stopped. The copiers are Kafka's own program, as
`make interop` fetched it, and one of librdkafka (`copier.py`)."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.clusters import admin_client
from bench.fetched import Unavailable
from confluent_kafka import Producer
from interop.applications import Program, Reader, is_whole

from interop import install
from strandline.cluster.node.dev import DevCluster
from tests.acceptance import copier
from tests.acceptance.helpers import QUICK, eventually, make_topic

pytestmark = pytest.mark.timeout(600)

SEEDS = 12_000
SIZE = 100
STRIKES = 3
PROGRESS_S = 120.0

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nodes=3, settings=QUICK) as processes:
        yield processes


class Copier(Program):
    """A copier's process, and what it prints."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        super().__init__(command, log, {})
        self._before = 0

    def start(self) -> None:
        self._before = len(self.said())
        super().start()

    def remaining(self) -> int | None:
        """Records that it has to copy still, in this life; None: it has not begun."""
        lines = [line for line in self.said()[self._before :].splitlines() if line.startswith("{")]
        told = [json.loads(line)["remaining"] for line in lines if line.endswith("}")]
        return int(told[-1]) if told else None

    def done(self) -> bool:
        """Raises AssertionError where it ended before."""
        assert self._process is not None
        code = self._process.poll()
        assert code in (None, 0), self.said()[-800:]
        return code == 0 and self.remaining() == 0

    def bounce(self, clean: bool) -> None:
        """Stopped (SIGTERM) or killed, and started again."""
        assert self._process is not None
        if clean:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
        self.kill()
        self.start()


def command(kind: str, given: dict[str, str], options: Sequence[str]) -> list[str]:
    """How a copier of this kind is run; skips the test where it is not here."""
    if kind == "librdkafka":
        arguments = {**given, "partition": int(given["partition"]), "size": SIZE}
        return [sys.executable, str(copier.__file__), json.dumps(arguments)]
    try:
        jars = install.kafka_jars(*install.TOOLS, fetch=False)
    except Unavailable as reason:
        pytest.skip(f"{reason}; `make interop` fetches them")
    names = {"bootstrap": "broker-list", "source": "input-topic", "partition": "input-partition"}
    names |= {"target": "output-topic", "group": "consumer-group", "identity": "transactional-id"}
    told = [text for name, value in given.items() for text in (f"--{names[name]}", value)]
    fixed = ["--transaction-size", str(SIZE), "--transaction-timeout", "10000", "--enable-random-aborts"]
    return [*install.JAVA, "-cp", jars, "org.apache.kafka.tools.TransactionalMessageCopier", *told, *fixed, *options]


def seed(cluster: DevCluster, topic: str, partitions: int) -> list[bytes]:
    """Fill the source."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20, "enable.idempotence": True})
    values = [b"%d" % number for number in range(SEEDS)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
        producer.poll(0)
    assert producer.flush(60) == 0
    return values


def bounce_brokers(cluster: DevCluster, clean: bool) -> None:
    """Each in turn: stopped, or killed and gone for longer than its session lasts; then every replica is in sync."""
    admin = admin_client(cluster.bootstrap)
    for node in cluster.broker_ids:
        if clean:
            cluster.stop_node(node)
        else:
            cluster.kill(node)
            time.sleep(float(QUICK["broker.session.timeout.ms"]) / 1000 + 1)
        cluster.start_node(node)
        eventually(lambda: is_whole(admin), 120)


MODES = {
    "ordered": (1, 1, 1, ()),
    "ordered, group metadata": (1, 1, 1, ("--use-group-metadata",)),
    "spread": (2, 3, 2, ()),
    "group": (9, 9, 3, ("--group-mode", "--use-group-metadata")),
}
"""Partitions of the source and of the target, copiers, options of Kafka's program."""

CASES = [
    *itertools.product(["java"], MODES, ["brokers", "copiers"], ["hard", "clean"]),
    *itertools.product(["librdkafka"], ["ordered", "spread"], ["brokers", "copiers"], ["hard", "clean"]),
]


@pytest.mark.parametrize(("kind", "mode", "target", "failure"), CASES, ids=map("-".join, CASES))
def test_every_record_is_copied_once(
    cluster: DevCluster, tmp_path: Path, kind: str, mode: str, target: str, failure: str
) -> None:
    """Readers of committed records, one beside the copy and one after it, see each record once, in order where there
    is one partition; a reader of all records sees more, for a third of the transactions is aborted."""
    sources, targets, count, options = MODES[mode]
    name = f"copy-{next(_numbers)}"
    make_topic(cluster, f"{name}-from", sources)
    make_topic(cluster, f"{name}-to", targets)
    values = seed(cluster, f"{name}-from", sources)
    given = {"bootstrap": cluster.bootstrap, "source": f"{name}-from", "target": f"{name}-to", "group": name}
    beside = Reader(cluster.bootstrap, f"{name}-to", targets)
    with ExitStack() as stack:
        copiers = []
        for number in range(count):
            words = command(kind, {**given, "partition": str(number), "identity": f"{name}-{number}"}, options)
            copiers.append(Copier(words, tmp_path / f"{number}.out"))
            stack.callback(copiers[-1].kill)
            copiers[-1].start()
        eventually(lambda: beside.read(1), PROGRESS_S)
        if target == "brokers":
            bounce_brokers(cluster, failure == "clean")
        for _ in range(STRIKES if target == "copiers" else 0):
            goal = len(beside.records) + SEEDS // 8
            eventually(lambda: beside.read(min(goal, SEEDS)), PROGRESS_S)  # noqa: B023
            for each in copiers:
                each.bounce(failure == "clean")
        eventually(lambda: beside.read(SEEDS), PROGRESS_S)
        if mode != "group":  # a member without partitions does not end
            eventually(lambda: all(each.done() for each in copiers), PROGRESS_S)
    after, everything = (Reader(cluster.bootstrap, f"{name}-to", targets, committed=which) for which in (True, False))
    for reader in (beside, after, everything):
        reader.rest()
        reader.close()
    for reader in (beside, after):
        copied = reader.values()
        assert sorted(copied) == sorted(values)
        assert targets > 1 or copied == values, "another order"
    assert len(everything.records) > SEEDS
