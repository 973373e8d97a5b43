"""Changes of in-sync replicas, as a leader proposes them and the controller answers (rule B2: AlterPartition)."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_EPOCH, NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, PartitionEpoch, TopicId

NO_PARTITION_EPOCH = PartitionEpoch(-1)
"""A partition epoch that is not known."""


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A proposed member of an ISR; broker epoch -1 skips the controller's check of its incarnation."""

    node_id: NodeId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class AlterPartitionItem:
    """A leader proposes an ISR; `recovering` false says that its recovery is done."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    new_isr: tuple[IsrMember, ...]
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AlterPartitionOutcome:
    """The controller's judgement on one proposal; after NONE the fields are the partition as committed.

    `min_insync_replicas` is min(min.insync.replicas, replication factor) as the controller used it for this change.
    """

    topic_id: TopicId
    partition: int
    error: ErrorCode
    message: str = ""
    leader: NodeId = NO_NODE
    leader_epoch: LeaderEpoch = NO_EPOCH
    partition_epoch: PartitionEpoch = NO_PARTITION_EPOCH
    isr: tuple[NodeId, ...] = ()
    recovering: bool = False
    min_insync_replicas: int = 0
