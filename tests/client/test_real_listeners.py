"""Listeners that use their consumer, and dead letters of large records, on real brokers."""

from __future__ import annotations

import random

from strandline.client import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from strandline.tools.handling import handle
from strandline.tools.replay import DeadLetterBox
from tests.client.conftest import MakeTopic


def test_large_records_die_and_come_back(bootstrap: str, make_topic: MakeTopic) -> None:
    """Whatever the topic holds its dead letters hold too: a record larger than a producer sends by default, one as
    large as its topic allows, and one that only fits compressed. Else it would stop its partition for good."""
    topic = make_topic(1, max_message_bytes="3000000")
    rng = random.Random(5)
    values = [rng.randbytes(1_500_000), rng.randbytes(2_990_000), bytes(8_000_000)]
    with Producer(bootstrap, max_request_size=10_000_000, compression_type="gzip") as producer:
        for value in values:
            producer.send(topic, value).result()

    def handler(record: ConsumerRecord) -> None:
        raise ValueError("too large")

    settings = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe(topic)
        assert handle(consumer, handler, attempts=1, idle_s=5).dead_letters == 3
    assert DeadLetterBox(bootstrap, topic, {}).replay() == (3, 0, 0)
    with Consumer(bootstrap, **settings) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 3)
        assert [next(consumer).value for _ in values] == values
    with Admin(bootstrap) as admin:
        admin.delete_topics([f"{topic}.dead"])


def test_a_listener_may_use_its_consumer(bootstrap: str, make_topic: MakeTopic) -> None:
    """One that polls, or unsubscribes, inside of poll: the listeners after it are heard all the same."""
    one, two = make_topic(1), make_topic(1)
    heard: list[tuple[str, str]] = []

    def revoked(partitions: list[TopicPartition]) -> None:
        heard.extend(("revoked", item.topic) for item in partitions)
        consumer.poll(0)
        consumer.next_record(0)
        if partitions[0].topic == two:
            consumer.unsubscribe()

    def assigned(partitions: list[TopicPartition]) -> None:
        heard.extend(("assigned", item.topic) for item in partitions)
        if partitions[0].topic == two:
            consumer.unsubscribe()

    with Consumer(bootstrap, group_id=f"g-{one}", auto_offset_reset="earliest") as consumer:
        for topic in (one, two):
            consumer.subscribe(topic, on_assigned=assigned, on_revoked=revoked)
            while ("assigned", topic) not in heard:
                consumer.poll(1.0)
        assert consumer.state.name == "unassigned"
        assert consumer.assignment() == []
    assert heard == [("assigned", one), ("revoked", one), ("assigned", two), ("revoked", two)]
