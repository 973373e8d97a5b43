"""Members of consumer groups for the live tests: confluent-kafka in threads or in processes to kill, and Java's."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import java_class_path

SESSION_S = 6.0

_QUIET = logging.getLogger("tests.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def settings_of(bootstrap: str, group: str, **settings: Any) -> dict[str, Any]:
    """A consumer's settings; keyword `group_instance_id` means group.instance.id."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    # In the consumer protocol (KIP-848) these are the broker's to say, and librdkafka refuses to hear of them.
    beats = {"session.timeout.ms": int(SESSION_S * 1000), "heartbeat.interval.ms": 500}
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **({} if given.get("group.protocol") == "consumer" else beats),
        "topic.metadata.refresh.interval.ms": 1000,
        "logger": _QUIET,
        **given,
    }


class Reader:
    """A member that reads and commits each record in a thread.

    Attributes:
        read: (monotonic seconds, partition, offset, value) of each record.
        assigned: its partitions at this moment.
        events: ("assign" | "revoke" | "lost", partitions) as they came.
        errors: of commits.
    """

    def __init__(self, bootstrap: str, group: str, *topics: str, **settings: Any) -> None:
        self.read: list[tuple[float, int, int, bytes]] = []
        self.assigned: set[int] = set()
        self.events: list[tuple[str, tuple[int, ...]]] = []
        self.errors: list[Any] = []
        self._stopped = threading.Event()
        self._leave = True
        self._incremental = (
            settings.get("partition_assignment_strategy") == "cooperative-sticky"
            or settings.get("group_protocol") == "consumer"
        )
        self._consumer = Consumer(settings_of(bootstrap, group, **settings))
        self._consumer.subscribe(
            list(topics),
            on_assign=lambda _consumer, given: self._note("assign", given),
            on_revoke=lambda _consumer, taken: self._note("revoke", taken),
            on_lost=lambda _consumer, taken: self._note("lost", taken),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _note(self, kind: str, partitions: Sequence[Any]) -> None:
        numbers = tuple(sorted(one.partition for one in partitions))
        self.events.append((kind, numbers))
        if kind == "assign":
            self.assigned = self.assigned | set(numbers) if self._incremental else set(numbers)
        else:
            self.assigned = self.assigned - set(numbers)

    def _run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            self.read.append((time.monotonic(), message.partition(), message.offset(), message.value() or b""))
            try:
                self._consumer.commit(message, asynchronous=False)
            except KafkaException as error:
                self.errors.append(error.args[0].code())

    def close(self) -> None:
        """Leave the group (a static member does not: it only goes)."""
        self._stopped.set()
        self._thread.join(30)
        self._consumer.close()


_PROGRAM = """
import json, sys
from confluent_kafka import Consumer
consumer = Consumer(json.loads(sys.argv[1]))
consumer.subscribe(sys.argv[2:])
while True:
    message = consumer.poll(1)
    if message is not None and message.error() is None:
        consumer.commit(message, asynchronous=False)
"""


class ReaderProcess:
    """A member in a process of its own, to be killed or stopped by a signal."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **settings: Any) -> None:
        given = settings_of(bootstrap, group, **settings)
        del given["logger"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(given), *topics],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class JavaReader:
    """Apache Kafka's own consumer (`Consume.java`): ends after `wanted` records, or when it is told to.

    Attributes:
        said: the lines it has printed so far.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, wanted: int = 1_000_000) -> None:
        jars = java_class_path()
        program = str(Path(__file__).with_name("Consume.java"))
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx200m")
        self.said: list[str] = []
        self._process = subprocess.Popen(
            ["java", *quick, "-cp", jars, program, bootstrap, group, topic, protocol, str(wanted)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self.said += (line.rstrip("\n") for line in self._process.stdout)

    @property
    def assigned(self) -> list[int]:
        """Its partitions at this moment."""
        owned = [line for line in list(self.said) if line.startswith("owns [")]
        return json.loads(owned[-1].removeprefix("owns ")) if owned else []

    @property
    def read(self) -> set[bytes]:
        """The values that it has read."""
        return {line.removeprefix("read ").encode() for line in list(self.said) if line.startswith("read ")}

    def wait(self, timeout_s: float) -> None:
        """Until it has read what it wanted, and left the group."""
        self._process.wait(timeout_s)
        self._thread.join(timeout_s)
        assert self.said[-1] == "closed", self.said[-5:]

    def leave(self) -> None:
        """SIGTERM: it leaves the group and ends."""
        self._process.terminate()
        self.wait(60)

    def close(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()


FENCED = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_INSTANCE_ID)
"""How the commit of a member that is none any more is refused."""


def produce(cluster: DevCluster, topic: str, partitions: int, count: int, tag: str = "") -> set[bytes]:
    """`count` values, spread evenly."""
    producer = Producer({"bootstrap.servers": cluster.responsive, "linger.ms": 5})
    values = {f"{tag}{number}".encode() for number in range(count)}
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(30) == 0
    return values


def sizes(readers: list[Reader]) -> list[int]:
    """How many partitions each has, the most first; no partition has two owners."""
    owned = [partition for reader in readers for partition in reader.assigned]
    assert len(owned) == len(set(owned)), [reader.assigned for reader in readers]
    return sorted((len(reader.assigned) for reader in readers), reverse=True)


def handled(readers: list[Reader]) -> set[bytes]:
    """The values that any of them read."""
    return {value for reader in readers for _, _, _, value in reader.read}
