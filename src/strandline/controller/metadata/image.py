"""The metadata image: what the committed records add up to, at one offset.

An image never changes: a `MetadataDelta` (`strandline.controller.metadata.delta`) makes the next one and shares with
the old all that did not change. So an image may be kept, compared and read at leisure, and the active controller can
run ahead of what is committed on an image of its own and drop it when it loses its leadership (rule A13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from strandline.controller.metadata.features import finalized_levels
from strandline.controller.metadata.quotas import QuotasImage
from strandline.controller.metadata.records import PartitionRecord, RegisterBrokerRecord
from strandline.controller.metadata.scram import NO_SCRAM, ScramImage
from strandline.controller.metadata.tiers import NO_TIERS, TiersImage
from strandline.proto.acls import AclBinding
from strandline.proto.ids import (
    NodeId,
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
class TopicInfo:
    """One topic; its partitions are numbered 0, 1, ... without a gap."""

    name: str
    topic_id: TopicId
    partitions: Mapping[int, PartitionRecord]


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
    brokers: Mapping[NodeId, RegisterBrokerRecord] = field(default_factory=dict)
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

    def partition(self, topic: str, partition: int) -> PartitionRecord | None:
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

    def partitions(self) -> Iterator[tuple[TopicInfo, PartitionRecord]]:
        """Every partition with its topic, in the order of topic creation and partition number."""
        for topic in self.topics.values():
            for partition in topic.partitions.values():
                yield topic, partition
