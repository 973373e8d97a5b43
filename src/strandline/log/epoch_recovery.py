"""The leader epochs of a log that is opened: read from the checkpoint, held against the batches, or built from them.

`leader-epoch-checkpoint` is Kafka's text file and has no checksum. A flipped bit in it makes a well-formed entry that
is wrong, by which a follower cuts its log at a wrong place (schedule 70). Every batch's header has its epoch, so the
file is checked where epochs begin, and dropped where it is wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from strandline.log.checkpoints import LEADER_EPOCHS, decode_epochs
from strandline.log.disk import Disk, read_file
from strandline.log.epochs import LeaderEpochs
from strandline.log.segment import Segment, pread_blocking
from strandline.proto.errors import CorruptLogError, KafkaError


def load_epochs(disk: Disk, directory: str) -> LeaderEpochs | None:
    """What the checkpoint says; None where it is missing or no checkpoint."""
    path = f"{directory}/{LEADER_EPOCHS}"
    if not disk.exists(path):
        return None
    try:
        return LeaderEpochs(decode_epochs(path, read_file(disk, path)))
    except (CorruptLogError, ValueError):
        return None  # rule B8/epoch-checkpoint-damaged-by-a-crash/2


def epochs_from_batches(segments: Sequence[Segment]) -> LeaderEpochs:
    """By the header of every batch; epochs without records are lost. Raises KafkaError where a batch is damaged."""
    epochs = LeaderEpochs()
    for segment in segments:
        for _, header in segment.headers(0, pread_blocking):
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
    if epochs.entries():
        epochs.version += 1
    return epochs


def epochs_agree(epochs: LeaderEpochs, segments: Sequence[Segment], log_start_offset: int, log_end_offset: int) -> bool:
    """Whether the batches on both sides of each epoch's start, and the first and the newest, are of the epochs that the
    entries say."""
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
