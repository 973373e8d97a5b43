"""(b) The log as a Parquet lake: exactly once by offset ranges, restartable, compacted.

    lake/commits/00000000.json    what each commit covers and which files it adds and removes: the truth
    lake/data/date=2013-01-01/    the files; one that no commit names is left over from an attempt and is not read

A commit is a file that appears whole or not at all, under the next free number. It says for each partition which range
of offsets it covers, and begins where the last one ended. So the lake knows how far it is by itself: a batch that is
run again after a crash writes only the rows past that point, a query whose checkpoint is lost starts there.

Invariants, checked when the commits are read:
- the numbers of the commits have no gap;
- the ranges of a partition follow on one another: no offset is covered twice, none left out.

Limits: one writer at a time (a second one fails at its commit), and a file system on which a hard link either makes a
name or fails because it is taken (local disks, NFS; object stores are not).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.proto.errors import StrandlineError
from strandline.spark.pipelines import frames
from strandline.spark.pipelines.checkpoints import Ranges, batch_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EARLIEST = -2
"""In startingOffsets: the first record there is."""

COMPACT_ABOVE_FILES = 1
"""A date with more files than this is written anew as one."""


class LakeDamaged(StrandlineError):
    """The commits contradict one another; the message says which."""


class LakeTaken(StrandlineError):
    """Another writer made the commit that this one was about to make."""


@dataclass(frozen=True)
class Commit:
    """One step of the lake."""

    number: int
    ranges: Mapping[str, Mapping[int, tuple[int, int]]]
    """Topic -> partition -> (first offset, end offset); empty where files were only compacted."""
    add: Mapping[str, int]
    """File, relative to the lake's data -> its rows."""
    remove: tuple[str, ...] = ()


@dataclass
class State:
    """What all commits together say."""

    next_number: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """(topic, partition) -> the first offset that the lake does not have."""
    files: dict[str, int] = field(default_factory=dict)
    """File -> rows, of the files that count."""

    @property
    def rows(self) -> int:
        """Rows in the lake."""
        return sum(self.files.values())

    def files_by_date(self) -> dict[str, list[str]]:
        """The files of each date=... directory."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.files):
            found.setdefault(name.split("/")[0], []).append(name)
        return found


class Lake:
    """A lake in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._commits = directory / "commits"
        for path in (self.data, self._commits):
            path.mkdir(parents=True, exist_ok=True)

    def state(self) -> State:
        """Read every commit.

        Raises:
            LakeDamaged: a commit is missing, or covers offsets twice or with a gap.
        """
        state = State()
        for path in sorted(self._commits.glob("*.json")):
            commit = _read(path)
            if commit.number != state.next_number:
                raise LakeDamaged(f"{self._commits} has commit {commit.number} where {state.next_number} should be")
            state.next_number += 1
            for topic, partitions in commit.ranges.items():
                for partition, (start, end) in partitions.items():
                    known = state.ends.get((topic, partition), start)
                    if start != known:
                        raise LakeDamaged(f"commit {commit.number}: {topic}-{partition} from {start}, not from {known}")
                    state.ends[topic, partition] = end
            for name in commit.remove:
                del state.files[name]
            state.files.update(commit.add)
        return state

    def append(
        self, rows: DataFrame, ranges: Ranges, attempt: int, before_commit: Callable[[], None] = lambda: None
    ) -> Commit | None:
        """Write the rows of these ranges that are past the lake's ends, and commit; None where all are there already.

        Args:
            rows: with columns topic, partition, offset, date.
            attempt: names the files.
            before_commit: called when the files are written and nothing is committed (tests crash here).

        Raises:
            LakeDamaged: the ranges begin past the lake's ends: what lies between would never come.
            LakeTaken: another writer was faster.
        """
        from pyspark.sql import functions as f

        state = self.state()
        fresh: dict[str, dict[int, tuple[int, int]]] = {}
        for (topic, partition), (start, end) in sorted(ranges.items()):
            known = state.ends.get((topic, partition), start)
            if start > known:
                raise LakeDamaged(
                    f"the query goes on at {topic}-{partition}@{start}, the lake ends at {known}: "
                    "delete the query's checkpoint, then the lake's own ends say where to begin"
                )
            if end > known:
                fresh.setdefault(topic, {})[partition] = (known, end)
            rows = rows.where(
                ~((f.col("topic") == topic) & (f.col("partition") == partition)) | (f.col("offset") >= known)
            )
        if not fresh:
            return None
        add = self._write(rows.repartition(2, "date"), f"{state.next_number:08d}-{attempt}")
        before_commit()
        commit = Commit(state.next_number, fresh, add)
        self._commit(commit)
        return commit

    def compact(self, spark: SparkSession, dates: tuple[str, ...] | None = None) -> tuple[int, int]:
        """Write dates with many small files anew, one file each, rows in the order of the log.

        Returns the number of files before and after. Rows do not change; readers of the old files may finish: files
        go when `vacuum` is called.

        Raises:
            LakeTaken: another writer was faster.
        """
        state = self.state()
        many = {
            date: names
            for date, names in state.files_by_date().items()
            if len(names) > COMPACT_ABOVE_FILES and (dates is None or date in dates)
        }
        if not many:
            return len(state.files), len(state.files)
        old = tuple(name for names in many.values() for name in names)
        rows = (
            self._read_files(spark, list(old))
            .repartition(2, "date")
            .sortWithinPartitions("date", "partition", "offset")
        )
        add = self._write(rows, f"{state.next_number:08d}-compacted")
        if sum(add.values()) != sum(state.files[name] for name in old):
            raise LakeDamaged(
                f"compaction would turn {sum(state.files[name] for name in old)} rows to {sum(add.values())}"
            )
        self._commit(Commit(state.next_number, {}, add, old))
        return len(state.files), len(state.files) - len(old) + len(add)

    def vacuum(self) -> int:
        """Delete files that do not count: of attempts that crashed, and compacted ones. Returns how many."""
        files = self.state().files
        deleted = 0
        for path in sorted(self.data.rglob("*")):
            if path.is_file() and path.relative_to(self.data).as_posix() not in files:
                path.unlink()
                deleted += path.suffix == ".parquet"
        return deleted

    def read(self, spark: SparkSession) -> DataFrame:
        """Exactly the files that count."""
        return self._read_files(spark, sorted(self.state().files))

    def starting_offsets(self, topic: str, partitions: int) -> str:
        """Where a query begins that has no checkpoint: the source's option startingOffsets."""
        ends = self.state().ends
        return json.dumps({topic: {str(number): ends.get((topic, number), EARLIEST) for number in range(partitions)}})

    def _read_files(self, spark: SparkSession, names: list[str]) -> DataFrame:
        reader = spark.read.option("basePath", str(self.data))
        return reader.parquet(*[str(self.data / name) for name in names])

    def _write(self, rows: DataFrame, attempt: str) -> dict[str, int]:
        """Write the rows as Parquet into a directory of this attempt, then move the files to their dates."""
        from pyarrow import parquet

        staging = self.directory / "attempts" / attempt
        rows.write.mode("overwrite").partitionBy("date").parquet(str(staging))
        added = {}
        for path in sorted(staging.rglob("*.parquet")):
            name = f"{path.parent.name}/{attempt}-{path.name.split('-')[1]}.parquet"
            target = self.data / name
            target.parent.mkdir(exist_ok=True)
            added[name] = parquet.read_metadata(path).num_rows
            path.replace(target)
        shutil.rmtree(staging)
        return added

    def _commit(self, commit: Commit) -> None:
        document = {
            "number": commit.number,
            "ranges": {
                topic: {str(p): list(span) for p, span in parts.items()} for topic, parts in commit.ranges.items()
            },
            "add": dict(commit.add),
            "remove": list(commit.remove),
        }
        path = self._commits / f"{commit.number:08d}.json"
        written = path.with_suffix(f".{os.getpid()}.tmp")
        with written.open("w") as out:
            json.dump(document, out)
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(written, path)  # unlike a rename it fails where the name is taken
        except FileExistsError:
            raise LakeTaken(f"{path} is there already: another writer is at work in {self.directory}") from None
        finally:
            written.unlink()


def start(lake: Lake, records: DataFrame, checkpoint: Path, before_commit: Callable[[], None] = lambda: None) -> Any:
    """The query that brings the lake up to the topic's present end.

    Args:
        records: the topic as a stream; without a checkpoint it has to begin at `lake.starting_offsets`.
    """

    def append(rows: DataFrame, batch: int) -> None:
        lake.append(rows, batch_ranges(checkpoint, batch), batch, before_commit)

    stream = with_date(frames.flights(records))
    writer = stream.writeStream.foreachBatch(append).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def with_date(flights: DataFrame) -> DataFrame:
    """The column `date` by which the lake is partitioned: the day of departure, in UTC."""
    from pyspark.sql import functions as f

    return flights.withColumn("date", f.coalesce(f.to_date("departed"), f.to_date("timestamp")))


def _read(path: Path) -> Commit:
    document = json.loads(path.read_text())
    ranges = {
        topic: {int(partition): (span[0], span[1]) for partition, span in partitions.items()}
        for topic, partitions in document["ranges"].items()
    }
    return Commit(document["number"], ranges, document["add"], tuple(document["remove"]))
