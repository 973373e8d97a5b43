"""What brokers report of their replicas, and what the controller tells of these reports."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.log.findings import LogCondition
from strandline.proto.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicId


@dataclass(frozen=True, slots=True)
class ReplicaOffsets:
    """Where one replica of the reporting broker stands: soft state, carried by heartbeats.

    Attributes:
        high_watermark: what this replica knows.
        last_epoch: the leader epoch of its last record (-1 when empty).
        leader_epoch: the partition's leader epoch as the replica knows it. Where nobody leads in it, its log stands
            still.
    """

    topic_id: TopicId
    partition: int
    high_watermark: Offset
    log_end_offset: Offset
    last_epoch: LeaderEpoch
    leader_epoch: LeaderEpoch = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicFindings:
    """What recovery found of one topic's partitions, in columns of equal length: thousands travel in a registration.

    Attributes:
        topic: its name, by which partitions are known whose directory is gone.
        topic_id: zero for those.
        log_end_offsets, last_epochs: -1 where the log cannot be used.
    """

    topic: str
    topic_id: TopicId
    partitions: tuple[int, ...]
    log_end_offsets: tuple[Offset, ...]
    last_epochs: tuple[LeaderEpoch, ...]
    conditions: tuple[LogCondition, ...]


@dataclass(frozen=True, slots=True)
class UnservedTopic:
    """Partitions of one topic whose replicas the reporting broker cannot serve."""

    topic_id: TopicId
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unserved:
    """All of them."""

    topics: tuple[UnservedTopic, ...] = ()


# What the controller tells


@dataclass(frozen=True, slots=True)
class DescribeReplicasRequest:
    """Ask for the tracked offsets of the named topics, or of all when there are none named."""

    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """Soft state about one replica, with its age: -1s when it has never been reported to this controller."""

    topic: str
    partition: int
    node_id: NodeId
    high_watermark: Offset
    log_end_offset: Offset
    last_epoch: LeaderEpoch
    age_ms: int


@dataclass(frozen=True, slots=True)
class DescribeReplicasReply:
    """One report for each replica, in order of topic, partition and assignment."""

    replicas: tuple[ReplicaReport, ...]
