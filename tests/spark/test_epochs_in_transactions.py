"""The sink in transactions, against a real cluster, without Spark's JVM: who sees what, whoever dies and whenever."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from strandline.client import Admin, Consumer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from strandline.client.prepared import end_prepared  # noqa: E402
from strandline.proto.errors import ConfigError, StrandlineError  # noqa: E402
from strandline.spark import sink, writer  # noqa: E402
from strandline.spark.epochs import Decision, Epoch  # noqa: E402
from strandline.spark.ledger import TaskKey  # noqa: E402
from strandline.spark.repeats import Feed, SinkError  # noqa: E402
from strandline.spark.sink import TaskReport, abort_transactions, commit_transactions, write_rows  # noqa: E402
from strandline.spark.sink_options import SinkOptions, parse_sink_options  # noqa: E402
from strandline.spark.writer import Superseded  # noqa: E402

ROWS = [b"%d" % number for number in range(24)]
TASKS = (ROWS[:12], ROWS[12:])


class Killed(Exception):
    """A process is gone, as far as the cluster can tell."""


def arrow(rows: list[bytes], dies_after: int | None = None) -> Iterator[Any]:
    for first in range(0, len(rows), 4):
        if dies_after is not None and first >= dies_after:
            raise Killed
        yield pa.RecordBatch.from_pydict({"value": pa.array(rows[first : first + 4], pa.binary())})


class Query:
    """One epoch of a query of two tasks, run after run."""

    def __init__(self, cluster: DevCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.run = "run-1"
        create(cluster.bootstrap, name, 2, 3)

    def options(self, **more: str) -> SinkOptions:
        told = {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": self.name, "transactions": "true"}
        return parse_sink_options(told | more)

    def task(self, number: int, *, run: str | None = None, dies_after: int | None = None) -> TaskReport:
        feed = Feed(run or self.run, strict=True)
        rows = arrow(TASKS[number], dies_after)
        return write_rows(self.options(), TaskKey(self.name, 0, number), rows, feed=feed)

    def commit(self, *reports: TaskReport) -> None:
        commit_transactions(self.options(), reports)

    def seen(self, isolation: str = "read_committed") -> Counter[Any]:
        """What readers see up to the end that they may read to."""
        places = [(self.name, number) for number in range(2)]
        found: Counter[Any] = Counter()
        settings: dict[str, Any] = {"isolation_level": isolation, "auto_offset_reset": "earliest"}
        with Consumer(self.cluster.bootstrap, **settings) as consumer:
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            while any(consumer.position(place) < end for place, end in ends.items()):
                found.update(record.value for record in consumer.poll(0.2))
        return found

    def is_settled(self) -> None:
        """Each row is seen once, and no transaction is left open, of this query or in its topic."""
        with Admin(self.cluster.bootstrap) as admin:

            def nothing_is_open() -> bool:
                left = admin.list_transactions(states=["Ongoing"], pattern=f"strandline-spark-{self.name}-.*")
                told = admin.describe_producers([(self.name, 0), (self.name, 1)])
                started = [one.transaction_start_offset for each in told.values() for one in each]
                return not left and not any(offset is not None for offset in started)

            eventually(nothing_is_open)
        assert self.seen() == Counter(ROWS)


@pytest.fixture
def query(cluster: DevCluster, request: pytest.FixtureRequest) -> Query:
    return Query(cluster, re.sub("[^a-z0-9]+", "-", request.node.name)[:90])


def numbered(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The number that Spark gives the attempts from now on."""
    monkeypatch.setattr(writer, "_number_of_the_attempt", lambda: str(number))


@contextmanager
def driver_dies_before_the_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def dies(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(sink, "end_prepared", dies)
        yield


def test_an_epoch_is_seen_once_it_is_committed(query: Query) -> None:
    reports = [query.task(0), query.task(1)]
    assert [report.sent for report in reports] == [12, 12]
    assert query.seen() == Counter()
    query.commit(*reports)
    query.is_settled()
    query.commit(*reports)  # a driver that did not hear of the end
    query.is_settled()


def test_rows_of_a_task_that_failed_are_never_seen(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process lives and aborts, or it is killed and the driver does. A reader of all records sees what was left."""
    with pytest.raises(Killed):
        query.task(0, dies_after=8)
    numbered(monkeypatch, 1)
    query.task(0)  # all of its rows are there, and its report never came
    numbered(monkeypatch, 2)
    query.commit(query.task(0), query.task(1))
    query.is_settled()
    assert query.seen("read_uncommitted").total() >= len(ROWS) + len(TASKS[0])


def test_of_two_attempts_at_once_one_counts(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculation: both write all rows, Spark takes one report, and the other transaction is aborted, not left open."""
    slow = query.task(0)
    numbered(monkeypatch, 1)
    fast = query.task(0)
    assert (slow.sent, fast.sent) == (12, 12)
    assert slow.attempt != fast.attempt
    query.commit(fast, query.task(1))
    query.is_settled()


def test_two_attempts_of_one_number_do_not_meet(query: Query) -> None:
    """Spark counts attempts anew when it tries a stage again, and the first one may be alive: its transaction stays."""
    first = query.task(0)
    with pytest.raises(SinkError, match="the next attempt has another number"):
        query.task(0)
    query.commit(first, query.task(1))
    query.is_settled()


def test_a_job_that_fails_leaves_nothing_open(query: Query) -> None:
    abort_transactions(query.options(), [query.task(0), query.task(1)])
    with Admin(query.cluster.bootstrap) as admin:
        ids = [one.transactional_id for one in admin.list_transactions(states=["Ongoing"])]
        assert not [name for name in ids if query.name in name]
    assert query.seen() == Counter()
    query.run = "run-2"
    query.commit(query.task(0), query.task(1))
    query.is_settled()


def test_a_driver_that_dies_before_its_decision_leaves_nothing(query: Query) -> None:
    """Its tasks were all done."""
    query.task(0)
    query.task(1)
    query.run = "run-2"
    first = query.task(0)
    assert (first.sent, first.found) == (12, 0)
    query.commit(first, query.task(1))
    query.is_settled()


def test_137_a_driver_that_dies_behind_its_decision_has_committed(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run's tasks write nothing, and its driver carries out what was decided."""
    reports = [query.task(0), query.task(1)]
    with driver_dies_before_the_ends(monkeypatch), pytest.raises(Killed):
        query.commit(*reports)
    assert query.seen() == Counter()
    query.run = "run-2"
    again = [query.task(0), query.task(1)]
    assert [(report.sent, report.found) for report in again] == [(0, 12), (0, 12)]
    query.commit(*again)
    query.is_settled()
    assert query.seen("read_uncommitted") == Counter(ROWS)


@pytest.mark.parametrize("lost", [0, 1])
def test_an_epoch_that_is_torn_is_mended(query: Query, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """A transaction was decided, and aborted before it was ended: its driver came back too late. The rows of the other
    one are there, and are not written again."""
    reports = [query.task(0), query.task(1)]
    with driver_dies_before_the_ends(monkeypatch), pytest.raises(Killed):
        query.commit(*reports)
    with Admin(query.cluster.bootstrap) as admin:
        admin.fence_producers([f"strandline-spark-{query.name}-{lost}-0"])  # what a time-out does
    query.run = "run-2"
    with pytest.raises(SinkError, match="1 of 2 transactions were aborted"):
        query.commit(query.task(0), query.task(1))
    query.run = "run-3"
    again = [query.task(0), query.task(1)]
    assert [(report.sent, report.found) for report in again] == [(0, 12), (12, 0)][:: 1 if lost else -1]
    query.commit(*again)
    query.is_settled()


def test_a_transaction_that_is_over_is_seen_before_anything_is_committed(query: Query) -> None:
    reports = [query.task(0), query.task(1)]
    with Admin(query.cluster.bootstrap) as admin:
        admin.fence_producers([f"strandline-spark-{query.name}-1-0"])
    with pytest.raises(SinkError, match=r"task 1 .* is over, and nothing of this epoch is\s+committed"):
        query.commit(*reports)
    assert query.seen() == Counter()
    query.run = "run-2"
    query.commit(query.task(0), query.task(1))
    query.is_settled()


def test_138_a_driver_that_was_taken_for_dead_decides_nothing(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks are done, the query runs anew elsewhere, under other ids, and only then it commits."""
    reports = [query.task(0), query.task(1)]
    numbered(monkeypatch, 1)
    again = [query.task(0, run="run-2")]
    with pytest.raises(Superseded, match="a newer run of the query has begun this epoch"):
        query.commit(*reports)
    numbered(monkeypatch, 0)
    with pytest.raises(Superseded):
        query.task(1)  # a task of its that comes late
    again.append(query.task(1, run="run-2"))
    query.commit(*again)
    query.is_settled()


def test_139_an_attempt_that_was_asleep_opens_nothing(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun in the ledger, and sleeps; the epoch is decided, and its id fenced; then it gets its producer id,
    which is the newest one. It looks into the ledger before its first record."""
    reports = [query.task(0), query.task(1)]
    numbered(monkeypatch, 1)
    begin = writer.TransactionRun._begin

    def sleeps(self: Any, *given: Any) -> None:
        begin(self, *given)
        query.commit(*reports)

    monkeypatch.setattr(writer.TransactionRun, "_begin", sleeps)
    with pytest.raises(Superseded):
        query.task(0)
    query.is_settled()


def test_modes_are_not_mixed_within_an_epoch(query: Query) -> None:
    plain = query.options(transactions="false")
    query.task(0)
    with pytest.raises(SinkError, match="wrote in transactions"):
        write_rows(plain, TaskKey(query.name, 0, 0), arrow(TASKS[0]), feed=Feed("run-2", strict=True))
    write_rows(plain, TaskKey(query.name, 1, 0), arrow(TASKS[0]), feed=Feed("run-2", strict=True))
    with pytest.raises(SinkError, match="wrote outside of transactions"):
        write_rows(query.options(), TaskKey(query.name, 1, 0), arrow(TASKS[0]), feed=Feed("run-3", strict=True))


def test_options(query: Query) -> None:
    told = {"kafka.bootstrap.servers": query.cluster.bootstrap, "topic": query.name, "transactions": "true"}
    assert parse_sink_options(told).producer_settings["transaction.timeout.ms"] == "900000"
    longer = parse_sink_options(told | {"kafka.transaction_timeout_ms": "3600000"})
    assert longer.producer_settings["transaction.timeout.ms"] == "3600000"
    with pytest.raises(ConfigError, match="an id of its own"):
        parse_sink_options(told | {"kafka.transactional.id": "mine"})
    with pytest.raises(StrandlineError, match=r"transaction\.max\.timeout\.ms"):
        write_rows(longer, TaskKey("query-longer", 0, 0), arrow(TASKS[0]))


def begins(name: str, run: str) -> dict[str, Any]:
    return {
        "epoch": 0,
        "run": run,
        "attempt": name,
        "task": 0,
        "producer": 1,
        "starts": {},
        "transaction": f"id-{name}",
    }


def decides(run: str, *names: str) -> dict[str, Any]:
    return {"epoch": 0, "run": run, "decided": list(names)}


@pytest.mark.parametrize(
    ("entries", "decision"),
    [
        ([begins("a", "1"), decides("1", "a")], Decision(1, "1", ("a",))),
        ([begins("a", "1"), begins("b", "2"), decides("1", "a")], None),
        ([begins("a", "1"), begins("b", "2"), decides("1", "a"), decides("2", "b")], Decision(3, "2", ("b",))),
        ([begins("a", "1"), decides("1", "a"), begins("b", "2"), decides("2", "b")], Decision(1, "1", ("a",))),
        ([begins("a", "1"), decides("1", "a"), {"epoch": 0, "torn": ["a"], "of": 1}], None),
        ([begins("a", "1"), decides("1", "a"), {"epoch": 0, "torn": ["a"], "of": 0}], Decision(1, "1", ("a",))),
        ([begins("a", "1"), begins("b", "2"), begins("c", "1"), decides("2", "b")], Decision(3, "2", ("b",))),
    ],
)
def test_which_decision_counts(entries: list[dict[str, Any]], decision: Decision | None) -> None:
    assert Epoch.of(list(enumerate(entries))).decision == decision


def test_the_same_end_twice_is_one(query: Query) -> None:
    report = query.task(0)
    with Admin(query.cluster.bootstrap) as admin:
        ledger = writer.Connections(query.options())
        with ledger as connections:
            epoch = Epoch.of(connections.ledger.entries(query.name, 0))
        prepared = epoch.attempts[report.attempt].prepared
        assert prepared is not None
        for committed, ended in ((True, True), (True, True), (False, False)):
            told = admin.wait(partial(end_prepared, admin.session, admin.config, [prepared], committed=committed))
            assert (told[prepared] is None) is ended
    assert query.seen() == Counter(TASKS[0])
