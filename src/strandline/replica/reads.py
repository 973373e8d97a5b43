"""Reading one partition, on its leader or (KIP-392) on a follower, within bounds that are taken once (schedule 17)."""

from __future__ import annotations

from strandline.log.partition_log import ANY_SIZE, PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.replica.core.follower import FollowerCore
from strandline.replica.core.leader import LeaderCore
from strandline.replica.partition import Partition
from strandline.replica.states import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    EpochEnd,
    ListedOffset,
    ReadOutcome,
)

_NOT_AVAILABLE = "a new leader does not know yet how far its records are committed"


def _limit(core: LeaderCore | FollowerCore, log: PartitionLog, committed_only: bool) -> int:
    return core.high_watermark if committed_only else log.log_end_offset


def read(
    partition: Partition,
    offset: int,
    max_bytes: int,
    *,
    current_leader_epoch: int,
    committed_only: bool,
    any_replica: bool,
    min_one_batch: bool,
) -> ReadOutcome | None:
    """See `ReplicaManager.read`."""
    error, message = partition.refusal(current_leader_epoch, any_replica=any_replica)
    core, log = partition.leader or partition.follower, partition.log
    if error is not ErrorCode.NONE or core is None or log is None:  # without core or log it is refused
        return ReadOutcome(error, message)
    high_watermark = core.high_watermark
    limit = _limit(core, log, committed_only)
    try:
        if offset >= limit:
            log.check_range(offset)
            return _outcome(log, high_watermark, b"", offset)
        found = log.read(offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if min_one_batch else 0)
    except KafkaError as failure:
        return _failed(partition, failure, log, high_watermark)
    if found is None:
        return None
    return _outcome(log, high_watermark, found.data, found.next_offset)


async def read_cold(
    partition: Partition,
    offset: int,
    max_bytes: int,
    *,
    current_leader_epoch: int,
    committed_only: bool,
    any_replica: bool,
    min_one_batch: bool,
) -> ReadOutcome:
    """See `ReplicaManager.read_cold`. The bounds are those of the moment it was asked for."""
    error, message = partition.refusal(current_leader_epoch, any_replica=any_replica)
    core, log = partition.leader or partition.follower, partition.log
    if error is not ErrorCode.NONE or core is None or log is None:  # without core or log it is refused
        return ReadOutcome(error, message)
    high_watermark = core.high_watermark
    try:
        found = await log.read_cold(
            offset, max_bytes, _limit(core, log, committed_only), one_batch_bytes=ANY_SIZE if min_one_batch else 0
        )
    except KafkaError as failure:
        return _failed(partition, failure, log, high_watermark)
    if (partition.leader or partition.follower) is not core:
        return ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the disk was read")
    return _outcome(log, high_watermark, found.data, found.next_offset)


def _outcome(log: PartitionLog, high_watermark: int, data: bytes, next_offset: int) -> ReadOutcome:
    return ReadOutcome(ErrorCode.NONE, "", high_watermark, log.log_start_offset, high_watermark, data, next_offset)


def _failed(partition: Partition, failure: KafkaError, log: PartitionLog, high_watermark: int) -> ReadOutcome:
    partition.cannot_read(failure)
    return ReadOutcome(failure.code, str(failure), high_watermark, log.log_start_offset, high_watermark)


def list_offset(partition: Partition, timestamp: int, current_leader_epoch: int) -> ListedOffset:
    """See `ReplicaManager.list_offset`."""
    error, message = partition.refusal(current_leader_epoch)
    if error is not ErrorCode.NONE:
        return ListedOffset(error, message)
    core, log = partition.leading()
    if timestamp == EARLIEST_TIMESTAMP:
        return ListedOffset(ErrorCode.NONE, "", log.log_start_offset, -1, log.epoch_at(log.log_start_offset))
    if timestamp == LATEST_TIMESTAMP:
        if not core.knows_committed_end:
            return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE, _NOT_AVAILABLE)
        return ListedOffset(ErrorCode.NONE, "", core.high_watermark, -1, core.leader_epoch)
    if timestamp < 0 and timestamp != MAX_TIMESTAMP:
        return ListedOffset(ErrorCode.UNSUPPORTED_VERSION, f"{timestamp} is no timestamp that this broker knows")
    try:
        if timestamp == MAX_TIMESTAMP:
            found = log.max_timestamp(core.high_watermark) if core.knows_committed_end else None
        else:
            found = log.offset_for_timestamp(timestamp, core.high_watermark)
    except KafkaError as failure:
        partition.cannot_read(failure)
        return ListedOffset(failure.code, str(failure))
    if found is not None:
        return ListedOffset(ErrorCode.NONE, "", found.offset, found.timestamp_ms, found.leader_epoch)
    if not core.knows_committed_end:
        return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE, _NOT_AVAILABLE)
    return ListedOffset(ErrorCode.NONE)


def epoch_end_offset(partition: Partition, current_leader_epoch: int, epoch: int) -> EpochEnd:
    """See `ReplicaManager.epoch_end_offset`."""
    error, message = partition.refusal(current_leader_epoch)
    if error is not ErrorCode.NONE:
        return EpochEnd(error, message)
    _, log = partition.leading()
    known, end_offset = log.end_offset_for_epoch(epoch)
    return EpochEnd(ErrorCode.NONE, "", known, end_offset)
