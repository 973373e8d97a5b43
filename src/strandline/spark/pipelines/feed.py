"""Feed of the events into their topic, in order of arrival. An interrupted feed continues where it stopped."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from strandline.client import Ack, Admin, Consumer, NewTopic, Producer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.spark.pipelines.dataset import Event

PARTITIONS = 4
"""Number of partitions of every input topic. All reports of one flight go to the same partition, chosen by its id."""

PROGRESS_EVERY = 10_000

_REPLICAS_MAX = 3


def ensure_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS, **configs: str) -> bool:
    """Create a topic with up to three replicas, unless it exists. Returns True if it was created.

    The topic has no retention time, because the events are from 2013.
    """
    with Admin(bootstrap) as admin:
        if topic in admin.list_topics():
            return False
        replicas = min(_REPLICAS_MAX, len(admin.describe_cluster().nodes))
        try:
            admin.create_topics([NewTopic(topic, partitions, replicas, configs={"retention.ms": "-1", **configs})])
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            return False  # created a moment ago: the broker that was asked did not know it yet
    return True


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Partition -> end offset, for each partition of the topic."""
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
        return {where.partition: end for where, end in consumer.end_offsets(partitions).items()}


def partition_of(key: bytes, partitions: int) -> int:
    """Partition of an event. It depends only on the key, so that a second feed knows what the first one sent."""
    return zlib.crc32(key, 1) % partitions


def feed(
    bootstrap: str, topic: str, events: Sequence[Event], progress: Callable[[int], None] = lambda _sent: None
) -> int:
    """Send the events that are not in the topic yet. Returns their number. `progress` gets the number sent so far.

    The end offsets tell how many events of each partition are already sent: each run has the same order, and no other
    program writes to the topic.

    Raises:
        StrandlineError: a record was not acknowledged.
    """
    ensure_topic(bootstrap, topic)
    there = ends(bootstrap, topic)
    failures: list[BaseException] = []
    sent = 0

    def done(future: Future[Ack]) -> None:
        error = future.exception()
        if error is not None:
            failures.append(error)

    with Producer(bootstrap, batch_size=131_072) as producer:
        for number, event in enumerate(events):
            partition = partition_of(event.key, len(there))
            if there[partition] > 0:
                there[partition] -= 1
                continue
            future = producer.send(
                topic, event.value, key=event.key, partition=partition, timestamp_ms=event.arrival_ms
            )
            future.add_done_callback(done)
            sent += 1
            if number % PROGRESS_EVERY == 0:
                progress(number)
        producer.flush()
    if failures:
        raise failures[0]
    progress(len(events))
    return sent
