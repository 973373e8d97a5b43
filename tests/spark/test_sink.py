"""The sink's tasks against a real cluster, without Spark's JVM: a task that is repeated writes what is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client import Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import ConfigError
from tests.acceptance.topics import create

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from strandline.spark.ledger import TaskKey, Written, row_digest  # noqa: E402
from strandline.spark.sink import SinkError, write_rows  # noqa: E402
from strandline.spark.sink_options import SinkOptions, parse_sink_options  # noqa: E402

Row = dict[str, Any]


@pytest.fixture(scope="module")
def out(cluster: DevCluster) -> str:
    create(cluster.bootstrap, "sink-out", 3, 3)
    return "sink-out"


def sink_options(cluster: DevCluster, topic: str, **more: str) -> SinkOptions:
    given_options = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": topic,
        "ledgerTopic": "strandline-spark-ledger-tests",
    }
    return parse_sink_options(given_options | more)


def rows(name: str, count: int) -> list[Row]:
    return [{"key": f"{name}-{number}".encode(), "value": str(number).encode()} for number in range(count)]


def arrow(items: list[Row], *, size: int = 40, fail_after: int | None = None) -> Iterator[Any]:
    """Arrow batches as Spark gives them; with `fail_after` the task fails behind so many batches."""
    for number, first in enumerate(range(0, len(items), size)):
        if number == fail_after:
            raise RuntimeError("the task is killed")
        yield pa.RecordBatch.from_pylist(items[first : first + size])


def in_log(cluster: DevCluster, topic: str, name: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with Consumer(cluster.bootstrap) as consumer:
        partitions = [(topic, number) for number in range(3)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(500):
                if record.key is not None and record.key.startswith(name.encode() + b"-"):
                    found[record.key] += 1
    return found


def test_a_task_that_failed_half_way_writes_the_rest_once(cluster: DevCluster, out: str) -> None:
    """Exactly once per (query, epoch, task): the second run finds what the first wrote, in whatever order."""
    options, items, key = sink_options(cluster, out), rows("half", 200), TaskKey("query-half", 3, 1)
    with pytest.raises(RuntimeError, match="killed"):
        write_rows(options, key, arrow(items, fail_after=3))
    again = write_rows(options, key, arrow(list(reversed(items))))
    assert (again.found, again.sent) == (120, 80)
    assert in_log(cluster, out, "half") == Counter(row["key"] for row in items)
    third = write_rows(options, key, arrow(items))
    assert (third.found, third.sent) == (200, 0)
    assert in_log(cluster, out, "half") == Counter(row["key"] for row in items)


_KILLED = """
import sys, json, os, signal
import pyarrow as pa
from strandline.spark.ledger import TaskKey
from strandline.spark.sink import write_rows
from strandline.spark.sink_options import parse_sink_options
def batches():
    for number in range(10):
        if number == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        yield pa.RecordBatch.from_pylist(
            [{"key": f"killed-{row}".encode(), "value": bytes(900)} for row in range(number * 50, number * 50 + 50)]
        )
write_rows(parse_sink_options(json.loads(sys.argv[1])), TaskKey("query-killed", 0, 0), batches())
"""


def test_an_executor_killed_leaves_no_duplicates(cluster: DevCluster, out: str) -> None:
    """kill -9 with batches under way: what is in the log stays once, the rest follows."""
    told = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": out, "ledgerTopic": "strandline-spark-ledger-tests"}
    killed = subprocess.run([sys.executable, "-c", _KILLED, json.dumps(told)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    items = [{"key": f"killed-{row}".encode(), "value": bytes(900)} for row in range(500)]
    again = write_rows(parse_sink_options(told), TaskKey("query-killed", 0, 0), arrow(items))
    assert again.found + again.sent == 500
    assert in_log(cluster, out, "killed") == Counter(row["key"] for row in items)


def test_equal_records_of_others_are_not_taken_for_ones_own(cluster: DevCluster, out: str) -> None:
    """Nor another producer's, nor another epoch's or task's: a row is left out for its own record alone."""
    options, items = sink_options(cluster, out), rows("equal", 3)
    with Producer(cluster.bootstrap) as producer:
        for row in items:
            producer.send(out, row["value"], key=row["key"])
    for key in (TaskKey("query-equal", 0, 0), TaskKey("query-equal", 0, 1), TaskKey("query-equal", 1, 0)):
        assert write_rows(options, key, arrow(items)).sent == 3
    assert write_rows(options, TaskKey("query-equal", 1, 0), arrow(items + items)).sent == 3
    assert set(in_log(cluster, out, "equal").values()) == {5}


def test_columns_choose_topic_partition_and_headers(cluster: DevCluster, out: str) -> None:
    options = sink_options(cluster, out)
    headers = [("source", b"flights"), ("none", None)]
    items = [
        {
            "key": f"column-{number}",
            "value": None if number == 2 else "text",
            "partition": number,
            "headers": [{"key": key, "value": value} for key, value in headers] if number else None,
        }
        for number in range(3)
    ]
    assert write_rows(options, TaskKey("query-columns", 0, 0), arrow(items)).sent == 3
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([(out, number) for number in range(3)])
        consumer.seek_to_beginning(*[(out, number) for number in range(3)])
        found: dict[int, Any] = {}
        while len(found) < 3:
            found |= {
                record.partition: record for record in consumer.poll(500) if (record.key or b"").startswith(b"column-")
            }
    assert [found[number].key for number in range(3)] == [b"column-0", b"column-1", b"column-2"]
    assert [found[number].value for number in range(3)] == [b"text", b"text", None]
    assert [list(found[number].headers) for number in range(3)] == [[], headers, headers]


def test_failures_say_what_to_do(cluster: DevCluster, out: str) -> None:
    no_topic = parse_sink_options(
        {"kafka.bootstrap.servers": cluster.bootstrap, "ledgerTopic": "strandline-spark-ledger-tests"}
    )
    with pytest.raises(SinkError, match="option `topic` is not set"):
        write_rows(no_topic, TaskKey("query-fail", 0, 0), arrow([{"value": b"x", "topic": None}]))
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        write_rows(sink_options(cluster, out), TaskKey("query-fail", 1, 0), arrow([{"value": bytes(2_000_000)}]))
    with pytest.raises(ConfigError, match="idempotence"):
        sink_options(cluster, out, **{"kafka.acks": "1"})
    with pytest.raises(ConfigError, match="did you mean topic"):
        sink_options(cluster, out, topics="x")


contents = st.sampled_from([None, b"", b"a", b"b"])


@given(st.lists(st.tuples(contents, contents, st.integers(0, 2)), max_size=12), st.data())
@settings(max_examples=100, deadline=None)
def test_what_was_written_and_what_is_left_make_the_rows(
    items: list[tuple[bytes | None, bytes | None, int]], data: st.DataObject
) -> None:
    """Whatever part was written before and in whatever order rows come back: each row is in the log once at the end."""
    written = [item for item in items if data.draw(st.booleans())]
    log = Counter(written)
    before = Written((row_digest("t", key, value, ()), partition) for key, value, partition in written)
    for key, value, partition in data.draw(st.permutations(items)):
        if not before.take(row_digest("t", key, value, ()), partition):
            log[key, value, partition] += 1
    assert log == Counter(items)


def test_digests_tell_fields_apart() -> None:
    fields = [
        ("t", b"ab", b"c", ()),
        ("t", b"a", b"bc", ()),
        ("t", None, b"abc", ()),
        ("t", b"", b"abc", ()),
        ("t", b"ab", b"c", [("h", b"")]),
        ("t", b"ab", b"c", [("h", None)]),
        ("ta", b"b", b"c", ()),
    ]
    assert len({row_digest(*each) for each in fields}) == len(fields)
