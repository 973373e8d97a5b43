"""What the records of the cluster, its brokers, topics and configs do to the maps of the image.

A record that does not fit the image (an unknown topic, an ISR outside the replicas) raises FatalError: metadata that
cannot be replayed is damaged, and nothing may be decided, least of all deleted, on its word (schedule 31).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from strandline.controller.metadata.features import LEVEL_OF_FEATURES, METADATA_FEATURE, FeatureLevelRecord
from strandline.controller.metadata.image import (
    NEXT,
    MetadataImage,
    ResourceType,
    TopicInfo,
    topic_resource,
)
from strandline.controller.metadata.maps import Draft, MapDeltas, put_part
from strandline.controller.metadata.records import (
    BrokerChangeRecord,
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from strandline.controller.metadata.tiers import REMOTE_STORAGE_ENABLE, topic_removed
from strandline.proto.errors import FatalError
from strandline.proto.ids import LeaderEpoch, NodeId, TopicId

R = TypeVar("R", bound=MetadataRecord)

_BROKERS, _CONFIGS, _IDS = MetadataImage.brokers, MetadataImage.configs, MetadataImage.producer_ids
_NAMES, _TOPICS = MetadataImage.topics, MetadataImage.topic_by_id


def replay_version(deltas: MapDeltas, record: MetadataVersionRecord) -> None:
    """Below LEVEL_OF_FEATURES the other features have no records."""
    levels = deltas[MetadataImage.levels]
    levels.put(METADATA_FEATURE, record.level)
    if record.level < LEVEL_OF_FEATURES:
        for name in [name for name in levels.now if name != METADATA_FEATURE]:
            levels.remove(name)


def replay_feature(deltas: MapDeltas, record: FeatureLevelRecord) -> None:
    """Level 0 takes the feature out. Raises FatalError: metadata.version has a record of its own."""
    if record.name == METADATA_FEATURE:
        raise FatalError(f"A FeatureLevelRecord sets {METADATA_FEATURE} {record.level}: the metadata is damaged.")
    levels = deltas[MetadataImage.levels]
    if record.level > 0:
        levels.put(record.name, record.level)
    else:
        levels.remove(record.name)


def broker_fault(record: RegisterBrokerRecord) -> str:
    """Reason that no broker can be registered so, or ""."""
    negative = record.node_id < 0 or record.broker_epoch < 0
    return f"neither its node id nor its epoch {record.broker_epoch} can be negative" if negative else ""


def replay_unregistration(deltas: MapDeltas, record: UnregisterBrokerRecord) -> None:
    """Apply the unregistration of a broker. Raises FatalError if the broker is not registered with this epoch."""
    _broker(deltas, record.node_id, record.broker_epoch, "unregister")
    deltas[_BROKERS].remove(record.node_id)


def replay_broker_change(deltas: MapDeltas, record: BrokerChangeRecord) -> None:
    """Apply a change of a broker. Raises FatalError if the broker is not registered with this epoch."""
    broker = _broker(deltas, record.node_id, record.broker_epoch, "change")
    deltas[_BROKERS].put(record.node_id, _amended_broker(broker, record))


def replay_topic(deltas: MapDeltas, record: TopicRecord) -> None:
    """Apply the creation of a topic. Raises FatalError if its name or its id is already used."""
    names, topics = deltas[_NAMES], deltas[_TOPICS]
    if names.has(record.name):
        raise FatalError(f"A record creates topic {record.name!r}, which exists already: the metadata is damaged.")
    if topics.has(record.topic_id):  # rule A16/topic-id-is-taken-twice/3
        raise FatalError(
            f"A record creates topic {record.name!r} with id {record.topic_id}, which topic "
            f"{topics.now[record.topic_id].name!r} has already: the metadata is damaged."
        )
    topic = TopicInfo(record, {})
    names.put(record.name, topic)
    topics.put(record.topic_id, topic)


def replay_topic_removal(deltas: MapDeltas, record: RemoveTopicRecord) -> None:
    """The topic goes, and its configs and tiers. Raises FatalError: there is no such topic."""
    topic = _topic(deltas, record.topic_id, "remove")
    name = topic.before.name
    resource = topic_resource(name)
    enabled = deltas[_CONFIGS].parts(resource).get(REMOTE_STORAGE_ENABLE) == "true"
    deltas[_NAMES].remove(name)
    deltas[_TOPICS].remove(record.topic_id)
    deltas[_CONFIGS].remove(resource)
    topic_removed(deltas, record.topic_id, name, topic.draft, enabled=enabled)


def replay_partition(deltas: MapDeltas, record: PartitionRecord) -> None:
    """Apply the creation of a partition. Raises FatalError if it is not the next partition of an existing topic, or is
    not valid."""
    topic = _topic(deltas, record.topic_id, "add a partition to")
    if record.partition != len(topic.draft):
        raise FatalError(
            f"A record adds partition {record.partition} to topic {record.topic_id}, which has {len(topic.draft)}: "
            "the metadata is damaged."
        )
    check_partition(record)
    put_part(topic, record.partition, record)


def replay_partition_change(deltas: MapDeltas, record: PartitionChangeRecord) -> None:
    """Apply a change of a partition. Raises FatalError if the partition does not exist, or would not be valid
    afterwards."""
    topic = _topic(deltas, record.topic_id, "change a partition of")
    partition = merge(_partition(topic, record), record)
    check_partition(partition)
    put_part(topic, record.partition, partition)


def replay_config(deltas: MapDeltas, record: ConfigRecord) -> None:
    """Apply a change of a config. Raises FatalError if this version does not know the type of the resource."""
    if record.resource_type not in ResourceType.__members__.values():
        raise FatalError(
            f"A record sets {record.name} of a resource of type {record.resource_type}, which this version of "
            "Strandline does not know."
        )
    resource = (ResourceType(record.resource_type), record.resource_name)
    if record.value is None:
        deltas[_CONFIGS].remove_part(resource, record.name)
    else:
        deltas[_CONFIGS].put_part(resource, record.name, record.value)


def replay_producer_ids(deltas: MapDeltas, record: ProducerIdsRecord) -> None:
    """Apply an allocation of producer ids. Raises FatalError if the ids were allocated before."""
    reached = deltas[_IDS].now.get(NEXT, 0)
    if record.next_producer_id <= reached:
        raise FatalError(
            f"A record sets the next producer id to {record.next_producer_id}, but {reached} was "
            "reached already: a producer id would be given out twice."
        )
    deltas[_IDS].put(NEXT, record.next_producer_id)


class _OfPartition(Protocol):
    """A record that names a partition."""

    @property
    def topic_id(self) -> TopicId: ...
    @property
    def partition(self) -> int: ...


P = TypeVar("P", bound=_OfPartition)


def of_partition(replay: Callable[[MapDeltas, P], None]) -> Callable[[MapDeltas, P], None]:
    """Wrap the replay function of a record that needs an existing partition: it raises FatalError if there is none."""

    def checked(deltas: MapDeltas, record: P) -> None:
        topic = deltas[_TOPICS]
        if record.partition not in topic.parts(record.topic_id):
            raise FatalError(
                f"A record changes the tier of partition {record.partition} of topic {record.topic_id}, which does not "
                "exist: the metadata is damaged."
            )
        replay(deltas, record)

    return checked


def _topic(deltas: MapDeltas, topic_id: TopicId, what: str) -> Draft[TopicInfo, dict[int, PartitionRecord]]:
    topic = deltas[_TOPICS].open_known(topic_id)
    if topic is None:
        raise FatalError(f"A record wants to {what} topic {topic_id}, which is unknown: the metadata is damaged.")
    return topic


def _partition(topic: Draft[TopicInfo, dict[int, PartitionRecord]], record: _OfPartition) -> PartitionRecord:
    partition = topic.draft.get(record.partition)
    if partition is None:
        raise FatalError(
            f"A record changes partition {record.partition} of topic {record.topic_id}, which does not exist: "
            "the metadata is damaged."
        )
    return partition


def _broker(deltas: MapDeltas, node_id: NodeId, broker_epoch: int, what: str) -> RegisterBrokerRecord:
    broker = deltas[_BROKERS].now.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        known = "is not registered" if broker is None else f"is registered with epoch {broker.broker_epoch}"
        raise FatalError(
            f"A record wants to {what} broker {node_id} of epoch {broker_epoch}, which {known}: "
            "the metadata is damaged."
        )
    return broker


class _Amendment(Generic[R]):
    """A record after a change: the fields of the change that may be None, and are not, stand in the place of its own.

    It is prepared once: a change of one partition is the record that comes most often.
    """

    def __init__(self, kind: type[R], change: type, *counted: str) -> None:
        """`counted`: fields whose values come with each call, in this order."""
        of = [one.name for one in fields(kind)]  # type: ignore[arg-type]
        names = [one.name for one in fields(change) if one.default is None]
        self._kind = kind
        self._read, self._changed = attrgetter(*of), attrgetter(*names)
        self._places = [of.index(name) for name in (*names, *counted)]

    def __call__(self, old: R, change: object, *counted: int) -> R:
        values = [*self._read(old)]
        for place, value in zip(self._places, (*self._changed(change), *counted), strict=True):
            if value is not None:
                values[place] = value
        return self._kind(*values)


_amended_broker = _Amendment(RegisterBrokerRecord, BrokerChangeRecord)
_amended_partition = _Amendment(PartitionRecord, PartitionChangeRecord, "leader_epoch", "partition_epoch")


def merge(old: PartitionRecord, change: PartitionChangeRecord) -> PartitionRecord:
    """The partition after a change. Naming a leader bumps the leader epoch, any change the partition epoch."""
    # rule B1/election-without-a-leader-epoch, rule B1/isr-change-bumps-the-leader-epoch
    leader_epoch = old.leader_epoch if change.leader is None else LeaderEpoch(old.leader_epoch + 1)
    # rule B1/change-without-a-partition-epoch
    return _amended_partition(old, change, leader_epoch, old.partition_epoch + 1)


def check_partition(info: PartitionRecord) -> None:
    """The invariants of a partition at rest; a breach means damaged metadata or a bug, and the node must stop.

    * the replicas are distinct, no negative node ids, and not empty; ISR and ELR lie within them;
    * ISR and ELR are disjoint;
    * the leader, if any, is in the ISR;
    * the replicas that a move adds and those that it removes lie within them, are distinct, and leave one that stays;
    * leader epoch and partition epoch are not negative.

    Raises:
        FatalError: one of them is broken.
    """
    replicas = info.replicas
    broken = ""
    if not replicas or len(set(replicas)) != len(replicas):
        broken = "its replicas are empty or not distinct"
    elif any(node not in replicas for node in info.isr) or len(set(info.isr)) != len(info.isr):
        broken = "its ISR does not lie within its replicas"
    elif any(node not in replicas or node in info.isr for node in info.eligible_leader_replicas):
        broken = "its eligible leader replicas are not replicas outside the ISR"
    elif info.has_leader and info.leader not in info.isr:
        broken = "its leader is not in its ISR"
    elif info.is_moving and not _can_move(info):
        broken = "the replicas that a move adds and removes do not lie within its own, or leave none"
    elif min(replicas) < 0 or info.leader_epoch < 0 or info.partition_epoch < 0:
        broken = "a node id or an epoch of it is negative"
    if broken:
        raise FatalError(f"Partition {info.partition} of topic {info.topic_id} cannot stand, {broken}: {info}")


def _can_move(info: PartitionRecord) -> bool:
    moved = (*info.adding_replicas, *info.removing_replicas)
    distinct = len(set(moved)) == len(moved) and all(node in info.replicas for node in moved)
    return distinct and bool(info.target_replicas and info.original_replicas)
