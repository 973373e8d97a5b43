"""What a task of a streaming query reads, told to the sink in the same task.

Spark runs a task's source and its sink in two Python processes, and hands rows from the one to the other, nothing else.
But the number of a task says too little: a range may be left empty, tasks may be distributed otherwise when a batch is
repeated. So the source leaves a note with the ranges that the task reads, as they were planned, in the directory that
Spark gives an executor's Python processes for files; the sink looks there under the id of its own task.

A task behind a shuffle, or fed by another source, finds no note: then its number must do, see
`strandline.spark.repeats`.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark import SparkFiles, TaskContext

from strandline.proto.json_text import read_json
from strandline.proto.system import SystemClock
from strandline.spark.planner import OffsetRange

_log = logging.getLogger("strandline.spark")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Local properties that Spark gives the tasks of a streaming query; the last one is another each time it is started."""

_DIRECTORY = "strandline-tasks"
_NOTES_KEPT = 64
"""Notes of one process that stay: a sink looks at its task's until the task's last row."""
_STALE_MS = 24 * 3600 * 1000
"""Notes of processes that have ended are removed when they are as old as this."""


class PlannedRange(NamedTuple):
    """The name of a range: what was planned, whatever is left of it."""

    topic: str
    topic_id: str | None
    partition: int
    start: int
    end: int

    @classmethod
    def of(cls, part: OffsetRange) -> PlannedRange:
        """The range as it was planned."""
        return cls(part.partition.topic, part.topic_id, part.partition.partition, part.start - part.lost, part.end)

    def overlaps(self, other: PlannedRange) -> bool:
        """Whether both name some record."""
        return self[:3] == other[:3] and self.start < other.end and other.start < self.end

    def within(self, other: PlannedRange) -> bool:
        """Whether the other names all of this one's records."""
        return self[:3] == other[:3] and other.start <= self.start and self.end <= other.end


class Fed(NamedTuple):
    """The source's report about the rows of a task."""

    ranges: tuple[PlannedRange, ...]
    """Ranges that the task has read so far; several if tasks were joined (coalesce)."""
    shift: int
    """The task's number, less that of its first range in the source's plan: 0 in a query of one source. Two branches of
    a union may read the same ranges, and this tells them apart."""
    lost: bool = False
    """Whether some of the records are gone, which failOnDataLoss=false allows."""


_written: deque[Path] = deque()


def note_range(part: OffsetRange, number: int) -> Callable[[], None]:
    """Note that this task reads a range, and the range's number in the plan.

    Returns:
        What notes, when it is called, that records of the range were found to be gone.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(QUERY_ID) is None:
        return _nothing  # a batch is never planned anew while it is written
    place = _place(context)
    try:
        if not _written:
            _sweep(place.parent)
        if not _written or _written[-1] != place:
            _written.append(place)
        _append(place, {"range": PlannedRange.of(part), "shift": context.partitionId() - number})
        while len(_written) > _NOTES_KEPT:
            _written.popleft().unlink(missing_ok=True)
    except OSError as error:
        # Other sinks need no note, and ours goes by the task's number then.
        _log.warning(
            "no note of %s in %s (%s): a sink of strandline in this task goes by its number", part, place, error
        )
        return _nothing
    lost = {"lost": True}
    if part.lost:
        _append(place, lost)
    return lambda: _append(place, lost)


def read_notes() -> Fed | None:
    """The report of the source in the running task; None if the task has no source of ours, or one of an earlier
    stage."""
    context = TaskContext.get()
    if context is None:
        return None
    try:
        lines = _place(context).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    notes = [read_json(line) for line in lines]
    ranges = dict.fromkeys(PlannedRange(*note["range"]) for note in notes if "range" in note)
    return Fed(tuple(ranges), notes[0]["shift"], any("lost" in note for note in notes))


def _place(context: TaskContext) -> Path:
    # Unique in an application; the directory is the executor's, and none of another application's.
    return Path(SparkFiles.getRootDirectory(), _DIRECTORY, str(context.taskAttemptId()))


def _append(place: Path, note: Mapping[str, object]) -> None:
    place.parent.mkdir(exist_ok=True)
    with place.open("a") as file:
        file.write(json.dumps(note) + "\n")


def _sweep(directory: Path) -> None:
    now_ms = SystemClock().wall_ms()
    for place in directory.glob("*"):
        try:
            if now_ms - place.stat().st_mtime * 1000 > _STALE_MS:
                place.unlink()
        except FileNotFoundError:
            continue  # another process sweeps too


def _nothing() -> None:
    """Do nothing: no report is kept."""
