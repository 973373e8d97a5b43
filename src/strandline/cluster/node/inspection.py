"""Preview of the start of a stopped node: what it would do with the metadata log and the quorum's files beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from strandline.controller.quorum.api import QuorumConfig
from strandline.controller.quorum.memory import Memory
from strandline.controller.quorum.metadata_log import MetadataLog
from strandline.controller.quorum.quorum import DIRECTORY
from strandline.controller.quorum.recovery_point import RecoveryPoint
from strandline.controller.quorum.snapshots import SnapshotStore
from strandline.controller.quorum.state_file import PROMISE, STATE, StateFile
from strandline.log.log_dir import read_meta_properties
from strandline.log.overlay import OverlayDisk
from strandline.log.rewriting import restore_names
from strandline.log.verify.flaws import AtStart, Flaw, Kind
from strandline.log.verify.partition_scan import ScannedPartition
from strandline.proto.errors import ConfigError, CorruptLogError
from strandline.proto.ports import Clock

_CUT = (
    "the start cuts the metadata log here. Until this controller has caught up, its vote for who may lack that end "
    "counts only together with those of all others"
)
_LOST = (
    "the node starts without a vote, and fetches everything from the other controllers. Once it has caught up, "
    "`strandline quorum restore-vote` gives it its vote back. The only controller does not start: put the directory "
    "back as it was"
)
_WITHOUT = "the start goes on without it"


class _Started(NamedTuple):
    """Result of starting the quorum.

    Attributes:
        refused: error for which it does not start; None: it starts.
        end: end offset of its log then; -1: it has none.
        lost: why its log counts as lost (rule A14); "": it does not.
    """

    refused: CorruptLogError | None = None
    end: int = -1
    lost: str = ""


class QuorumInspection:
    """Inspection of the quorum's files, called after the logs of the broker have been judged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, disk: OverlayDisk, path: str, log: ScannedPartition | None) -> list[Flaw]:
        """Return the flaws of the metadata log and the files beside it, each with what the start does about it. Raises
        DiskError."""
        directory = f"{path}/{DIRECTORY}"
        if not disk.exists(directory):
            if not disk.exists(f"{path}/{PROMISE}"):
                return []  # it has never been started
            disk.mkdir(directory)
        restore_names(disk, directory)
        flaws = [*self._files(disk, path), *(log.list.flaws if log is not None else ())]
        started = self._start(disk, path)
        judged = [self._judged(disk, path, flaw, started) for flaw in flaws]
        if started.lost:
            lost = Flaw(file=DIRECTORY, partition="", kind=Kind.QUORUM, found=started.lost)
            judged.insert(0, replace(lost, at_start=AtStart.HEAL, does=_LOST))
        return judged

    def _files(self, disk: OverlayDisk, path: str) -> Iterator[Flaw]:
        directory = f"{path}/{DIRECTORY}"
        snapshots = SnapshotStore(disk, directory)
        for snapshot in snapshots.ids:
            try:
                snapshots.load(snapshot)
            except CorruptLogError as error:
                yield _flaw(path, error)
        checks = (
            StateFile(disk, directory, STATE).read,
            StateFile(disk, path, PROMISE).read,
            RecoveryPoint(disk, directory).read,
        )
        for check in checks:
            try:
                check()
            except CorruptLogError as error:
                yield _flaw(path, error)

    def _start(self, disk: OverlayDisk, path: str) -> _Started:
        """Start the quorum on the overlay as `Quorum.start` does, up to the point at which the node would take part."""
        directory = f"{path}/{DIRECTORY}"
        log: MetadataLog | None = None
        try:
            memory = Memory(
                disk,
                path,
                directory,
                directory_id=read_meta_properties(disk, path).directory_id,
                promises=disk.exists(f"{path}/{PROMISE}"),
            )
            memory.recall()
            log = MetadataLog.open(
                disk, directory, self._clock, QuorumConfig(), rewriting=None, before_cut=memory.doubt
            )
            snapshots = SnapshotStore(disk, directory)
            latest = snapshots.open_latest()
            summary = log.summary(snapshots.ids, None if latest is None else latest.voters)
        except CorruptLogError as error:
            return _Started(error)
        except ConfigError:
            return _Started()  # meta.properties cannot be read: that is a flaw of its own
        finally:
            if log is not None:
                log.partition_log.close_files()
        try:  # as the only controller: only then is the loss of the log an error
            memory.settle(summary.end, alone=True, rng=random.Random(0))
        except CorruptLogError as error:
            return _Started(end=log.end_offset, lost=error.reason)
        return _Started(end=log.end_offset)

    def _judged(self, disk: OverlayDisk, path: str, flaw: Flaw, started: _Started) -> Flaw:
        refused = started.refused
        gone = not disk.exists(f"{path}/{flaw.file}")
        if flaw.kind is Kind.LEFT_OVER:
            at_start = AtStart.REMOVE if gone else AtStart.IGNORE
            return replace(flaw, at_start=at_start, does="the start removes it" if gone else "the start leaves it")
        if refused is not None:
            file = refused.path.removeprefix(f"{path}/")
            does = refused.advice if flaw.file == file else f"Look at {file} first"
            return replace(flaw, at_start=AtStart.REFUSE, does=f"the node does not start. {does}")
        if flaw.kind is Kind.BATCH and flaw.offset >= started.end >= 0:
            return replace(flaw, at_start=AtStart.CUT, does=_CUT)
        return replace(flaw, at_start=AtStart.HEAL, does=_WITHOUT)


def _flaw(path: str, error: CorruptLogError) -> Flaw:
    return Flaw(
        file=error.path.removeprefix(f"{path}/"),
        partition="",
        kind=Kind.QUORUM,
        found=error.reason,
        position=error.position,
    )
