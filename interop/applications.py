"""Parts that applications of other people share: their processes, and librdkafka beside them, which feeds and reads
their topics and tells whether a transaction is open."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.clusters import admin_client
from bench.secured import librdkafka_settings

from interop.driver import ClientError
from interop.suite import World, eventually

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

WHOLE_AGAIN_S = 120.0
LAST_WORDS = 600


class Program:
    """One process of an application, which can be started again after it was killed; its output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises ClientError where it ended by itself, with its last words."""
        if self._process is not None and self._process.poll() is not None:
            raise ClientError(-1, f"the application ended: {self.said()[-LAST_WORDS:]}")

    def said(self) -> str:
        """All that its lives have printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def pause(self) -> None:
        """SIGSTOP: its members fall silent and their connections stay open."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Feeder:
    """Sends lines of words to every partition of a topic, a hundred a second, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, words: int = 20) -> None:
        from confluent_kafka import Producer

        self.counts: Counter[str] = Counter()
        """Number of times that each word was sent; to be read once `stop` has returned."""
        self.words_sent = 0
        self._topic, self._partitions, self._words = topic, partitions, words
        self._failed: list[object] = []
        self._ended = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True, **librdkafka_settings()}
        )
        self._thread = threading.Thread(target=self._run, name="feeder")
        self._thread.start()

    def _run(self) -> None:
        draw, number = random.Random(7), 0
        while not self._ended.wait(0.01):
            line = [f"word-{draw.randrange(self._words)}" for _ in range(4)]
            self.counts.update(line)
            self.words_sent += len(line)
            where = number % self._partitions
            self._producer.produce(self._topic, " ".join(line), partition=where, on_delivery=self._told)
            self._producer.poll(0)
            number += 1

    def _told(self, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(error)

    def stop(self) -> None:
        """Returns once every line is acknowledged."""
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(WHOLE_AGAIN_S) == 0, "lines are not acknowledged"
        assert not self._failed, f"lines were refused: {self._failed[0]}"


class Reader:
    """Reads every partition of a topic from its beginning on, at one isolation level."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, committed: bool = True) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self.records: list[Message] = []
        """Records that were read, in the order of each partition."""
        level = "read_committed" if committed else "read_uncommitted"
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "log_level": 0,
                "enable.auto.commit": False,
                "isolation.level": level,
                **librdkafka_settings(),
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])

    def read(self, at_least: int = 0) -> bool:
        """Take what is there; true once so many records were read in all."""
        from confluent_kafka import KafkaError

        for message in self._consumer.consume(10_000, 0.3):
            error = message.error()
            if error is None:
                self.records.append(message)
            elif error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                raise AssertionError(f"reading ended in {error}")
        return len(self.records) >= at_least

    def values(self) -> list[bytes]:
        """Values of the records that were read."""
        return [each.value() or b"" for each in self.records]

    def rest(self) -> None:
        """Take everything up to the ends that the leaders tell now."""
        from confluent_kafka import TopicPartition

        for where in self._consumer.assignment():
            _, end = self._consumer.get_watermark_offsets(TopicPartition(where.topic, where.partition), 30)

            def there(where: TopicPartition = where, end: int = end) -> bool:
                self.read()
                [position] = self._consumer.position([where])
                return position.offset >= end or end == 0

            eventually(there, 30)

    def close(self) -> None:
        self._consumer.close()


def transaction_is_open(bootstrap: str, topic: str, partitions: int) -> bool:
    """True if a partition has records behind its last stable offset: of a transaction that nobody has ended yet."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    admin = admin_client(bootstrap)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, number): latest for number in range(partitions)}

    def ends(level: IsolationLevel) -> list[int]:
        told = admin.list_offsets(wanted, isolation_level=level)
        return [told[where].result(10).offset for where in wanted]

    with contextlib.suppress(KafkaException):
        stable = ends(IsolationLevel.READ_COMMITTED)
        return any(mine < end for mine, end in zip(stable, ends(IsolationLevel.READ_UNCOMMITTED), strict=True))
    return False


@contextlib.contextmanager
def broker_down(world: World, node_id: int) -> Iterator[None]:
    """A broker is killed, and started again after the block; returns once the cluster is whole."""
    nodes = world.nodes
    assert nodes is not None
    nodes.kill(node_id)
    try:
        yield
    finally:
        nodes.start_node(node_id)
        admin = admin_client(world.bootstrap)
        eventually(lambda: is_whole(admin), WHOLE_AGAIN_S, 0.2)


def is_whole(admin: AdminClient) -> bool:
    """True if three brokers are seen, and every replica is in sync."""
    found = admin.list_topics(timeout=10)
    copies = [each for topic in found.topics.values() for each in topic.partitions.values()]
    return len(found.brokers) == 3 and all(len(each.isrs) == len(each.replicas) for each in copies)
