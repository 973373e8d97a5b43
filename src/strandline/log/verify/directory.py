"""Looking through all of a data directory: `strandline log verify`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace

from strandline.log.checkpoint_copy import CHECKPOINT_COPY, Believed, decode_copy, read_checkpoints
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
from strandline.log.disk import Disk, read_file
from strandline.log.loading import DELETED, KEPT_STRAY, METADATA_DIRECTORY, ROTTEN, STRAY
from strandline.log.log_dir import read_meta_properties
from strandline.log.overlay import OverlayDisk
from strandline.log.segment import LOG_SUFFIX
from strandline.log.verify.flaws import AtStart, Counted, Flaw, Kind
from strandline.log.verify.partition_scan import LEFT_OVER, Known, PartitionScan, ScannedPartition
from strandline.log.verify.trial import Trial
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock

Progress = Callable[[int, int], None]
"""Told of bytes that were read, and of all there are."""

JudgeMetadata = Callable[[OverlayDisk, str, ScannedPartition | None], list[Flaw]]
"""Starts the quorum of a node over a disk that changes nothing, and says what it does about the flaws of its log and of
the files beside it. It gets the disk, the data directory, and what was found in the log."""

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


@dataclass(slots=True)
class Verified:
    """What was found in a directory.

    Attributes:
        clean: the last process stopped cleanly.
        left_out: flaws beyond the first thousand of a partition.
    """

    path: str
    meta: MetaProperties | None = None
    clean: bool = False
    counted: Counted = field(default_factory=Counted)
    flaws: list[Flaw] = field(default_factory=list)
    left_out: int = 0


class Verification:
    """One run."""

    def __init__(self, disk: OverlayDisk, path: str, clock: Clock, progress: Progress, metadata: JudgeMetadata) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._metadata = metadata
        self._progress = progress
        self._done = 0
        self._total = 0
        self._believed = Believed({}, {}, False)
        self._partitions: dict[str, ScannedPartition] = {}
        self.result = Verified(path)

    def run(self) -> Verified:
        """Read everything, then start on it.

        Raises:
            ConfigError: this is no data directory.
            DiskError: it cannot be read.
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
        """What the start goes by is what the checkpoints and their copy say together."""
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
                try:
                    own = decode(path, read_file(self._disk, path))
                except CorruptLogError as error:
                    self._add(name, Kind.CHECKPOINT, error.reason, position=error.position)
                else:
                    if name in copies and own != decode_offsets(path, copies[name]):
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

    # ------------------------------------------------------------------ what a start does

    def _judge(self) -> None:
        result = self.result
        trial = Trial(self._disk, self._path, self._clock)
        with closing(trial):
            of_directory = [_judged(flaw, trial, None) for flaw in result.flaws]
            result.flaws = [_aside(flaw) for flaw in of_directory]
            for name, partition in sorted(self._partitions.items()):
                result.left_out += partition.list.left_out
                if name == METADATA_DIRECTORY:
                    continue
                result.flaws += [_judged(flaw, trial, partition) for flaw in partition.list.flaws]
        for path, does in trial.refused.items():
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


def _judged(flaw: Flaw, trial: Trial, partition: ScannedPartition | None) -> Flaw:
    at_start, does = trial.judge(flaw, partition)
    return replace(flaw, at_start=at_start, does=does)


def _aside(flaw: Flaw) -> Flaw:
    """The node itself removes some of what a start leaves where it is."""
    does = next((does for suffix, does in _ASIDE_DOES.items() if flaw.file.endswith(suffix)), "")
    return replace(flaw, does=does) if does else flaw


def size_of(disk: Disk, path: str) -> int:
    """Bytes of a file."""
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()
