"""Two attempts at one task at the same time, without Spark's JVM: speculation, an executor that was taken for dead."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from strandline.client import Admin, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create, drain

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from strandline.spark.ledger import Attempt, Ledger, LedgerDamaged, TaskKey  # noqa: E402
from strandline.spark.repeats import Feed, SinkError  # noqa: E402
from strandline.spark.sink import Superseded, TaskReport, write_rows  # noqa: E402
from strandline.spark.sink_options import LEDGER_TOPIC, SinkOptions, parse_sink_options  # noqa: E402

ROWS = [b"%d" % number for number in range(40)]


def sink_options(cluster: DevCluster, topic: str, **more: str) -> SinkOptions:
    create(cluster.bootstrap, topic, 2, 3)
    return parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic} | more)


def arrow(rows: list[bytes]) -> Any:
    return pa.RecordBatch.from_pydict({"value": pa.array(rows, pa.binary())})


class Slow:
    """An attempt in a thread of its own, which gets its rows as the test gives them."""

    def __init__(self, pool: ThreadPoolExecutor, options: SinkOptions, key: TaskKey, feed: Feed) -> None:
        self._given: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self.report: Future[TaskReport] = pool.submit(write_rows, options, key, self._rows(), feed=feed)

    def give(self, rows: list[bytes] | None) -> None:
        self._given.put(rows)

    def _rows(self) -> Iterator[Any]:
        while (rows := self._given.get()) is not None:
            yield arrow(rows)


def written(cluster: DevCluster, topic: str) -> Counter[Any]:
    return Counter(record.value for record in drain(cluster.bootstrap, topic, 2))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    monkeypatch.setattr("strandline.spark.writer._WATCH_MS", 0)  # attempts look each time, however quick the test is
    with ThreadPoolExecutor() as running:
        yield running


@pytest.mark.parametrize(
    ("name", "older", "newer"),
    [
        ("speculative", ("one", 1), ("one", 1)),
        ("another-run", ("one", 1), ("two", 1)),
    ],
)
def test_the_older_attempt_stops_and_each_row_stands_once(
    cluster: DevCluster, pool: ThreadPoolExecutor, name: str, older: tuple[str, int], newer: tuple[str, int]
) -> None:
    """The newer one waits until the older one has said so: its rows are all that it has written."""
    topic = f"attempts-{name}"
    options = sink_options(cluster, topic)
    slow = Slow(pool, options, TaskKey(topic, 0, older[1]), Feed(older[0], strict=True))
    slow.give(ROWS[:10])
    eventually(lambda: written(cluster, topic) == Counter(ROWS[:10]))
    quick = Slow(pool, options, TaskKey(topic, 0, newer[1]), Feed(newer[0], strict=True))
    quick.give(ROWS)
    quick.give(None)
    eventually(lambda: len(begun(cluster, topic)) == 2)
    slow.give(ROWS[10:])
    slow.give(None)
    with pytest.raises(Superseded, match="has stopped"):
        slow.report.result()
    report = quick.report.result()
    assert (report.found, report.sent) == (10, 30)
    assert written(cluster, topic) == Counter(ROWS)


def begun(cluster: DevCluster, query: str) -> list[Attempt]:
    with Admin(cluster.bootstrap) as admin:
        ledger = Ledger(LEDGER_TOPIC, cluster.bootstrap, {}, admin)
        try:
            return ledger.attempts(query, 0) if LEDGER_TOPIC in admin.list_topics() else []
        finally:
            ledger.close()


def test_an_attempt_that_has_failed_is_not_waited_for(cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.spark.writer._QUIET_MS", 24 * 3600 * 1000)
    options, key, feed = sink_options(cluster, "attempts-failed"), TaskKey("attempts-failed", 0, 0), Feed("one")

    def failing() -> Iterator[Any]:
        yield arrow(ROWS[:10])
        raise RuntimeError("a row cannot be made")

    with pytest.raises(RuntimeError, match="cannot be made"):
        write_rows(options, key, failing(), feed=feed)
    assert write_rows(options, key, iter([arrow(ROWS)]), feed=feed).found == 10
    assert written(cluster, "attempts-failed") == Counter(ROWS)


@pytest.mark.parametrize("goes_on", [True, False])
def test_63_a_topic_made_anew_under_an_attempt_gets_each_row_once(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """The attempt noted where the old topic ended. What it wrote into the new one lies before that, and was not found:
    the task failed after 45 s, each time that it was run again. Nothing of the old topic counts as written."""
    monkeypatch.setattr("strandline.spark.ledger._COMMIT_MS", 5_000)
    topic = f"attempts-anew-{goes_on}"
    options, key, feed = sink_options(cluster, topic), TaskKey(topic, 0, 0), Feed("one")
    with Producer(cluster.bootstrap) as producer:
        for number in range(200):
            producer.send(topic, b"old", partition=number % 2)

    def failing() -> Iterator[Any]:
        yield arrow(ROWS[:10])
        eventually(lambda: sum(written(cluster, topic).values()) == 210)
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topics([topic])
        create(cluster.bootstrap, topic, 2, 3)
        if goes_on:
            yield arrow(ROWS[10:20])
            eventually(lambda: written(cluster, topic) == Counter(ROWS[10:20]))
        raise RuntimeError("a row cannot be made")

    with pytest.raises(RuntimeError, match="cannot be made"):
        write_rows(options, key, failing(), feed=feed)
    report = write_rows(options, key, iter([arrow(ROWS)]), feed=feed)
    assert (report.found, report.sent) == ((10, 30) if goes_on else (0, 40))
    assert written(cluster, topic) == Counter(ROWS)


def test_an_entry_of_an_older_release_is_read(cluster: DevCluster) -> None:
    """It has no topic ids, and counts as it did."""
    topic = "attempts-older-release"
    options, key = sink_options(cluster, topic), TaskKey(topic, 0, 0)
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        ledger = Ledger(LEDGER_TOPIC, cluster.bootstrap, {}, admin)
        ledger.ensure()
        ends = dict.fromkeys((TopicPartition(topic, 0), TopicPartition(topic, 1)), 0)
        ledger.begin(producer, key, Attempt("older", "", 0, None), ends)
        ledger.close()
        for number in range(10):
            producer.send(topic, ROWS[number], partition=0)
    [entry] = begun(cluster, topic)
    assert (entry.starts, entry.ids) == (ends, {})
    assert write_rows(options, key, iter([arrow(ROWS)])).found == 10
    assert written(cluster, topic) == Counter(ROWS)


def test_an_attempt_that_says_nothing_is_waited_for_and_stops_when_it_wakes(
    cluster: DevCluster, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that was cut off: it was given up after a time, and comes back with more rows."""
    monkeypatch.setattr("strandline.spark.writer._QUIET_MS", 1_500)
    options, key, feed = sink_options(cluster, "attempts-silent"), TaskKey("attempts-silent", 0, 0), Feed("one")
    slow = Slow(pool, options, key, feed)
    slow.give(ROWS[:10])
    eventually(lambda: written(cluster, "attempts-silent") == Counter(ROWS[:10]))
    assert write_rows(options, key, iter([arrow(ROWS)]), feed=feed).found == 10
    slow.give(ROWS[10:])
    slow.give(None)
    with pytest.raises(Superseded):
        slow.report.result()
    assert written(cluster, "attempts-silent") == Counter(ROWS)


@pytest.mark.parametrize(("name", "epoch"), [("whole", 0), ("later", 1)])
def test_an_attempt_stops_once_its_epoch_is_over(
    cluster: DevCluster, pool: ThreadPoolExecutor, name: str, epoch: int
) -> None:
    """Others have written the batch, and the query is further on."""
    topic = f"attempts-{name}"
    options = sink_options(cluster, topic)
    slow = Slow(pool, options, TaskKey(topic, 0, 0), Feed("one"))
    slow.give(ROWS[:10])
    eventually(lambda: written(cluster, topic) == Counter(ROWS[:10]))
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        Ledger(LEDGER_TOPIC, cluster.bootstrap, {}, admin).committed(producer, topic, epoch)
    slow.give(ROWS[10:])
    slow.give(None)
    with pytest.raises(Superseded):
        slow.report.result()
    assert written(cluster, topic) == Counter(ROWS[:10])


def test_other_tasks_of_the_run_disturb_nobody(cluster: DevCluster, pool: ThreadPoolExecutor) -> None:
    options = sink_options(cluster, "attempts-beside")
    tasks = [Slow(pool, options, TaskKey("attempts-beside", 0, number), Feed("one")) for number in range(3)]
    for rows in (ROWS[:20], ROWS[20:], None):
        for task in tasks:
            task.give(rows)
        if rows is not None:
            eventually(lambda rows=rows: written(cluster, "attempts-beside") >= Counter(rows * 3))  # type: ignore[misc]
    assert [task.report.result().sent for task in tasks] == [40] * 3


@pytest.mark.parametrize("content", [b"no json", b"[]", b'{"epoch": "1"}', b""])
def test_a_ledger_that_another_program_writes_to_is_told(cluster: DevCluster, content: bytes) -> None:
    ledger = f"{LEDGER_TOPIC}-foreign-{content.hex()[:6]}"
    create(cluster.bootstrap, ledger, 1, 3)
    topic = f"attempts-foreign-{content.hex()[:6]}"
    with Producer(cluster.bootstrap) as producer:
        producer.send(ledger, content, key=b"another query")
        producer.send(ledger, content, key=topic.encode())
    with pytest.raises(SinkError, match=f"{ledger}, offset 1: no entry of a sink's ledger") as caught:
        write_rows(sink_options(cluster, topic, ledgerTopic=ledger), TaskKey(topic, 0, 0), iter([arrow(ROWS)]))
    assert isinstance(caught.value.__cause__, LedgerDamaged)
