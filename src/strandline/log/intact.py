"""What was read from a segment is what was written to it, or nobody gets it.

The CRC of a batch covers all of it but base offset, length, leader epoch and format. These are held against what is
known without the file: the offset that must follow, and the leader epochs of the log.
"""

from __future__ import annotations

from crc32c import crc32c

from strandline.log.batch import Buffer, parse_header, verify_crc
from strandline.log.epochs import OFFSET_MAX, LeaderEpochs
from strandline.proto.errors import KafkaError

try:
    from strandline.log._records import intact
except ImportError:  # there was no compiler at the installation
    from strandline.log.records_python import intact


def intact_end(
    data: Buffer, offset: int, epochs: LeaderEpochs, log_start_offset: int, limit_offset: int = OFFSET_MAX
) -> tuple[int, int]:
    """How far `data`, which were read at a boundary where `offset` begins, are whole batches as they were written, none
    of which reaches `limit_offset`.

    Returns the position behind the last of them, and the offset that follows.
    """
    position, end = 0, len(data)
    if offset < log_start_offset:  # the epochs of batches wholly below the log start are forgotten
        position, offset = intact(data, position, offset, -1, min(log_start_offset, limit_offset), crc32c)
    while position < end and offset < limit_offset:
        # Of a batch that the log begins inside, the epoch is known from the log start on.
        epoch, until = epochs.span_at(max(offset, log_start_offset))
        position, offset = intact(data, position, offset, epoch, min(until, limit_offset), crc32c)
        if offset < until:
            break
    return position, offset


def why_not_intact(data: Buffer, offset: int, epoch: int) -> str:
    """What is wrong with the batch that `data` begin with, and that should be of this offset and epoch."""
    try:
        header = parse_header(data)
        if header.base_offset != offset:
            return f"a batch of offset {header.base_offset} stands where {offset} must follow"
        if epoch >= 0 and header.leader_epoch != epoch:
            return f"a batch of leader epoch {header.leader_epoch} stands where records of epoch {epoch} are"
        if header.size > len(data):
            return f"a batch of {header.size} bytes reaches beyond what follows it"
        verify_crc(memoryview(data)[: header.size])
    except KafkaError as error:
        return error.message
    return "a batch reaches into another leader epoch"
