"""Leader epochs of a log: the offsets at which each epoch's records begin, by which logs are truncated (KIP-101,
KIP-279; schedules 1 to 5).

Data read from a segment are checked against them, so that a reader gets what was written or nothing. The CRC of a batch
covers all of it except base offset, length, leader epoch and format, whose right values are known without the file.

A log reads them on opening from `leader-epoch-checkpoint`, Kafka's text file, which has no checksum. A flipped bit in
it makes a well-formed entry that is wrong, by which a follower cuts its log at a wrong place (schedule 70). Every
batch's header has its epoch, so the file is checked where epochs begin, and if it is wrong the epochs are read from the
batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from crc32c import crc32c

from strandline.log.batch import BatchJudge, Buffer, check_content, sized_header
from strandline.log.checkpoints import LEADER_EPOCHS, decode_epochs
from strandline.log.disk import Disk, read_file
from strandline.log.segment import Segment, pread_blocking
from strandline.proto.errors import CorruptLogError, KafkaError
from strandline.proto.ids import LeaderEpoch, Offset

try:
    from strandline.log._records import intact
except ImportError:  # there was no compiler at the installation
    from strandline.log.records_python import intact

OFFSET_MAX = (1 << 63) - 1


class LeaderEpochs:
    """All epochs of a log with their start offsets, in memory; the syncing code writes them to
    `leader-epoch-checkpoint`.

    Invariants:
    - epochs rise strictly, and so do start offsets, except for empty epochs, which `assign` removes (schedule 5);
    - `version` counts changes; `written` is the version that the file is known to hold.
    """

    __slots__ = ("_epochs", "_starts", "version", "written")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.version = 0
        for epoch, start in entries or ():
            self.assign(epoch, start)
        self.written = self.version

    @property
    def dirty(self) -> bool:
        """True if the file may differ from memory."""
        return self.version != self.written

    @property
    def latest(self) -> LeaderEpoch:
        """Newest known epoch, with or without records; -1 if there is none."""
        return LeaderEpoch(self._epochs[-1] if self._epochs else -1)

    def entries(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) of each epoch, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Let `epoch` begin at `start_offset`, unless it is the latest already. Entries that contradict it are removed:
        epochs without records, and epochs whose records are gone (schedule 5). Return True if anything changed.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} from offset {start_offset}")
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.version += 1
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch <= `epoch`, and its end offset; (-1, -1) if there is none."""
        i = bisect_right(self._epochs, epoch) - 1
        if i < 0:  # rule B8/only-exact-epochs-are-known
            return LeaderEpoch(-1), Offset(-1)
        end = self._starts[i + 1] if i + 1 < len(self._starts) else log_end_offset
        return LeaderEpoch(self._epochs[i]), Offset(end)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Return the epoch of the record at `offset`; -1 before the first known one."""
        i = bisect_right(self._starts, offset) - 1
        return LeaderEpoch(self._epochs[i] if i >= 0 else -1)

    def span_at(self, offset: int) -> tuple[int, int]:
        """Return the epoch of the record at `offset` (-1 before the first known one), and where the next epoch
        begins."""
        i = bisect_right(self._starts, offset)
        return self._epochs[i - 1] if i else -1, self._starts[i] if i < len(self._starts) else OFFSET_MAX

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin at or after the new end."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
            self.version += 1

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended before the new start; the epoch that contains it begins there now."""
        i = bisect_right(self._starts, start_offset) - 1
        if i < 0 or (i == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:i]
        del self._starts[:i]
        self._starts[0] = start_offset
        self.version += 1

    def bound(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove epochs that end before the log's start, and those that begin at its end or after."""
        self.truncate_from_end(log_end_offset)
        self.truncate_from_start(log_start_offset)

    def clear(self) -> None:
        """Remove everything: the log starts anew elsewhere."""
        self.version += 1
        self._epochs.clear()
        self._starts.clear()


def intact_end(
    data: Buffer, offset: int, epochs: LeaderEpochs, log_start_offset: int, limit_offset: int = OFFSET_MAX
) -> tuple[int, int]:
    """Find the end of the whole batches, as they were written, that `data` begin with; the first must begin at
    `offset`, and none reaches `limit_offset`.

    Return the position after the last of them, and the offset that follows.
    """
    position, end = 0, len(data)
    # rule B19/deleted-epochs-are-rot
    if offset < log_start_offset:  # the epochs of batches wholly below the log start are forgotten
        position, offset = intact(data, position, offset, -1, min(log_start_offset, limit_offset), crc32c)
    while position < end and offset < limit_offset:
        # Of a batch that the log begins inside, the epoch is known from the log start on.
        epoch, until = epochs.span_at(max(offset, log_start_offset))  # rule B19/leader-epochs-are-believed
        position, offset = intact(data, position, offset, epoch, min(until, limit_offset), crc32c)
        if offset < until:
            break
    return position, offset


def why_not_intact(data: Buffer, offset: int, epoch: int) -> str:
    """Return the reason that the batch at the start of `data` is not the one written for this offset and epoch."""
    try:
        header = sized_header(data, 0, len(data))
        BatchJudge(offset).check_place(header)
        if epoch >= 0 and header.leader_epoch != epoch:
            return f"a batch of leader epoch {header.leader_epoch} stands where records of epoch {epoch} are"
        check_content(header, memoryview(data)[: header.size])
    except KafkaError as error:
        return error.message
    return "a batch reaches into another leader epoch"


def load_epochs(disk: Disk, directory: str) -> LeaderEpochs | None:
    """Load the epochs of the checkpoint; None if it is missing or damaged."""
    path = f"{directory}/{LEADER_EPOCHS}"
    if not disk.exists(path):
        return None
    try:
        return LeaderEpochs(decode_epochs(path, read_file(disk, path)))
    except (CorruptLogError, ValueError):
        return None  # rule B8/epoch-checkpoint-damaged-by-a-crash/2


def epochs_from_batches(segments: Sequence[Segment]) -> LeaderEpochs:
    """Return the epochs by the header of every batch; epochs without records are lost. Raises KafkaError if a batch is
    damaged."""
    epochs = LeaderEpochs()
    for segment in segments:
        for _, header in segment.headers(0, pread_blocking):
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
    if epochs.entries():
        epochs.version += 1
    return epochs


def epochs_agree(epochs: LeaderEpochs, segments: Sequence[Segment], log_start_offset: int, log_end_offset: int) -> bool:
    """True if the batches on both sides of each epoch's start, and the first and the newest batch, have the epochs that
    the entries say."""
    starts = [start for _, start in epochs.entries()]
    offsets = {log_start_offset, *starts, *(start - 1 for start in starts), log_end_offset - 1}
    return all(
        _batch_has_epoch(segments, offset, epochs.epoch_at(offset))
        for offset in sorted(offsets)
        if log_start_offset <= offset < log_end_offset
    )


def _batch_has_epoch(segments: Sequence[Segment], offset: int, epoch: int) -> bool:
    segment = segments[bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1]
    try:
        if offset == segment.base_offset:
            found = next(segment.headers(0, pread_blocking), None)  # most logs need no more, and no index
        else:
            found = segment.find(offset, pread_blocking)
    except KafkaError:
        return True  # damage in the log itself is for its readers to meet
    finally:
        if segment is not segments[-1]:
            segment.drop_indexes()
    return found is None or found[1].leader_epoch == epoch
