"""Changes of in-sync replicas, as a leader proposes them and the controller answers (rule B2: AlterPartition)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_EPOCH, NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, PartitionEpoch, TopicId
from strandline.proto.messages.fields import Int32, SInt32, SInt64

NO_PARTITION_EPOCH = PartitionEpoch(-1)
"""A partition epoch that is not known."""


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A proposed member of an ISR; broker epoch -1 skips the controller's check of its incarnation."""

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, SInt64(2)]


@dataclass(frozen=True, slots=True)
class AlterPartitionItem:
    """A leader proposes an ISR.

    Attributes:
        partition_epoch: of the partition that the proposal builds on.
        new_isr: the leader is in it.
        recovering: false says that the leader has finished recovering from an unclean election.
    """

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    leader_epoch: Annotated[LeaderEpoch, Int32(3)]
    partition_epoch: Annotated[PartitionEpoch, Int32(4)]
    new_isr: Annotated[tuple[IsrMember, ...], 5]
    recovering: Annotated[bool, 6] = False


@dataclass(frozen=True, slots=True)
class AlterPartitionOutcome:
    """The controller's judgement on one proposal; after NONE the fields are the partition as committed.

    `min_insync_replicas` is min(min.insync.replicas, replication factor) as the controller used it for this change.
    """

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    error: Annotated[ErrorCode, 3]
    message: Annotated[str, 4] = ""
    leader: Annotated[NodeId, SInt32(5)] = NO_NODE
    leader_epoch: Annotated[LeaderEpoch, SInt32(6)] = NO_EPOCH
    partition_epoch: Annotated[PartitionEpoch, SInt32(7)] = NO_PARTITION_EPOCH
    isr: Annotated[tuple[NodeId, ...], Int32(8)] = ()
    recovering: Annotated[bool, 9] = False
    min_insync_replicas: Annotated[int, Int32(10)] = 0
