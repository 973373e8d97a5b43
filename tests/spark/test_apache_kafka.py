"""The same source and sink against Apache Kafka: read, written once, gone on with after its topic has grown."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from strandline.client import Admin, NewTopic, Producer

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402

from strandline.spark.ledger import TaskKey  # noqa: E402
from strandline.spark.options import parse_options  # noqa: E402
from strandline.spark.sink import write_rows  # noqa: E402
from strandline.spark.sink_options import parse_sink_options  # noqa: E402
from strandline.spark.stream_source import StreamReader  # noqa: E402
from tests.spark.test_stream_reader import SCHEMA, values  # noqa: E402

pytestmark = pytest.mark.timeout(180)


NAMED = os.environ.get("STRANDLINE_KAFKA_BOOTSTRAP", "")
"""Topics called in and out are made there: a Kafka to be thrown away."""


@pytest.fixture
def kafka() -> str:
    if not NAMED:
        pytest.skip("no Apache Kafka here: name one in STRANDLINE_KAFKA_BOOTSTRAP to hold source and sink against it")
    return NAMED


def test_stream_and_sink_on_apache_kafka(kafka: str) -> None:
    with Admin(kafka) as admin:
        admin.create_topics([NewTopic("in", 2, 3), NewTopic("out", 3, 3)])
    with Producer(kafka) as producer:
        for number in range(300):
            producer.send("in", str(number).encode(), partition=number % 2)
    given = {"kafka.bootstrap.servers": kafka, "subscribe": "in", "startingOffsets": "earliest"}
    source = StreamReader(parse_options(given, streaming=True), SCHEMA)
    try:
        start = source.initialOffset()
        end = source.latestOffset(start, ReadAllAvailable())
        assert end["topics"]["in"]["id"]
        rows = [{"key": b"%d" % number, "value": b"v"} for number in values(source, start, end)]
    finally:
        source.stop()
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
    written = {"kafka.bootstrap.servers": kafka, "subscribe": "out", "startingOffsets": "earliest"}
    back = StreamReader(parse_options(written, streaming=True), SCHEMA)
    try:
        first = back.initialOffset()
        found: Counter[bytes] = Counter()
        for partition in back.partitions(first, back.latestOffset(first, ReadAllAvailable())):
            for batch in back.read(partition):
                found.update(key.as_py() for key in batch.column("key"))
    finally:
        back.stop()
    assert found == Counter(row["key"] for row in rows)
