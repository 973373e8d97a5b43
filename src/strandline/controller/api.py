"""What brokers and the service layer ask of the active controller, and what it answers.

Frozen dataclasses; `strandline.controller.wire` gives their form on the wire. `ControllerChannel` (over the network)
and `Controller` (in the process that leads) offer the same operations with these types. An operation that concerns many
things (topics, partitions, resources) answers one outcome for each, in the order asked; an error that concerns the
call as a whole (NOT_CONTROLLER, STALE_BROKER_EPOCH, ...) is raised as KafkaError.

`dry_run` validates and answers exactly as the real call would, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
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

NO_OFFSET = Offset(-1)

PING_METHOD = "/strandline.v1.Node/Ping"
SESSION_METHOD = "/strandline.v1.Controller/Session"

# Registration, sessions


@dataclass(frozen=True, slots=True)
class RegisterBrokerRequest:
    """A broker's process introduces itself, once after its start.

    Attributes:
        incarnation_id: drawn anew at every start of the process.
        previous_broker_epoch: the epoch of the last run if that run ended cleanly, else -1; one that differs from the
            controller's means an unclean shutdown (KAFKA-15586), which matters under flush.policy=replicate alone.
        directory_id: names its data directory. Another than before: the disk was lost or wiped (schedule 26), and the
            broker has nothing of what it had.
        lives: the incarnations that have used the directory since the last one it knows to be registered, oldest first,
            this one last. Is the registered one not among them, the directory is an older copy: nothing in it counts.
        replaces: the incarnation that the broker takes to be registered. Is it another, nothing is changed and the
            reply names it: so a request of an earlier process that comes late takes nobody's place.
        findings: what recovery found, of every partition in the directory.
        flush_policy: what the broker's file says of flush.policy; empty where it says nothing.
    """

    cluster_id: str
    node_id: NodeId
    incarnation_id: UUID
    listeners: Mapping[str, Endpoint]
    internal: Endpoint
    rack: str | None = None
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    min_metadata_version: int = 1
    max_metadata_version: int = METADATA_VERSION
    directory_id: UUID | None = None
    lives: tuple[UUID, ...] = ()
    replaces: UUID | None = None
    findings: tuple[TopicFindings, ...] = ()
    flush_policy: str = ""


@dataclass(frozen=True, slots=True)
class RegisterBrokerReply:
    """The registration is committed; `broker_epoch` names this process lifetime.

    It is -1 where nothing was changed because another incarnation is `registered` than the request replaces.
    """

    broker_epoch: BrokerEpoch
    registered: UUID | None = None


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest:
    """Take a broker out of the cluster for good. Replicas assigned to it stay assigned."""

    node_id: NodeId
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker is alive.

    Attributes:
        metadata_offset: the last metadata record it has applied.
        want_fence: it does not want to serve (yet).
        want_shutdown: it wants to stop; its leaderships shall move away first.
        offsets: partitions whose offsets changed since the last heartbeat of this session; the first one has them all.
        unserved: all replicas that this broker cannot serve; in the first heartbeat of a session, and after a change.
            None: as told before.
        disk_full: its disk has no room: its replicas are read, and take no writes.
    """

    node_id: NodeId
    broker_epoch: BrokerEpoch
    metadata_offset: Offset
    want_fence: bool
    want_shutdown: bool
    offsets: tuple[ReplicaOffsets, ...] = ()
    unserved: Unserved | None = None
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What the controller thinks of the broker.

    Attributes:
        caught_up: its metadata reach its own registration record.
        should_shut_down: it may stop now.
        report_at_offset: send a heartbeat at once when the metadata applied reach this offset (-1: no such wish);
            another broker's controlled shutdown waits for it.
    """

    caught_up: bool
    fenced: bool
    in_controlled_shutdown: bool
    should_shut_down: bool
    report_at_offset: Offset = NO_OFFSET


# ISR changes


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest:
    """All that a leader's broker has to propose at once.

    Raises (KafkaError): STALE_BROKER_EPOCH when another process of that node id has registered since.
    """

    node_id: NodeId
    broker_epoch: BrokerEpoch
    items: tuple[AlterPartitionItem, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReply:
    """One outcome for each item, in order."""

    outcomes: tuple[AlterPartitionOutcome, ...]


# Topics


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Where one partition's replicas shall be; the first is the preferred leader."""

    partition: int
    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic to create.

    Attributes:
        num_partitions: -1: `num.partitions`; must be -1 with `assignments`.
        replication_factor: -1: `default.replication.factor`; must be -1 with `assignments`.
        topic_id: the channel proposes the first half, so that a retry after a lost reply finds its own topic and is a
            success; the controller draws the other one, so that no two topics ever have one id.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)
    topic_id: TopicId = ZERO_UUID


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """Create topics; each succeeds or fails alone."""

    topics: tuple[CreatableTopic, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What became of one topic.

    Attributes:
        message: the error's sentence, or a remark on a success (the replication factor that was chosen).
        num_partitions, replication_factor, assignments: as created; -1 and empty after an error.
    """

    name: str
    error: ErrorCode
    message: str = ""
    topic_id: TopicId = ZERO_UUID
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopicsReply:
    """One outcome for each topic, in order."""

    topics: tuple[CreatedTopic, ...]


@dataclass(frozen=True, slots=True)
class TopicRef:
    """A topic by name or, where the id is not zero, by id."""

    name: str = ""
    topic_id: TopicId = ZERO_UUID


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Delete topics; each succeeds or fails alone."""

    topics: tuple[TopicRef, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """What became of one topic; name and id are both filled where they are known."""

    name: str
    topic_id: TopicId
    error: ErrorCode
    message: str = ""


@dataclass(frozen=True, slots=True)
class TopicOutcomes:
    """One outcome for each topic, in order."""

    topics: tuple[TopicOutcome, ...]


@dataclass(frozen=True, slots=True)
class PartitionsToAdd:
    """Raise a topic's partition count to `count`; `assignments`, if any, name the new partitions in order."""

    name: str
    count: int
    assignments: tuple[ReplicaAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """Add partitions to topics; each topic succeeds or fails alone."""

    topics: tuple[PartitionsToAdd, ...]
    dry_run: bool = False


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

    name: str
    operation: ConfigOperation
    value: str | None


@dataclass(frozen=True, slots=True)
class ResourceAlteration:
    """All changes of one resource: they all succeed or none does."""

    resource_type: ResourceType
    resource_name: str
    alterations: tuple[ConfigAlteration, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    """IncrementalAlterConfigs; each resource succeeds or fails alone."""

    resources: tuple[ResourceAlteration, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    """What became of one resource."""

    resource_type: ResourceType
    resource_name: str
    error: ErrorCode
    message: str = ""


@dataclass(frozen=True, slots=True)
class AlterConfigsReply:
    """One outcome for each resource, in order."""

    resources: tuple[ResourceOutcome, ...]


# Producer ids


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsRequest:
    """A broker asks for a block of producer ids.

    Raises (KafkaError): STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED.
    """

    node_id: NodeId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """`count` ids from `first_producer_id`: the caller's alone, for ever."""

    first_producer_id: ProducerId
    count: int


# Elections


class ElectionKind(IntEnum):
    """Kafka's ElectionType."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """A partition by its topic's name."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    """Elect leaders. Without `partitions`, of every partition that needs it.

    With UNCLEAN and `dry_run` the outcomes preview what each candidate would discard.
    """

    kind: ElectionKind
    partitions: tuple[PartitionRef, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica in an election, best first by (last epoch, log end): never by length alone.

    Attributes:
        alive: registered, unfenced and not shutting down.
        in_isr, in_elr: would win a clean election.
        in_doubt: its log was cut when it was recovered; it leads once every such member of the last ISR is back.
        servable: it has not told that its log cannot be used.
        condition: what its recovery found, as it told this controller when it registered; None when it has not.
        last_epoch, log_end_offset, high_watermark: as last reported; -1 when never.
        age_ms: how old that report is; -1 when there is none.
        lost_records: how many offsets below the highest known high watermark it lacks; -1 when unknown.
    """

    node_id: NodeId
    alive: bool
    in_isr: bool
    in_elr: bool
    last_epoch: LeaderEpoch
    log_end_offset: Offset
    high_watermark: Offset
    age_ms: int
    lost_records: int
    in_doubt: bool = False
    servable: bool = True
    condition: LogCondition | None = None


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """What became of one partition; `leader` is the new one, `unclean` whether committed records may be gone."""

    topic: str
    partition: int
    error: ErrorCode
    message: str = ""
    leader: NodeId = NO_NODE
    unclean: bool = False
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class ElectLeadersReply:
    """One outcome for each partition asked for, or that was elected."""

    outcomes: tuple[ElectionOutcome, ...]


# Probes


@dataclass(frozen=True, slots=True)
class PingReply:
    """Who answers at an endpoint, and which process of that node it is."""

    node_id: NodeId
    incarnation_id: UUID
