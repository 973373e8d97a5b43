"""What a task of the sink says when a row cannot be written, and what the options of Spark's own sink are taken for."""

from __future__ import annotations

import pytest

from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import ConfigError
from tests.acceptance.topics import create

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from strandline.spark.ledger import TaskKey  # noqa: E402
from strandline.spark.sink import SinkError, write_rows  # noqa: E402
from strandline.spark.sink_options import parse_sink_options  # noqa: E402

HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))


def test_every_failure_names_query_epoch_and_task(cluster: DevCluster) -> None:
    """Those that the client raises at once, too: they came bare, and of many queries nobody knew which had failed."""
    create(cluster.bootstrap, "sink-errors", 3, 3)
    for topic, columns, says in (
        ("sink-errors", {"value": [bytes(2_000_000)]}, "MESSAGE_TOO_LARGE"),
        ("sink-no-such-topic", {"value": [b"x"]}, "strandline topic create sink-no-such-topic"),
        ("sink-errors", {"value": [b"x"], "partition": [7]}, "has partitions 0 to 2"),
        ("sink-errors", {"value": [b"x"], "headers": pa.array([[{"value": b"x"}]], HEADERS)}, "a header has no name"),
        ("sink-errors", {"value": [b"x"], "headers": pa.array([[None]], HEADERS)}, "a header has no name"),
    ):
        batch = pa.RecordBatch.from_pydict(columns)
        options = parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic})
        with pytest.raises(SinkError, match=f"query query-fail, epoch 1, task 2: .*{says}"):
            write_rows(options, TaskKey("query-fail", 1, 2), iter([batch]))


def test_a_task_sends_large_batches_unless_the_options_say_otherwise() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}
    assert parse_sink_options(given).producer_settings == {"batch.size": "131072", "linger.ms": "50"}
    told = parse_sink_options(given | {"kafka.batch.size": "1000"}).producer_settings
    assert told == {"batch.size": "1000", "linger.ms": "50"}


def test_options_of_sparks_own_sink_are_taken() -> None:
    """Its guide names includeHeaders for writes as well, and it trims the topic."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "includeHeaders": "true"}
    assert parse_sink_options(given | {"topic": " orders "}).topic == "orders"
    with pytest.raises(ConfigError, match="name of a topic"):
        parse_sink_options(given | {"topic": " "})
