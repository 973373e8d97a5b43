"""Opening of a partition's directory: the files of the last process are read, judged, and repaired or refused.

After a clean stop only the tail of the last segment is read. After any other stop every batch from the recovery point
on is read and its CRC checked. A partial batch at the end is cut: it was never synced, so never acknowledged. But
damage that is followed by a good batch, or lies below what was known to be durable, is not a torn tail (rule E5). It is
refused with file, byte and offset, because cutting there would silently drop acknowledged records.

A killed process leaves every completed write in the page cache, so then a hole before a good batch is damage. A power
cut may lose unsynced writes in any order, and such a hole is legal above the recovery point. `Disk.boot_id` tells the
two apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import structlog

from strandline.log.batch import HEADER_SIZE
from strandline.log.config import LogConfig
from strandline.log.disk import Disk, DiskFull, File
from strandline.log.epochs import LeaderEpochs, epochs_agree, epochs_from_batches, load_epochs
from strandline.log.log_state import IndexCache, LogParts
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import ProducerStates, Snapshots, rebuild_aborted
from strandline.log.rewriting import Rewriting, restore_names
from strandline.log.scan import Damage, ScannedBatch, find_batch_after, only_zeros, scan_batches, written_end
from strandline.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    IndexDamaged,
    Segment,
    delete_files,
    pread_blocking,
)
from strandline.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX, finish_swaps
from strandline.proto.errors import CorruptLogError, KafkaError
from strandline.proto.ids import ZERO_UUID, TopicId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.log")

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_INDEX_NAME = re.compile(r"(\d{20})\.(index|timeindex|txnindex|snapshot)")
_LEFTOVERS = (".tmp", DELETED_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)

RECORD_BYTES_MIN = 7
"""Smallest record of format 2: length, attributes, deltas of time and offset, no key, no value, no headers."""

ADVICE = (
    "Nothing was changed. Once another replica leads this partition, its directory is set aside and the partition is "
    "fetched again. If it has other replicas and none of them leads, move its directory away and restart. If this is "
    "the only copy, restore the file from a backup, or cut it at that byte and accept that everything from that offset "
    "on is lost."
)


def open_log(
    disk: Disk,
    directory: str,
    topic_partition: TopicPartition,
    *,
    clock: Clock,
    topic_id: TopicId = ZERO_UUID,
    config: LogConfig | None = None,
    last_life: LastLife | None = None,
    cache: IndexCache | None = None,
    sync: bool = True,
    rewriting: Rewriting | None = None,
    before_cut: Callable[[int], None] = lambda _: None,
) -> PartitionLog:
    """Open the log of a directory, which is made if it is missing; ready for appends.

    `rewriting`: set if data that are read may be only in the page cache; they are written again unless the stop was
    clean.

    `before_cut` is called right before a tail that is not merely zeros is cut: a torn write, or a batch that rotted. It
    gets an offset that the tail cannot have reached (unless it was compressed), and can make durable what the cut will
    hide from later starts.

    With `sync=False` the caller must call `sync_now` (for many logs at once); until then `durable_offset` means
    nothing.

    Raises:
        CorruptLogError: damage in the middle, see above; nothing was changed.
        DiskError: the disk failed.
    """
    examined = ExaminedLog(
        disk,
        directory,
        topic_partition,
        clock=clock,
        topic_id=topic_id,
        config=config,
        last_life=last_life,
        rewriting=rewriting,
    )
    if examined.is_cut:
        before_cut(examined.tail_below)
    return examined.open(cache, sync=sync)


class ExaminedLog:
    """State of a log's directory as found, before anything in it is cut.

    So a caller can store what later starts will no longer see (`is_cut`) before it calls `open`.

    The constructor and `open` raise the errors of `open_log`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        topic_partition: TopicPartition,
        *,
        clock: Clock,
        topic_id: TopicId = ZERO_UUID,
        config: LogConfig | None = None,
        last_life: LastLife | None = None,
        rewriting: Rewriting | None = None,
    ) -> None:
        disk.mkdir(directory)
        restore_names(disk, directory)
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self._clock = clock
        now_ms = int(clock.monotonic_ms())
        self._opening = _Opening(disk, directory, now_ms, config or LogConfig(), last_life or LastLife())
        self._opening.rewriting = None if self._opening.last_life.clean else rewriting
        with self._refusing():
            self._opening.examine()

    @property
    def last_life(self) -> LastLife:
        """State in which the last process left the log."""
        return self._opening.last_life

    @property
    def log_end_offset(self) -> int:
        """Log end offset after recovery."""
        return self._opening.log_end_offset

    @property
    def is_cut(self) -> bool:
        """True if `open` will cut a tail that is not zeros."""
        return self._opening.is_cut

    @property
    def tail_below(self) -> int:
        """Offset that the tail which `open` will cut cannot have reached, unless it was compressed."""
        return self._opening.tail_below

    def open(self, cache: IndexCache | None = None, *, sync: bool = True) -> PartitionLog:
        """Cut what must be cut, and open the log; see `open_log`."""
        opening = self._opening
        with self._refusing():
            opening.repair()
            producers = opening.load_producers()
        log = PartitionLog(
            LogParts(
                disk=opening.disk,
                clock=self._clock,
                directory=opening.directory,
                topic_partition=self.topic_partition,
                topic_id=self.topic_id,
                config=opening.config,
                segments=opening.segments,
                snapshots=opening.snapshots,
                epochs=opening.epochs,
                producers=producers,
                log_start_offset=opening.log_start_offset,
                log_end_offset=opening.log_end_offset,
                cache=cache or IndexCache(),
            )
        )
        log.must_sync(opening.touched, opening.opened, [opening.directory] if opening.names_changed else [])
        if sync:  # rule A9/what-a-restart-finds-is-not-synced
            log.sync_now()
        return log

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            # Batches are not walked after a clean stop or in the same boot; a later reader met damage.
            mark("damage-refused")
            path = str(error.figures.get("file", self._opening.directory))
            position = int(error.figures.get("position", 0))
            raise CorruptLogError(path, position, None, error.message, ADVICE) from error


class _Opening:
    """One directory being opened: by `examine`, then `repair`."""

    def __init__(self, disk: Disk, directory: str, now_ms: int, config: LogConfig, last_life: LastLife) -> None:
        self.disk = disk
        self.directory = directory
        self.now_ms = now_ms
        self.config = config
        self.last_life = last_life
        self.rewriting: Rewriting | None = None
        self.segments: list[Segment] = []
        self.touched: list[File] = []
        self.opened: list[File] = []
        self.names_changed = False
        self.log_start_offset = last_life.log_start_offset
        self.log_end_offset = last_life.log_start_offset
        self.epochs = LeaderEpochs()
        self.snapshots = Snapshots(disk, directory, [])
        self.is_cut = False
        self.tail_below = 0
        self._scanned: range | None = None
        """Range of the segments whose batches were read; later segments are deleted. None if none were read."""
        self._epochs_known = False
        self._reindexed: set[Segment] = set()
        """Segments whose index of aborted transactions must be built anew."""

    def examine(self) -> None:
        """Read, in this order: log start, files, segments, epochs, batches. Batches, and what follows them, are not cut
        yet."""
        epochs = load_epochs(self.disk, self.directory)
        self.log_start_offset = self.log_end_offset = self.last_life.start_by(epochs)
        bases, index_names = self._tidy_names()
        self.segments = [Segment(self.disk, self.directory, base, created_ms=self.now_ms) for base in bases]
        if not self.segments:
            created = Segment(self.disk, self.directory, self.log_start_offset, created_ms=self.now_ms, create=True)
            self.segments.append(created)
            self.touched.append(created.file)
            self.names_changed = True
        first, start = self.segments[0], self.log_start_offset
        if self.last_life.has_lost_start(first.base_offset):  # schedule 48/first-segment-may-vanish
            mark("damage-refused")
            known = max(start, self.last_life.start_claimed)
            reason = f"the log begins at offset {first.base_offset}, and is to begin at {known}: a segment is missing"
            raise CorruptLogError(first.file.path, 0, first.base_offset, reason, ADVICE)
        self.log_start_offset = max(start, first.base_offset)
        self._tell_disbelief()
        self._epochs_known = epochs is not None
        self.epochs = epochs or LeaderEpochs()
        if self.last_life.clean:
            mark("clean-start")
            self._load_clean(index_names)
        else:
            self.names_changed = True  # a life that was killed may not have come to syncing a name it made
            self._recover(index_names)
            if self.rewriting is not None:
                self.rewriting.names_in(self.directory)

    def _tell_disbelief(self) -> None:
        claimed = self.last_life.start_claimed
        if claimed > self.log_start_offset:
            mark("log-start-not-believed")
            log.warning(
                "one file alone says where a log begins, and is not believed: it begins where two say",
                directory=self.directory,
                said=claimed,
                log_start=self.log_start_offset,
            )

    def repair(self) -> None:
        """Cut the torn tail, then remove what that made stale."""
        if self._scanned is not None:
            self._cut(self._scanned)
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        if not self._epochs_known or self._first_epoch_is_late():  # schedule 20/damaged-epoch-checkpoint-is-empty
            self.epochs = epochs_from_batches(self.segments)
        self.epochs.bound(self.log_start_offset, self.log_end_offset)
        if self._epochs_contradict(self.segments, self.log_end_offset):
            self.epochs = epochs_from_batches(self.segments)
            self.epochs.bound(self.log_start_offset, self.log_end_offset)
        if self.snapshots.delete_above(self.log_end_offset):
            self.names_changed = True
        self.snapshots.delete_strays([segment.base_offset for segment in self.segments])

    def load_producers(self) -> ProducerStates:
        """Return the state at the log's end. Each closed segment has a snapshot of its end then, as after a roll."""
        written = self.snapshots.fill(self.segments, self.now_ms)  # schedule 86/recovered-segments-have-no-snapshots
        if written:
            self.opened += written
            self.names_changed = True
        self._index_aborted()
        return self.snapshots.load(self.segments, self.log_end_offset, self.now_ms)

    def _index_aborted(self) -> None:
        """Build the index of aborted transactions for segments that were read, or whose other indexes were missing."""
        for segment in self.segments:
            if segment in self._reindexed:  # rule C10/aborted-transactions-are-forgotten-by-a-start
                rebuild_aborted(self.snapshots, self.segments, segment, self.now_ms)
                self.opened += segment.write_indexes()
                self.names_changed = True

    def _tidy_names(self) -> tuple[list[int], set[str]]:
        """Return the segments' base offsets and the names of index files; delete leftover and stale files."""
        names = self.disk.listdir(self.directory)
        if finish_swaps(self.disk, self.directory, names):  # schedule 75/swaps-are-leftovers
            self.names_changed = True
            names = self.disk.listdir(self.directory)
        for name in [name for name in names if name.endswith(_LEFTOVERS)]:
            self.disk.unlink(f"{self.directory}/{name}")
            self.names_changed = True
        bases = sorted(int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))
        indexes = {name for name in names if _INDEX_NAME.fullmatch(name)}
        self.snapshots = Snapshots(self.disk, self.directory, sorted(indexes))
        gone = [base for base, following in pairwise(bases) if following <= self.log_start_offset]
        # schedule 86/the-log-start-outruns-its-snapshot
        while gone and not self.snapshots.is_readable(bases[len(gone)]):
            gone.pop()  # the log start was durable before it: these records still have to name their producers
        if gone and self.rewriting is not None:  # schedule 89/starts-rely-on-a-snapshot-in-the-page-cache
            try:  # the snapshot may be only in the page cache, and must outlive those segments
                self.snapshots.write_again(bases[len(gone)])
            except DiskFull:
                gone.clear()
        for base in gone:
            delete_files(self.disk, self.directory, base)
            self.names_changed = True
        kept = bases[len(gone) :]
        for name in sorted(indexes):
            base = int(name[:20])
            if not name.endswith(SNAPSHOT_SUFFIX) and base not in kept:
                indexes.discard(name)
                if base not in gone:
                    self.disk.unlink(f"{self.directory}/{name}")
        self.snapshots.delete_below(kept[0] if kept else 0)
        return kept, indexes

    def _epochs_contradict(self, segments: list[Segment], end_offset: int) -> bool:
        """True if the checkpoint contradicts these segments, which end at `end_offset` (schedule 70)."""
        # schedule 70/rotten-epochs-are-believed, rule B8/stale-epochs-are-believed/2
        if not self._epochs_known or epochs_agree(self.epochs, segments, self.log_start_offset, end_offset):
            return False
        mark("epochs-rotten")
        log.warning("a leader epoch checkpoint contradicts the log, and is built anew", directory=self.directory)
        self._epochs_known = False
        return True

    def _first_epoch_is_late(self) -> bool:
        """True if the checkpoint was written for a log start that did not become durable, so that older records are
        back."""
        entries = self.epochs.entries()
        return bool(entries) and self.log_start_offset < min(entries[0][1], self.log_end_offset)

    # ------------------------------------------------------------------ after a clean stop

    def _load_clean(self, index_names: set[str]) -> None:
        """Open a log whose files were all synced; find its end by the last index entry and the few batches after it."""
        self._rebuild_missing_indexes(self.segments, index_names)
        self._check_ends(self.segments[:-1])
        last = self.segments[-1]
        index, _ = last.active_indexes()
        start = index.positions[-1] if len(index) else 0
        end = last.base_offset
        try:
            for _, header in last.headers(start, pread_blocking):
                end = header.next_offset
        except KafkaError:
            self._recover_from(len(self.segments) - 1, known_durable=True)
            return
        last.resume(start)
        self.log_end_offset = end
        try:
            last.load_aborted(pread_blocking)
        except IndexDamaged:
            self._reindexed.add(last)

    def _rebuild_missing_indexes(self, segments: list[Segment], index_names: set[str]) -> None:
        for segment in segments:
            name = f"{segment.base_offset:020d}"
            if segment.size and not {name + INDEX_SUFFIX, name + TIME_INDEX_SUFFIX} <= index_names:
                segment.rebuild_indexes(self.config.index_interval_bytes)
                self._reindexed.add(segment)

    def _check_ends(self, segments: list[Segment]) -> None:
        """Check that segments which are not scanned reach to the next one at least. Raises CorruptLogError."""
        for segment, following in zip(segments, self.segments[1:], strict=False):
            try:
                end = self._end_without_zeros(segment)
            except KafkaError as error:
                position, offset, reason = int(error.figures["position"]), None, error.message
            else:
                position, offset, reason = segment.size, end, f"the next segment begins at {following.base_offset}"
                if end == following.base_offset:
                    continue
            reason += "; this part of the log was durable once"
            mark("damage-refused")
            raise CorruptLogError(segment.file.path, position, offset, reason, ADVICE)

    def _end_without_zeros(self, segment: Segment) -> int:
        """Return the segment's end offset. Zeros after its batches are left by a start that was cut short while it set
        the size again (`Rewriting.size`). Raises KafkaError."""
        try:
            return segment.end_offset()
        except KafkaError as error:
            position = int(error.figures["position"])
            if not only_zeros(segment.file, position, segment.size):  # rule A9/zeros-behind-a-closed-segment-are-damage
                raise
        segment.file.truncate(position)
        segment.size = segment.allocated = segment.allocate_at = position
        self.touched.append(segment.file)
        return segment.end_offset()

    # ------------------------------------------------------------------ after any other stop

    def _recover(self, index_names: set[str]) -> None:
        first = 0  # the segment that was active at the recovery point: how it was closed since need not be durable
        for i, segment in enumerate(self.segments):
            if segment.base_offset < self.last_life.recovery_point:
                first = i
        self._rebuild_missing_indexes(self.segments[:first], index_names)
        self._check_ends(self.segments[:first])
        # A snapshot above may name records that were lost with the power, while older, truncated ones came back. One up
        # to the log start has committed records only, which may no longer be on this disk (schedule 86). The checkpoint
        # may be an older one: the first segment begins at or below the log start that was durable once.
        # schedule 86/an-older-log-start-forgets-producers
        log_start_offset = max(self.last_life.log_start_offset, self.segments[0].base_offset)
        # rule C2/snapshots-of-lost-records, schedule 86/producers-of-deleted-records-are-forgotten
        self.snapshots.delete_above(max(self.last_life.recovery_point, log_start_offset))
        self._recover_from(first, known_durable=False)

    def _recover_from(self, first: int, *, known_durable: bool) -> None:
        """Read every batch of the segments from `first` on; find where to cut, or raise CorruptLogError."""
        expected = self.segments[first].base_offset
        # schedule 70/rotten-epochs-are-scanned-by
        if first and self._epochs_contradict(self.segments[:first], expected):
            self.epochs = LeaderEpochs()
        epoch: int = self.epochs.epoch_at(expected - 1)
        stated = self.epochs.entries()
        # rule B8/stale-epochs-are-believed
        self.epochs.truncate_from_end(expected)  # later epochs are taken from the batches only
        damage: Damage | None = None
        i = first
        while i < len(self.segments) and damage is None:
            segment = self.segments[i]
            if segment.base_offset != expected:  # rule E5/missing-segment-is-accepted
                i -= 1
                before = self.segments[i]
                damage = Damage(before.size, expected, f"the next segment begins at offset {segment.base_offset}")
                break
            end = 0
            segment.reset_indexes()
            segment.reset_aborted()
            # rule A9/content-not-written-again
            again = None if self.rewriting is None else self.rewriting.content(segment.file)
            for found in scan_batches(segment.file, expected, epoch):
                if isinstance(found, Damage):
                    damage = found
                    break
                self._take_in(segment, found)
                if again is not None and found.header.next_offset > self.last_life.recovery_point:
                    again.take(found.position, found.data)
                expected, epoch = found.header.next_offset, found.header.leader_epoch
                end = found.position + found.header.size
            if again is not None:
                again.end()
            segment.size = end
            i += damage is None
        if damage is None:
            i -= 1
            # rule E5/lost-tail-is-accepted
            if expected < self.last_life.recovery_point and self.last_life.short_is_refused:
                damage = Damage(self.segments[i].size, expected, "the log ends here")
        if damage is not None:
            self._judge(i, damage, known_durable)
            mark("torn-tail-cut")
            self.is_cut = True
            self.tail_below = expected + self._records_max(i, damage)
        self._scanned = range(first, i + 1)
        self.log_end_offset = expected
        if self.epochs.entries() == stated:
            self.epochs.written = self.epochs.version

    def _take_in(self, segment: Segment, found: ScannedBatch) -> None:
        header = found.header
        segment.noted(
            found.position, header.size, header.last_offset, header.max_timestamp, self.config.index_interval_bytes
        )
        if header.is_control and header.producer_id >= 0:
            self._reindexed.add(segment)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)

    def _judge(self, i: int, damage: Damage, known_durable: bool) -> None:
        """Return if everything from the damage on may be cut; else raise CorruptLogError."""
        file = self.segments[i].file
        reason = ""  # rule E5/torn-tail-is-refused
        if known_durable:  # rule E5/damage-after-a-clean-stop-is-cut
            reason = "the node had been stopped cleanly, so what stood there was durable"
        elif damage.offset < self.last_life.durable_end:  # rule E5/durable-once-is-cut
            reason = f"everything below offset {self.last_life.durable_end} was durable once"
        elif self.last_life.same_boot:  # rule E5/killed-is-like-a-power-cut, rule E5/power-cut-is-like-a-kill
            following = find_batch_after(file, damage.position, damage.offset)
            if following is not None:
                reason = f"a good batch (offset {following[1]}) follows at byte {following[0]}, so this is no torn tail"
            for later in self.segments[i + 1 :]:
                # rule E5/later-segments-are-not-looked-at
                if not reason and not only_zeros(later.file, 0, later.file.size()):
                    reason = f"{later.file.path} follows, so this is no torn tail"
        if reason:  # rule E5/damage-in-the-middle-is-cut
            mark("damage-refused")
            raise CorruptLogError(file.path, damage.position, damage.offset, f"{damage.reason}; {reason}", ADVICE)

    def _records_max(self, i: int, damage: Damage) -> int:
        """Return more records than can lie from the damage on; zeros at a batch's end look as if nothing had been
        written."""
        files = [segment.file for segment in self.segments[i:]]
        ends = [written_end(file, 0) for file in files[1:]]
        return (written_end(files[0], damage.position) - damage.position + sum(ends) + HEADER_SIZE) // RECORD_BYTES_MIN

    def _cut(self, scanned: range) -> None:
        """Make the last scanned segment the log's last, and every scanned file as long as its batches. Later segments
        are deleted newest first, each durably, so that a power cut leaves no gap.
        """
        last = scanned[-1]
        for later in reversed(self.segments[last + 1 :]):
            later.close()
            delete_files(self.disk, self.directory, later.base_offset)
            self.disk.sync_dir(self.directory)
        del self.segments[last + 1 :]
        for i in scanned:
            segment = self.segments[i]
            if self.rewriting is not None:
                self.rewriting.size(segment.file, segment.size)
            elif segment.allocated != segment.size:
                segment.file.truncate(segment.size)
            segment.allocated = segment.allocate_at = segment.size
            self.touched.append(segment.file)  # rule E5/recovered-is-not-synced
            if i < last:
                self.opened += segment.seal()
