"""Verification of a whole data directory: `strandline log verify`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace

from strandline.log.checkpoints import CLEAN_SHUTDOWN as CLEAN_MARK
from strandline.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    MetaProperties,
    decode_cleaned,
    decode_offsets,
    read_clean_shutdown,
)
from strandline.log.disk import METADATA_DIRECTORY, Disk, DiskError, read_file
from strandline.log.findings import LogCondition
from strandline.log.loading import DELETED, KEPT_STRAY, ROTTEN, STRAY
from strandline.log.log_dir import LogDir, read_meta_properties
from strandline.log.offset_checkpoints import CHECKPOINT_COPY, Believed, decode_copy, read_checkpoints
from strandline.log.overlay import OverlayDisk
from strandline.log.partition_log import PartitionLog
from strandline.log.segment import LOG_SUFFIX, pread_blocking
from strandline.log.verify.flaws import AtStart, Counted, Flaw, Kind
from strandline.log.verify.partition_scan import LEFT_OVER, Known, PartitionScan, ScannedPartition
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock

Progress = Callable[[int, int], None]
"""Called with the number of bytes that were read so far, and of all bytes."""

JudgeMetadata = Callable[[OverlayDisk, str, ScannedPartition | None], list[Flaw]]
"""Starts a node's quorum over a disk that changes nothing, and returns what the start does about the flaws of its log
and of the files beside it. Takes the disk, the data directory, and the result of the scan of the log."""

_PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")

_ASIDE = {
    DELETED: "a partition that was being deleted",
    KEPT_STRAY: "a partition that was set aside when the cluster knew no topic at all: perhaps it was another cluster",
    STRAY: "a stray partition: its topic was deleted, or its replica moved, while the node was down",
    ROTTEN: "a damaged log that was set aside until its replica is in sync",
}
_ASIDE_DOES = {
    KEPT_STRAY: "the node never removes it: rename it back if the topic is there, or delete it",
    STRAY: "the node removes it log.stray.delete.delay.ms after it was set aside, if the metadata agree",
    ROTTEN: "the node removes it once its replica is in sync again",
}


_CUT = (
    "the start cuts the log here. The replica is not elected on the strength of what is left: it fetches the rest from "
    "its leader first"
)
_NOT_READ = (
    "no start reads this far back. Who reads it gets CORRUPT_MESSAGE and nothing else; another replica takes over, and "
    "the node fetches it again from there. Where no other replica has it, what lies before and behind stays readable"
)
_OFFLINE = (
    "the start refuses this log and changes nothing in it; the node serves its other partitions. Once another replica "
    "leads the partition, this directory is set aside and fetched again. If this is the only copy, restore the topic "
    "from a backup (`strandline topic restore`)"
)
_SHORT = (
    "the start tells the controller that this replica lacks something. It is not elected on the strength of what is "
    "left, and fetches the rest from its leader"
)
_NO_START = "the node does not start"
_COPIED = (
    "of a checkpoint and its copy the one that is whole counts, and of two that differ the lower offset. Where neither "
    "can be read the logs say what there is, and count as cut. The node writes all of them anew"
)
_BUILT_ANEW = "it is built anew from the segment"
_TIMES = (
    "no start notices: answers by time are wrong until retention comes to the segment, which goes by its batches and "
    "builds it anew. So does `strandline log repair`, or the next start where the file is moved away"
)

_ABORTED = (
    "nothing notices: readers of committed records may get aborted ones. `strandline log repair` has it "
    "built anew, and so has the next start where the segment's indexes are moved away"
)


@dataclass(slots=True)
class Verified:
    """Result of the verification of a directory.

    Attributes:
        clean: True if the last process stopped cleanly.
        left_out: number of flaws beyond the first thousand of a partition.
    """

    path: str
    meta: MetaProperties | None = None
    clean: bool = False
    counted: Counted = field(default_factory=Counted)
    flaws: list[Flaw] = field(default_factory=list)
    left_out: int = 0


class Verification:
    """One verification of a data directory."""

    def __init__(self, disk: OverlayDisk, path: str, clock: Clock, progress: Progress, metadata: JudgeMetadata) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._metadata = metadata
        self._progress = progress
        self._done = 0
        self._total = 0
        self._believed = Believed({}, {}, {}, False)
        self._partitions: dict[str, ScannedPartition] = {}
        self.result = Verified(path)

    def run(self) -> Verified:
        """Read everything, then do a dry start on it.

        Raises:
            ConfigError: the path is no data directory.
            DiskError: the directory cannot be read.
        """
        disk, path, result = self._disk, self._path, self.result
        try:
            result.meta = read_meta_properties(disk, path)
        except CorruptLogError as error:
            self._add(META_PROPERTIES, Kind.IDENTITY, error.reason)
        result.clean = read_clean_shutdown(disk, f"{path}/{CLEAN_MARK}") is not None
        names = disk.listdir(path)
        self._read_offsets()
        directories = [name for name in names if disk.is_directory(f"{path}/{name}")]
        partitions = [name for name in directories if _PARTITION.fullmatch(name)]
        self._left_overs(names)
        self._find_missing(partitions)
        self._total = sum(self._log_bytes(name) for name in partitions)
        for name in partitions:
            self._scan(name)
        self._progress(self._total, self._total)
        self._judge()
        return result

    # ------------------------------------------------------------------ the directory's own files

    def _read_offsets(self) -> None:
        """Read the offset checkpoints and their copy, which a start uses together."""
        copies: dict[str, bytes] = {}
        path = f"{self._path}/{CHECKPOINT_COPY}"
        if self._disk.exists(path):
            try:
                copies = decode_copy(path, read_file(self._disk, path))
            except CorruptLogError as error:
                self._add(CHECKPOINT_COPY, Kind.CHECKPOINT, error.reason, position=error.position)
        for name in OFFSET_CHECKPOINTS:
            path = f"{self._path}/{name}"
            if self._disk.exists(path):
                decode = decode_cleaned if name == CLEANER_OFFSETS else decode_offsets
                data = read_file(self._disk, path)
                try:
                    decode(path, data)
                except CorruptLogError as error:
                    self._add(name, Kind.CHECKPOINT, error.reason, position=error.position)
                else:
                    if copies.get(name, data) != data:
                        self._add(name, Kind.CHECKPOINT, f"it differs from what {CHECKPOINT_COPY} says of it")
        self._believed = read_checkpoints(self._disk, self._path)

    def _left_overs(self, names: Iterable[str]) -> None:
        for name in names:
            for suffix, what in (*_ASIDE.items(), *LEFT_OVER.items()):
                if name.endswith(suffix):
                    self._add(name, Kind.LEFT_OVER, what)
                    break

    def _find_missing(self, present: list[str]) -> None:
        aside = {name.rpartition(".")[0] for name in self._disk.listdir(self._path) if name.endswith((DELETED, STRAY))}
        ends = [self._believed.offsets.get(name, {}) for name in (HIGH_WATERMARKS, RECOVERY_POINTS)]
        for tp in sorted({tp for offsets in ends for tp in offsets}):
            end = max(offsets.get(tp, 0) for offsets in ends)
            name = str(tp)
            if end and name not in present and name not in aside:
                reason = f"the directory is missing, and everything below offset {end} was durable in it"
                self._partitions[name] = ScannedPartition(name)
                flaw = Flaw(file=name, partition=name, kind=Kind.SHORT, found=reason, offset=0)
                self._partitions[name].list.add(flaw)

    def _add(self, name: str, kind: Kind, reason: str, *, position: int = -1) -> None:
        self.result.flaws.append(Flaw(file=name, partition="", kind=kind, found=reason, position=position))

    # ------------------------------------------------------------------ logs

    def _log_bytes(self, name: str) -> int:
        directory = f"{self._path}/{name}"
        return sum(
            size_of(self._disk, f"{directory}/{entry}")
            for entry in self._disk.listdir(directory)
            if entry.endswith(LOG_SUFFIX)
        )

    def _scan(self, name: str) -> None:
        match = _PARTITION.fullmatch(name)
        if match is None:
            return
        tp = TopicPartition(match[1], int(match[2]))
        is_metadata = name == METADATA_DIRECTORY
        believed = self._believed
        known = Known(
            log_start_offset=believed.offsets.get(LOG_STARTS, {}).get(tp, 0),
            start_claimed=believed.starts_claimed.get(tp, 0),
            recovery_point=believed.offsets.get(RECOVERY_POINTS, {}).get(tp, 0),
            high_watermark=believed.offsets.get(HIGH_WATERMARKS, {}).get(tp, 0),
            clean=self.result.clean,
            start_is_known=LOG_STARTS in believed.offsets,
            has_topic_id=not is_metadata,
        )

        def read(size: int) -> None:
            self._done += size
            self._progress(self._done, self._total)

        self._partitions[name] = PartitionScan(
            self._disk, self._path, name, known, counted=self.result.counted, progress=read
        ).run()

    # ------------------------------------------------------------------ actions of a start

    def _judge(self) -> None:
        result = self.result
        dry_start = DryStart(self._disk, self._path, self._clock)
        with closing(dry_start):
            of_directory = [_judged(flaw, dry_start, None) for flaw in result.flaws]
            result.flaws = [_aside(flaw) for flaw in of_directory]
            for name, partition in sorted(self._partitions.items()):
                result.left_out += partition.list.left_out
                if name == METADATA_DIRECTORY:
                    continue
                result.flaws += [_judged(flaw, dry_start, partition) for flaw in partition.list.flaws]
        for path, does in dry_start.refused.items():
            file = path.removeprefix(f"{self._path}/")
            if all(flaw.file != file for flaw in result.flaws):
                result.flaws.append(
                    Flaw(
                        file=file,
                        partition="",
                        kind=Kind.CHECKPOINT,
                        found="it cannot be read",
                        at_start=AtStart.REFUSE,
                        does=does,
                    )
                )
        result.flaws += self._metadata(self._disk, self._path, self._partitions.get(METADATA_DIRECTORY))


def _judged(flaw: Flaw, dry_start: DryStart, partition: ScannedPartition | None) -> Flaw:
    at_start, does = dry_start.judge(flaw, partition)
    return replace(flaw, at_start=at_start, does=does)


def _aside(flaw: Flaw) -> Flaw:
    """Add the node's later action to a flaw, if its file is one that a start leaves in place."""
    does = next((does for suffix, does in _ASIDE_DOES.items() if flaw.file.endswith(suffix)), "")
    return replace(flaw, does=does) if does else flaw


def size_of(disk: Disk, path: str) -> int:
    """Return the size of a file in bytes."""
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


class DryStart:
    """One start of a node that changes nothing: the node's own recovery, over a disk that keeps writes in memory.

    Attributes:
        refused: reasons that the node would not start, by file.
    """

    def __init__(self, disk: OverlayDisk, path: str, clock: Clock) -> None:
        """Do the start at once. Raises DiskError."""
        self._disk = disk
        self._path = path
        self.refused: dict[str, str] = {}
        self._log_dir: LogDir | None = None
        try:
            self._log_dir = LogDir.open(disk, path, clock)
        except CorruptLogError as error:
            self.refused[error.path] = f"{_NO_START}. {error.advice}"
        except ConfigError as error:
            self.refused[f"{path}/{META_PROPERTIES}"] = f"{_NO_START}: {error.allowed}"

    def close(self) -> None:
        """Close all files."""
        if self._log_dir is not None:
            for log in self._log_dir.logs.values():
                log.close_files()

    def judge(self, flaw: Flaw, partition: ScannedPartition | None) -> tuple[AtStart, str]:
        """Return the action of the start for a flaw of a broker's log, or of the directory."""
        path = f"{self._path}/{flaw.file}"
        if path in self.refused:
            return AtStart.REFUSE, self.refused[path]
        if self._log_dir is None:
            return AtStart.REFUSE, _NO_START
        if flaw.kind is Kind.LEFT_OVER:
            return self._left_over(path)
        if flaw.kind is Kind.CHECKPOINT and not flaw.partition:
            return AtStart.HEAL, _COPIED
        if partition is None:
            return AtStart.IGNORE, "no start reads it"
        log_dir, tp = self._log_dir, _topic_partition(partition.name)
        if tp in log_dir.offline:
            error = log_dir.offline[tp]
            reason = f" ({error.reason})" if isinstance(error, CorruptLogError) else ""
            return AtStart.REFUSE, _OFFLINE + reason
        if flaw.kind is Kind.SHORT:
            return AtStart.HEAL, _SHORT
        if tp not in log_dir.logs:
            return AtStart.REMOVE, "the directory never held anything that was acknowledged: the start removes it"
        return self._of_log(flaw, log_dir, tp, partition)

    def _left_over(self, path: str) -> tuple[AtStart, str]:
        if not self._disk.exists(path):
            return AtStart.REMOVE, "the start removes it, or finishes what it is left of"
        return AtStart.IGNORE, "the start leaves it where it is"

    def _of_log(
        self, flaw: Flaw, log_dir: LogDir, tp: TopicPartition, partition: ScannedPartition
    ) -> tuple[AtStart, str]:
        log = log_dir.logs[tp]
        match flaw.kind:
            case Kind.BATCH | Kind.GAP:
                finding = log_dir.findings.all.get(tp)
                is_cut = finding is not None and finding.condition is not LogCondition.INTACT
                if flaw.offset >= log.log_end_offset:
                    return AtStart.CUT, _CUT if is_cut else "the start cuts it: nothing was written there"
                return AtStart.HEAL, _NOT_READ
            case Kind.EPOCHS:
                if flaw.offset < 0 or log.epoch_at(flaw.offset) == _stored_epoch(log, flaw.offset):
                    return AtStart.HEAL, "the start builds it anew from the batches"
                return AtStart.HEAL, _NOT_READ
            case Kind.TIME_INDEX if flaw.file in partition.believed:
                return AtStart.BELIEVE, _TIMES
            case Kind.ABORTED_INDEX if flaw.file in partition.believed:
                return AtStart.BELIEVE, _ABORTED
            case Kind.INDEX | Kind.TIME_INDEX | Kind.ABORTED_INDEX:
                return AtStart.HEAL, _BUILT_ANEW
            case Kind.SNAPSHOT:
                return self._snapshot(flaw, log)
            case _:
                return AtStart.HEAL, "the start goes on without it"

    def _snapshot(self, flaw: Flaw, log: PartitionLog) -> tuple[AtStart, str]:
        if not self._disk.exists(f"{self._path}/{flaw.file}"):
            return AtStart.HEAL, "the start goes by an older one, and by the batches behind it"
        newest = max((offset for offset in log.snapshots.offsets() if offset <= log.log_end_offset), default=-1)
        if flaw.file.endswith(f"{newest:020d}.snapshot"):
            says = "nothing notices: a batch that a producer sends again may be taken twice, or refused"
            return AtStart.BELIEVE, f"{says}. `strandline log repair` takes it away, and recovery does without"
        return AtStart.IGNORE, "a newer one is read"


def _topic_partition(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


def _stored_epoch(log: PartitionLog, offset: int) -> int:
    """Return the leader epoch in the header of the batch at `offset`; -1 if damage before it hides the batch."""
    try:
        for segment in log.segments:
            found = segment.find(offset, pread_blocking) if segment.base_offset <= offset else None
            if found is not None:
                return found[1].leader_epoch
    except (KafkaError, DiskError):
        pass
    return -1
