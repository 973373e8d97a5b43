"""The same source and sink against Apache Kafka: three brokers of it, started here where its jars can be had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from strandline.client import Admin, NewTopic, Producer
from tests.acceptance.foreign import apache_kafka
from tests.acceptance.helpers import eventually

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402

from strandline.spark.ledger import TaskKey  # noqa: E402
from strandline.spark.options import parse_options  # noqa: E402
from strandline.spark.planner import DataLossError  # noqa: E402
from strandline.spark.sink import write_rows  # noqa: E402
from strandline.spark.sink_options import parse_sink_options  # noqa: E402
from strandline.spark.stream_source import StreamReader  # noqa: E402
from tests.spark.test_stream_reader import SCHEMA, values  # noqa: E402

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with apache_kafka() as bootstrap:
        yield bootstrap


def make(kafka: str, topic: str, partitions: int = 1) -> None:
    """The topic, once every broker knows it: Kafka answers a creation before that."""
    with Admin(kafka) as admin:
        admin.create_topics([NewTopic(topic, partitions, 3)])
    for broker in kafka.split(","):
        with Admin(broker) as admin:
            eventually(lambda admin=admin: topic in admin.list_topics())


def source(kafka: str, topic: str, **more: object) -> StreamReader:
    given = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "startingOffsets": "earliest"} | more
    return StreamReader(parse_options({key: str(value) for key, value in given.items()}, streaming=True), SCHEMA)


def fill(kafka: str, topic: str, numbers: range, partitions: int = 1) -> None:
    with Producer(kafka) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % partitions)


def test_stream_and_sink_on_apache_kafka(kafka: str) -> None:
    make(kafka, "in", 2)
    make(kafka, "out", 3)
    fill(kafka, "in", range(300), 2)
    with closing_stream(source(kafka, "in")) as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["topics"]["in"]["id"]
        rows = [{"key": b"%d" % number, "value": b"v"} for number in values(reader, start, end)]
    assert len(rows) == 300

    def batches(until: int) -> Iterator[object]:
        yield pa.RecordBatch.from_pylist(rows[:150])
        if until == 150:
            raise RuntimeError("the task is killed")
        yield pa.RecordBatch.from_pylist(rows[150:])

    options = parse_sink_options({"kafka.bootstrap.servers": kafka, "topic": "out"})
    with pytest.raises(RuntimeError, match="killed"):
        write_rows(options, TaskKey("query", 0, 0), batches(150))
    again = write_rows(options, TaskKey("query", 0, 0), batches(300))
    assert (again.found, again.sent) == (150, 150)
    with closing_stream(source(kafka, "out")) as back:
        first = back.initialOffset()
        found: Counter[bytes] = Counter()
        for partition in back.partitions(first, back.latestOffset(first, ReadAllAvailable())):
            for batch in back.read(partition):
                found.update(key.as_py() for key in batch.column("key"))
    assert found == Counter(row["key"] for row in rows)


def test_read_committed_ends_at_the_last_stable_offset(kafka: str) -> None:
    """An aborted transaction is left out, an open one is not waited for."""
    from confluent_kafka import Producer as Transactional

    make(kafka, "committed")

    def transaction(name: str, values: range) -> Any:
        producer = Transactional({"bootstrap.servers": kafka, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in values:
            producer.produce("committed", b"%d" % number, partition=0)
        producer.flush(30)
        return producer

    transaction("one", range(10)).commit_transaction(30)
    transaction("two", range(10, 20)).abort_transaction(30)
    transaction("three", range(20, 30)).commit_transaction(30)
    still_open = transaction("four", range(30, 40))
    with (
        closing_stream(source(kafka, "committed", **{"kafka.isolation.level": "read_committed"})) as reader,
        closing_stream(source(kafka, "committed", **{"kafka.isolation.level": "read_uncommitted"})) as all_of_it,
    ):
        start = reader.initialOffset()
        first = reader.latestOffset(start, ReadAllAvailable())
        assert values(reader, start, first) == [*range(10), *range(20, 30)]
        assert values(all_of_it, start, all_of_it.latestOffset(start, ReadAllAvailable())) == list(range(40))
        assert reader.latestOffset(first, ReadAllAvailable()) is first
        still_open.commit_transaction(30)
        second = eventually(lambda: changed(reader, first))
        assert values(reader, first, second) == list(range(30, 40))


def test_losses_and_growth_on_apache_kafka(kafka: str) -> None:
    make(kafka, "faults")
    fill(kafka, "faults", range(100))
    with (
        closing_stream(source(kafka, "faults")) as strict,
        closing_stream(source(kafka, "faults", failOnDataLoss="false")) as lenient,
    ):
        start = strict.initialOffset()
        first = strict.latestOffset(start, ReadAllAvailable())
        with Admin(kafka) as admin:
            admin.delete_records({("faults", 0): 60})
            with pytest.raises(DataLossError, match="offset 0"):
                strict.partitions(start, first)
            assert values(lenient, start, first) == list(range(60, 100))
            admin.create_partitions({"faults": 2})
        eventually(lambda: "1" in strict.latestOffset(first, ReadAllAvailable())["topics"]["faults"]["offsets"])
        fill(kafka, "faults", range(101, 141, 2), 2)
        second = eventually(lambda: changed(strict, first))
        assert values(strict, first, second) == list(range(101, 141, 2))
        with Admin(kafka) as admin:
            admin.delete_topics(["faults"])
            eventually(lambda: "faults" not in admin.list_topics())
        make(kafka, "faults", 2)
        fill(kafka, "faults", range(1000, 1300), 2)
        with pytest.raises(DataLossError):
            strict.latestOffset(second, ReadAllAvailable())
        third = lenient.latestOffset(second, ReadAllAvailable())
        assert values(lenient, second, third) == list(range(1000, 1300))


def changed(reader: StreamReader, before: dict[str, Any]) -> dict[str, Any] | None:
    """The offset after `before` once it is another one."""
    after = reader.latestOffset(before, ReadAllAvailable())
    return None if after is before else after


@contextmanager
def closing_stream(reader: StreamReader) -> Iterator[StreamReader]:
    try:
        yield reader
    finally:
        reader.stop()
