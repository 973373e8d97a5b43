"""Reading one partition, on its leader or (KIP-392) on a follower, within bounds that are taken once (schedule 17)."""

from __future__ import annotations

from strandline.log.partition_log import ANY_SIZE, LogRead, PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Offset
from strandline.proto.marks import mark
from strandline.proto.tier import TieredSegment
from strandline.replica.core.follower import FollowerCore
from strandline.replica.core.leader import LeaderCore
from strandline.replica.partition import Partition
from strandline.replica.states import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    PENDING_UPLOAD_TIMESTAMP,
    EpochEnd,
    ListedOffset,
    ReadOutcome,
)
from strandline.replica.tier_reads import TierReads

_NONE = ListedOffset(ErrorCode.NONE)
"""There is no such record."""

_NOT_AVAILABLE = "a new leader does not know yet how far its records are committed"


def _limit(core: LeaderCore | FollowerCore, log: PartitionLog, committed_only: bool) -> int:
    return core.high_watermark if committed_only else log.log_end_offset  # rule B14/reads-beyond-the-high-watermark


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
            if not log.log_start_offset <= offset <= log.log_end_offset:
                raise log.out_of_range(offset)
            return _outcome(partition, high_watermark, b"", offset)
        found = log.read(offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if min_one_batch else 0)
    except KafkaError as failure:
        if tiered_at(partition, offset) is not None:
            return None
        return _failed(partition, failure, offset, high_watermark)
    if found is None:
        return None
    return _outcome(partition, high_watermark, found.data, found.next_offset)


async def read_cold(
    partition: Partition,
    offset: int,
    max_bytes: int,
    *,
    current_leader_epoch: int,
    committed_only: bool,
    any_replica: bool,
    min_one_batch: bool,
    tier_reads: TierReads,
) -> ReadOutcome:
    """See `ReplicaManager.read_cold`. The bounds are those of the moment it was asked for."""
    error, message = partition.refusal(current_leader_epoch, any_replica=any_replica)
    core, log = partition.leader or partition.follower, partition.log
    if error is not ErrorCode.NONE or core is None or log is None:  # without core or log it is refused
        return ReadOutcome(error, message)
    high_watermark = core.high_watermark
    limit = _limit(core, log, committed_only)
    segment = tiered_at(partition, offset)
    try:
        if segment is not None:
            found = await tier_reads.read(partition.state, segment, offset, max_bytes, limit)
            if len(found.data) > max_bytes and not min_one_batch:
                found = LogRead(b"", Offset(offset), Offset(offset))
        else:
            found = await log.read_cold(offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if min_one_batch else 0)
    except KafkaError as failure:
        if partition.log is not log and (partition.leader or partition.follower) is core:
            mark("read-again-after-a-move")
            return await read_cold(
                partition,
                offset,
                max_bytes,
                current_leader_epoch=current_leader_epoch,
                committed_only=committed_only,
                any_replica=any_replica,
                min_one_batch=min_one_batch,
                tier_reads=tier_reads,
            )
        if segment is not None:
            return _failed_in_tier(partition, failure, offset, high_watermark)
        return _failed(partition, failure, offset, high_watermark)
    if (partition.leader or partition.follower) is not core:  # rule B14/a-deposed-leader-answers
        return ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the disk was read")
    return _outcome(partition, high_watermark, found.data, found.next_offset)


def tiered_at(partition: Partition, offset: int) -> TieredSegment | None:
    """The segment in the object store from which `offset` is read; None: from the log, which has all that it can."""
    log = partition.log
    return partition.state.tier.find(offset) if log is not None and offset < log.log_start_offset else None


def _outcome(partition: Partition, high_watermark: int, data: bytes, next_offset: int) -> ReadOutcome:
    start = partition.log_start_offset
    return ReadOutcome(ErrorCode.NONE, "", high_watermark, start, high_watermark, data, next_offset)


def _failed(partition: Partition, failure: KafkaError, offset: int, high_watermark: int) -> ReadOutcome:
    partition.cannot_read(failure)
    code, start = failure.code, partition.log_start_offset
    # rule B22/followers-send-readers-of-the-tier-away
    if code is ErrorCode.OFFSET_OUT_OF_RANGE and _may_be_tiered(partition, offset):
        code = ErrorCode.OFFSET_NOT_AVAILABLE
    return ReadOutcome(code, str(failure), high_watermark, start, high_watermark)


def _may_be_tiered(partition: Partition, offset: int) -> bool:
    """A follower whose log the leader has cut, and whom the metadata have not reached that say what was copied."""
    log, state = partition.log, partition.state
    if partition.follower is None or log is None or not state.log_config.remote_storage:
        return False
    return state.tier.start_offset <= offset < log.log_start_offset


def _failed_in_tier(partition: Partition, failure: KafkaError, offset: int, high_watermark: int) -> ReadOutcome:
    """The object store did not give it. Retention may have been quicker."""
    code, start = failure.code, partition.log_start_offset
    if tiered_at(partition, offset) is None and offset < start:
        code = ErrorCode.OFFSET_OUT_OF_RANGE
    return ReadOutcome(code, str(failure), high_watermark, start, high_watermark)


def list_offset(partition: Partition, timestamp: int, current_leader_epoch: int) -> ListedOffset | None:
    """See `ReplicaManager.list_offset`."""
    error, message = partition.refusal(current_leader_epoch)
    if error is not ErrorCode.NONE:
        return ListedOffset(error, message)
    core, log = partition.leading()
    tier, start = partition.state.tier, partition.log_start_offset
    if timestamp == EARLIEST_TIMESTAMP:
        return ListedOffset(ErrorCode.NONE, "", start, -1, _epoch_at(partition, start))
    if timestamp == EARLIEST_LOCAL_TIMESTAMP:
        return ListedOffset(ErrorCode.NONE, "", log.log_start_offset, -1, log.epoch_at(log.log_start_offset))
    if timestamp == LATEST_TIERED_TIMESTAMP:
        last = tier.end_offset - 1
        return ListedOffset(ErrorCode.NONE, "", last, -1, tier.segments[-1].last_epoch) if tier.segments else _NONE
    if timestamp == PENDING_UPLOAD_TIMESTAMP:
        if not partition.state.log_config.remote_storage:
            return _NONE
        first = max(tier.end_offset, start)
        return ListedOffset(ErrorCode.NONE, "", first, -1, log.epoch_at(first))
    if timestamp == LATEST_TIMESTAMP:
        if not core.knows_committed_end:
            return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE, _NOT_AVAILABLE)
        return ListedOffset(ErrorCode.NONE, "", core.high_watermark, -1, core.leader_epoch)
    if timestamp < 0 and timestamp != MAX_TIMESTAMP:
        return ListedOffset(ErrorCode.UNSUPPORTED_VERSION, f"{timestamp} is no timestamp that this broker knows")
    if start < log.log_start_offset and any(one.max_timestamp_ms >= timestamp for one in tier.segments):
        return None
    return _by_time(partition, core, log, timestamp)


async def list_offset_cold(
    partition: Partition, timestamp: int, current_leader_epoch: int, tier_reads: TierReads
) -> ListedOffset:
    """See `ReplicaManager.list_offset_cold`."""
    listed = list_offset(partition, timestamp, current_leader_epoch)
    if listed is not None:
        return listed
    core, log = partition.leading()
    try:
        if timestamp == MAX_TIMESTAMP:
            tiered = await tier_reads.max_timestamp(partition.state)
        else:
            tiered = await tier_reads.offset_for_timestamp(partition.state, timestamp, log.log_start_offset)
    except KafkaError as failure:
        return ListedOffset(failure.code, str(failure))
    if partition.leader is not core:
        return ListedOffset(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the object store was read")
    if tiered is None or timestamp == MAX_TIMESTAMP:
        local = _by_time(partition, core, log, timestamp)
        if tiered is None or local.error is not ErrorCode.NONE or local.timestamp_ms > tiered.timestamp_ms:
            return local
    return ListedOffset(ErrorCode.NONE, "", tiered.offset, tiered.timestamp_ms, tiered.leader_epoch)


def _by_time(partition: Partition, core: LeaderCore, log: PartitionLog, timestamp: int) -> ListedOffset:
    """From the log on the disk."""
    try:
        if timestamp == MAX_TIMESTAMP:
            # rule B14/newest-time-of-uncommitted-records
            found = log.max_timestamp(core.high_watermark) if core.knows_committed_end else None
        else:
            found = log.offset_for_timestamp(timestamp, core.high_watermark)  # rule B14/times-of-uncommitted-records
    except KafkaError as failure:
        partition.cannot_read(failure)
        return ListedOffset(failure.code, str(failure))
    if found is not None:
        return ListedOffset(ErrorCode.NONE, "", found.offset, found.timestamp_ms, found.leader_epoch)
    if not core.knows_committed_end:
        return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE, _NOT_AVAILABLE)
    return _NONE


def _epoch_at(partition: Partition, offset: int) -> int:
    """The leader epoch of the record at `offset`; -1: not known."""
    segment = tiered_at(partition, offset)
    if segment is not None:
        return max((one.epoch for one in segment.epochs if one.start_offset <= offset), default=-1)
    return -1 if partition.log is None else partition.log.epoch_at(offset)


def epoch_end_offset(partition: Partition, current_leader_epoch: int, epoch: int) -> EpochEnd:
    """See `ReplicaManager.epoch_end_offset`."""
    error, message = partition.refusal(current_leader_epoch)
    if error is not ErrorCode.NONE:
        return EpochEnd(error, message)
    _, log = partition.leading()
    known, end_offset = log.end_offset_for_epoch(epoch)
    tiered = partition.state.tier.epoch_end(epoch) if known < 0 else None  # rule B22/epochs-of-the-tier-are-unknown
    if tiered is not None:  # of records that are in the object store alone
        return EpochEnd(ErrorCode.NONE, "", tiered.epoch, tiered.start_offset)
    # rule B33/epochs-of-nothing-have-no-end
    if known < 0 <= epoch:
        # Nothing of it, nor of one before it, is left here. The next larger one begins where the partition does.
        mark("epoch-older-than-all")
        return EpochEnd(ErrorCode.NONE, "", epoch, partition.log_start_offset)
    return EpochEnd(ErrorCode.NONE, "", known, end_offset)
