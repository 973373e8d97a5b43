"""Records of the metadata log: the cluster, its brokers, topics, configs, producer ids and ACLs.

A record is a protobuf message, defined here alone (see `strandline.proto.messages`). Records of other subjects stand in
the files of these; `strandline.controller.metadata.table` has a row for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from strandline.proto.acls import AclBinding
from strandline.proto.ids import (
    NO_NODE,
    BrokerEpoch,
    Endpoint,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    ProducerId,
    TopicId,
)
from strandline.proto.messages.fields import Int32, Int64, SInt32, UInt32


class MetadataRecord:
    """Any record of the metadata log: a frozen dataclass whose annotations carry the numbers of its fields."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MetadataVersionRecord(MetadataRecord):
    """First of a log and of each snapshot: the rules by which what follows is replayed.

    Attributes:
        release: the first release that knows the level, for builds that do not.
    """

    level: Annotated[int, UInt32(1)]
    release: Annotated[str, 2] = ""


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord(MetadataRecord):
    """A broker's process has registered, in the place of any earlier one of its node id; then the broker as it stands.

    Only snapshots and amended registrations have `fenced` false, or `in_controlled_shutdown` or `disk_full` true.

    Attributes:
        incarnation_id: names the process; drawn anew at every start.
        broker_epoch: offset of the registration record: one process lifetime.
        listeners: advertised endpoints of the client listeners, by listener name.
        internal: where other nodes reach it (replication, probes).
        rack: the failure zone, or None.
        fenced: not alive as far as the controller knows: in no ISR, leads nothing.
        in_controlled_shutdown: asked to stop; leads nothing new and joins no ISR.
        directory_id: names its data directory; None where it did not report one.
        acks_unsynced: flush.policy=replicate, as the controller found it to be at the registration: what this process
            counts in acks need not be on any disk.
        disk_full: its disk has no room, as it said itself: its replicas are read and take no writes. It leads nothing
            and is in no ISR where a replica with room is in sync (schedule 57).
    """

    node_id: Annotated[NodeId, Int32(1)]
    incarnation_id: Annotated[UUID, 2]
    broker_epoch: Annotated[BrokerEpoch, Int64(3)]
    listeners: Annotated[Mapping[str, Endpoint], 4]
    internal: Annotated[Endpoint, 5]
    rack: Annotated[str | None, 6] = None
    fenced: Annotated[bool, 7] = True
    in_controlled_shutdown: Annotated[bool, 8] = False
    directory_id: Annotated[UUID | None, 9] = None
    acks_unsynced: Annotated[bool, 10] = False
    disk_full: Annotated[bool, 11] = False

    @property
    def active(self) -> bool:
        """May lead partitions and join ISRs."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord(MetadataRecord):
    """A broker is taken out of the cluster for good."""

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]


@dataclass(frozen=True, slots=True)
class BrokerChangeRecord(MetadataRecord):
    """A broker is fenced, unfenced, begins its controlled shutdown, or its disk is full or has room again; None:
    unchanged."""

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    fenced: Annotated[bool | None, 3] = None
    in_controlled_shutdown: Annotated[bool | None, 4] = None
    disk_full: Annotated[bool | None, 5] = None


@dataclass(frozen=True, slots=True)
class TopicRecord(MetadataRecord):
    """A topic is created; its partitions follow in the same batch."""

    name: Annotated[str, 1]
    topic_id: Annotated[TopicId, 2]


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord(MetadataRecord):
    """A topic, its partitions, its configs and its tiers are gone; its objects in the store are yet to be."""

    topic_id: Annotated[TopicId, 1]


@dataclass(frozen=True, slots=True)
class PartitionRecord(MetadataRecord):
    """A partition is created, or stands so.

    Attributes:
        replicas: the assignment; the first is the preferred leader.
        isr: in-sync replicas, in the order in which they were recorded.
        eligible_leader_replicas: left the ISR below min.insync, yet hold all that is committed (KIP-966).
        last_known_elr: members of the last ISR that are in doubt: their logs were cut when they were recovered. Where a
            replica's broker acks what is not synced: the last known leader while there is none (Kafka's use of it).
        leader: NO_NODE while there is none.
        leader_epoch: bumped at each election; partition_epoch: bumped at each change of this partition.
        recovering: the leader was elected uncleanly and has not finished recovering.
        adding_replicas: those of `replicas` that a move under way brings (KIP-455).
        removing_replicas: those of `replicas` that it takes away once it is over.
    """

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    replicas: Annotated[tuple[NodeId, ...], Int32(3)]
    isr: Annotated[tuple[NodeId, ...], Int32(4)]
    eligible_leader_replicas: Annotated[tuple[NodeId, ...], Int32(5)]
    last_known_elr: Annotated[tuple[NodeId, ...], Int32(6)]
    leader: Annotated[NodeId, SInt32(7)]
    leader_epoch: Annotated[LeaderEpoch, Int32(8)]
    partition_epoch: Annotated[PartitionEpoch, Int32(9)]
    recovering: Annotated[bool, 10]
    adding_replicas: Annotated[tuple[NodeId, ...], Int32(11)] = ()
    removing_replicas: Annotated[tuple[NodeId, ...], Int32(12)] = ()

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_NODE

    @property
    def preferred_leader(self) -> NodeId:
        return self.replicas[0]

    @property
    def is_moving(self) -> bool:
        """A move is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[NodeId, ...]:
        """The assignment once the move is over."""
        return tuple(node for node in self.replicas if node not in self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[NodeId, ...]:
        """The assignment without the move."""
        return tuple(node for node in self.replicas if node not in self.adding_replicas)


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord(MetadataRecord):
    """A partition changes; None: unchanged.

    Each such record bumps the partition epoch, and one that names a leader, even the same one, the leader epoch.
    `reason` is for people who read the log ("broker 2 fenced"): the replay does not look at it.
    """

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    replicas: Annotated[tuple[NodeId, ...] | None, 3] = None
    isr: Annotated[tuple[NodeId, ...] | None, 4] = None
    eligible_leader_replicas: Annotated[tuple[NodeId, ...] | None, 5] = None
    last_known_elr: Annotated[tuple[NodeId, ...] | None, 6] = None
    leader: Annotated[NodeId | None, SInt32(7)] = None
    recovering: Annotated[bool | None, 8] = None
    reason: Annotated[str, 9] = ""
    adding_replicas: Annotated[tuple[NodeId, ...] | None, 10] = None
    removing_replicas: Annotated[tuple[NodeId, ...] | None, 11] = None


@dataclass(frozen=True, slots=True)
class ConfigRecord(MetadataRecord):
    """A dynamic config is set, or removed where the value is None; resources as in `api.ResourceAlteration`."""

    resource_type: Annotated[int, Int32(1)]
    resource_name: Annotated[str, 2]
    name: Annotated[str, 3]
    value: Annotated[str | None, 4]


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord(MetadataRecord):
    """A block of producer ids, up to but without `next_producer_id`, was given to a broker: never again to any."""

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    next_producer_id: Annotated[ProducerId, Int64(3)]


@dataclass(frozen=True, slots=True)
class AccessControlEntryRecord(MetadataRecord):
    """An access control entry is there from now on. It is its own name: no two are equal."""

    binding: Annotated[AclBinding, 1]


@dataclass(frozen=True, slots=True)
class RemoveAccessControlEntryRecord(MetadataRecord):
    """An access control entry is gone."""

    binding: Annotated[AclBinding, 1]
