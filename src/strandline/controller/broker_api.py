"""What a broker asks of the active controller for itself, and what it reports: registration, heartbeats, ISR changes,
tiers (KIP-405).

Defined and answered as the messages of `api`, which operators and clients ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from strandline.controller.metadata.features import METADATA_FEATURE, NEWEST_LEVEL, Range, Supported, supported_by
from strandline.log.findings import LogCondition
from strandline.proto.ids import (
    NO_BROKER_EPOCH,
    NO_EPOCH,
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
from strandline.proto.tier import TierChange, TierOutcome

NO_OFFSET = Offset(-1)

# What a broker reports of its replicas


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
class TopicReplicaSet:
    """Partitions of one topic."""

    topic_id: Annotated[TopicId, 1]
    partitions: Annotated[tuple[int, ...], Int32(2)]


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """Replicas of the reporting broker."""

    topics: Annotated[tuple[TopicReplicaSet, ...], 1] = ()


# Registration


@dataclass(frozen=True, slots=True)
class SupportedFeature:
    """The levels of a feature that a node's build knows, from `first` to `last`."""

    name: Annotated[str, 1]
    first: Annotated[int, UInt32(2)]
    last: Annotated[int, UInt32(3)]


def told(supported: Supported) -> tuple[SupportedFeature, ...]:
    """Encode the feature levels that a node's build supports."""
    return tuple(SupportedFeature(name, known.first, known.last) for name, known in sorted(supported.items()))


def heard(features: tuple[SupportedFeature, ...]) -> Supported:
    """Decode the feature levels that a node's build supports. A build from before feature levels sends none."""
    return supported_by((one.name, one.first, one.last) for one in features)


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
        directory_id: names its (first) data directory. Another than before: the disk was lost or wiped (schedule 26),
            and the broker has nothing of what it had.
        lives: the incarnations that have used the directory since the last one it knows to be registered, oldest first,
            this one last. Is the registered one not among them, the directory is an older copy: nothing in it counts.
        replaces: the incarnation that the broker takes to be registered. Is it another, nothing is changed and the
            reply names it: so a late request of an earlier process displaces no other.
        findings: what recovery found, of every partition in the directory.
        flush_policy: what the broker's file says of flush.policy; empty where it says nothing.
        features: the levels of all features that its program knows; builds from before there were levels say nothing.
    """

    cluster_id: Annotated[str, 1]
    node_id: Annotated[NodeId, Int32(2)]
    incarnation_id: Annotated[UUID, 3]
    listeners: Annotated[Mapping[str, Endpoint], 4]
    internal: Annotated[Endpoint, 5]
    rack: Annotated[str | None, 6] = None
    previous_broker_epoch: Annotated[BrokerEpoch, SInt64(7)] = NO_BROKER_EPOCH
    min_metadata_version: Annotated[int, UInt32(8)] = 1
    max_metadata_version: Annotated[int, UInt32(9)] = NEWEST_LEVEL
    directory_id: Annotated[UUID | None, 10] = None
    lives: Annotated[tuple[UUID, ...], 11] = ()
    replaces: Annotated[UUID | None, 12] = None
    findings: Annotated[tuple[TopicFindings, ...], 13] = ()
    flush_policy: Annotated[str, 14] = ""
    features: Annotated[tuple[SupportedFeature, ...], 15] = ()

    @property
    def supported(self) -> Supported:
        """The levels that its program knows."""
        known = Range(self.min_metadata_version, self.max_metadata_version)
        return {**heard(self.features), METADATA_FEATURE: known}


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


# Sessions


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
        disk_full: no disk of it has room: its replicas are read, and take no writes.
        rotten: as `unserved`, all replicas of whose log a part is not what was written. They are read, but for that.
        without_room: as `unserved`, all replicas that take no writes because their directory, one of several, is full.
    """

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    metadata_offset: Annotated[Offset, SInt64(3)]
    want_fence: Annotated[bool, 4]
    want_shutdown: Annotated[bool, 5]
    offsets: Annotated[tuple[ReplicaOffsets, ...], 6] = ()
    unserved: Annotated[ReplicaSet | None, 7] = None
    disk_full: Annotated[bool, 8] = False
    rotten: Annotated[ReplicaSet | None, 9] = None
    without_room: Annotated[ReplicaSet | None, 10] = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What the controller thinks of the broker.

    Attributes:
        caught_up: its metadata reach its own registration record.
        should_shut_down: it may stop now.
        report_at_offset: send a heartbeat at once when the metadata applied reach this offset (-1: no such wish);
            another broker's controlled shutdown waits for it.
        heartbeat_now: send a heartbeat at once; another process of the broker's node id was seen.
    """

    caught_up: Annotated[bool, 1]
    fenced: Annotated[bool, 2]
    in_controlled_shutdown: Annotated[bool, 3]
    should_shut_down: Annotated[bool, 4]
    report_at_offset: Annotated[Offset, SInt64(5)] = NO_OFFSET
    heartbeat_now: Annotated[bool, 6] = False


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


# Reported offsets, as the controller tracks them


@dataclass(frozen=True, slots=True)
class DescribeReplicasRequest:
    """Ask for the tracked offsets of the named topics, or of all when there are none named."""

    topics: Annotated[tuple[str, ...], 1] = ()


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """Soft state about one replica, and its age; -1 where it was never reported to this controller."""

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


# Questions to a node, whatever its role


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Asks who answers at an endpoint."""


@dataclass(frozen=True, slots=True)
class PingReply:
    """Who answers at an endpoint, and which process of that node it is.

    Attributes:
        features, release: the levels that its build knows, and the release that it is; builds from before there were
            levels say neither.
    """

    node_id: Annotated[NodeId, Int32(1)]
    incarnation_id: Annotated[UUID, 2]
    features: Annotated[tuple[SupportedFeature, ...], 3] = ()
    release: Annotated[str, 4] = ""


@dataclass(frozen=True, slots=True)
class AlterTiersRequest:
    """A broker tells what it has copied to the object store or deletes there, and what of deleted topics is gone.

    Attributes:
        changes: of partitions that it leads, each once.
        reaped: deleted topics (`MetadataImage.deleted_tiers`) of which it has found no object any more.
    """

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    changes: Annotated[tuple[TierChange, ...], 3] = ()
    reaped: Annotated[tuple[TopicId, ...], 4] = ()


@dataclass(frozen=True, slots=True)
class AlterTiersReply:
    """One outcome a change, in order."""

    outcomes: Annotated[tuple[TierOutcome, ...], 1]
