"""The same source and sink against Apache Kafka: read, written once, gone on with after its topic has grown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from bench.clusters import KafkaCluster, Unavailable, wait_ready

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


@pytest.fixture
def kafka() -> Iterator[str]:
    try:
        cluster = KafkaCluster()
    except Unavailable as reason:
        pytest.skip(f"Apache Kafka cannot be had here: {reason}")
    try:
        cluster.start()
        wait_ready(cluster.bootstrap)
        yield cluster.bootstrap
    finally:
        cluster.stop()


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
