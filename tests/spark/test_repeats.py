"""Which rows a repeated task takes for written, without Spark and without a cluster: schedule 66 and its kin."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

from strandline.spark.handover import Fed, PlannedRange
from strandline.spark.ledger import Attempt, LogRecord, row_digest
from strandline.spark.repeats import Found, Others, Row, RowsChanged, Spool, may_share, same_rows


def planned(start: int, end: int, partition: int = 0, topic_id: str = "id") -> PlannedRange:
    return PlannedRange("t", topic_id, partition, start, end)


def attempt(run: str, task: int, *ranges: PlannedRange, shift: int = 0) -> Attempt:
    return Attempt(f"{run}-{task}", run, task, Fed(ranges, shift) if ranges else None)


def test_a_range_is_known_by_what_was_planned_whatever_its_number() -> None:
    now = attempt("two", 1, planned(0, 60))
    assert same_rows(attempt("one", 0, planned(0, 60)), now, tolerated=False)
    assert same_rows(attempt("one", 1, planned(0, 50)), now, tolerated=False), "planned anew, and longer"
    assert not same_rows(attempt("one", 1, planned(60, 90)), now, tolerated=False)
    assert not same_rows(attempt("one", 1, planned(0, 60, partition=1)), now, tolerated=False)
    assert not same_rows(attempt("one", 1, planned(0, 60, topic_id="new")), now, tolerated=False)
    assert not same_rows(attempt("one", 0, planned(0, 60), shift=-1), now, tolerated=False), "another branch of a union"


@pytest.mark.parametrize("ranges", [[planned(0, 120)], [planned(30, 90)], [planned(0, 60), planned(60, 90)]])
def test_a_range_that_is_cut_otherwise_is_an_error(
    ranges: Sequence[PlannedRange], caplog: pytest.LogCaptureFixture
) -> None:
    now, earlier = attempt("two", 0, planned(0, 60)), attempt("one", 0, *ranges)
    with pytest.raises(RowsChanged, match=r"reads t-0 \[0, 60\).*failOnRepeats=false"):
        same_rows(earlier, now, tolerated=False)
    with caplog.at_level(logging.WARNING, "strandline.spark"):
        assert not same_rows(earlier, now, tolerated=True)
    assert "rows may stand twice" in caplog.text


def test_without_ranges_and_within_a_run_the_number_counts() -> None:
    for earlier, now in (
        (attempt("one", 1), attempt("two", 1, planned(0, 60))),
        (attempt("one", 1, planned(0, 60)), attempt("two", 1)),
        (attempt("one", 1, planned(0, 60)), attempt("one", 1, planned(60, 90))),
    ):
        assert same_rows(earlier, now, tolerated=False)
        assert not same_rows(earlier, Attempt("other", now.run, 2, now.fed), tolerated=False)


def test_joined_ranges_are_one() -> None:
    """coalesce: the earlier attempt had come to its first range, or to both."""
    now = attempt("two", 0, planned(0, 60), planned(0, 50, partition=1))
    assert same_rows(attempt("one", 0, planned(0, 60)), now, tolerated=False)
    assert same_rows(attempt("one", 0, planned(0, 60), planned(0, 50, partition=1)), now, tolerated=False)


def test_heads_of_digests_are_found() -> None:
    digests = [row_digest("t", None, b"%d" % number, ()) for number in range(1000)]
    others = Others(digests[::2])
    assert len(others) == 500
    assert [digest in others for digest in digests] == [True, False] * 500
    assert digests[0] not in Others([])


@pytest.mark.parametrize("size", [10, 5_000_000])
def test_rows_are_kept_in_memory_or_in_a_file(size: int) -> None:
    given_batches = [pa.RecordBatch.from_pydict({"value": [bytes(size), None, b"%d" % n]}) for n in range(10)]
    spool = Spool(iter(given_batches))
    try:
        for _ in range(2):
            assert list(spool.batches()) == given_batches
    finally:
        spool.close()


# -- a model: a query that is killed and started again ----------------------------------------------------------------


@dataclass
class Target:
    """A ledger and a log: what attempts began, and what they wrote."""

    attempts: list[Attempt] = field(default_factory=list)
    log: list[LogRecord] = field(default_factory=list)

    def run_task(self, now: Attempt, rows: Sequence[bytes], writes: int, *, lost: bool = False) -> bool:
        """One attempt at a task, which dies after so many records. Whether it came to its end. Raises RowsChanged."""
        if not rows:
            return True
        number = len(self.attempts)
        before, now.producers = list(self.attempts), {number}
        self.attempts.append(now)
        own = [each for each in before if same_rows(each, now, tolerated=False)]
        others = [each for each in before if each.run != now.run and each not in own and may_share(each, now)]
        wanted = {producer for each in (*own, *others) for producer in each.producers}
        found = Found([record for record in self.log if record.producer in wanted], own)
        missing = [row for row in rows if not found.has(Row("t", None, row, None, ()))]
        found.judge(lost=lost, tolerated=False)
        self.log += [LogRecord(number, row_digest("t", None, row, ()), 0) for row in missing[:writes]]
        return len(missing) <= writes

    def content(self) -> Counter[bytes]:
        return Counter(record.digest for record in self.log)


def counted(rows: Sequence[bytes]) -> Counter[bytes]:
    return Counter(row_digest("t", None, row, ()) for row in rows)


contents = st.sampled_from([b"a", b"b", b"c"])
"""Few: equal rows in several tasks are the difficulty."""


@given(st.lists(st.lists(contents, max_size=5), min_size=1, max_size=4), st.data())
@settings(max_examples=300, deadline=None)
def test_emptied_and_trimmed_ranges_are_told_apart(ranges: list[list[bytes]], data: st.DataObject) -> None:
    """Each range is written as if it were alone, whatever the others hold; retention comes between runs."""
    target, alone = Target(), [Target() for _ in ranges]
    left = [list(rows) for rows in ranges]
    for run in ("one", "two", "three", "last"):
        for index in data.draw(st.permutations(range(len(ranges)))):
            writes = 100 if run == "last" else data.draw(st.integers(0, 5))
            lost = len(left[index]) < len(ranges[index])
            for place in (target, alone[index]):
                now = attempt(run, index, planned(0, len(ranges[index]) or 1, partition=index))
                place.run_task(now, left[index], writes, lost=lost)
        for rows in left:
            del rows[: data.draw(st.integers(0, len(rows)))]
    assert target.content() == sum((each.content() for each in alone), Counter[bytes]())
    assert not [row for index, rows in enumerate(left) for row in (counted(rows) - alone[index].content())]


@given(st.lists(contents, min_size=1, max_size=10), st.integers(1, 4), st.data())
@settings(max_examples=500, deadline=None)
def test_other_tasks_fail_or_change_nothing(rows: list[bytes], most: int, data: st.DataObject) -> None:
    """Without ranges: rows go to other tasks, to fewer or more, in another order. What finishes has each row once."""
    target, start = Target(), data.draw(st.lists(st.integers(0, most), min_size=len(rows), max_size=len(rows)))
    for run in ("one", "two", "last"):
        places = list(start)
        if data.draw(st.booleans()):
            places = data.draw(st.lists(st.integers(0, most), min_size=len(rows), max_size=len(rows)))
        whole = True
        for task in data.draw(st.permutations(range(most + 1))):
            mine = [row for row, place in zip(rows, places, strict=True) if place == task]
            writes = 100 if run == "last" else data.draw(st.integers(0, 5))
            try:
                whole &= target.run_task(attempt(run, task), data.draw(st.permutations(mine)), writes)
            except RowsChanged:
                whole = False
            assert target.content() <= counted(rows), "a row stands twice"
        if whole:
            assert target.content() == counted(rows)


@given(st.lists(contents, min_size=1, max_size=10), st.integers(1, 3), st.data())
@settings(max_examples=200, deadline=None)
def test_the_same_tasks_never_fail(rows: list[bytes], most: int, data: st.DataObject) -> None:
    """With ranges, as the source plans them: no equal row in another task stops a batch that is run again."""
    target, places = Target(), data.draw(st.lists(st.integers(0, most), min_size=len(rows), max_size=len(rows)))
    for run in ("one", "two", "last"):
        for task in data.draw(st.permutations(range(most + 1))):
            mine = [row for row, place in zip(rows, places, strict=True) if place == task]
            writes = 100 if run == "last" else data.draw(st.integers(0, 5))
            for _ in range(data.draw(st.integers(1, 2))):
                target.run_task(attempt(run, task, planned(0, 9, partition=task)), mine, writes)
    assert target.content() == counted(rows)
