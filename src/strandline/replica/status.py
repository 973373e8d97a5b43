"""What a hosted partition is and where it stands, for metrics, heartbeats and describe."""

from __future__ import annotations

from typing import NamedTuple

from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch, TopicId
from strandline.replica.partition import Partition
from strandline.replica.states import FollowerStatus, Role


class ReplicaStatus(NamedTuple):
    """One hosted partition, for metrics, heartbeats and describe.

    Attributes:
        last_epoch: leader epoch of the last record.
        isr: as committed, known on the leader; from the metadata elsewhere.
        maximal_isr: with a proposed newcomer (leader only, else as `isr`).
        followers: leader only.
        log_start_offset: where the partition begins, with its tier; local_log_start_offset: where its log does.
        tiered: its closed segments are to go to the object store (`remote.storage.enable`).
        tiered_bytes: of what lies there.
        rotten: a part of its log is not what was written, and is not healed yet.
        directory: the log directory that it lies in; empty where it has no log.
        reason: why it is offline, else empty.
    """

    topic: str
    topic_id: TopicId
    partition: int
    role: Role
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    high_watermark: int
    log_start_offset: int
    local_log_start_offset: int
    log_end_offset: int
    durable_offset: int
    last_epoch: int
    size_bytes: int
    tiered: bool
    tiered_bytes: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    maximal_isr: tuple[NodeId, ...]
    effective_min_isr: int
    followers: tuple[FollowerStatus, ...] = ()
    rotten: bool = False
    directory: str = ""
    reason: str = ""


def status_of(partition: Partition, now_ms: float) -> ReplicaStatus:
    """What it is and where it stands."""
    state, log, leader = partition.state, partition.log, partition.leader
    return ReplicaStatus(
        topic=state.topic,
        topic_id=state.topic_id,
        partition=state.partition,
        role=partition.role,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch if leader is None else leader.partition_epoch,
        high_watermark=partition.high_watermark,
        log_start_offset=-1 if log is None else state.tier.log_start(log.log_start_offset),
        local_log_start_offset=-1 if log is None else log.log_start_offset,
        log_end_offset=-1 if log is None else log.log_end_offset,
        durable_offset=-1 if log is None else log.durable_offset,
        last_epoch=-1 if log is None else log.latest_epoch,
        size_bytes=0 if log is None else log.size_bytes,
        tiered=state.log_config.remote_storage,
        tiered_bytes=state.tier.size_bytes,
        replicas=state.replicas,
        isr=state.isr if leader is None else leader.isr,
        maximal_isr=state.isr if leader is None else leader.maximal_isr,
        effective_min_isr=state.effective_min_isr,
        followers=() if leader is None else leader.follower_statuses(now_ms),
        rotten=log is not None and bool(log.rot),
        directory="" if log is None else log.home,
        reason=partition.reason,
    )
