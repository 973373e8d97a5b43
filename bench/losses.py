"""What each acks level costs when a leader dies, and what it gains before (row S22): rate and losses side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.clusters import Cluster, admin_client, wait_ready
from bench.measures import PARTITIONS, Results, create_topic
from bench.secured import librdkafka_settings

LEVELS = ("0", "1", "all")
RATE_RECORDS = 300_000
STEADY_PER_S = 2_000
BEFORE_KILL_S = 2.0
AFTER_KILL_S = 3.0


class _Sender(threading.Thread):
    """Sends numbered records to one partition at a steady rate and keeps those that the client called delivered."""

    def __init__(self, bootstrap: str, topic: str, partition: int, acks: str, stop: threading.Event) -> None:
        super().__init__()
        self.acks = acks
        self.delivered: list[bytes] = []
        self._topic, self._partition, self._stop_now = topic, partition, stop
        self._producer = Producer(_settings(bootstrap, acks) | {"linger.ms": 5, "message.timeout.ms": 30_000})

    def run(self) -> None:
        began = time.perf_counter()
        number = 0
        while not self._stop_now.is_set():
            value = f"{self.acks}:{number}".encode()
            self._producer.produce(self._topic, value, partition=self._partition, on_delivery=self._note(value))
            number += 1
            self._producer.poll(0)
            if (wait := began + number / STEADY_PER_S - time.perf_counter()) > 0:
                time.sleep(wait)
        self._producer.flush(30)

    def _note(self, value: bytes) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.delivered.append(value)

        return on_delivery


def losses(make: Callable[[], Cluster], results: Results) -> None:
    """Records a second at each acks level; then what was called delivered and is gone after kill -9 of the leader."""
    cluster = make()
    cluster.start()
    try:
        wait_ready(cluster.bootstrap)
        create_topic(cluster.bootstrap, "rates", PARTITIONS)
        for acks in LEVELS:
            results.add(f"acks={acks}, records/s of 100 B", _rate(cluster.bootstrap, acks))
        create_topic(cluster.bootstrap, "losses", 1)
        admin = admin_client(cluster.bootstrap)
        leader = admin.list_topics("losses", timeout=10).topics["losses"].partitions[0].leader
        stop = threading.Event()
        senders = [_Sender(cluster.bootstrap, "losses", 0, acks, stop) for acks in LEVELS]
        for sender in senders:
            sender.start()
        time.sleep(BEFORE_KILL_S)
        cluster.kill(leader)
        time.sleep(AFTER_KILL_S)
        stop.set()
        for sender in senders:
            sender.join()
        found = _read(cluster.bootstrap, "losses")
        for sender in senders:
            lost = sum(value not in found for value in sender.delivered)
            results.add(f"acks={sender.acks}, lost of {STEADY_PER_S}/s at kill -9, records", lost)
    finally:
        cluster.stop()


def _settings(bootstrap: str, acks: str) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap,
        **librdkafka_settings(),
        "acks": acks,
        "enable.idempotence": acks == "all",
        "log_level": 0,
        "queue.buffering.max.messages": 1_000_000,
    }


def _rate(bootstrap: str, acks: str) -> float:
    producer = Producer(_settings(bootstrap, acks) | {"linger.ms": 20, "batch.size": 524_288})
    producer.list_topics("rates", timeout=10)
    payload = bytes(100)
    began = time.perf_counter()
    for number in range(RATE_RECORDS):
        producer.produce("rates", payload)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(60)
    return RATE_RECORDS / (time.perf_counter() - began)


def _read(bootstrap: str, topic: str) -> set[bytes]:
    """Every value in partition 0, up to the high watermark of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **librdkafka_settings(),
            "group.id": "losses",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    place = TopicPartition(topic, 0, 0)
    deadline = time.perf_counter() + 60
    _, end = consumer.get_watermark_offsets(place, timeout=30)
    consumer.assign([place])
    found: set[bytes] = set()
    position = 0
    while position < end and time.perf_counter() < deadline:
        for message in consumer.consume(1000, timeout=0.5):
            if message.error() is None:
                found.add(message.value() or b"")
                position = (message.offset() or 0) + 1
    consumer.close()
    if position < end:
        raise RuntimeError(f"read {position} of {end} records of {topic} in 60 s")
    return found
