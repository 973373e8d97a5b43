"""The lake: every offset once, whatever is repeated, overlaps, crashes or is compacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.lake.commits import Commit, LakeDamaged, LakeTaken
from strandline.lake.upkeep import compact, vacuum
from strandline.spark.pipelines.lake import Lake

pytestmark = pytest.mark.timeout(300)

TOPIC = "t"


class Crash(Exception):
    pass


def crash() -> None:
    raise Crash


def rows(spark: Any, start: int, end: int) -> Any:
    """Offsets [start, end) of partition 0, ten a day."""
    return spark.range(start, end, 1, 2).selectExpr(
        f"'{TOPIC}' AS topic", "0 AS partition", "id AS offset", "date_add(date'2013-01-01', int(id / 10)) AS date"
    )


def append(spark: Any, lake: Lake, start: int, end: int, attempt: int = 0) -> Commit | None:
    return lake.append(rows(spark, start, end), {(TOPIC, 0): (start, end)}, attempt)


def offsets(spark: Any, lake: Lake) -> list[int]:
    return sorted(row.offset for row in lake.read(spark).collect())


def test_a_batch_run_again_adds_nothing(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert append(spark, lake, 0, 25) is not None
    assert append(spark, lake, 0, 25) is None
    assert offsets(spark, lake) == list(range(25))


def test_of_a_batch_that_overlaps_only_the_rest_is_written(spark: Any, tmp_path: Path) -> None:
    """A lost checkpoint: the next query's batches are cut elsewhere."""
    lake = Lake(tmp_path)
    append(spark, lake, 0, 25)
    commit = append(spark, lake, 10, 40)
    assert commit is not None
    assert commit.ranges == {TOPIC: {0: (25, 40)}}
    assert offsets(spark, lake) == list(range(40))
    assert lake.starting_offsets(TOPIC, 2) == '{"t": {"0": 40, "1": -2}}'


def test_a_crash_before_the_commit_leaves_no_rows(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    append(spark, lake, 0, 10)
    with pytest.raises(Crash):
        lake.append(rows(spark, 10, 30), {(TOPIC, 0): (10, 30)}, 1, before_commit=crash)
    assert offsets(spark, lake) == list(range(10))
    append(spark, lake, 10, 30, attempt=1)
    assert offsets(spark, lake) == list(range(30))
    append(spark, lake, 30, 40)
    with pytest.raises(Crash):
        lake.append(rows(spark, 40, 60), {(TOPIC, 0): (40, 60)}, 9, before_commit=crash)
    assert vacuum(lake) == 2, "one file for each of the two dates of the attempt"
    assert offsets(spark, lake) == list(range(40))


def test_a_gap_is_an_error_that_says_what_to_do(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    append(spark, lake, 0, 10)
    with pytest.raises(LakeDamaged, match=r"goes on at t-0@12, the lake ends at 10: delete the query's checkpoint"):
        append(spark, lake, 12, 20)


def test_offsets_without_a_record_belong_to_a_range(spark: Any, tmp_path: Path) -> None:
    """Ends of transactions, and what a compacted topic has dropped."""
    lake = Lake(tmp_path)
    lake.append(rows(spark, 0, 5), {(TOPIC, 0): (0, 10)}, 0)
    append(spark, lake, 10, 20)
    assert lake.state().ends == {(TOPIC, 0): 20}


def test_compaction_keeps_the_rows_and_plain_readers_see_them_once(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for start in range(0, 60, 5):
        append(spark, lake, start, start + 5)
    before, after = compact(lake)
    assert (before, after) == (12, 6)
    assert offsets(spark, lake) == list(range(60))
    assert vacuum(lake) == 12
    plain = spark.read.parquet(str(lake.data))
    assert sorted(row.offset for row in plain.collect()) == list(range(60))
    assert {str(row.date): row["count"] for row in plain.groupBy("date").count().collect()} == {
        f"2013-01-0{day}": 10 for day in range(1, 7)
    }
    assert compact(lake) == (6, 6)


def test_of_two_writers_one_commits(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    def other() -> None:
        append(spark, Lake(tmp_path), 0, 10, attempt=2)

    with pytest.raises(LakeTaken, match="another writer"):
        lake.append(rows(spark, 0, 10), {(TOPIC, 0): (0, 10)}, 1, before_commit=other)
    assert offsets(spark, lake) == list(range(10))


def test_a_missing_commit_is_noticed(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for start in (0, 10, 20):
        append(spark, lake, start, start + 10)
    (tmp_path / "commits" / "00000001.json").unlink()
    with pytest.raises(LakeDamaged, match="commit 2 where 1 should be"):
        lake.state()
