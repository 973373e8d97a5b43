"""The note that a task's source leaves for its sink, in one process here; in Spark's two in test_retries."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.proto.ids import TopicPartition

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark import SparkFiles, TaskContext

from strandline.spark import handover
from strandline.spark.handover import BATCH_ID, QUERY_ID, Fed, PlannedRange, note_range, read_notes
from strandline.spark.planner import OffsetRange

PART = OffsetRange(TopicPartition("t", 3), 20, 60, "id")
NAME = PlannedRange("t", "id", 3, 20, 60)
STREAM = {QUERY_ID: "query", BATCH_ID: "7"}

Enter = Callable[..., None]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Enter]:
    """Makes this process one that runs a task."""
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(handover, "_written", type(handover._written)())

    def enter(attempt: int, number: int = 0, properties: dict[str, str] | None = None) -> None:
        TaskContext._setTaskContext(None)
        local = STREAM if properties is None else properties
        TaskContext._setTaskContext(TaskContext(taskAttemptId=attempt, partitionId=number, localProperties=local))

    yield enter
    TaskContext._setTaskContext(None)


def test_a_range_is_named_as_it_was_planned(task: Enter) -> None:
    task(11)
    assert read_notes() is None
    note_range(PART, 0)
    assert read_notes() == Fed((NAME,), 0)
    task(12)
    assert read_notes() is None, "of another task"
    note_range(PART.without(45), 0)
    assert read_notes() == Fed((NAME,), 0, lost=True)
    task(13)
    note_range(PART.without(100), 0)
    assert read_notes() == Fed((NAME,), 0, lost=True)


def test_what_is_lost_later_and_what_is_joined_is_added(task: Enter) -> None:
    task(11, 5)
    note_range(PART, 3)
    lost = note_range(OffsetRange(TopicPartition("t", 4), 0, 9, "id"), 4)
    note_range(PART, 3)
    assert read_notes() == Fed((NAME, PlannedRange("t", "id", 4, 0, 9)), 2)
    lost()
    assert read_notes() == Fed((NAME, PlannedRange("t", "id", 4, 0, 9)), 2, lost=True)


def test_notes_are_left_in_tasks_of_streams_alone_and_do_not_pile_up(task: Enter, tmp_path: Path) -> None:
    task(1, properties={})
    note_range(PART, 0)()
    TaskContext._setTaskContext(None)
    note_range(PART, 0)()
    assert read_notes() is None
    assert list(tmp_path.iterdir()) == []
    directory = tmp_path / handover._DIRECTORY
    directory.mkdir()
    for name, age_s in (("old", 25 * 3600), ("young", 60)):
        (directory / name).touch()
        then = (directory / name).stat().st_mtime - age_s
        os.utime(directory / name, (then, then))
    for attempt in range(200):
        task(attempt)
        note_range(PART, 0)
        assert read_notes() == Fed((NAME,), 0)
    names = {path.name for path in directory.iterdir()}
    assert "young" in names
    assert "old" not in names
    assert len(names) == handover._NOTES_KEPT + 1


def test_a_directory_that_cannot_be_written_costs_the_note_alone(
    task: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task(1)
    (tmp_path / handover._DIRECTORY).write_text("a file is in its place")
    with caplog.at_level(logging.WARNING, "strandline.spark"):
        note_range(PART, 0)()
        assert read_notes() is None
    assert "goes by its number" in caplog.text
