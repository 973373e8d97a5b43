"""Schedule 63 on real brokers, librdkafka beside our consumer: a topic that is deleted and made anew is another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from uuid import UUID

import confluent_kafka
import pytest

from strandline.client import (
    Admin,
    Consumer,
    KafkaError,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    StrandlineError,
    TopicPartition,
    TopicReplaced,
    TransactionAbortable,
    UnknownTopic,
)
from strandline.cluster.node.dev import DevCluster


@pytest.fixture(scope="module")
def fragile() -> Iterator[DevCluster]:
    """Three nodes that tests may kill; each test leaves all of them running."""
    with DevCluster() as running:
        yield running


def fill(bootstrap: str, topic: str, values: range) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, b"%d" % value)


def make_anew(bootstrap: str, topic: str) -> None:
    """As soon as the cluster takes the name again."""
    with Admin(bootstrap) as admin:
        admin.delete_topics([topic])
        until = time.monotonic() + 60
        while True:
            try:
                admin.create_topics([NewTopic(topic, 1, 3)])
                return
            except StrandlineError as error:
                if (isinstance(error, KafkaError) and not error.retriable) or time.monotonic() > until:
                    raise
            threading.Event().wait(0.1)


def read(consumer: Consumer, count: int, within_s: float = 60.0) -> list[int]:
    """The next values, whatever poll raises meanwhile."""
    values: list[int] = []
    until = time.monotonic() + within_s
    while len(values) < count:
        assert time.monotonic() < until, f"{len(values)} of {count} within {within_s} s"
        try:
            values += [int(record.value) for record in consumer.poll(1.0)]
        except StrandlineError:
            threading.Event().wait(0.1)
    return values


def test_63_committed_offsets_end_with_their_topic_over_a_failover(fragile: DevCluster) -> None:
    """The coordinator is killed, and the topic goes while nobody coordinates. Neither our consumer nor librdkafka,
    which goes by names, is given the old offset, and both read every record of the new topic."""
    topic, where = "failover", TopicPartition("failover", 0)
    with Admin(fragile.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])
    fill(fragile.bootstrap, topic, range(100))
    groups = ("ours", "theirs")
    for group in groups:
        with Consumer(fragile.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.assign([where])
            assert len(read(consumer, 100)) == 100
            consumer.commit()
    with Admin(fragile.bootstrap) as admin:
        victim = admin.describe_groups(["ours"])["ours"].coordinator.node_id
    fragile.kill(victim)
    make_anew(fragile.bootstrap, topic)
    fill(fragile.bootstrap, topic, range(1000, 1150))
    with Consumer(fragile.bootstrap, group_id="ours", auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        assert read(consumer, 150) == list(range(1000, 1150))
    theirs = confluent_kafka.Consumer(
        {"bootstrap.servers": fragile.bootstrap, "group.id": "theirs", "auto.offset.reset": "earliest"}
    )
    theirs.subscribe([topic])
    values: list[int] = []
    until = time.monotonic() + 60
    while len(values) < 150 and time.monotonic() < until:
        message = theirs.poll(1.0)
        if message is not None and not message.error():
            values.append(int(message.value()))
    theirs.close()
    assert values == list(range(1000, 1150))
    fragile.start_node(victim)


@pytest.mark.parametrize("way", ["assigned", "subscribed"])
def test_63_a_living_consumer_begins_anew(fragile: DevCluster, way: str) -> None:
    """Blocking: its listener is called by the thread that polls; every record of the new topic is read."""
    topic = f"living-{way}"
    with Admin(fragile.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])
    fill(fragile.bootstrap, topic, range(100))
    told: list[tuple[list[TopicPartition], threading.Thread]] = []

    def replaced(partitions: list[TopicPartition]) -> None:
        told.append((partitions, threading.current_thread()))

    with Consumer(fragile.bootstrap, group_id=topic, auto_offset_reset="earliest", metadata_max_age_ms=500) as consumer:
        if way == "assigned":
            consumer.assign([(topic, 0)], on_replaced=replaced)
        else:
            consumer.subscribe([topic], on_replaced=replaced)
        assert len(read(consumer, 100)) == 100
        make_anew(fragile.bootstrap, topic)
        fill(fragile.bootstrap, topic, range(1000, 1150))
        assert read(consumer, 150) == list(range(1000, 1150))
    if way == "assigned":
        assert told == [([TopicPartition(topic, 0)], threading.current_thread())]


def test_offsets_of_a_transaction_end_with_their_topic(fragile: DevCluster) -> None:
    """KIP-1319: a transaction does not commit an offset of the old topic for the new one, and commits the new one's."""
    topic, where = "moved", TopicPartition("moved", 0)

    def topic_id() -> UUID:
        found = admin.describe_topics([topic])[0].topic_id
        assert found is not None
        return found

    with Admin(fragile.bootstrap) as admin, Producer(fragile.bootstrap, transactional_id="mover") as producer:
        admin.create_topics([NewTopic(topic, 1, 3)])
        with Consumer(fragile.bootstrap, group_id="movers") as consumer:
            group, old = consumer.group_metadata(), topic_id()
            producer.begin_transaction()
            make_anew(fragile.bootstrap, topic)
            with pytest.raises(TransactionAbortable) as caught:
                producer.send_offsets_to_transaction({where: OffsetAndMetadata(90, topic_id=old)}, group)
            assert isinstance(caught.value.__cause__, TopicReplaced | UnknownTopic)
            producer.abort_transaction()
            with producer.transaction():
                producer.send_offsets_to_transaction({where: OffsetAndMetadata(7, topic_id=topic_id())}, group)
            found = consumer.committed([where])[where]
            assert found is not None
            assert found.offset == 7
