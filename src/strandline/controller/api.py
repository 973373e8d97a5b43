"""What brokers and the service layer ask of the active controller, and what it answers.

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

from strandline.controller.metadata.image import METADATA_VERSION, ResourceType
from strandline.controller.reports import ReplicaOffsets, TopicFindings, Unserved
from strandline.log.findings import LogCondition
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import (
    NO_BROKER_EPOCH,
    NO_NODE,
    ZERO_UUID,
    BrokerEpoch,
    Endpoint,
    LeaderEpoch,
    NodeId,
    Offset,
    ProducerId,
    TopicId,
)
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.messages.fields import Int32, Int64, SInt32, SInt64, UInt32

NO_OFFSET = Offset(-1)

# Registration, sessions


@dataclass(frozen=True, slots=True)
class RegisterBrokerRequest:
    """A broker's process introduces itself, once after its start.

    Attributes:
        incarnation_id: drawn anew at every start of the process.
        listeners: advertised endpoints of the client listeners, by listener name.
        internal: where other nodes reach it.
        rack: its failure zone; None: none.
        min_metadata_version, max_metadata_version: the oldest and the newest metadata.version its program can replay.
        previous_broker_epoch: the epoch of the last run if that run ended cleanly, else -1; one that differs from the
            controller's means an unclean shutdown (KAFKA-15586), which matters under flush.policy=replicate alone.
        directory_id: names its data directory. Another than before: the disk was lost or wiped (schedule 26), and the
            broker has nothing of what it had.
        lives: the incarnations that have used the directory since the last one it knows to be registered, oldest first,
            this one last. Is the registered one not among them, the directory is an older copy: nothing in it counts.
        replaces: the incarnation that the broker takes to be registered. Is it another, nothing is changed and the
            reply names it: so a late request of an earlier process displaces no other.
        findings: what recovery found, of every partition in the directory.
        flush_policy: what the broker's file says of flush.policy; empty where it says nothing.
    """

    cluster_id: Annotated[str, 1]
    node_id: Annotated[NodeId, Int32(2)]
    incarnation_id: Annotated[UUID, 3]
    listeners: Annotated[Mapping[str, Endpoint], 4]
    internal: Annotated[Endpoint, 5]
    rack: Annotated[str | None, 6] = None
    previous_broker_epoch: Annotated[BrokerEpoch, SInt64(7)] = NO_BROKER_EPOCH
    min_metadata_version: Annotated[int, UInt32(8)] = 1
    max_metadata_version: Annotated[int, UInt32(9)] = METADATA_VERSION
    directory_id: Annotated[UUID | None, 10] = None
    lives: Annotated[tuple[UUID, ...], 11] = ()
    replaces: Annotated[UUID | None, 12] = None
    findings: Annotated[tuple[TopicFindings, ...], 13] = ()
    flush_policy: Annotated[str, 14] = ""


@dataclass(frozen=True, slots=True)
class RegisterBrokerReply:
    """The registration is committed; `broker_epoch` names this process lifetime.

    It is -1 where nothing was changed because another incarnation is `registered` than the request replaces.
    """

    broker_epoch: Annotated[BrokerEpoch, SInt64(1)]
    registered: Annotated[UUID | None, 2] = None


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest:
    """Take a broker out of the cluster for good. Replicas assigned to it stay assigned."""

    node_id: Annotated[NodeId, Int32(1)]
    dry_run: Annotated[bool, 2] = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker is alive.

    Attributes:
        metadata_offset: the last metadata record it has applied.
        want_fence: it does not want to serve (yet).
        want_shutdown: it wants to stop; its leaderships shall move away first.
        offsets: partitions whose offsets changed since the last heartbeat of this session; the first one has them all.
        unserved: all replicas that this broker cannot serve; in the first heartbeat of a session, and after a change.
            None: unchanged since.
        disk_full: its disk has no room: its replicas are read, and take no writes.
    """

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    metadata_offset: Annotated[Offset, SInt64(3)]
    want_fence: Annotated[bool, 4]
    want_shutdown: Annotated[bool, 5]
    offsets: Annotated[tuple[ReplicaOffsets, ...], 6] = ()
    unserved: Annotated[Unserved | None, 7] = None
    disk_full: Annotated[bool, 8] = False


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What the controller thinks of the broker.

    Attributes:
        caught_up: its metadata reach its own registration record.
        should_shut_down: it may stop now.
        report_at_offset: send a heartbeat at once when the metadata applied reach this offset (-1: no such wish);
            another broker's controlled shutdown waits for it.
    """

    caught_up: Annotated[bool, 1]
    fenced: Annotated[bool, 2]
    in_controlled_shutdown: Annotated[bool, 3]
    should_shut_down: Annotated[bool, 4]
    report_at_offset: Annotated[Offset, SInt64(5)] = NO_OFFSET


# ISR changes


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest:
    """All that a leader's broker has to propose at once.

    Raises (KafkaError): STALE_BROKER_EPOCH when another process of that node id has registered since.
    """

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    items: Annotated[tuple[AlterPartitionItem, ...], 3]


@dataclass(frozen=True, slots=True)
class AlterPartitionReply:
    """One outcome for each item, in order."""

    outcomes: Annotated[tuple[AlterPartitionOutcome, ...], 1]


# Topics


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Where one partition's replicas shall be; the first is the preferred leader."""

    partition: Annotated[int, Int32(1)]
    replicas: Annotated[tuple[NodeId, ...], Int32(2)]


@dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic to create.

    Attributes:
        num_partitions: -1: `num.partitions`; must be -1 with `assignments`.
        replication_factor: -1: `default.replication.factor`; must be -1 with `assignments`.
        topic_id: the channel proposes the first half, so that a retry after a lost reply finds its own topic and is a
            success; the controller draws the other one, so that no two topics ever have one id.
    """

    name: Annotated[str, 1]
    num_partitions: Annotated[int, SInt32(2)] = -1
    replication_factor: Annotated[int, SInt32(3)] = -1
    assignments: Annotated[tuple[ReplicaAssignment, ...], 4] = ()
    configs: Annotated[Mapping[str, str | None], 5] = field(default_factory=dict)
    topic_id: Annotated[TopicId, 6] = ZERO_UUID


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
    """What became of one topic; name and id are both filled where they are known."""

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
    """What became of one resource."""

    resource_type: Annotated[ResourceType, 1]
    resource_name: Annotated[str, 2]
    error: Annotated[ErrorCode, 3]
    message: Annotated[str, 4] = ""


@dataclass(frozen=True, slots=True)
class AlterConfigsReply:
    """One outcome for each resource, in order."""

    resources: Annotated[tuple[ResourceOutcome, ...], 1]


# Producer ids


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsRequest:
    """A broker asks for a block of producer ids.

    Raises (KafkaError): STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED.
    """

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """`count` ids from `first_producer_id`: the caller's alone, for ever."""

    first_producer_id: Annotated[ProducerId, Int64(1)]
    count: Annotated[int, Int32(2)]


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
    """What became of one partition; `leader` is the new one, `unclean` whether committed records may be gone."""

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
    """Give a vacant place in the quorum to a replica that has caught up (KIP-853).

    Raises (KafkaError): see `controller.raft.voter_changes.add_voter`.
    """

    node_id: Annotated[NodeId, Int32(1)]
    directory_id: Annotated[UUID, 2]


@dataclass(frozen=True, slots=True)
class VoterReply:
    """The change is committed.

    Attributes:
        voters: the nodes that vote now.
    """

    voters: Annotated[tuple[NodeId, ...], Int32(1)]


# Questions to a node, whatever its role


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Asks who answers at an endpoint."""


@dataclass(frozen=True, slots=True)
class PingReply:
    """Who answers at an endpoint, and which process of that node it is."""

    node_id: Annotated[NodeId, Int32(1)]
    incarnation_id: Annotated[UUID, 2]
