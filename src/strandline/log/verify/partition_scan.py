"""Looking through one partition's directory: its segments in order, their indexes, and the files beside them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from strandline.log.batch import BatchHeader
from strandline.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, decode_epochs, decode_partition_metadata
from strandline.log.disk import Disk, read_file
from strandline.log.epoch_recovery import load_epochs
from strandline.log.epochs import LeaderEpochs
from strandline.log.producer_state import SnapshotDamaged, SnapshotRow, decode_snapshot
from strandline.log.promises import LastLife
from strandline.log.rewriting import AWAY
from strandline.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    IndexDamaged,
    segment_name,
)
from strandline.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from strandline.log.verify.flaws import Counted, Flaw, FlawList, Kind
from strandline.log.verify.segment_scan import OffsetIndexCheck, SegmentScan, TimeIndexCheck
from strandline.proto.errors import CorruptLogError

LEFT_OVER = {
    DELETED_SUFFIX: "a file that retention or compaction has taken out of the log",
    CLEANED_SUFFIX: "a segment that compaction had not finished",
    SWAP_SUFFIX: "a segment that compaction has finished, and that had not taken the place of the old ones yet",
    ".part": "a snapshot of the metadata that was not finished",
    ".tmp": "a file that a process that was killed had not finished",
    AWAY: "a file that a start that was cut short had renamed",
}
"""By the end of the name."""

_NAME = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.snapshot)")


@dataclass(frozen=True, slots=True)
class Known(LastLife):
    """What the directory's own files say of a log."""

    has_topic_id: bool = True


@dataclass(slots=True)
class ScannedPartition:
    """What was found in one directory.

    Attributes:
        name: of the directory.
        log_end_offset: where the last whole batch ends.
        believed: time indexes that are wrong, and that a start takes as they are.
    """

    name: str
    log_start_offset: int = 0
    log_end_offset: int = 0
    list: FlawList = field(default_factory=FlawList)
    believed: set[str] = field(default_factory=set)


class PartitionScan:
    """One partition's directory."""

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
        """`progress` is told of bytes that were read."""
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
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
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
        """All are decoded. The newest one that can be is held against the batches."""
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
            self._rows = {row.last_offset: row for row in rows if row.last_offset >= 0}

    # ------------------------------------------------------------------ segments

    def _first_read(self, bases: list[int]) -> int:
        """Segments from this base on are read whole by the next start, which builds their indexes anew."""
        if self._known.clean:
            return 1 << 63
        return max((base for base in bases if base < self._known.recovery_point), default=0)

    def _scan(self, bases: list[int], epochs: LeaderEpochs | None) -> None:
        epoch = -1
        start = max(self._known.log_start_offset, bases[0] if bases else 0)
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
        return scan

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
        """The segment that was written to last has its indexes in memory while the node runs."""
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
