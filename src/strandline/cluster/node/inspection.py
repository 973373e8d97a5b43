"""What a start of a stopped node would do with its metadata log, and with the quorum's files beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
_WITHOUT = "the start goes on without it"


class QuorumInspection:
    """Called with the disk once the logs of the broker were judged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, disk: OverlayDisk, path: str, log: ScannedPartition | None) -> list[Flaw]:
        """The flaws of the metadata log and of the files beside it, judged. Raises DiskError."""
        directory = f"{path}/{DIRECTORY}"
        if log is None or not disk.exists(directory):
            return []
        restore_names(disk, directory)
        flaws = [*self._files(disk, path), *log.list.flaws]
        refused, end = self._start(disk, path)
        return [self._judged(disk, path, flaw, refused, end) for flaw in flaws]

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

    def _start(self, disk: OverlayDisk, path: str) -> tuple[CorruptLogError | None, int]:
        """Why the quorum does not start, if it does not; and where its log ends then."""
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
            log.summary(snapshots.ids, None if latest is None else latest.voters)
        except CorruptLogError as error:
            return error, -1
        except ConfigError:
            return None, -1  # whose directory it is cannot be read: that is a flaw of its own
        finally:
            if log is not None:
                log.partition_log.close_files()
        return None, log.end_offset

    def _judged(self, disk: OverlayDisk, path: str, flaw: Flaw, refused: CorruptLogError | None, end: int) -> Flaw:
        gone = not disk.exists(f"{path}/{flaw.file}")
        if flaw.kind is Kind.LEFT_OVER:
            at_start = AtStart.REMOVE if gone else AtStart.IGNORE
            return replace(flaw, at_start=at_start, does="the start removes it" if gone else "the start leaves it")
        if refused is not None:
            file = refused.path.removeprefix(f"{path}/")
            does = refused.advice if flaw.file == file else f"Look at {file} first"
            return replace(flaw, at_start=AtStart.REFUSE, does=f"the node does not start. {does}")
        if flaw.kind is Kind.BATCH and flaw.offset >= end >= 0:
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
