"""The metadata image: what the committed records add up to, at one offset.

An image never changes: a `MetadataDelta` (`strandline.controller.metadata.delta`) makes the next one and shares with
the old all that did not change. So an image may be kept, compared and read at leisure, and the active controller can
run ahead of what is committed on an image of its own and drop it when it loses its leadership (rule A13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from strandline.controller.metadata.features import finalized_levels
from strandline.controller.metadata.quotas import QuotasImage
from strandline.controller.metadata.scram import NO_SCRAM, ScramImage
from strandline.controller.metadata.tiers import NO_TIERS, TiersImage
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
    TopicIdPartition,
)
from strandline.proto.tier import NO_TIER, Tier

FIRST_PRODUCER_ID = ProducerId(0)


class ResourceType(IntEnum):
    """What a config belongs to, with the numbers of Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4


ConfigResource = tuple[ResourceType, str]
"""(type, name). A broker's name is its node id in decimal; the empty name is the default of the whole cluster."""

CLUSTER_DEFAULT: ConfigResource = (ResourceType.BROKER, "")
"""The resource whose configs hold for every broker that does not say otherwise."""


def topic_resource(name: str) -> ConfigResource:
    """The config resource of a topic."""
    return (ResourceType.TOPIC, name)


def broker_resource(node_id: NodeId) -> ConfigResource:
    """The config resource of one broker."""
    return (ResourceType.BROKER, str(node_id))


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One registered broker.

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

    node_id: NodeId
    incarnation_id: UUID
    broker_epoch: BrokerEpoch
    listeners: Mapping[str, Endpoint]
    internal: Endpoint
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directory_id: UUID | None = None
    acks_unsynced: bool = False
    disk_full: bool = False

    @property
    def active(self) -> bool:
        """May lead partitions and join ISRs."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition.

    Attributes:
        replicas: the assignment; the first is the preferred leader.
        isr: in-sync replicas, in the order in which they were recorded.
        eligible_leader_replicas: left the ISR below min.insync, yet hold all that is committed (KIP-966).
        last_known_elr: members of the last ISR that are in doubt: their logs were cut when they were recovered. Where a
            replica's broker acks what is not synced: the last known leader while there is none (Kafka's use of it).
        leader: NO_NODE while there is none.
        leader_epoch: bumped at each election; partition_epoch: bumped at each change of this partition.
        recovering: the leader was elected uncleanly and has not finished recovering.
    """

    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    eligible_leader_replicas: tuple[NodeId, ...]
    last_known_elr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    recovering: bool

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_NODE

    @property
    def preferred_leader(self) -> NodeId:
        return self.replicas[0]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic; its partitions are numbered 0, 1, ... without a gap."""

    name: str
    topic_id: TopicId
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata at one offset of the metadata log.

    Attributes:
        metadata_version: 0 until the first record has been applied.
        features: the levels of other features that the metadata have a record of (`levels`: all of them).
        offset: the last record applied; -1 in the empty image.
        epoch: the quorum epoch of that record.
        timestamp_ms: wall time at which the leader appended it; 0 when unknown.
        next_producer_id: the first producer id that no block has been given out for.
        scram: the users' SCRAM credentials.
        acls: the access control entries, in the order of their creation. The mapping is another one whenever one of
            them is: whoever made something of it can see by identity that it still holds.
        quotas: the clients' quotas, by entity; another mapping whenever one of them is another.
        tiering: what of the partitions lies in the object store, and the deleted topics that left objects there.
    """

    cluster_id: str
    metadata_version: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = 0
    brokers: Mapping[NodeId, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    topic_by_id: Mapping[TopicId, TopicInfo] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: ProducerId = FIRST_PRODUCER_ID
    scram: ScramImage = NO_SCRAM
    acls: Mapping[AclBinding, None] = field(default_factory=dict)
    quotas: QuotasImage = field(default_factory=dict)
    tiering: TiersImage = NO_TIERS

    @property
    def levels(self) -> Mapping[str, int]:
        """The finalized level of every feature; none in the empty image."""
        return finalized_levels(self.metadata_version, self.features)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """The partition by its topic's name, or None."""
        info = self.topics.get(topic)
        return None if info is None else info.partitions.get(partition)

    @property
    def tiers(self) -> Mapping[TopicIdPartition, Tier]:
        """What of the partitions lies in the object store; those of which nothing does are not in it."""
        return self.tiering.tiers

    @property
    def deleted_tiers(self) -> Mapping[TopicId, str]:
        """Id -> name of the deleted topics whose objects may still be in the store."""
        return self.tiering.deleted

    def tier(self, topic_id: TopicId, partition: int) -> Tier:
        """What of one partition lies in the object store."""
        return self.tiering.tiers.get(TopicIdPartition(topic_id, partition), NO_TIER)

    def config(self, resource: ConfigResource) -> Mapping[str, str]:
        """The dynamic configs set on a resource itself; defaults are not in it."""
        return self.configs.get(resource, {})

    def is_active(self, node_id: NodeId) -> bool:
        """The broker is registered, unfenced and not shutting down."""
        broker = self.brokers.get(node_id)
        return broker is not None and broker.active

    def has_room(self, node_id: NodeId) -> bool:
        """The broker has not said that its disk is full."""
        broker = self.brokers.get(node_id)
        return broker is None or not broker.disk_full

    def partitions(self) -> Iterator[tuple[TopicInfo, PartitionInfo]]:
        """Every partition with its topic, in the order of topic creation and partition number."""
        for topic in self.topics.values():
            for partition in topic.partitions.values():
                yield topic, partition
