"""Clients of other people at the end of partitions that hold nothing, over leader changes on real brokers.

Our own client stays where it is whatever a new leader says of its position; others believe it (rule B33; schedules 102
and 103).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from strandline.client import EARLIEST, LATEST, Admin, ConfigChange, ConfigResource, NewTopic, Producer, TopicPartition
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import java_class_path

TOPICS = ("never-written", "trimmed", "expired")
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in range(3)]
WITHIN_S = 60.0


def eventually(look: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WITHIN_S
    while not look():
        assert time.monotonic() < until, f"not within {WITHIN_S:g} s: {what}"
        threading.Event().wait(0.05)


class Tail(threading.Thread):
    """A consumer that begins at the end of every partition, and notes what comes.

    Attributes:
        placed: it stands at every end.
        values: what came.
        states: of the fetch of each partition, where the client tells it.
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.placed = threading.Event()
        self.over = threading.Event()
        self.values: list[bytes] = []
        self.states: list[str] = []
        self.start()

    def has(self, count: int) -> bool:
        """So many values came."""
        return len(self.values) >= count


class Librdkafka(Tail):
    """confluent-kafka. It says of each partition whether it fetches, and from where, in its statistics alone."""

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "librdkafka",
                "auto.offset.reset": "latest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                "reconnect.backoff.max.ms": 500,
                "statistics.interval.ms": 100,
                "stats_cb": self._statistics,
            }
        )
        # From the end at once: it asks for committed offsets no more once a broker has said NOT_COORDINATOR.
        consumer.assign([confluent_kafka.TopicPartition(*place, confluent_kafka.OFFSET_END) for place in PARTITIONS])
        while not self.over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value())
        consumer.close()

    def _statistics(self, text: str) -> None:
        topics: dict[str, Any] = json.loads(text)["topics"]
        found = [one for topic in topics.values() for number, one in topic["partitions"].items() if int(number) >= 0]
        self.states = [one["fetch_state"] for one in found]
        if len(found) == len(PARTITIONS) and all(state == "active" for state in self.states):
            self.placed.set()


class KafkaPython(Tail):
    """kafka-python."""

    def run(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","), auto_offset_reset="latest", metadata_max_age_ms=500
        )
        places = [kafka.TopicPartition(*place) for place in PARTITIONS]
        consumer.assign(places)
        for place in places:
            consumer.position(place)
        self.placed.set()
        while not self.over.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                self.values += [record.value for record in records]
        consumer.close()


class Aiokafka(Tail):
    """aiokafka."""

    def run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","), auto_offset_reset="latest", metadata_max_age_ms=500
        )
        await consumer.start()
        places = [aiokafka.TopicPartition(*place) for place in PARTITIONS]
        consumer.assign(places)
        for place in places:
            await consumer.position(place)
        self.placed.set()
        while not self.over.is_set():
            for records in (await consumer.getmany(timeout_ms=100)).values():
                self.values += [record.value for record in records]
        await consumer.stop()


class Java(Tail):
    """Apache Kafka's own (`Tail.java`), in a process that ends with it."""

    def __init__(self, bootstrap: str) -> None:
        self._jars = java_class_path()  # or the test is skipped
        super().__init__(bootstrap)

    def run(self) -> None:
        words = [word for place in PARTITIONS for word in (place.topic, str(place.partition))]
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx200m")
        program = str(Path(__file__).with_name("Tail.java"))
        with subprocess.Popen(
            ["java", *quick, "-cp", self._jars, program, self.bootstrap, *words],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            threading.Thread(target=self._end, args=(process,), daemon=True).start()
            for line in process.stdout:
                if line == "placed\n":
                    self.placed.set()
                elif line.startswith("read "):
                    self.values.append(line.removeprefix("read ").rstrip("\n").encode())

    def _end(self, process: subprocess.Popen[str]) -> None:
        self.over.wait()
        process.kill()


@pytest.fixture
def fragile() -> Iterator[DevCluster]:
    with DevCluster(settings={"log.retention.check.interval.ms": "200"}) as running:
        yield running


def write(bootstrap: str, partitions: list[TopicPartition], what: str) -> list[bytes]:
    """A record for each; the values, all of them acknowledged."""
    values = [f"{what} {place}".encode() for place in partitions]
    with Producer(bootstrap) as producer:
        sent = [
            producer.send(place.topic, value, partition=place.partition)
            for place, value in zip(partitions, values, strict=True)
        ]
        for one in sent:
            one.result(WITHIN_S)
    return values


def empty(admin: Admin) -> None:
    """Records of `expired` go by their age, those of the others by DeleteRecords; what comes next stays."""
    expired = ConfigResource("topic", "expired")
    admin.alter_configs({expired: [ConfigChange("retention.ms", "1")]})
    ends = admin.list_offsets(dict.fromkeys(PARTITIONS, LATEST))
    admin.delete_records({place: ends[place].offset for place in PARTITIONS if place.topic != "expired"})

    def is_empty() -> bool:
        starts = admin.list_offsets(dict.fromkeys(PARTITIONS, EARLIEST))
        return all(starts[place].offset == ends[place].offset for place in PARTITIONS)

    eventually(is_empty, "partitions are empty")
    admin.alter_configs({expired: [ConfigChange("retention.ms", "-1")]})


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param((Librdkafka, KafkaPython, Aiokafka), id="python"),
        pytest.param((Java,), id="java"),
    ],
)
def test_what_is_written_after_a_leader_change_passes_nobody_by(
    fragile: DevCluster, kinds: Sequence[type[Tail]]
) -> None:
    """Each node is killed once while every partition holds nothing; what is acknowledged then comes to every
    consumer that stood at the end, and so does what is written before the node is back."""
    with Admin(fragile.bootstrap) as admin, ExitStack() as over:
        admin.create_topics([NewTopic(topic, 3, 3) for topic in TOPICS])
        write(fragile.bootstrap, [place for place in PARTITIONS if place.topic != "never-written"], "before")
        empty(admin)
        tails = [kind(fragile.bootstrap) for kind in kinds]
        for tail in tails:
            over.callback(tail.over.set)
        for tail in tails:
            assert tail.placed.wait(WITHIN_S), f"{type(tail).__name__} does not stand at every end: {tail.states}"
        wanted: list[bytes] = []
        for victim in (1, 2, 3):
            fragile.kill(victim)
            wanted += write(fragile.bootstrap, PARTITIONS, f"without {victim}")
            for tail in tails:
                eventually(partial(tail.has, len(wanted)), f"{type(tail).__name__} has {wanted}, not {tail.values}")
            fragile.start_node(victim)
            eventually(
                lambda: all(
                    len(one.isr) == 3 for topic in admin.describe_topics(list(TOPICS)) for one in topic.partitions
                ),
                "all replicas are in sync",
            )
            empty(admin)
        for tail in tails:
            tail.over.set()
        for tail in tails:
            tail.join(WITHIN_S)
            assert sorted(tail.values) == sorted(wanted), type(tail).__name__
