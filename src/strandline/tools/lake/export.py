"""Export from a topic's partitions to files and commits: each committed record once. Needs pyarrow.

What has been exported stands in the target's own commits, and nowhere else: the next run, after whatever ended this
one, begins where they end. Files that were not committed are no part of the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from strandline.client.admin import Admin
from strandline.client.errors import OffsetOutOfRange, TopicReplaced
from strandline.client.range_reader import RangeReader
from strandline.client.types import LATEST
from strandline.lake.commits import BAD, DATA, Commit, Lake, State, topic_spans
from strandline.lake.stores import Writing
from strandline.lake.upkeep import FILE_BYTES
from strandline.proto.errors import StrandlineError
from strandline.proto.ports import Clock
from strandline.tools.lake.files import DayFiles
from strandline.tools.lake.shape import BAD_SCHEMA, Shape

POLL_S = 1.0
"""Seconds between two requests for new records, of a run that follows."""


class ExportRefused(StrandlineError):
    """The request does not fit the lake; the message says why."""


class Sink(Protocol):
    """Target of the rows: a lake, or an Iceberg table."""

    state: State
    """State of the target, brought up to date by `commit`."""

    def open(self, name: str) -> Writing:
        """A file of rows."""

    def open_bad(self, name: str) -> Writing:
        """A file of records that fit no row."""

    def bad_end(self, topic: str, topic_id: str, partition: int) -> int:
        """Records that fit no row are there up to this offset, whatever `state` says."""

    def commit(self, change: Commit) -> None:
        """Make files and ranges count, both or neither.

        Raises:
            LakeTaken: another writer has exported the same ranges.
        """


class LakeSink:
    """A lake of Parquet files and commits."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.state = lake.state()

    def open(self, name: str) -> Writing:
        """Implement `Sink.open`."""
        return self._lake.store.writer(f"{DATA}/{name}")

    def open_bad(self, name: str) -> Writing:
        """Implement `Sink.open_bad`."""
        return self._lake.store.writer(f"{BAD}/{name}")

    def bad_end(self, topic: str, topic_id: str, partition: int) -> int:
        """See `Sink`: one commit has both."""
        return 0

    def commit(self, change: Commit) -> None:
        """Implement `Sink.commit`."""
        self._lake.commit(change, self.state)


@dataclass(frozen=True)
class Limits:
    """Bounds of memory, of a file, and of a commit."""

    batch_rows: int = 100_000
    batch_bytes: int = 64 << 20
    file_bytes: int = FILE_BYTES
    commit_interval_ms: int = 60_000


@dataclass
class Result:
    """Work of a run.

    Attributes:
        spans: by partition, the offsets that this run has committed.
        lost: of them, ranges that were deleted before they were exported.
        behind: partitions whose log ends before the lake does: its end, and the lake's.
    """

    rows: int = 0
    bad: int = 0
    files: int = 0
    size_bytes: int = 0
    commits: int = 0
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    behind: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def lost_offsets(self) -> int:
        """Number of offsets in `lost`."""
        return sum(end - start for spans in self.lost.values() for start, end in spans)

    @property
    def empty(self) -> int:
        """Offsets without a record: compacted away, ends of transactions, and what these aborted."""
        return sum(end - start for start, end in self.spans.values()) - self.lost_offsets - self.rows - self.bad


class Export:
    """One run for one topic.

    Invariants:
    - `_positions` is where the next record of a partition is read; all before it is committed, or in the open files
      and in `_ranges`, or named in `_lost`.
    - A commit has the ranges of exactly the records in its files.
    - `_epochs` are leader epochs in which the log reached `_positions`, and was not cut before them since.

    Args:
        reader: reads committed records alone (`isolation.level=read_committed`).
        say: told what a user should hear at once.
        progress: told how many offsets of how many are done.
        new_topic: go on with another topic of that name from its beginning.

    Raises:
        LakeDamaged: the topic is not the one of the lake, and `new_topic` does not say so.
        ExportRefused: it does, in vain; or its log was cut before what the lake has.
        UnknownTopic, KafkaError, ClientTimeout.
    """

    def __init__(
        self,
        admin: Admin,
        reader: RangeReader,
        topic: str,
        sink: Sink,
        *,
        shape: Shape,
        limits: Limits,
        clock: Clock,
        say: Callable[[str], None],
        progress: Callable[[int, int], None],
        new_topic: bool = False,
    ) -> None:
        self._admin, self._reader, self._sink, self._shape = admin, reader, sink, shape
        self._topic, self._limits, self._clock, self._say, self._progress = topic, limits, clock, say, progress
        self.result = Result()
        self._topic_id = self._id_now()
        another = sink.state.topic_ids.get(topic, self._topic_id) != self._topic_id
        if not new_topic:
            sink.state.check_topics({topic: self._topic_id})
        if new_topic and not another:
            raise ExportRefused(f"--new-topic: the lake has no other topic {topic} than that of id {self._topic_id}")
        self._is_new = another
        reader.expect(topic, self._topic_id or None)
        ends = {} if another else sink.state.ends
        self._positions = {partition: end for (name, partition), end in ends.items() if name == topic}
        epochs = {} if another else sink.state.epochs
        self._epochs = {partition: epoch for (name, partition), epoch in epochs.items() if name == topic}
        self._begun, self._goal = sum(self._positions.values()), 0
        self._ranges: dict[int, tuple[int, int]] = {}
        self._lost: dict[int, list[tuple[int, int]]] = {}
        self._committed_ms = clock.monotonic_ms()
        sizes = {"batch_bytes": limits.batch_bytes, "file_bytes": limits.file_bytes}
        self._files = DayFiles(shape.schema, sink.open, by_day=True, **sizes)
        self._bad_files = DayFiles(BAD_SCHEMA, sink.open_bad, by_day=False, **sizes)

    def run(self, *, follow: bool, is_stopped: Callable[[], bool], wait: Callable[[float], object]) -> Result:
        """Export up to the present end of the log, or until stopped; what was read is committed.

        Args:
            follow: go on with records that come later.
            wait: waits so many seconds, or until it is stopped.

        Raises:
            LakeTaken: another writer has exported the same ranges.
            TopicReplaced, UnknownTopic, KafkaError, ClientTimeout, StoreError.
        """
        while True:
            ends = self._ends()
            self._goal = sum(ends.values()) - self._begun
            for number, end in ends.items():
                self._behind(number, end)
                if not is_stopped():
                    self._copy(number, end, is_stopped)
            if is_stopped() or not follow:
                break
            if self._is_due():
                self._commit()
            wait(POLL_S)
        self._commit()
        return self.result

    def pending(self) -> dict[int, tuple[int, int]]:
        """Offsets that a run would export now, by partition. Raises as `run`."""
        ends = self._ends()
        return {number: (self._positions.get(number, 0), max(end, self._positions.get(number, 0)))
                for number, end in ends.items()}  # fmt: skip

    # -- inside -----------------------------------------------------------------------------------------------------

    def _id_now(self) -> str:
        [told] = self._admin.describe_topics([self._topic])
        return str(told.topic_id or "")

    def _ends(self) -> dict[int, int]:
        """Ends up to which records are committed and may be read, by partition."""
        [told] = self._admin.describe_topics([self._topic])
        if str(told.topic_id or "") != self._topic_id:
            raise TopicReplaced(self._topic, self._topic_id, str(told.topic_id or ""))
        wanted = {(self._topic, part.partition): LATEST for part in told.partitions}
        found = self._admin.list_offsets(wanted, read_committed=True)
        told_by = {where.partition: answer.leader_epoch for where, answer in found.items()}
        self._check_cut({number: known for number, known in self._epochs.items() if known < told_by.get(number, -1)})
        self._epochs = {number: epoch for number, epoch in told_by.items() if epoch >= 0}
        return {where.partition: found[where].offset for where in sorted(found)}

    def _check_cut(self, epochs: Mapping[int, int]) -> None:
        """Ask leaders that are new since whether they have what was read. Raises ExportRefused."""
        asked = {(self._topic, number): epoch for number, epoch in epochs.items()}
        for where, end in (self._admin.epoch_ends(asked) if asked else {}).items():
            position = self._positions.get(where.partition, 0)
            if end.is_before(position):  # rule B39/exports-pass-over-a-cut
                raise ExportRefused(
                    f"{where} was read up to offset {position}, but its log was cut at offset {end.end_offset} since, "
                    "and has other records from there on: by an unclean election, or a restore that lost its newest. "
                    f"Rows of {where} from offset {end.end_offset} on are of records that the topic has no longer. "
                    "Export into another lake, or another table, to have the topic as it is now"
                )

    def _behind(self, number: int, end: int) -> None:
        """A log that ends before the lake has lost records that were committed; or its new leader has not heard yet."""
        position = self._positions.get(number, 0)
        if end >= position:
            self.result.behind.pop(number, None)
        elif number not in self.result.behind:
            self.result.behind[number] = (end, position)
            self._say(f"! {self._topic}-{number} ends at {end}, and the lake has it up to {position}: nothing to read")

    def _copy(self, number: int, end: int, is_stopped: Callable[[], bool]) -> None:
        position = self._positions.get(number, 0)
        limits = self._limits
        while position < end:
            try:
                found = self._reader.read_columns(
                    self._topic, number, position, end,
                    max_rows=limits.batch_rows, max_bytes=limits.batch_bytes, with_headers=True,
                )  # fmt: skip
                with closing(found):  # type: ignore[type-var]  # a generator
                    for _timestamp_type, columns in found:
                        good, bad = self._shape.rows(self._topic, number, columns)
                        self._files.write(good)
                        if bad.num_rows:
                            self._keep_bad(number, bad)
                        position = self._reach(number, columns.last_offset + 1)
                        self.result.rows += good.num_rows
                        self._progress(sum(self._positions.values()) - self._begun, self._goal)
                        if is_stopped():
                            return
                        if self._is_due():
                            self._commit()
                position = self._reach(number, end)
            except OffsetOutOfRange as error:
                if error.log_start <= position:
                    raise
                first = min(error.log_start, end)
                self._lost.setdefault(number, []).append((position, first))
                self._say(
                    f"! {first - position:,} offsets of {self._topic}-{number}, from {position} to {first - 1}, were "
                    "deleted before they were exported"
                )
                position = self._reach(number, first)

    def _keep_bad(self, number: int, bad: pa.Table) -> None:
        """Records that fit no row, but for those that the last run has committed there and not here."""
        rows = bad.filter(pc.field("offset") >= self._sink.bad_end(self._topic, self._topic_id, number))
        self._bad_files.write(rows)
        if not self.result.bad:
            [row] = bad.slice(0, 1).to_pylist()
            self._say(f"! offset {row['offset']} of {self._topic}-{number} goes to bad/: {row['reason']}")
        self.result.bad += bad.num_rows

    def _reach(self, number: int, offset: int) -> int:
        start = self._ranges.get(number, (self._positions.get(number, 0), 0))[0]
        self._ranges[number] = (start, offset)
        self._positions[number] = offset
        return offset

    def _is_due(self) -> bool:
        return self._clock.monotonic_ms() - self._committed_ms >= self._limits.commit_interval_ms

    def _commit(self) -> None:
        self._committed_ms = self._clock.monotonic_ms()
        if not self._ranges:
            return
        topic, result = self._topic, self.result
        add, bad = self._files.finish(), self._bad_files.finish()
        spans = {(topic, number): span for number, span in self._ranges.items()}
        lost = {(topic, number): tuple(found) for number, found in self._lost.items()}
        self._sink.commit(
            Commit(
                -1, topic_spans(spans), add, bad=bad, lost=topic_spans(lost), topic_ids={topic: self._topic_id},
                epochs={topic: {number: epoch for number, epoch in self._epochs.items() if number in self._ranges}},
                new_topics=(topic,) if self._is_new else (),
            )
        )  # fmt: skip
        for number, (start, end) in self._ranges.items():
            result.spans[number] = (result.spans.get(number, (start, end))[0], end)
        for number, found in self._lost.items():
            result.lost.setdefault(number, []).extend(found)
        result.commits += 1
        result.files += len(add)
        result.size_bytes = self._files.size_bytes
        self._ranges, self._lost, self._is_new = {}, {}, False
