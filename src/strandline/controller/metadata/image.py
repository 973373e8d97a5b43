"""The metadata image: what the committed records add up to, at one offset.

An image never changes: a `MetadataDelta` (`strandline.controller.metadata.delta`) makes the next one and shares with
the old all that did not change. So an image may be kept, compared and read at leisure, and the active controller can
run ahead of what is committed on an image of its own and drop it when it loses its leadership (rule A13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from strandline.controller.metadata.features import METADATA_FEATURE, TRANSACTION_FEATURE, finalized_levels
from strandline.controller.metadata.maps import NOTHING, DraftedMap, MapOf, MapOfMaps
from strandline.controller.metadata.quotas import QUOTAS
from strandline.controller.metadata.records import (
    AccessControlEntryRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from strandline.controller.metadata.scram import SCRAM_CREDENTIALS, SCRAM_SECRET
from strandline.controller.metadata.tiers import DELETED_TIERS, TIERS
from strandline.proto.acls import AclBinding
from strandline.proto.ids import ZERO_UUID, NodeId, ProducerId, TopicId, TopicIdPartition
from strandline.proto.tier import NO_TIER, Tier

K = TypeVar("K")
V = TypeVar("V")

FIRST_PRODUCER_ID = ProducerId(0)

NEXT = "next"
"""The one key of `MetadataImage.producer_ids`."""


class ResourceType(IntEnum):
    """Kind of resource that a config belongs to, with the numbers of Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16


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

    record: TopicRecord
    partitions: Mapping[int, PartitionRecord]

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def topic_id(self) -> TopicId:
        return self.record.topic_id


_NO_TOPIC = TopicInfo(TopicRecord("", ZERO_UUID), NOTHING)


class MetadataImage:
    """All metadata at one offset of the metadata log: maps, most of which have the records of the log as values.

    Attributes:
        offset: the last record applied; -1 in the empty image.
        epoch: the quorum epoch of that record.
        timestamp_ms: wall time at which the leader appended it; 0 when unknown.
        maps: by name; one without a key is not among them. Readers take the attributes below, and `image[map]`. A map
            is another one whenever a value of it is: whoever made something of it can see by identity that it holds.
        levels: feature -> the level that the metadata have a record of (`finalized`: of all features).
        brokers: the registered ones, by node id.
        topics: by name, in the order of creation.
        topic_by_id: the same topics by id.
        configs: the dynamic configs set on each resource itself.
        acls: the access control entries, in the order of their creation.
        producer_ids: under `NEXT` the first producer id that no block has been given out for.
        scram_secret: under `SALTS` the secret of the cluster, once there is a credential.
        scram_credentials: of users.
        quotas: of clients: entity -> key -> value.
        tiers: what of the partitions lies in the object store; those of which nothing does are not in it.
        deleted_tiers: the deleted topics whose objects may still be in the store.
    """

    cluster_id: str
    offset: int
    epoch: int
    timestamp_ms: int
    maps: Mapping[str, Mapping[Any, Any]]

    levels = MapOf[str, int]()
    brokers = MapOf[NodeId, RegisterBrokerRecord]()
    topics = MapOf[str, TopicInfo]()
    topic_by_id = DraftedMap[TopicId, TopicInfo, dict[int, PartitionRecord]](
        empty=_NO_TOPIC,
        draft=lambda topic: dict(topic.partitions),
        made=lambda topic, partitions: TopicInfo(topic.record, partitions),
        parts=lambda topic: topic.partitions,
    )
    configs = MapOfMaps[ConfigResource, str, str]()
    acls = MapOf[AclBinding, AccessControlEntryRecord]()
    producer_ids = MapOf[str, ProducerId]()
    scram_secret = SCRAM_SECRET
    scram_credentials = SCRAM_CREDENTIALS
    quotas = QUOTAS
    tiers = TIERS
    deleted_tiers = DELETED_TIERS

    def __init__(
        self, cluster_id: str, *, offset: int = -1, epoch: int = -1, timestamp_ms: int = 0, **maps: Mapping[Any, Any]
    ) -> None:
        """The maps by their names."""
        filled = maps if all(maps.values()) else {name: values for name, values in maps.items() if values}
        self.__dict__.update(
            filled, cluster_id=cluster_id, offset=offset, epoch=epoch, timestamp_ms=timestamp_ms, maps=filled
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: an image never changes, a MetadataDelta makes the next one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetadataImage) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(values)} {name}" for name, values in self.maps.items())
        return f"MetadataImage({self.cluster_id!r}, offset={self.offset}, epoch={self.epoch}: {counts})"

    def __getitem__(self, of: MapOf[K, V]) -> Mapping[K, V]:
        """One of its maps, such as a record's that has no attribute here."""
        return self.maps.get(of.name, NOTHING)

    @property
    def metadata_version(self) -> int:
        """0 until the first record has been applied."""
        return self.levels.get(METADATA_FEATURE, 0)

    @property
    def transaction_version(self) -> int:
        """0: no transactions; 1: those of clients before Kafka 4; 2: those of KIP-890 too."""
        return self.levels.get(TRANSACTION_FEATURE, 0)

    @property
    def next_producer_id(self) -> ProducerId:
        """The first producer id that no block has been given out for."""
        return self.producer_ids.get(NEXT, FIRST_PRODUCER_ID)

    @property
    def finalized(self) -> Mapping[str, int]:
        """The level of every feature; none in the empty image."""
        return finalized_levels(self.levels)

    def partition(self, topic: str, partition: int) -> PartitionRecord | None:
        """The partition by its topic's name, or None."""
        info = self.topics.get(topic)
        return None if info is None else info.partitions.get(partition)

    def tier(self, topic_id: TopicId, partition: int) -> Tier:
        """Tier of one partition: its segments in the object store."""
        return self.tiers.get(TopicIdPartition(topic_id, partition), NO_TIER)

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
