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
    Role,
)

_NOT_HOSTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not host the partition")
_NOT_AVAILABLE = "a new leader does not know yet how far its records are committed"


def refusal(
    partition: Partition | None, current_leader_epoch: int = -1, *, any_replica: bool = False
) -> tuple[ErrorCode, str]:
    """Why this broker cannot answer as leader, or with `any_replica` as leader or follower; NONE if it can.

    `current_leader_epoch`: the epoch that the caller believes in; -1 does not ask (KIP-320). Older than the
    partition's: FENCED_LEADER_EPOCH. Newer: UNKNOWN_LEADER_EPOCH, the metadata have not reached this broker yet.
    """
    if partition is None:
        return _NOT_HOSTED
    if partition.role is Role.OFFLINE:
        return ErrorCode.KAFKA_STORAGE_ERROR, partition.reason
    leader_epoch = partition.state.leader_epoch
    if current_leader_epoch >= 0 and current_leader_epoch != leader_epoch:
        older = current_leader_epoch < leader_epoch
        code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        return code, f"the leader epoch is {leader_epoch} here, not {current_leader_epoch}"
    if partition.leader is None and not (any_replica and partition.follower is not None):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {partition.topic_partition}"
    return ErrorCode.NONE, ""


def _led(partition: Partition | None) -> tuple[LeaderCore, PartitionLog]:
    assert partition is not None
    assert partition.leader is not None
    assert partition.log is not None
    return partition.leader, partition.log


def _limit(core: LeaderCore | FollowerCore, log: PartitionLog, committed_only: bool) -> int:
    return core.high_watermark if committed_only else log.log_end_offset


def _hosted(partition: Partition | None) -> tuple[LeaderCore | FollowerCore, PartitionLog]:
    assert partition is not None
    core = partition.leader or partition.follower
    assert core is not None
    assert partition.log is not None
    return core, partition.log


def read(
    partition: Partition | None,
    offset: int,
    max_bytes: int,
    *,
    current_leader_epoch: int,
    committed_only: bool,
    any_replica: bool,
    min_one_batch: bool,
) -> ReadOutcome | None:
    """See `ReplicaManager.read`."""
    error, message = refusal(partition, current_leader_epoch, any_replica=any_replica)
    if error is not ErrorCode.NONE:
        return ReadOutcome(error, message)
    core, log = _hosted(partition)
    high_watermark = core.high_watermark
    limit = _limit(core, log, committed_only)
    try:
        if offset >= limit:
            log.check_range(offset)
            return _outcome(log, high_watermark, b"", offset)
        found = log.read(offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if min_one_batch else 0)
    except KafkaError as failure:
        return _failed(failure, log, high_watermark)
    if found is None:
        return None
    return _outcome(log, high_watermark, found.data, found.next_offset)


async def read_cold(
    partition: Partition | None,
    offset: int,
    max_bytes: int,
    *,
    current_leader_epoch: int,
    committed_only: bool,
    any_replica: bool,
    min_one_batch: bool,
) -> ReadOutcome:
    """See `ReplicaManager.read_cold`. The bounds are those of the moment it was asked for."""
    error, message = refusal(partition, current_leader_epoch, any_replica=any_replica)
    if error is not ErrorCode.NONE:
        return ReadOutcome(error, message)
    core, log = _hosted(partition)
    high_watermark = core.high_watermark
    try:
        found = await log.read_cold(
            offset, max_bytes, _limit(core, log, committed_only), one_batch_bytes=ANY_SIZE if min_one_batch else 0
        )
    except KafkaError as failure:
        return _failed(failure, log, high_watermark)
    if partition is None or (partition.leader or partition.follower) is not core:
        return ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the disk was read")
    return _outcome(log, high_watermark, found.data, found.next_offset)


def _outcome(log: PartitionLog, high_watermark: int, data: bytes, next_offset: int) -> ReadOutcome:
    return ReadOutcome(ErrorCode.NONE, "", high_watermark, log.log_start_offset, high_watermark, data, next_offset)


def _failed(failure: KafkaError, log: PartitionLog, high_watermark: int) -> ReadOutcome:
    return ReadOutcome(failure.code, str(failure), high_watermark, log.log_start_offset, high_watermark)


def list_offset(partition: Partition | None, timestamp: int, current_leader_epoch: int) -> ListedOffset:
    """See `ReplicaManager.list_offset`."""
    error, message = refusal(partition, current_leader_epoch)
    if error is not ErrorCode.NONE:
        return ListedOffset(error, message)
    core, log = _led(partition)
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
        return ListedOffset(failure.code, str(failure))
    if found is not None:
        return ListedOffset(ErrorCode.NONE, "", found.offset, found.timestamp_ms, found.leader_epoch)
    if not core.knows_committed_end:
        return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE, _NOT_AVAILABLE)
    return ListedOffset(ErrorCode.NONE)


def epoch_end_offset(partition: Partition | None, current_leader_epoch: int, epoch: int) -> EpochEnd:
    """See `ReplicaManager.epoch_end_offset`."""
    error, message = refusal(partition, current_leader_epoch)
    if error is not ErrorCode.NONE:
        return EpochEnd(error, message)
    _, log = _led(partition)
    known, end_offset = log.end_offset_for_epoch(epoch)
    return EpochEnd(ErrorCode.NONE, "", known, end_offset)
