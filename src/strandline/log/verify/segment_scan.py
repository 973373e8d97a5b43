"""Reading all of one segment, in a stream: every batch with every check, and its two indexes beside it.

Recovery ends at the first damage. This goes on behind it, to say how much of a log is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.log.batch import HEADER_SIZE, BatchHeader, BatchJudge, check_content, sized_header
from strandline.log.disk import File
from strandline.log.epochs import LeaderEpochs
from strandline.log.scan import Window, find_batch_after, only_zeros
from strandline.log.segment import ENTRY_BYTES, TIME_ENTRY_BYTES, IndexDamaged, OffsetIndex, TimeIndex
from strandline.proto.errors import KafkaError

OnBatch = Callable[[int, BatchHeader], None]
"""Gets the position and the header of each batch that holds."""


DAMAGED_MAX = 1000
"""Parts of one segment that are told one by one."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A part of a segment that is not what was written."""

    position: int
    offset: int
    """The one that had to follow."""
    next_position: int
    next_offset: int
    """Of the first batch behind it that holds; -1: none does."""
    reason: str


@dataclass(slots=True)
class EpochMismatch:
    """Batches whose leader epoch is not the one that the checkpoint has for their offsets."""

    count: int = 0
    position: int = -1
    offset: int = -1
    stated: int = -1
    found: int = -1


class SegmentScan:
    """One segment as it was found."""

    def __init__(
        self,
        file: File,
        base_offset: int,
        *,
        epochs: LeaderEpochs | None,
        epoch: int,
        epochs_may_lag: bool,
        log_start_offset: int,
        on_batch: OnBatch,
        progress: Callable[[int], None],
    ) -> None:
        """`epochs`: by the checkpoint; `epoch`: of the last batch before; `epochs_may_lag`: a process that was killed
        may not have come to writing down its latest epochs; `progress` is told of bytes."""
        self._file = file
        self._size = file.size()
        self._window = Window(file)
        self._epochs = epochs
        self._may_lag = epochs_may_lag
        self._log_start_offset = log_start_offset
        self._on_batch = on_batch
        self._progress = progress
        self.base_offset = base_offset
        self.epoch = epoch
        self.damaged: list[Damaged] = []
        self.left_out = 0
        """Damaged parts beyond the first thousand."""
        self.mismatch = EpochMismatch()
        self.end_offset = base_offset
        self.batches = self.records = 0
        self.max_timestamp = -1

    def run(self, index: OffsetIndexCheck | None, time_index: TimeIndexCheck | None) -> None:
        """Read it. Raises DiskError."""
        position = 0
        while position < self._size:
            header, reason = self._batch_at(position)
            if header is None or reason:
                if header is None and only_zeros(self._file, position, self._size):
                    break  # preallocation
                following = self._behind(position, header)
                at, offset = following or (self._size, -1)
                if len(self.damaged) < DAMAGED_MAX or following is None:
                    self.damaged.append(Damaged(position, self.end_offset, at, offset, reason))
                else:
                    self.left_out += 1
                self._progress(at - position)
                if following is None:
                    break
                position, self.end_offset = at, offset
                continue
            self._take(position, header)
            if index is not None:
                index.batch(position, header)
            if time_index is not None:
                time_index.batch(header)
            self._progress(header.size)
            position += header.size
        if index is not None and not self.left_out:
            index.end(self.damaged)
        if time_index is not None:
            time_index.end()

    def _batch_at(self, position: int) -> tuple[BatchHeader | None, str]:
        """The header of what stands there, and what is wrong with it."""
        judge = BatchJudge(self.end_offset, self.epoch)
        header = None
        try:
            header = judge.header(self._window.get(position, HEADER_SIZE), 0, self._size - position)
            judge.check_place(header)
            check_content(header, self._window.get(position, header.size))
        except KafkaError as error:
            return header, error.message
        return header, ""

    def _behind(self, position: int, header: BatchHeader | None) -> tuple[int, int] | None:
        """Position and base offset of the next batch that holds: the one that follows, if the damaged one's header says
        where that is, else whatever looks like one."""
        if header is not None:
            at = position + header.size
            following = self._holds(at)
            if following is not None and following > self.end_offset:
                return at, following
        return find_batch_after(self._file, position, self.end_offset)

    def _holds(self, position: int) -> int | None:
        try:
            header = sized_header(self._window.get(position, HEADER_SIZE), 0, self._size - position)
            check_content(header, self._window.get(position, header.size))
        except KafkaError:
            return None
        return header.base_offset

    def _take(self, position: int, header: BatchHeader) -> None:
        self.batches += 1
        self.records += header.count
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        if self._epochs is not None and header.last_offset >= self._log_start_offset:
            self._check_epoch(self._epochs, position, header)
        self._on_batch(position, header)
        self.end_offset, self.epoch = header.next_offset, header.leader_epoch

    def _check_epoch(self, epochs: LeaderEpochs, position: int, header: BatchHeader) -> None:
        stated, until = epochs.span_at(max(header.base_offset, self._log_start_offset))
        if stated == header.leader_epoch and header.next_offset <= until:
            return
        if self._may_lag and stated == epochs.latest < header.leader_epoch:
            return
        if not self.mismatch.count:
            self.mismatch = EpochMismatch(0, position, header.base_offset, stated, header.leader_epoch)
        self.mismatch.count += 1


_BATCH_BYTES_MIN = 61


class Range(Protocol):
    """A damaged part of the segment: entries that name a batch in it cannot be judged."""

    @property
    def position(self) -> int: ...
    @property
    def next_position(self) -> int: ...


def read_entries(file: File, segment_bytes: int, entry_bytes: int) -> bytes:
    """What an index file holds. Raises IndexDamaged where it is longer than an index of this segment can be."""
    size = file.size()
    if size > entry_bytes * (segment_bytes // _BATCH_BYTES_MIN + 1):
        raise IndexDamaged(f"{size} bytes are more than an index of {segment_bytes} bytes of log can have")
    return file.pread(size, 0)


class OffsetIndexCheck:
    """Every entry names a batch, and the offset of its last record."""

    def __init__(self, file: File, base_offset: int, segment_bytes: int) -> None:
        """Raises IndexDamaged for bytes that are no index."""
        index = OffsetIndex.parse(read_entries(file, segment_bytes, ENTRY_BYTES), max(1, segment_bytes))
        self._entries = list(zip(index.positions, index.offsets, strict=True))
        self._base_offset = base_offset
        self._next = 0
        self._unmatched: list[int] = []
        self.reason = ""

    def batch(self, position: int, header: BatchHeader) -> None:
        """The next batch that holds."""
        entries = self._entries
        while self._next < len(entries) and entries[self._next][0] <= position:
            at, relative = entries[self._next]
            self._next += 1
            if at < position:
                self._unmatched.append(at)
            elif relative != header.last_offset - self._base_offset and not self.reason:
                named = self._base_offset + relative
                self.reason = f"it names offset {named} for the batch at byte {at}, whose last is {header.last_offset}"

    def end(self, damaged: Sequence[Range]) -> None:
        """No batch follows."""
        self._unmatched += [at for at, _ in self._entries[self._next :]]
        for at in self._unmatched:
            if not self.reason and not any(part.position <= at < part.next_position for part in damaged):
                self.reason = f"it names a batch at byte {at}, where none begins"


class TimeIndexCheck:
    """Every entry names the largest timestamp up to a batch."""

    def __init__(self, file: File, base_offset: int, segment_bytes: int) -> None:
        """Raises IndexDamaged for bytes that are no time index."""
        index = TimeIndex.parse(read_entries(file, segment_bytes, TIME_ENTRY_BYTES))
        self._entries = list(zip(index.timestamps, index.offsets, strict=True))
        self._base_offset = base_offset
        self._next = 0
        self._newest = -1
        self.last = index.last()
        """The newest timestamp that it knows, and the relative offset."""
        self.reason = ""

    def batch(self, header: BatchHeader) -> None:
        """The next batch that holds."""
        entries = self._entries
        while self._next < len(entries) and self._base_offset + entries[self._next][1] <= header.last_offset:
            timestamp, relative = entries[self._next]
            self._next += 1
            offset = self._base_offset + relative
            if offset < header.base_offset:
                continue  # of a batch that is damaged
            if (timestamp != header.max_timestamp or timestamp < self._newest) and not self.reason:
                self.reason = (
                    f"it has timestamp {timestamp} for offset {offset}, whose batch has {header.max_timestamp}"
                )
        self._newest = max(self._newest, header.max_timestamp)

    def end(self) -> None:
        """No batch follows."""
        if self._next < len(self._entries) and not self.reason:
            named = self._base_offset + self._entries[self._next][1]
            self.reason = f"it names offset {named}, which the segment does not reach"
