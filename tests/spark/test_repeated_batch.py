"""Schedule 66: a micro-batch that is run again plans fewer ranges than it did. The ledger names ranges, not tasks.

The source and the sink of a query against a real cluster, without Spark's JVM: `Query` runs tasks as Spark does.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from strandline.client import Admin, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import wait_gone
from tests.acceptance.topics import create, drain

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402

from strandline.spark.handover import Fed, PlannedRange  # noqa: E402
from strandline.spark.ledger import TaskKey  # noqa: E402
from strandline.spark.reader import RangePartition  # noqa: E402
from strandline.spark.repeats import Feed, RowsChanged  # noqa: E402
from strandline.spark.sink import TaskReport, write_rows  # noqa: E402
from strandline.spark.sink_options import parse_sink_options  # noqa: E402
from tests.spark.test_stream_reader import reader  # noqa: E402

Rows = Sequence[bytes]


class Killed(Exception):
    """The task's process is gone, as far as its sink can tell."""


def arrow(rows: Rows, dies_after: int | None = None) -> Iterator[Any]:
    """Arrow batches of five rows; the task dies behind so many."""
    for first in range(0, len(rows), 5):
        if dies_after is not None and first >= dies_after:
            raise Killed
        yield pa.RecordBatch.from_pydict({"value": pa.array(rows[first : first + 5], pa.binary())})
    if dies_after is not None:
        raise Killed


@dataclass
class Query:
    """A query from one topic of two partitions to another one. Its tasks run one by one."""

    cluster: DevCluster
    name: str
    options: dict[str, object] = field(default_factory=dict)
    """Of the source."""
    tolerant: bool = False
    """failOnRepeats=false"""

    def make(self, *contents: Rows) -> None:
        """The topics, and these records in the partitions of the first."""
        create(self.cluster.bootstrap, self.name, len(contents), 3)
        create(self.cluster.bootstrap, f"{self.name}-out", 2, 3)
        self.send(*contents)

    def send(self, *contents: Rows) -> None:
        with Producer(self.cluster.bootstrap, batch_size=120) as producer:
            for partition, rows in enumerate(contents):
                for row in rows:
                    producer.send(self.name, row, partition=partition)

    def trim(self, partition: int, before: int) -> None:
        with Admin(self.cluster.bootstrap) as admin:
            admin.delete_records({(self.name, partition): before})

    def plan(self, end: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[RangePartition]]:
        """Where the batch ends, and its tasks; planned anew, or as the checkpoint has it."""
        source = reader(self.cluster, subscribe=self.name, failOnDataLoss="false", **self.options)
        try:
            start = source.initialOffset()
            end = end or source.latestOffset(start, ReadAllAvailable())
            return end, list(source.partitions(start, end))
        finally:
            source.stop()

    def rows(self, part: RangePartition) -> list[bytes]:
        source = reader(self.cluster, subscribe=self.name, failOnDataLoss="false", **self.options)
        return [row for batch in pickle.loads(pickle.dumps(source)).read(part) for row in batch["value"].to_pylist()]

    def write(self, run: str, task: int, rows: Rows, fed: Fed | None, dies_after: int | None = None) -> TaskReport:
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": f"{self.name}-out"}
        given |= {"failOnRepeats": "false"} if self.tolerant else {}
        feed = Feed(run, strict=True, notes=lambda: fed)
        key = TaskKey(f"query-{self.name}", 0, task)
        return write_rows(parse_sink_options(given), key, arrow(rows, dies_after), feed=feed)

    def run(self, run: str, tasks: Sequence[RangePartition], dies: Collection[tuple[int, int]] = ()) -> None:
        """The tasks of a batch; of those in `dies`, with as many rows, the others do not begin."""
        doomed = dict(dies)
        for number, part in enumerate(tasks):
            fed = Fed((PlannedRange.of(part.range),), number - part.number, bool(part.range.lost))
            if number in doomed:
                with pytest.raises(Killed):
                    self.write(run, number, self.rows(part), fed, doomed[number])
            elif not doomed:
                self.write(run, number, self.rows(part), fed)

    def written(self) -> Counter[Any]:
        return Counter(record.value for record in drain(self.cluster.bootstrap, f"{self.name}-out", 2))


TEN = [b"%d" % number for number in range(10)]


@pytest.mark.parametrize(("name", "trimmed"), [("emptied", 10), ("trimmed", 4)])
def test_66_a_range_that_is_emptied_stays_a_task(cluster: DevCluster, name: str, trimmed: int) -> None:
    """It was left out of the plan: the second range became task 0, took the first one's equal records for its own, and
    was never written."""
    query = Query(cluster, f"repeat-{name}")
    query.make(TEN, TEN)
    end, tasks = query.plan()
    query.run("one", tasks, dies=[(0, 10)])
    query.trim(0, trimmed)
    _, again = query.plan(end)
    assert [part.range.size for part in again] == [10 - trimmed, 10]
    query.run("two", again)
    assert query.written() == Counter(TEN + TEN)


def test_66_a_range_behind_an_emptied_one_is_not_written_twice(cluster: DevCluster) -> None:
    """The other face: the second range was task 1, and has written; as task 0 it found nothing of its own."""
    query = Query(cluster, "repeat-twice")
    other = [b"other-%d" % number for number in range(10)]
    query.make(TEN, other)
    end, tasks = query.plan()
    query.run("one", tasks, dies=[(1, 10)])
    query.trim(0, 10)
    query.run("two", query.plan(end)[1])
    assert query.written() == Counter(other)


def test_a_batch_is_cut_as_it_was_planned_whatever_the_options_say_now(cluster: DevCluster) -> None:
    query = Query(cluster, "repeat-cut", {"minPartitions": 4})
    query.make(TEN, TEN)
    end, tasks = query.plan()
    assert end["tasks"] == {"count": 4, "minPartitions": 4}
    query.run("one", tasks, dies=[(0, 5), (1, 5), (3, 5)])
    query.options = {"minPartitions": 7, "maxRecordsPerPartition": 3}
    query.trim(1, 7)
    _, again = query.plan(end)
    assert [(part.range.start, part.range.end) for part in again] == [(0, 5), (5, 10), (5, 5), (7, 10)]
    query.run("two", again)
    assert query.written() == Counter(TEN + TEN[5:])


def test_a_topic_that_is_deleted_leaves_its_tasks_empty(cluster: DevCluster) -> None:
    query = Query(cluster, "repeat-deleted")
    query.make(TEN, TEN)
    end, tasks = query.plan()
    query.run("one", tasks, dies=[(0, 10)])
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topics([query.name])
    wait_gone(cluster.bootstrap, query.name)
    create(cluster.bootstrap, query.name, 2, 3)
    query.send(TEN * 3, TEN * 3)
    _, again = query.plan(end)
    assert [part.range.size for part in again] == [0, 0]
    query.run("two", again)
    assert query.written() == Counter(TEN)


def test_a_batch_that_is_planned_anew_finds_its_ranges_under_other_numbers(cluster: DevCluster) -> None:
    """The repair of docs/spark.md, where a crash has cut the plan short: more has come by then, before and behind."""
    query = Query(cluster, "repeat-anew")
    query.make([], TEN)
    _, tasks = query.plan()
    query.run("one", tasks, dies=[(0, 5)])
    query.send([b"new"] * 3, [b"more"] * 3)
    _, again = query.plan()
    assert [part.range.partition.partition for part in again] == [0, 1]
    query.run("two", again)
    assert query.written() == Counter([*TEN, *[b"new"] * 3, *[b"more"] * 3])


def test_ranges_cut_otherwise_fail_before_they_write(cluster: DevCluster) -> None:
    """Planned anew with other options: no task can say which of the two halves wrote what."""
    query = Query(cluster, "repeat-halves")
    query.make(TEN, [])
    _, tasks = query.plan()
    query.run("one", tasks, dies=[(0, 5)])
    query.options = {"minPartitions": 2}
    _, again = query.plan()
    with pytest.raises(RowsChanged, match=r"repeat-halves-0 \[0, 5\).*\[0, 10\) has begun"):
        query.run("two", again)
    assert query.written() == Counter(TEN[:5])
    query.options = {}
    query.run("three", query.plan()[1])  # the way out that the error names
    assert query.written() == Counter(TEN)


def test_two_branches_of_a_union_read_the_same_ranges(cluster: DevCluster) -> None:
    """Tasks 0 and 1 are the first branch, 2 and 3 the second: what 0 has written is not what 2 is to write."""
    query = Query(cluster, "repeat-union")
    query.make(TEN[:5], TEN[5:])
    tasks = query.plan()[1]

    def run(name: str, dies: Collection[int] = ()) -> None:
        for number, part in enumerate([*tasks, *tasks]):
            rows = [row if number < 2 else b"second-" + row for row in query.rows(part)]
            fed = Fed((PlannedRange.of(part.range),), number - part.number)
            if number in dies:
                with pytest.raises(Killed):
                    query.write(name, number, rows, fed, dies_after=5)
            elif not dies:
                query.write(name, number, rows, fed)

    run("one", dies=[0, 3])
    run("two")
    assert query.written() == Counter(TEN + [b"second-" + row for row in TEN])


def test_two_branches_with_equal_rows_fail_and_the_way_out_is_right(cluster: DevCluster) -> None:
    """A union of a stream with itself: what one branch has written looks as if it had come to the other."""
    query = Query(cluster, "repeat-twins")
    query.make(TEN, [])
    [part] = query.plan()[1]
    first, second = (Fed((PlannedRange.of(part.range),), shift) for shift in (0, 1))
    with pytest.raises(Killed):
        query.write("one", 0, TEN, first, dies_after=5)
    with pytest.raises(RowsChanged, match="5 of its rows equal"):
        query.write("two", 1, TEN, second)
    query.tolerant = True
    query.write("three", 1, TEN, second)
    query.write("three", 0, TEN, first)
    assert query.written() == Counter(TEN * 2)


# -- rows of which no source tells: behind a shuffle, or of another source ---------------------------------------------

MANY = [b"row-%d" % number for number in range(30)]


def dealt(rows: Rows, tasks: int) -> list[Rows]:
    """As a shuffle over so many tasks deals them."""
    return [rows[number::tasks] for number in range(tasks)]


@pytest.mark.parametrize("tasks", [2, 4])
def test_another_number_of_tasks_fails_before_it_writes(cluster: DevCluster, tasks: int) -> None:
    """Every task of it, whichever comes first: those with other rows than their number had, and those that had none."""
    query = Query(cluster, f"repeat-tasks-{tasks}")
    query.make([], [])
    for number, rows in enumerate(dealt(MANY, 3)):
        with pytest.raises(Killed):
            query.write("one", number, rows, None, dies_after=5)
    before = query.written()
    assert before.total() == 15
    for number, rows in enumerate(dealt(MANY, tasks)):
        with pytest.raises(RowsChanged, match=r"Nothing was written now.*failOnRepeats=false"):
            query.write("two", number, rows, None)
    assert query.written() == before
    for number, rows in enumerate(dealt(MANY, 3)):
        query.write("three", number, rows, None)
    assert query.written() == Counter(MANY), "as it was when the batch was first run"


def test_another_number_of_tasks_goes_on_where_that_is_asked_for(
    cluster: DevCluster, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(cluster, "repeat-asked")
    query.make([], [])
    for number, rows in enumerate(dealt(MANY, 3)):
        with pytest.raises(Killed):
            query.write("one", number, rows, None, dies_after=5)
    query.tolerant = True
    for number, rows in enumerate(dealt(MANY, 2)):
        query.write("two", number, rows, None)
    assert "rows may stand twice" in caplog.text
    assert set(query.written()) == set(MANY)
    assert query.written() >= Counter(MANY)


def test_equal_rows_behind_a_shuffle_look_moved_and_the_way_out_is_right(cluster: DevCluster) -> None:
    """Nobody can tell them from rows that have moved. Where that is tolerated the same tasks write each once."""
    query = Query(cluster, "repeat-alike")
    query.make([], [])
    for number in range(3):
        with pytest.raises(Killed):
            query.write("one", number, TEN, None, dies_after=5)
    with pytest.raises(RowsChanged, match="5 of its rows equal what an earlier run wrote in other tasks"):
        query.write("two", 0, [*TEN, *TEN[:5]], None)
    query.tolerant = True
    for number in range(3):
        query.write("three", number, TEN, None)
    assert query.written() == Counter(TEN * 3)


def test_rows_that_are_others_each_time_fail_before_they_are_written(cluster: DevCluster) -> None:
    """uuid(), rand(): every restart would write the whole batch once more."""
    query = Query(cluster, "repeat-random")
    query.make([], [])
    with pytest.raises(Killed):
        query.write("one", 0, TEN, None, dies_after=5)
    with pytest.raises(RowsChanged, match="5 rows that an earlier run of this task wrote are not among its rows"):
        query.write("two", 0, [b"new-" + row for row in TEN], None)
    assert query.written() == Counter(TEN[:5])


def test_equal_rows_of_other_tasks_in_one_run_are_no_sign(cluster: DevCluster) -> None:
    """Within a run a number means the same rows: a task that is tried again beside others with equal rows goes on."""
    query = Query(cluster, "repeat-equal")
    query.make([], [])
    query.write("one", 0, TEN, None)
    with pytest.raises(Killed):
        query.write("one", 1, TEN, None, dies_after=5)
    assert query.write("one", 1, TEN, None).found == 5
    query.write("one", 2, TEN, None)
    assert query.written() == Counter(TEN * 3)


def test_ranges_that_are_joined_are_known_once_they_have_come(cluster: DevCluster) -> None:
    """coalesce: one task reads both ranges. Its second range stands in the ledger before the first of its rows."""
    query = Query(cluster, "repeat-joined")
    query.make(TEN, TEN)
    tasks = query.plan()[1]
    ranges = tuple(PlannedRange.of(part.range) for part in tasks)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": f"{query.name}-out"}
    options, key = parse_sink_options(given), TaskKey("query-joined", 0, 0)

    def write(run: str, dies_after: int | None = None) -> None:
        come = 0

        def joined() -> Iterator[Any]:
            nonlocal come
            for batch in arrow(TEN * 2, dies_after):
                come += batch.num_rows
                yield batch

        def fed_so_far() -> Fed:
            return Fed(ranges if come > len(TEN) else ranges[:1], 0)

        write_rows(options, key, joined(), feed=Feed(run, strict=True, notes=fed_so_far))

    with pytest.raises(Killed):
        write("one", dies_after=15)
    alone = Feed("two", strict=True, notes=lambda: Fed(ranges[:1], 0))
    with pytest.raises(RowsChanged, match="cut otherwise"):
        write_rows(options, key, arrow(TEN), feed=alone)
    write("three")
    assert query.written() == Counter(TEN * 2)
