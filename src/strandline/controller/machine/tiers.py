"""AlterTiers: a leader has copied segments to the object store, or raises the tier's start; the controller judges it.

Its answers can be lost, and so a change that is in already is a success that writes nothing. Only the leader of the
present epoch is heard: one that was deposed may have copied what its successor truncates.
"""

from __future__ import annotations

from strandline.controller.broker_api import AlterTiersReply, AlterTiersRequest
from strandline.controller.machine.isr import check_leader, once
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.image import TopicInfo
from strandline.controller.metadata.records import MetadataRecord, PartitionRecord
from strandline.controller.metadata.settings import TopicSettings
from strandline.controller.metadata.tiers import (
    REMOTE_STORAGE_ENABLE,
    TieredSegmentRecord,
    TierReapedRecord,
    TierStartRecord,
    place_fault,
    segment_fault,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, NodeId, Offset, TopicIdPartition
from strandline.proto.tier import Tier, TierChange, TieredSegment, TierOutcome


def alter_tiers(state: MachineState, request: AlterTiersRequest) -> Result[AlterTiersReply]:
    """Judge each change of a leader; those that stand become records. Topics said to be reaped are forgotten.

    Raises:
        KafkaError: STALE_BROKER_EPOCH: another process of the sender's node id has registered since.
    """
    state.broker_of_epoch(request.node_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    outcomes = []
    seen: set[TopicIdPartition] = set()
    for change in request.changes:
        key = TopicIdPartition(change.topic_id, change.partition)
        try:
            once(key, seen)
            records += _alter_one(state, request.node_id, change)
        except KafkaError as error:
            outcomes.append(TierOutcome(*key, error.code, str(error.message)))
        else:
            outcomes.append(TierOutcome(*key, ErrorCode.NONE))
    reaped = dict.fromkeys(request.reaped)
    records += [TierReapedRecord(topic_id) for topic_id in reaped if topic_id in state.image.deleted_tiers]
    return Result(AlterTiersReply(tuple(outcomes)), records)


def _alter_one(state: MachineState, sender: NodeId, change: TierChange) -> list[MetadataRecord]:
    topic, partition = state.known_partition(TopicIdPartition(change.topic_id, change.partition))
    _check_sender(partition, sender, change.leader_epoch)
    tier = state.image.tier(change.topic_id, change.partition)
    records: list[MetadataRecord] = []
    if change.add and not _is_in(tier, change.add):
        _check_enabled(state, topic)  # rule B21/topics-without-the-setting-are-tiered
        _check_segments(tier, change.add, partition.leader_epoch)
        records += [TieredSegmentRecord(change.topic_id, change.partition, segment) for segment in change.add]
    if change.start_offset > tier.start_offset:  # rule B21/tier-start-goes-back
        records.append(TierStartRecord(change.topic_id, change.partition, change.start_offset))
    return records


def _check_sender(partition: PartitionRecord, sender: NodeId, leader_epoch: LeaderEpoch) -> None:
    """Check the sender of a change, in the order of `machine.isr.validate`.

    Raises:
        KafkaError: NOT_CONTROLLER, FENCED_LEADER_EPOCH, INVALID_REQUEST.
    """
    if leader_epoch > partition.leader_epoch:  # rule B21/controller-that-is-behind-judges-tiers
        raise KafkaError(
            ErrorCode.NOT_CONTROLLER,
            f"The leader knows epoch {leader_epoch}, this controller only {partition.leader_epoch}: this controller is "
            "the stale one.",
        )
    # rule B21/deposed-leader-changes-the-tier, rule B21/any-replica-changes-the-tier
    check_leader(partition, sender, leader_epoch)


def _is_in(tier: Tier, add: tuple[TieredSegment, ...]) -> bool:
    """True if the change was carried out already, and its answer was lost. What the tier's start has passed since is
    no longer in it."""
    # rule B21/a-retry-behind-the-start-is-refused
    left = [segment.segment_id for segment in add if segment.end_offset > tier.start_offset]
    # rule B21/a-retry-of-a-tier-change-is-refused, rule B21/same-offsets-are-a-retry
    return bool(left) and left == [segment.segment_id for segment in tier.segments[-len(left) :]]


def _check_enabled(state: MachineState, topic: TopicInfo) -> None:
    if not state.resolver.topic_value(state.image, topic.name, TopicSettings.remote_storage_enable):
        words = f"Topic {topic.name!r} has {REMOTE_STORAGE_ENABLE}=false: no segment of it goes to the object store."
        raise KafkaError(ErrorCode.INVALID_REQUEST, words)


def _check_segments(tier: Tier, add: tuple[TieredSegment, ...], leader_epoch: LeaderEpoch) -> None:
    """Each segment can be, is new, and continues what is there. Raises KafkaError INVALID_REQUEST."""
    known = {segment.segment_id for segment in tier.segments}
    end_offset: Offset | None = tier.end_offset if tier.segments else None
    for segment in add:
        fault = segment_fault(segment) or place_fault(segment, tier.start_offset, end_offset)
        if not fault and segment.segment_id in known:
            fault = "its id is in the tier already"
        if not fault and segment.last_epoch > leader_epoch:  # rule B21/segments-of-epochs-to-come
            fault = f"it holds records of leader epoch {segment.last_epoch}, and the leader's is {leader_epoch}"
        if fault:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Segment {segment.segment_id} of offsets {segment.base_offset} to {segment.end_offset} cannot be "
                f"added: {fault}.",
            )
        known.add(segment.segment_id)
        end_offset = segment.end_offset
