"""What operators and clients ask of the active controller, by way of any broker: topics, configs, ACLs, elections,
voters.

The messages are defined here alone, with their numbers on the wire (see `strandline.proto.messages`); `methods` says
which call takes and answers which. `ControllerChannel` (over the network) and `Controller` (in the process that leads)
offer the same operations with these types. An operation that concerns many things (topics, partitions, resources)
answers one outcome for each, in the order asked; an error that concerns the call as a whole (NOT_CONTROLLER,
STALE_BROKER_EPOCH, ...) is raised as KafkaError.

`dry_run` validates and answers exactly as the real call would, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated
from uuid import UUID

from strandline.controller.metadata.image import ResourceType
from strandline.log.findings import LogCondition
from strandline.proto.acls import AclBinding, AclFilter
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import (
    NO_NODE,
    ZERO_UUID,
    Endpoint,
    LeaderEpoch,
    NodeId,
    Offset,
    TopicId,
)
from strandline.proto.messages.fields import Int32, SInt32, SInt64
from strandline.proto.tier import AdoptedTier

# Topics


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Replicas of one partition; the first is the preferred leader."""

    partition: Annotated[int, Int32(1)]
    replicas: Annotated[tuple[NodeId, ...], Int32(2)]


@dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic to create.

    Attributes:
        num_partitions: -1: `num.partitions`; must be -1 with `assignments`.
        replication_factor: -1: `default.replication.factor`; must be -1 with `assignments`.
        topic_id: the channel proposes the first half, so that a retry after a lost reply finds its own topic and is a
            success; the controller draws the other one, so that no two topics ever have one id. With `is_restored`
            it is the id that the topic had, and is taken whole.
        is_restored: its records lie in the object store already (rule B25).
        tiers: what of a restored topic is in the store, of the partitions that have anything; empty in a dry run that
            asks about all but that.
    """

    name: Annotated[str, 1]
    num_partitions: Annotated[int, SInt32(2)] = -1
    replication_factor: Annotated[int, SInt32(3)] = -1
    assignments: Annotated[tuple[ReplicaAssignment, ...], 4] = ()
    configs: Annotated[Mapping[str, str | None], 5] = field(default_factory=dict)
    topic_id: Annotated[TopicId, 6] = ZERO_UUID
    is_restored: Annotated[bool, 7] = False
    tiers: Annotated[tuple[AdoptedTier, ...], 8] = ()


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """Create topics; each succeeds or fails alone."""

    topics: Annotated[tuple[CreatableTopic, ...], 1]
    dry_run: Annotated[bool, 2] = False


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What became of one topic.

    Attributes:
        message: the error's sentence, or a remark on a success (the replication factor that was chosen).
        num_partitions, replication_factor, assignments: as created; -1 and empty after an error.
    """

    name: Annotated[str, 1]
    error: Annotated[ErrorCode, 2]
    message: Annotated[str, 3] = ""
    topic_id: Annotated[TopicId, 4] = ZERO_UUID
    num_partitions: Annotated[int, SInt32(5)] = -1
    replication_factor: Annotated[int, SInt32(6)] = -1
    assignments: Annotated[tuple[ReplicaAssignment, ...], 7] = ()


@dataclass(frozen=True, slots=True)
class CreateTopicsReply:
    """One outcome for each topic, in order."""

    topics: Annotated[tuple[CreatedTopic, ...], 1]


@dataclass(frozen=True, slots=True)
class TopicRef:
    """A topic by name or, where the id is not zero, by id."""

    name: Annotated[str, 1] = ""
    topic_id: Annotated[TopicId, 2] = ZERO_UUID


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Delete topics; each succeeds or fails alone."""

    topics: Annotated[tuple[TopicRef, ...], 1]
    dry_run: Annotated[bool, 2] = False


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """Outcome of one topic. Name and id are both set if they are known."""

    name: Annotated[str, 1]
    topic_id: Annotated[TopicId, 2]
    error: Annotated[ErrorCode, 3]
    message: Annotated[str, 4] = ""


@dataclass(frozen=True, slots=True)
class TopicOutcomes:
    """One outcome for each topic, in order."""

    topics: Annotated[tuple[TopicOutcome, ...], 1]


@dataclass(frozen=True, slots=True)
class PartitionsToAdd:
    """Raise a topic's partition count to `count`; `assignments`, if any, name the new partitions in order."""

    name: Annotated[str, 1]
    count: Annotated[int, Int32(2)]
    assignments: Annotated[tuple[ReplicaAssignment, ...], 3] = ()


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """Add partitions to topics; each topic succeeds or fails alone."""

    topics: Annotated[tuple[PartitionsToAdd, ...], 1]
    dry_run: Annotated[bool, 2] = False


# Configs


class ConfigOperation(IntEnum):
    """Kafka's AlterConfigOp: APPEND and SUBTRACT are for lists alone."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    """One key's change; the value is None for DELETE."""

    name: Annotated[str, 1]
    operation: Annotated[ConfigOperation, 2]
    value: Annotated[str | None, 3]


@dataclass(frozen=True, slots=True)
class ResourceAlteration:
    """All changes of one resource: they all succeed or none does.

    `resource_name` is a topic's name, a node id in decimal, or "" for the default of all brokers.
    """

    resource_type: Annotated[ResourceType, 1]
    resource_name: Annotated[str, 2]
    alterations: Annotated[tuple[ConfigAlteration, ...], 3]


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    """IncrementalAlterConfigs; each resource succeeds or fails alone."""

    resources: Annotated[tuple[ResourceAlteration, ...], 1]
    dry_run: Annotated[bool, 2] = False


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    """Outcome of one resource."""

    resource_type: Annotated[ResourceType, 1]
    resource_name: Annotated[str, 2]
    error: Annotated[ErrorCode, 3]
    message: Annotated[str, 4] = ""


@dataclass(frozen=True, slots=True)
class AlterConfigsReply:
    """One outcome for each resource, in order."""

    resources: Annotated[tuple[ResourceOutcome, ...], 1]


# Access control lists


@dataclass(frozen=True, slots=True)
class CreateAclsRequest:
    """Add access control entries; each succeeds or fails alone."""

    bindings: Annotated[tuple[AclBinding, ...], 1]


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest:
    """Remove the access control entries that fit any of the filters."""

    filters: Annotated[tuple[AclFilter, ...], 1]


@dataclass(frozen=True, slots=True)
class AclOutcome:
    """Outcome of one ACL entry, or of one filter. `bindings` are those that the filter matched and that are now
    removed."""

    error: Annotated[ErrorCode, 1]
    message: Annotated[str, 2] = ""
    bindings: Annotated[tuple[AclBinding, ...], 3] = ()


@dataclass(frozen=True, slots=True)
class AclOutcomes:
    """One outcome for each entry or filter, in order."""

    outcomes: Annotated[tuple[AclOutcome, ...], 1]


# Elections


class ElectionKind(IntEnum):
    """Kafka's ElectionType."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """A partition by its topic's name."""

    topic: Annotated[str, 1]
    partition: Annotated[int, Int32(2)]


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    """Elect leaders. Without `partitions`, of every partition that needs it.

    With UNCLEAN and `dry_run` the outcomes preview what each candidate would discard.
    """

    kind: Annotated[ElectionKind, 1]
    partitions: Annotated[tuple[PartitionRef, ...], 2] = ()
    dry_run: Annotated[bool, 3] = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica in an election, best first by (last epoch, log end): never by length alone.

    Attributes:
        alive: registered, unfenced and not shutting down.
        in_isr, in_elr: would win a clean election.
        in_doubt: its log was cut when it was recovered; it leads once every such member of the last ISR is back.
        servable: it has not reported that its log cannot be used.
        condition: what its recovery found, as it reported to this controller when it registered; None: never.
        last_epoch, log_end_offset, high_watermark: as last reported; -1 when never.
        age_ms: how old that report is; -1 when there is none.
        lost_records: how many offsets below the highest known high watermark it lacks; -1 when unknown.
    """

    node_id: Annotated[NodeId, Int32(1)]
    alive: Annotated[bool, 2]
    in_isr: Annotated[bool, 3]
    in_elr: Annotated[bool, 4]
    last_epoch: Annotated[LeaderEpoch, SInt32(5)]
    log_end_offset: Annotated[Offset, SInt64(6)]
    high_watermark: Annotated[Offset, SInt64(7)]
    age_ms: Annotated[int, SInt64(8)]
    lost_records: Annotated[int, SInt64(9)]
    in_doubt: Annotated[bool, 10] = False
    servable: Annotated[bool, 11] = True
    condition: Annotated[LogCondition | None, 12] = None


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """Outcome of one partition's election. `leader` is the new leader; `unclean`: committed records may be lost."""

    topic: Annotated[str, 1]
    partition: Annotated[int, Int32(2)]
    error: Annotated[ErrorCode, 3]
    message: Annotated[str, 4] = ""
    leader: Annotated[NodeId, SInt32(5)] = NO_NODE
    unclean: Annotated[bool, 6] = False
    candidates: Annotated[tuple[Candidate, ...], 7] = ()


@dataclass(frozen=True, slots=True)
class ElectLeadersReply:
    """One outcome for each partition asked for, or that was elected."""

    outcomes: Annotated[tuple[ElectionOutcome, ...], 1]


# Who votes in the quorum


@dataclass(frozen=True, slots=True)
class RemoveVoterRequest:
    """Take the vote of a replica that lost its log, or its disk; its place in the quorum stays vacant (KIP-853).

    Attributes:
        directory_id: under which it voted; any where the voter set leaves that open.

    Raises (KafkaError): see `controller.raft.voter_changes.remove_voter`.
    """

    node_id: Annotated[NodeId, Int32(1)]
    directory_id: Annotated[UUID, 2]


@dataclass(frozen=True, slots=True)
class AddVoterRequest:
    """Give a vote to a replica that has caught up (KIP-853).

    Attributes:
        endpoint: where it listens; None: where it says it does.
        uncommitted: answer once the leader has appended the change, which may still be lost (KIP-1186).

    Raises (KafkaError): see `controller.raft.voter_changes.add_voter`.
    """

    node_id: Annotated[NodeId, Int32(1)]
    directory_id: Annotated[UUID, 2]
    endpoint: Annotated[Endpoint | None, 3] = None
    uncommitted: Annotated[bool, 4] = False


@dataclass(frozen=True, slots=True)
class UpdateVoterRequest:
    """Record where a voter listens, as it tells (KIP-853).

    Attributes:
        first, last: the kraft.version levels that the voter's build knows.
        epoch: the quorum's epoch as the voter knows it; -1: it does not say.

    Raises (KafkaError): see `controller.quorum.quorum.Quorum.update_voter`.
    """

    node_id: Annotated[NodeId, Int32(1)]
    directory_id: Annotated[UUID, 2]
    endpoint: Annotated[Endpoint | None, 3]
    first: Annotated[int, SInt32(4)]
    last: Annotated[int, SInt32(5)]
    epoch: Annotated[int, SInt32(6)] = -1


@dataclass(frozen=True, slots=True)
class VoterReply:
    """The change is committed, or appended where no more was asked for.

    Attributes:
        voters: the nodes that vote now.
    """

    voters: Annotated[tuple[NodeId, ...], Int32(1)]
