"""Scan of one partition's directory: its segments in order, their indexes, and the other files.

A segment is read as a stream, with every check on each batch, and its two indexes beside it. Recovery ends at the first
damage. A scan goes on after it, to tell how much of a log is intact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from strandline.log.batch import HEADER_SIZE, BatchHeader, BatchJudge, check_content, sized_header
from strandline.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, decode_epochs, decode_partition_metadata
from strandline.log.disk import Disk, File, read_file
from strandline.log.epochs import LeaderEpochs, load_epochs
from strandline.log.offset_checkpoints import LastLife
from strandline.log.producer_state import ProducerStates, SnapshotDamaged, SnapshotRow, decode_snapshot
from strandline.log.rewriting import AWAY
from strandline.log.scan import Window, find_batch_after, only_zeros
from strandline.log.segment import (
    ABORTED_INDEX_SUFFIX,
    DELETED_SUFFIX,
    ENTRY_BYTES,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_ENTRY_BYTES,
    TIME_INDEX_SUFFIX,
    IndexDamaged,
    OffsetIndex,
    TimeIndex,
    segment_name,
)
from strandline.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from strandline.log.transactions import AbortedIndex, AbortedTransaction, read_marker
from strandline.log.verify.flaws import Counted, Flaw, FlawList, Kind
from strandline.proto.errors import CorruptLogError, KafkaError

LEFT_OVER = {
    DELETED_SUFFIX: "a file that retention or compaction has taken out of the log",
    CLEANED_SUFFIX: "a segment that compaction had not finished",
    SWAP_SUFFIX: "a segment that compaction has finished, and that had not taken the place of the old ones yet",
    ".part": "a snapshot of the metadata that was not finished",
    ".tmp": "a file that a process that was killed had not finished",
    AWAY: "a file that a start that was cut short had renamed",
}
"""Meaning of a leftover file, by the suffix of its name."""

_NAME = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")


@dataclass(frozen=True, slots=True)
class Known(LastLife):
    """Facts about a log from the directory's own files."""

    has_topic_id: bool = True


@dataclass(slots=True)
class ScannedPartition:
    """Result for one partition's directory.

    Attributes:
        name: name of the directory.
        log_end_offset: end of the last whole batch.
        believed: wrong time indexes and indexes of aborted transactions that a start uses as they are.
    """

    name: str
    log_start_offset: int = 0
    log_end_offset: int = 0
    list: FlawList = field(default_factory=FlawList)
    believed: set[str] = field(default_factory=set)


class PartitionScan:
    """Scan of one partition's directory."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        name: str,
        known: Known,
        *,
        counted: Counted,
        progress: Callable[[int], None],
    ) -> None:
        """`progress` is called with the number of bytes that were read."""
        self._disk = disk
        self._directory = f"{root}/{name}"
        self._known = known
        self._counted = counted
        self._progress = progress
        self._rows: dict[int, SnapshotRow] = {}
        self._snapshot = ""
        self._snapshot_wrong = ""
        self._by_suffix: dict[str, set[int]] = {}
        self._read_from = 0
        self._producers = ProducerStates()
        self.found = ScannedPartition(name, known.log_start_offset)

    def run(self) -> ScannedPartition:
        """Read everything. Raises DiskError."""
        names = self._disk.listdir(self._directory)
        for name in names:
            self._sort(name)
        if self._known.has_topic_id:
            self._check_topic_id()
        bases = sorted(self._by_suffix.get(LOG_SUFFIX, ()))
        self._check_snapshots()
        start = self._known.start_by(load_epochs(self._disk, self._directory))
        self._known = replace(self._known, log_start_offset=start)
        while len(bases) > 1 and bases[1] <= start:
            self._flaw(bases[0], LOG_SUFFIX, Kind.LEFT_OVER, f"a segment below the log start, {start}")
            del bases[0]
        self._check_strays(bases)
        known = self._known
        if known.start_claimed > max(start, bases[0] if bases else 0):
            reason = f"one file alone says that the log starts at offset {known.start_claimed}"
            self._add("", Kind.CHECKPOINT, reason, offset=start)
        if bases and known.has_topic_id and known.has_lost_start(bases[0]):
            reason = f"the checkpoints say that the log starts at offset {start}"
            self._flaw(bases[0], LOG_SUFFIX, Kind.GAP, reason, offset=start, next_offset=bases[0])
        epochs = self._epochs()
        self._counted.partitions += 1
        self._read_from = self._first_read(bases)
        self._scan(bases, epochs)
        if self._snapshot_wrong:
            self._add(self._snapshot, Kind.SNAPSHOT, self._snapshot_wrong)
        return self.found

    # ------------------------------------------------------------------ files by their names

    def _sort(self, name: str) -> None:
        match = _NAME.fullmatch(name)
        if match is not None:
            self._by_suffix.setdefault(match[2], set()).add(int(match[1]))
            return
        for suffix, what in LEFT_OVER.items():
            if name.endswith(suffix):
                self._add(name, Kind.LEFT_OVER, what)
                return

    def _check_strays(self, bases: list[int]) -> None:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_INDEX_SUFFIX):
            for base in sorted(self._by_suffix.get(suffix, set()).difference(bases)):
                if base not in self._by_suffix.get(LOG_SUFFIX, ()):
                    self._flaw(base, suffix, Kind.LEFT_OVER, "an index without its segment")

    def _check_topic_id(self) -> None:
        path = f"{self._directory}/{PARTITION_METADATA}"
        try:
            decode_partition_metadata(path, read_file(self._disk, path) if self._disk.exists(path) else b"")
        except CorruptLogError as error:
            self._add(PARTITION_METADATA, Kind.IDENTITY, error.reason)

    def _epochs(self) -> LeaderEpochs | None:
        path = f"{self._directory}/{LEADER_EPOCHS}"
        if not self._disk.exists(path):
            return None
        try:
            return LeaderEpochs(decode_epochs(path, read_file(self._disk, path)))
        except (CorruptLogError, ValueError) as error:
            reason = error.reason if isinstance(error, CorruptLogError) else f"not leader epochs ({error})"
            self._add(LEADER_EPOCHS, Kind.EPOCHS, reason)
            return None

    def _check_snapshots(self) -> None:
        """Decode all producer snapshots; the newest valid one is compared with the batches later."""
        for offset in sorted(self._by_suffix.get(SNAPSHOT_SUFFIX, ())):
            name = segment_name(offset, SNAPSHOT_SUFFIX)
            try:
                rows = decode_snapshot(read_file(self._disk, f"{self._directory}/{name}"))
            except SnapshotDamaged as error:
                self._add(name, Kind.SNAPSHOT, str(error))
                continue
            beyond = max((row.last_offset for row in rows), default=-1)
            if beyond >= offset:
                self._add(name, Kind.SNAPSHOT, f"it is of the state at offset {offset}, and knows of offset {beyond}")
                continue
            self._snapshot = name
            self._rows = {row.last_offset: row for row in rows if row.last_sequence >= 0}

    # ------------------------------------------------------------------ segments

    def _first_read(self, bases: list[int]) -> int:
        """Return the base offset from which on the next start reads segments whole, and builds their indexes anew."""
        if self._known.clean:
            return 1 << 63
        return max((base for base in bases if base < self._known.recovery_point), default=0)

    def _scan(self, bases: list[int], epochs: LeaderEpochs | None) -> None:
        epoch = -1
        start = max(self._known.log_start_offset, bases[0] if bases else 0)
        if bases and bases[0] in self._by_suffix.get(SNAPSHOT_SUFFIX, ()):
            with suppress(SnapshotDamaged):  # transactions that were open at the log start
                path = f"{self._directory}/{segment_name(bases[0], SNAPSHOT_SUFFIX)}"
                self._producers.load_snapshot(read_file(self._disk, path), 0)
        end = bases[0] if bases else start
        for i, base in enumerate(bases):
            if base != end:
                self._gap(bases[i - 1], end, base)
            scan = self._scan_segment(base, epochs, epoch, start, is_last=i == len(bases) - 1)
            epoch, end = max(epoch, scan.epoch), scan.end_offset
        self.found.log_start_offset = min(start, end)
        self.found.log_end_offset = end
        if end < self._known.durable_end:
            reason = f"the log ends at offset {end}, and everything below {self._known.durable_end} was durable here"
            self._add("", Kind.SHORT, reason, offset=end)
        if self._known.log_start_offset > end:
            reason = f"the checkpoint of log starts says {self._known.log_start_offset}, and the log ends at {end}"
            self._add("", Kind.CHECKPOINT, reason, offset=end)

    def _gap(self, before: int, end: int, base: int) -> None:
        damaged = [flaw for flaw in self.found.list.flaws if flaw.kind is Kind.BATCH]
        if damaged and damaged[-1].next_offset < 0 and damaged[-1].file.endswith(segment_name(before, LOG_SUFFIX)):
            return  # the segment before is damaged to its end: that is said already
        what = "begins again before it" if base < end else "leaves out the offsets in between"
        reason = f"the segment before ends at offset {end}, this one {what}"
        self._flaw(base, LOG_SUFFIX, Kind.GAP, reason, offset=end, next_offset=base)

    def _scan_segment(
        self, base: int, epochs: LeaderEpochs | None, epoch: int, start: int, *, is_last: bool
    ) -> SegmentScan:
        file = self._disk.open(f"{self._directory}/{segment_name(base, LOG_SUFFIX)}")
        size = file.size()
        scan = SegmentScan(
            file,
            base,
            epochs=epochs,
            epoch=epoch,
            epochs_may_lag=not self._known.clean,
            log_start_offset=start,
            on_batch=self._batch,
            producers=self._producers,
            progress=self._progress,
        )
        index = self._index(base, size, is_last)
        time_index = self._time_index(base, size, is_last)
        scan.run(index, time_index)
        file.close()
        counted = self._counted
        counted.segments += 1
        counted.bytes += size
        counted.batches += scan.batches
        counted.records += scan.records
        self._report(scan, index, time_index, is_last=is_last)
        if not scan.damaged:
            self._check_aborted(scan, is_last=is_last)
        return scan

    def _check_aborted(self, scan: SegmentScan, *, is_last: bool) -> None:
        """Compare the index of aborted transactions with the markers. Its transactions may be longer than what is
        left."""
        base, reason, is_read = scan.base_offset, "", False
        if base in self._by_suffix.get(ABORTED_INDEX_SUFFIX, ()):
            data = read_file(self._disk, f"{self._directory}/{segment_name(base, ABORTED_INDEX_SUFFIX)}")
            try:
                entries = AbortedIndex.parse(data, base, scan.end_offset).entries
            except ValueError as error:
                self._flaw(base, ABORTED_INDEX_SUFFIX, Kind.ABORTED_INDEX, str(error))
                return
            is_read = True
            told = {(one.producer_id, one.last_offset): one.first_offset for one in entries}
        else:
            told = {}
        if is_last and not self._known.clean:
            return  # it is in memory while the node runs
        for marker in told.keys() - scan.aborts:
            reason = f"no transaction of producer {marker[0]} was aborted at offset {marker[1]}"
        for one in scan.aborted:
            first = told.get((one.producer_id, one.last_offset))
            if first is None or first > one.first_offset:
                what = "it lacks" if is_read else "it is missing, and with it"
                reason = f"{what} the transaction of producer {one.producer_id} aborted at offset {one.last_offset}"
        if reason:
            self._flaw(base, ABORTED_INDEX_SUFFIX, Kind.ABORTED_INDEX, reason)
            if base < self._read_from:
                self.found.believed.add(f"{self.found.name}/{segment_name(base, ABORTED_INDEX_SUFFIX)}")

    def _report(
        self, scan: SegmentScan, index: OffsetIndexCheck | None, time_index: TimeIndexCheck | None, *, is_last: bool
    ) -> None:
        base = scan.base_offset
        self.found.list.left_out += scan.left_out
        for part in scan.damaged:
            self._flaw(
                base,
                LOG_SUFFIX,
                Kind.BATCH,
                part.reason,
                position=part.position,
                offset=part.offset,
                next_offset=part.next_offset,
            )
        if index is not None and index.reason:
            self._flaw(base, INDEX_SUFFIX, Kind.INDEX, index.reason)
        if time_index is not None and not scan.damaged:
            newest = time_index.last[0] if time_index.last is not None else -1
            reason = time_index.reason
            if not reason and newest < scan.max_timestamp and (not is_last or self._known.clean):
                reason = f"its newest timestamp is {newest}, and the segment's is {scan.max_timestamp}"
            if reason:
                self._flaw(base, TIME_INDEX_SUFFIX, Kind.TIME_INDEX, reason)
                if base < self._read_from:
                    self.found.believed.add(f"{self.found.name}/{segment_name(base, TIME_INDEX_SUFFIX)}")
        wrong = scan.mismatch
        if wrong.count:
            stated = f"epoch {wrong.stated}" if wrong.stated >= 0 else "no epoch"
            reason = (
                f"it has {stated} for offset {wrong.offset}, whose batch in {segment_name(base, LOG_SUFFIX)} is of "
                f"epoch {wrong.found} ({wrong.count} such batches)"
            )
            self._add(LEADER_EPOCHS, Kind.EPOCHS, reason, position=wrong.position, offset=wrong.offset)

    def _index(self, base: int, size: int, is_last: bool) -> OffsetIndexCheck | None:
        if self._is_missing(base, INDEX_SUFFIX, Kind.INDEX, size, is_last):
            return None
        file = self._disk.open(f"{self._directory}/{segment_name(base, INDEX_SUFFIX)}")
        try:
            return OffsetIndexCheck(file, base, size)
        except IndexDamaged as error:
            self._flaw(base, INDEX_SUFFIX, Kind.INDEX, str(error))
            return None
        finally:
            file.close()

    def _time_index(self, base: int, size: int, is_last: bool) -> TimeIndexCheck | None:
        if self._is_missing(base, TIME_INDEX_SUFFIX, Kind.TIME_INDEX, size, is_last):
            return None
        file = self._disk.open(f"{self._directory}/{segment_name(base, TIME_INDEX_SUFFIX)}")
        try:
            return TimeIndexCheck(file, base, size)
        except IndexDamaged as error:
            self._flaw(base, TIME_INDEX_SUFFIX, Kind.TIME_INDEX, str(error))
            return None
        finally:
            file.close()

    def _is_missing(self, base: int, suffix: str, kind: Kind, size: int, is_last: bool) -> bool:
        """True if an index is missing. The last segment has its indexes in memory only while the node runs."""
        if base in self._by_suffix.get(suffix, ()):
            return False
        if size and (not is_last or self._known.clean):
            self._flaw(base, suffix, kind, "it is missing")
        return True

    def _batch(self, _: int, header: BatchHeader) -> None:
        row = self._rows.pop(header.last_offset, None) if self._rows else None
        if row is None or self._snapshot_wrong or header.is_gap:
            return
        stated = (row.producer_id, row.epoch, row.last_sequence)
        found = (header.producer_id, header.producer_epoch, header.last_sequence)
        if stated != found:
            self._snapshot_wrong = (
                f"it has producer id, epoch and sequence {stated} for the batch that ends with offset "
                f"{header.last_offset}, which has {found}"
            )

    # ------------------------------------------------------------------ noting

    def _flaw(
        self,
        base: int,
        suffix: str,
        kind: Kind,
        reason: str,
        *,
        position: int = -1,
        offset: int = -1,
        next_offset: int = -1,
    ) -> None:
        name = segment_name(base, suffix)
        self._add(name, kind, reason, position=position, offset=offset, next_offset=next_offset)

    def _add(
        self, name: str, kind: Kind, reason: str, *, position: int = -1, offset: int = -1, next_offset: int = -1
    ) -> None:
        partition = self.found.name
        self.found.list.add(
            Flaw(
                file=f"{partition}/{name}" if name else partition,
                partition=partition,
                kind=kind,
                found=reason,
                position=position,
                offset=offset,
                next_offset=next_offset,
            )
        )


OnBatch = Callable[[int, BatchHeader], None]
"""Called with the position and the header of each valid batch."""


DAMAGED_MAX = 1000
"""Maximum damaged parts of one segment that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A part of a segment that is not what was written."""

    position: int
    offset: int
    """Offset that should have followed."""
    next_position: int
    next_offset: int
    """Base offset of the first valid batch after the damage; -1 if there is none."""
    reason: str


@dataclass(slots=True)
class EpochMismatch:
    """Batches whose leader epoch differs from the checkpoint's for their offsets."""

    count: int = 0
    position: int = -1
    offset: int = -1
    stated: int = -1
    found: int = -1


class SegmentScan:
    """Scan of one segment, with its results."""

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
        producers: ProducerStates,
        progress: Callable[[int], None],
    ) -> None:
        """`epochs`: those of the checkpoint; `epoch`: that of the last batch before; `epochs_may_lag`: True if a killed
        process may not have written its latest epochs; `producers`: state before the segment; `progress` is called with
        the number of bytes read."""
        self._file = file
        self._size = file.size()
        self._window = Window(file)
        self._epochs = epochs
        self._may_lag = epochs_may_lag
        self._log_start_offset = log_start_offset
        self._on_batch = on_batch
        self._producers = producers
        self._progress = progress
        self.base_offset = base_offset
        self.epoch = epoch
        self.damaged: list[Damaged] = []
        self.left_out = 0
        """Number of damaged parts beyond the first thousand."""
        self.mismatch = EpochMismatch()
        self.end_offset = base_offset
        self.batches = self.records = 0
        self.aborted: list[AbortedTransaction] = []
        """Aborted transactions that have batches in the log."""
        self.aborts: set[tuple[int, int]] = set()
        """(producer id, offset) of each abort marker."""
        self.max_timestamp = -1

    def run(self, index: OffsetIndexCheck | None, time_index: TimeIndexCheck | None) -> None:
        """Read the segment. Raises DiskError."""
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
        """Return the header at a position, and the flaw of the batch there, or ""."""
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
        """Return position and base offset of the next valid batch: the one that follows, if the damaged batch's header
        gives its position, else the first bytes that form one."""
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
        if header.is_control and header.producer_id >= 0:
            self._end_transaction(header, self._window.get(position, header.size))
        else:  # markers are not users' records
            self.records += header.count
            if header.is_transactional and header.producer_id >= 0:
                self._producers.update(header, header.base_offset, 0)
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        if self._epochs is not None and header.last_offset >= self._log_start_offset:
            self._check_epoch(self._epochs, position, header)
        self._on_batch(position, header)
        self.end_offset, self.epoch = header.next_offset, header.leader_epoch

    def _end_transaction(self, header: BatchHeader, batch: memoryview) -> None:
        try:
            marker = read_marker(batch)
        except KafkaError:
            marker = None
        ended = self._producers.end(header, marker, header.base_offset, 0)
        if marker is not None and not marker.commit:
            self.aborts.add((header.producer_id, header.base_offset))
        if ended is not None:
            self.aborted.append(ended)

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
    """A damaged part of the segment: index entries that name a batch in it cannot be judged."""

    @property
    def position(self) -> int: ...
    @property
    def next_position(self) -> int: ...


def read_entries(file: File, segment_bytes: int, entry_bytes: int) -> bytes:
    """Read an index file's entries. Raises IndexDamaged if it is longer than an index of this segment can be."""
    size = file.size()
    if size > entry_bytes * (segment_bytes // _BATCH_BYTES_MIN + 1):
        raise IndexDamaged(f"{size} bytes are more than an index of {segment_bytes} bytes of log can have")
    return file.pread(size, 0)


class OffsetIndexCheck:
    """Check that every entry names a batch, with the offset of its last record."""

    def __init__(self, file: File, base_offset: int, segment_bytes: int) -> None:
        """Parse the index. Raises IndexDamaged for bytes that are not one."""
        index = OffsetIndex.parse(read_entries(file, segment_bytes, ENTRY_BYTES), max(1, segment_bytes))
        self._entries = list(zip(index.positions, index.offsets, strict=True))
        self._base_offset = base_offset
        self._next = 0
        self._unmatched: list[int] = []
        self.reason = ""

    def batch(self, position: int, header: BatchHeader) -> None:
        """Check entries against the next valid batch."""
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
        """Check the remaining entries, as no further batch follows."""
        self._unmatched += [at for at, _ in self._entries[self._next :]]
        for at in self._unmatched:
            if not self.reason and not any(part.position <= at < part.next_position for part in damaged):
                self.reason = f"it names a batch at byte {at}, where none begins"


class TimeIndexCheck:
    """Check that every entry names the largest timestamp up to a batch."""

    def __init__(self, file: File, base_offset: int, segment_bytes: int) -> None:
        """Parse the index. Raises IndexDamaged for bytes that are not a time index."""
        index = TimeIndex.parse(read_entries(file, segment_bytes, TIME_ENTRY_BYTES))
        self._entries = list(zip(index.timestamps, index.offsets, strict=True))
        self._base_offset = base_offset
        self._next = 0
        self._newest = -1
        self.last = index.last()
        """Newest timestamp in the index with its relative offset; None if the index is empty."""
        self.reason = ""

    def batch(self, header: BatchHeader) -> None:
        """Check entries against the next valid batch."""
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
        """Check the remaining entries, as no further batch follows."""
        if self._next < len(self._entries) and not self.reason:
            named = self._base_offset + self._entries[self._next][1]
            self.reason = f"it names offset {named}, which the segment does not reach"
