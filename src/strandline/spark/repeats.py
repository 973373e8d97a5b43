"""A task that is run again: which of its rows are in the log, and whether they are the rows of its earlier runs at all.

What identifies a task's rows: within one run of a query its number. Over runs the ranges that feed it, which the
source tells and plans alike each time. Where nothing tells of ranges (a shuffle, another source) the number stands for
the rows as long as the rows agree: what an earlier run wrote under this number must be among them, and none of them may
be what an earlier run wrote under another. Else the batch is distributed otherwise over its tasks, and rows would be
written twice: the task fails before it writes any (`failOnRepeats`).
"""

from __future__ import annotations

import bisect
import logging
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from strandline.proto.errors import StrandlineError
from strandline.spark.handover import Fed, PlannedRange
from strandline.spark.ledger import Attempt, Headers, LogRecord, Written, row_digest

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("strandline.spark")

_SPOOL_BYTES = 32 * 1024 * 1024
"""Rows of a repeated task that stay in memory; more of them lie in a temporary file until they are sent."""

ADVICE = (
    "Start the query as it was when the batch was first run (what cuts its tasks: repartition, coalesce, "
    "spark.sql.shuffle.partitions, another source's files or partitions), or set failOnRepeats=false: then the batch "
    "writes every row that it does not find, and some may stand twice."
)

_GOES_ON = "The batch goes on, and rows may stand twice: failOnRepeats=false"


class SinkError(StrandlineError):
    """A row cannot be written, or was not acknowledged. Records before it may lie in the log; see the ledger's rule.

    The error of a task names query, epoch and task; its cause is the client's own error, where there is one.
    """


class RowsChanged(SinkError):
    """A task that is run again does not have the rows that its earlier runs wrote. It has written nothing this time."""


class Row(NamedTuple):
    """A row as it is written."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: Headers


@dataclass(frozen=True)
class Feed:
    """Input of a task, as far as the sink can know it."""

    run: str = ""
    """The run of the query, or the batch write: in one run a task's number means the same rows throughout."""
    strict: bool = False
    """Whether the rows are held against those of earlier runs; else the caller vouches that the key names them."""
    notes: Callable[[], Fed | None] = field(default=lambda: None)
    """Function that returns the source's report so far; None if the source makes none."""


def same_rows(earlier: Attempt, now: Attempt, *, tolerated: bool) -> bool:
    """Whether an earlier attempt was to write rows of this one, and no others.

    Raises:
        RowsChanged: some of them, and others beside. Where that is tolerated, they are not the same: another task may
            have those rows too, and of two that took them for found one might be wrong.
    """
    if earlier.run == now.run or earlier.fed is None or now.fed is None:  # schedule 66/ledger-names-task-numbers
        return earlier.task == now.task
    # schedule 66/branches-of-a-union-share-their-ranges
    if earlier.fed.shift != now.fed.shift or not may_share(earlier, now):
        return False
    # schedule 66/half-of-a-range-taken-for-all-of-it
    if all(any(one.within(other) for other in now.fed.ranges) for one in earlier.fed.ranges):
        return True
    said = (
        f"the batch is cut otherwise than in an earlier run: this task reads {_names(now.fed.ranges)}, and one that "
        f"read {_names(earlier.fed.ranges)} has begun to write"
    )
    if not tolerated:
        raise RowsChanged(f"{said}. {ADVICE}")
    _log.warning("%s. %s", said, _GOES_ON)
    return False


def may_share(earlier: Attempt, now: Attempt) -> bool:
    """Whether an attempt of an earlier run may have written rows that are this one's, as far as it is known what fed
    both."""
    if earlier.fed is None or now.fed is None:
        return True
    return any(one.overlaps(other) for one in earlier.fed.ranges for other in now.fed.ranges)


def _names(ranges: Sequence[PlannedRange]) -> str:
    return ", ".join(f"{one.topic}-{one.partition} [{one.start}, {one.end})" for one in ranges)


class Others:
    """Records that earlier runs wrote in other tasks, by the head of their digests: 8 bytes each."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._heads = array("Q", sorted(int.from_bytes(digest[:8], "big") for digest in digests))

    def __contains__(self, digest: bytes) -> bool:
        head = int.from_bytes(digest[:8], "big")
        at = bisect.bisect_left(self._heads, head)
        return at < len(self._heads) and self._heads[at] == head

    def __len__(self) -> int:
        return len(self._heads)


class Found:
    """Rows that earlier attempts have written, to compare with the rows of a repeated task."""

    def __init__(self, records: Iterable[LogRecord], own: Sequence[Attempt]) -> None:
        """`records` are those of `own`, the attempts at the same rows, and of tasks of earlier runs with other rows."""
        mine = {producer for attempt in own for producer in attempt.producers}
        others: list[bytes] = []

        def split() -> Iterator[tuple[bytes, int]]:
            for record in records:
                if record.producer in mine:
                    yield record.digest, record.partition
                else:
                    others.append(record.digest)

        self._written = Written(split())
        self._others = Others(others)
        self.found = 0
        self.elsewhere = 0
        """Rows that no attempt at this task has written, and an earlier run in another task has."""

    def has(self, row: Row) -> bool:
        """Whether a row lies in the log; each record stands for one row."""
        if not len(self._written) and not len(self._others):
            return False
        digest = row_digest(row.topic, row.key, row.value, row.headers)
        if self._written.take(digest, row.partition):
            self.found += 1
            return True
        self.elsewhere += digest in self._others
        return False

    def judge(self, *, lost: bool, tolerated: bool) -> None:
        """Look, once every row was held against it, for signs that these are not the rows of the earlier runs.

        Args:
            lost: the source noted that records of this very task are gone.
            tolerated: such signs are a warning alone.

        Raises:
            RowsChanged: the rows are others, or distributed otherwise.
        """
        signs = []
        if len(self._written) and not lost:  # schedule 66/missing-rows-are-no-sign
            signs.append(f"{len(self._written)} rows that an earlier run of this task wrote are not among its rows now")
        if self.elsewhere:  # schedule 66/rows-of-other-tasks-are-not-held-against
            signs.append(f"{self.elsewhere} of its rows equal what an earlier run wrote in other tasks")
        if not signs:
            return
        said = f"{'; '.join(signs)}: the batch is distributed otherwise over its tasks, or its rows are not the same"
        if not tolerated:
            raise RowsChanged(f"{said}. Nothing was written now. {ADVICE}")
        _log.warning("%s. %s", said, _GOES_ON)


class Spool:
    """A task's rows, kept while they are held against the log: nothing may be sent before the last one was seen."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        import pyarrow as pa

        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 (closed by `close`)
        first = next(batches)
        with pa.ipc.new_stream(self._file, first.schema) as stream:
            stream.write_batch(first)
            for batch in batches:
                stream.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches again, from the first one on."""
        import pyarrow as pa

        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as stream:
            yield from stream

    def close(self) -> None:
        """Free what it holds."""
        self._file.close()
