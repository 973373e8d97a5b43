"""What a start of the node would do with a directory: the product's own recovery, over a disk that changes nothing."""

from __future__ import annotations

from strandline.log.checkpoints import META_PROPERTIES
from strandline.log.disk import DiskError
from strandline.log.findings import LogCondition
from strandline.log.log_dir import LogDir
from strandline.log.overlay import OverlayDisk
from strandline.log.partition_log import PartitionLog
from strandline.log.segment import pread_blocking
from strandline.log.verify.flaws import AtStart, Flaw, Kind
from strandline.log.verify.partition_scan import ScannedPartition
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock

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


class Trial:
    """One start that changes nothing.

    Attributes:
        refused: why the node would not start, by the file.
    """

    def __init__(self, disk: OverlayDisk, path: str, clock: Clock) -> None:
        """Starts at once. Raises DiskError."""
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
        """Give everything back."""
        if self._log_dir is not None:
            for log in self._log_dir.logs.values():
                log.close_files()

    def judge(self, flaw: Flaw, partition: ScannedPartition | None) -> tuple[AtStart, str]:
        """What the start does about a flaw of a broker's log, or of the directory."""
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
            case Kind.INDEX | Kind.TIME_INDEX:
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
    """By the header of the batch at `offset`; -1 where damage before it keeps it from being found."""
    try:
        for segment in log.segments:
            found = segment.find(offset, pread_blocking) if segment.base_offset <= offset else None
            if found is not None:
                return found[1].leader_epoch
    except (KafkaError, DiskError):
        pass
    return -1
