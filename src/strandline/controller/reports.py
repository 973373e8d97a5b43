"""What brokers report of their replicas, and what the controller answers about these reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from strandline.log.findings import LogCondition
from strandline.proto.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicId
from strandline.proto.messages.fields import Int32, Int64, SInt32, SInt64


@dataclass(frozen=True, slots=True)
class ReplicaOffsets:
    """Where one replica of the reporting broker stands: soft state, carried by heartbeats.

    Attributes:
        high_watermark: what this replica knows.
        last_epoch: the leader epoch of its last record (-1 when empty).
        leader_epoch: the partition's leader epoch as the replica knows it. While that epoch has no leader, the log does
            not change.
    """

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    high_watermark: Annotated[Offset, Int64(3)]
    log_end_offset: Annotated[Offset, Int64(4)]
    last_epoch: Annotated[LeaderEpoch, SInt32(5)]
    leader_epoch: Annotated[LeaderEpoch, SInt32(6)] = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicFindings:
    """What recovery found of one topic's partitions, in columns of equal length: thousands travel in a registration.

    Attributes:
        topic: its name, by which partitions are known whose directory is gone.
        topic_id: zero for those.
        log_end_offsets, last_epochs: -1 where the log cannot be used.
    """

    topic: Annotated[str, 1]
    topic_id: Annotated[TopicId, 2]
    partitions: Annotated[tuple[int, ...], Int32(3)]
    log_end_offsets: Annotated[tuple[Offset, ...], SInt64(4)]
    last_epochs: Annotated[tuple[LeaderEpoch, ...], SInt32(5)]
    conditions: Annotated[tuple[LogCondition, ...], 6]


@dataclass(frozen=True, slots=True)
class UnservedTopic:
    """Partitions of one topic whose replicas the reporting broker cannot serve."""

    topic_id: Annotated[TopicId, 1]
    partitions: Annotated[tuple[int, ...], Int32(2)]


@dataclass(frozen=True, slots=True)
class Unserved:
    """All of them."""

    topics: Annotated[tuple[UnservedTopic, ...], 1] = ()


# What the controller answers


@dataclass(frozen=True, slots=True)
class DescribeReplicasRequest:
    """Ask for the tracked offsets of the named topics, or of all when there are none named."""

    topics: Annotated[tuple[str, ...], 1] = ()


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """Soft state about one replica, with its age: -1s when it has never been reported to this controller."""

    topic: Annotated[str, 1]
    partition: Annotated[int, Int32(2)]
    node_id: Annotated[NodeId, Int32(3)]
    high_watermark: Annotated[Offset, SInt64(4)]
    log_end_offset: Annotated[Offset, SInt64(5)]
    last_epoch: Annotated[LeaderEpoch, SInt32(6)]
    age_ms: Annotated[int, SInt64(7)]


@dataclass(frozen=True, slots=True)
class DescribeReplicasReply:
    """One report for each replica, in order of topic, partition and assignment."""

    replicas: Annotated[tuple[ReplicaReport, ...], 1]
