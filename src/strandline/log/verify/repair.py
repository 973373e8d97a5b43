"""Repair: does at once what a start would do, and more that no start does (`strandline log repair`).

The node's own recovery does the cutting, over the real disk or, for a dry run, over one that changes nothing. In
addition wrong indexes and producer snapshots are deleted, so that recovery builds them anew. Deleted data are copied,
and the copies synced, before anything is changed.

A repair never lets a log vouch for records that it lost. A cut tail is recorded in `recovery-findings` first, durably,
until the controller has it (schedule 45). Checkpoints, the clean-shutdown marker and the promises of the metadata
quorum stay as they are. A repair that would lose more than recovery's own cut is refused.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strandline.log.checkpoints import CLEAN_SHUTDOWN, read_clean_shutdown
from strandline.log.config import LogConfig
from strandline.log.disk import METADATA_DIRECTORY, Disk, File
from strandline.log.findings import Findings
from strandline.log.incarnations import Boots
from strandline.log.loading import Loading
from strandline.log.log_state import IndexCache
from strandline.log.offset_checkpoints import LastLife, OffsetCheckpoints
from strandline.log.overlay import Change
from strandline.log.real_disk import DIRECTORY_MODE
from strandline.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from strandline.log.verify.flaws import AtStart, Flaw, Kind
from strandline.proto.errors import CorruptLogError, KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock

_HINTS = (Kind.INDEX, Kind.TIME_INDEX, Kind.ABORTED_INDEX, Kind.SNAPSHOT)
_OURS = (*_HINTS, Kind.EPOCHS, Kind.LEFT_OVER)

NODES_OWN = "the node does it by itself when it starts; nothing is to be repaired here"
REFUSED = "no repair of the files brings back what is gone. Start the node: {does}"
FETCHED = (
    "what has rotted is in no file here. Start the node: it fetches the range from another replica when somebody reads "
    "it, or its scrub does (log.scrub.interval.ms). The only copy is restored from a backup: `strandline topic restore`"
)
BESIDE_ROT = "a batch of this log is damaged, and the index is all that tells where the batches behind it are"
FAILED = "recovery does not get through this log: {reason}"

_PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Left:
    """A flaw that is not repaired, with the reason and the command that helps."""

    flaw: Flaw
    why: str


@dataclass(slots=True)
class Plan:
    """Plan of a repair: the flaws to repair, by partition, and those that are left."""

    repaired: dict[str, list[Flaw]] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)

    def give_up(self, partition: str, reason: str) -> None:
        """Leave a partition unrepaired after all."""
        self.left += [Left(flaw, FAILED.format(reason=reason)) for flaw in self.repaired.pop(partition)]


def plan(flaws: Iterable[Flaw]) -> Plan:
    """Plan the repair of these flaws."""
    made = Plan()
    flaws = list(flaws)
    root = next((flaw for flaw in flaws if _stops_the_node(flaw)), None)
    if root is not None:
        first = f"{root.file} comes first: {root.does}"
        made.left = [Left(flaw, root.does if flaw is root else first) for flaw in flaws]
        return made
    by_partition: dict[str, list[Flaw]] = {}
    for flaw in flaws:
        by_partition.setdefault(flaw.partition, []).append(flaw)
    for partition, own in by_partition.items():
        why = {id(flaw): _why_not(flaw, own) for flaw in own}
        repaired = [flaw for flaw in own if not why[id(flaw)]]
        if repaired:
            made.repaired[partition] = repaired
        made.left += [Left(flaw, why[id(flaw)]) for flaw in own if why[id(flaw)]]
    return made


def _stops_the_node(flaw: Flaw) -> bool:
    """True for a flaw of a checkpoint or of the directory's identity: without it nobody knows what a log must have."""
    return not flaw.partition and flaw.at_start is AtStart.REFUSE and flaw.kind is not Kind.QUORUM


def _why_not(flaw: Flaw, others: list[Flaw]) -> str:
    """Return the reason that a flaw is not repaired; "" if it is."""
    if not flaw.partition or flaw.partition == METADATA_DIRECTORY or flaw.kind is Kind.QUORUM:
        return flaw.does if flaw.at_start in (AtStart.REFUSE, AtStart.IGNORE) else NODES_OWN
    refused = next((other for other in others if other.at_start is AtStart.REFUSE), None)
    if refused is not None or flaw.kind is Kind.IDENTITY:  # rule E5/repair-touches-what-is-refused
        return REFUSED.format(does=(refused or flaw).does)
    if flaw.kind is Kind.BATCH and flaw.at_start is AtStart.CUT:
        return ""
    if flaw.kind not in _OURS or flaw.at_start is AtStart.IGNORE:
        return FETCHED if flaw.kind is Kind.BATCH else flaw.does
    is_rotten = any(other.kind in (Kind.BATCH, Kind.GAP) and other.at_start is AtStart.HEAL for other in others)
    # rule B19/indexes-of-rotten-segments-are-built-anew
    return BESIDE_ROT if is_rotten and flaw.kind is not Kind.LEFT_OVER else ""


class Repair:
    """One repair: over a disk that changes nothing, or over the real one."""

    def __init__(self, disk: Disk, path: str, clock: Clock) -> None:
        """Open a directory for repair. Raises DiskError."""
        self._disk = disk
        self._path = path
        checkpoints = OffsetCheckpoints(disk, path)
        self._loading = Loading(
            disk, path, clock, LogConfig(), checkpoints=checkpoints, cache=IndexCache(), rewriting=None
        )
        boots = Boots(disk, path)
        boots.note_used()  # rule A9/repair-notes-no-boot
        clean = read_clean_shutdown(disk, f"{path}/{CLEAN_SHUTDOWN}") is not None
        self._left = LastLife(clean=clean, same_boot=boots.recovered, short_is_refused=False)
        present = (_topic_partition(name) for name in disk.listdir(path) if name != METADATA_DIRECTORY)
        self._loading.findings = Findings(disk, path, (tp for tp in present if tp is not None))

    def run(self, repaired: Mapping[str, list[Flaw]]) -> dict[str, str]:
        """Repair these flaws, by partition. Return the partitions whose repair failed, with the reason.

        Raises DiskError, StorageError.
        """
        failed: dict[str, str] = {}
        for partition, flaws in repaired.items():
            reason = self._partition(partition, flaws)
            if reason:
                failed[partition] = reason
        return failed

    def _partition(self, name: str, flaws: list[Flaw]) -> str:
        tp = _topic_partition(name)
        if tp is None:
            return "it is no partition"
        hints = self._take_away(flaws)
        loading = self._loading
        try:
            examined = loading.examine(tp, f"{self._path}/{name}", self._left)
            if examined is None:
                return _reason(loading.offline.get(tp))
            # schedule 45/repair-cuts-in-silence
            loading.keep_findings()  # before anything is cut: a cut log is not intact, whoever cut it
            if tp in loading.offline:
                return _reason(loading.offline[tp])
            loading.open_one(tp, examined)
            log = loading.logs.pop(tp, None)
            if log is None:
                return _reason(loading.offline.get(tp))
            log.sync_now()
            log.close_files()
        except (KafkaError, CorruptLogError) as error:
            return _reason(error)
        self._sync(f"{self._path}/{name}", hints)
        return ""

    def _take_away(self, flaws: list[Flaw]) -> list[str]:
        """Delete indexes that recovery would believe. If one of a segment is missing, it builds all of them anew."""
        paths: dict[str, None] = {}
        for flaw in flaws:
            path = f"{self._path}/{flaw.file}"
            if flaw.kind is Kind.SNAPSHOT:
                paths[path] = None
            elif flaw.kind in _HINTS:
                stem = path.rpartition(".")[0]
                paths |= dict.fromkeys((stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX))
        for path in paths:
            if self._disk.exists(path):
                self._disk.unlink(path)
        return list(paths)

    def _sync(self, directory: str, paths: list[str]) -> None:
        """Sync indexes: while a node runs they are not synced, but the clean-shutdown marker vouches for them."""
        files: list[File] = [self._disk.open(path) for path in paths if self._disk.exists(path)]
        self._disk.sync_now(files, [directory])
        for file in files:
            file.close()


def _topic_partition(name: str) -> TopicPartition | None:
    match = _PARTITION.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def _reason(error: Exception | None) -> str:
    if isinstance(error, CorruptLogError):
        return error.reason
    return str(error) if error is not None else "it never held anything that was acknowledged"


_CHUNK_BYTES = 1 << 20


def keep(root: str, target: str, changes: Iterable[Change]) -> list[str]:
    """Make the directory `target` (in `root`, so that files can be linked), and copy to it what `changes` take away: a
    removed file as it is, the cut end of a segment as NAME.from-POSITION, any other changed file as it was before.

    Return the names in `target`. Raises OSError: nothing was changed.
    """
    kept: list[str] = []
    Path(target).mkdir(mode=DIRECTORY_MODE)  # never over the copies of another repair
    for change in changes:
        if change.before is None or (change.after not in (None, change.before)):
            continue  # new, or only renamed
        source = Path(root) / change.before
        if change.after is None:
            kept.append(change.before)
            copy = _place(target, change.before)
            try:
                os.link(source, copy)
            except OSError:  # a file system without links
                shutil.copy2(source, copy)
        elif change.before.endswith(LOG_SUFFIX) and change.bytes_after < change.bytes_before:
            kept.append(f"{change.before}.from-{change.bytes_after}")
            copy = _place(target, kept[-1])
            _copy_from(source, copy, change.bytes_after)
        else:
            kept.append(change.before)
            copy = _place(target, change.before)
            shutil.copy2(source, copy)
        _sync(copy)
    for directory in sorted(_directories(target)):
        _sync(directory)
    _sync(Path(root))
    return kept


def _place(target: str, name: str) -> Path:
    path = Path(target) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _copy_from(source: Path, copy: Path, position: int) -> None:
    with source.open("rb") as reading, copy.open("wb") as writing:
        reading.seek(position)
        shutil.copyfileobj(reading, writing, _CHUNK_BYTES)


def _directories(target: str) -> Iterator[Path]:
    for directory, _, _ in os.walk(target):
        yield Path(directory)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
