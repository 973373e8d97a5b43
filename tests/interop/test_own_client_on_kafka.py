"""Our client's transactions and its reading of them against Apache Kafka, started here where its jars can be had."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.client import (
    Admin,
    ClientError,
    Consumer,
    NewTopic,
    Producer,
    ProducerFenced,
    Send,
    TransactionAbortable,
    process,
)
from strandline.client import transactions as client_transactions
from strandline.client.range_reader import RangeReader
from strandline.proto.ids import TopicPartition
from tests.acceptance.foreign import apache_kafka
from tests.acceptance.helpers import eventually

pytestmark = pytest.mark.timeout(400)

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with apache_kafka() as bootstrap:
        yield bootstrap


def topic_of(kafka: str, partitions: int = 1) -> str:
    """A new topic, once every broker knows it: Kafka answers a creation before that."""
    name = f"own-{os.getpid()}-{next(_numbers)}"
    with Admin(kafka) as admin:
        admin.create_topics([NewTopic(name, partitions, -1)])
    for broker in kafka.split(","):
        with Admin(broker) as admin:
            eventually(lambda admin=admin: name in admin.list_topics())
    return name


def by_librdkafka(kafka: str, topic: str, name: str, values: range) -> Any:
    """An open transaction of another client, everything of it acknowledged."""
    from confluent_kafka import Producer as Transactional

    producer = Transactional({"bootstrap.servers": kafka, "transactional.id": f"{topic}-{name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in values:
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush(30)
    return producer


def read_all(kafka: str, topic: str, level: str, way: str) -> list[int]:
    """What a consumer gets up to where it has nothing more to expect."""
    item = TopicPartition(topic, 0)
    found: list[int] = []
    with Consumer(kafka, isolation_level=level, auto_offset_reset="earliest") as consumer:
        consumer.assign([item])
        while consumer.lag()[item]:
            if way == "poll":
                found += [int(record.value) for record in consumer.poll(1.0, 7)]
            else:
                found += map(int, consumer.poll_columns(1.0, 7).to_arrow()["value"].to_pylist())
    return found


@pytest.mark.parametrize("way", ["poll", "columns"])
def test_committed_records_alone_are_read(kafka: str, way: str) -> None:
    """Of transactions that lie across each other: the aborted one is left out, and the open one ends what is read."""
    topic = topic_of(kafka)
    committed = by_librdkafka(kafka, topic, "committed", range(10))
    aborted = by_librdkafka(kafka, topic, "aborted", range(10, 20))
    still_open = by_librdkafka(kafka, topic, "open", range(20, 30))
    committed.commit_transaction(30)
    aborted.abort_transaction(30)
    assert read_all(kafka, topic, "read_committed", way) == list(range(10))
    assert read_all(kafka, topic, "read_uncommitted", way) == list(range(30))
    still_open.commit_transaction(30)
    assert read_all(kafka, topic, "read_committed", way) == [*range(10), *range(20, 30)]


def test_offsets_ranges_and_times_are_those_of_committed_records(kafka: str) -> None:
    """Ends are the last stable offset; no time is found in an open transaction; a range leaves aborted records out."""
    topic = topic_of(kafka)
    item = TopicPartition(topic, 0)
    by_librdkafka(kafka, topic, "aborted", range(5)).abort_transaction(30)
    by_librdkafka(kafka, topic, "committed", range(5, 10)).commit_transaction(30)
    still_open = by_librdkafka(kafka, topic, "open", range(10, 15))
    with Consumer(kafka, isolation_level="read_committed") as consumer:
        assert consumer.end_offsets([item]) == {item: 12}
        consumer.assign([item])
        consumer.seek(item, 12)
        assert consumer.poll(1.0) == []
        with Admin(kafka) as admin:
            newest_ms = admin.list_offsets({item: -3})[item].timestamp_ms
        assert consumer.offsets_for_times({item: newest_ms}) == {item: None}
        still_open.commit_transaction(30)
        assert [int(record.value) for record in consumer.poll(30.0)] == list(range(10, 15))
    with RangeReader(kafka, isolation_level="read_committed") as reader:
        assert [int(record.value) for record in reader.read_records(topic, 0, 0, 18)] == list(range(5, 15))


@pytest.fixture
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The protocol of our producers; of the first they are where the cluster has not finalized the second."""
    chosen: int = request.param
    if chosen == 1:
        monkeypatch.setattr(client_transactions, "FEATURE", "unknown.version")
    return chosen


@pytest.mark.parametrize("protocol", [1, 2], indirect=True)
def test_transactions_count_whole_or_not_at_all(kafka: str, protocol: int) -> None:
    """Blocks that end well, one that fails behind a flush, one of nothing, and a zombie."""
    topic = topic_of(kafka, 3)
    with Producer(kafka, transactional_id=f"{topic}-{protocol}") as producer:
        for start in (0, 100):
            with producer.transaction():
                for number in range(start, start + 100):
                    producer.send(topic, b"%d" % number, partition=0)
        producer.begin_transaction()
        for number in range(200, 300):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        producer.send(topic, b"0", partition=0)
        producer.abort_transaction()
        with producer.transaction():
            pass
        with producer.transaction():
            producer.send(topic, b"300", partition=0)
        producer.begin_transaction()
        producer.send(topic, b"400", partition=0)
        producer.flush()
        with Producer(kafka, transactional_id=f"{topic}-{protocol}") as other:
            with other.transaction():
                other.send(topic, b"500", partition=0)
            with pytest.raises((ProducerFenced, TransactionAbortable)):
                producer.commit_transaction()
    assert read_all(kafka, topic, "read_committed", "poll") == [*range(200), 300, 500]
    assert len(read_all(kafka, topic, "read_uncommitted", "poll")) == 303


@pytest.mark.parametrize("protocol", [1, 2], indirect=True)
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_what_is_read_is_done_when_it_is_committed(kafka: str, protocol: int, group_protocol: str) -> None:
    """`send_offsets` of a member of a group: an abort leaves its offsets where they were."""
    source, sink = topic_of(kafka), topic_of(kafka)
    item = TopicPartition(source, 0)
    with Producer(kafka) as plain:
        for number in range(20):
            plain.send(source, b"%d" % number)
    settings = {"group_id": f"{source}-group", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with (
        Consumer(kafka, **settings, group_protocol=group_protocol) as reader,
        Producer(kafka, transactional_id=f"{source}-{protocol}") as producer,
    ):
        reader.subscribe(source)
        first = [record.value for record in (reader.poll(30.0, 10))]
        with producer.transaction():
            for value in first:
                producer.send(sink, value)
            producer.send_offsets(reader)
        assert reader.committed()[item].offset == len(first)  # type: ignore[union-attr]
        more = [record.value for record in (reader.poll(30.0, 5))]
        producer.begin_transaction()
        producer.send(sink, more[0])
        producer.send_offsets(reader)
        producer.abort_transaction()
        assert reader.committed()[item].offset == len(first)  # type: ignore[union-attr]
    assert read_all(kafka, sink, "read_committed", "poll") == list(range(len(first)))


def test_an_interrupt_does_not_stop_a_commit(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a block is committed: a note says so, nothing else can be begun, and the next call has the end."""
    topic = topic_of(kafka)
    held = threading.Event()
    commit = client_transactions.Transactions._commit

    async def slow(self: client_transactions.Transactions) -> None:
        while not held.is_set():
            await asyncio.sleep(0.01)
        await commit(self)

    monkeypatch.setattr(client_transactions.Transactions, "_commit", slow)

    def block(producer: Producer) -> None:
        with producer.transaction():
            producer.send(topic, b"1")
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    with Producer(kafka, transactional_id=topic) as producer:
        with pytest.raises(KeyboardInterrupt) as told:
            block(producer)
        assert told.value.__notes__ == ["The transaction of this block: a transaction is being committed."]
        with pytest.raises(ClientError, match="is being committed"):
            producer.begin_transaction()
        held.set()
        producer.commit_transaction()
    assert read_all(kafka, topic, "read_committed", "poll") == [1]


PROGRAM = """
import sys
from strandline.client import Send, process
bootstrap, source, sink, group = sys.argv[1:]
seen = []
def double(record):
    seen.append(record.value)
    yield Send(sink, b"%d" % (2 * int(record.value)), partition=0)
    yield Send(sink, record.value, partition=1)
print("ready", flush=True)
reading = {"max.poll.records": 50, "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
process(bootstrap, source, double, group_id=group, consumer=reading)
"""


def test_process_is_exactly_once_over_kills(kafka: str) -> None:
    """Row S117: the program is killed again and again while records come; each is doubled once."""
    source, sink = topic_of(kafka, 2), topic_of(kafka, 2)
    command = [sys.executable, "-c", PROGRAM, kafka, source, sink, f"{source}-group"]
    total = 2000
    with Producer(kafka) as plain:
        for kill in range(5):
            program = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                assert program.stdout is not None
                program.stdout.readline()
                for number in range(kill * total // 5, (kill + 1) * total // 5):
                    plain.send(source, b"%d" % number)
                plain.flush()
                low = min(kill + 1, 4) * 100
                eventually(lambda low=low: sum(ends(kafka, sink).values()) > low, 60)
            finally:
                program.send_signal(signal.SIGKILL)
                program.wait()
    left = [total]

    def pass_on(record: Any) -> list[Send]:
        value = int(record.value)
        return [Send(sink, b"%d" % (2 * value), partition=0), Send(sink, record.value, partition=1)]

    def everything_is_there() -> bool:
        left[0] = total - len(read_all(kafka, sink, "read_committed", "poll"))
        return left[0] <= 0

    process(kafka, source, pass_on, group_id=f"{source}-group", until=everything_is_there)
    doubled = Counter(read_all(kafka, sink, "read_committed", "poll"))
    assert doubled == Counter(range(0, 2 * total, 2))


def ends(kafka: str, topic: str) -> dict[TopicPartition, int]:
    with Consumer(kafka, isolation_level="read_committed") as consumer:
        return consumer.end_offsets([TopicPartition(topic, 0)])
