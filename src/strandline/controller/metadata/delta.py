"""From one image to the next: records applied, and what they changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from strandline.controller.metadata.features import (
    LEVEL_OF_FEATURES,
    METADATA_FEATURE,
    NO_LEVELS,
    OWN_LEVELS,
    FeatureLevelRecord,
    Supported,
    what_to_install,
)
from strandline.controller.metadata.image import (
    ConfigResource,
    MetadataImage,
    ResourceType,
    TopicInfo,
    topic_resource,
)
from strandline.controller.metadata.levels import level_of
from strandline.controller.metadata.quotas import ClientQuotaRecord, QuotasDelta
from strandline.controller.metadata.records import (
    AccessControlEntryRecord,
    BrokerChangeRecord,
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from strandline.controller.metadata.scram import (
    RemoveUserScramCredentialRecord,
    ScramDelta,
    ScramSecretRecord,
    UserScramCredentialRecord,
)
from strandline.controller.metadata.tiers import (
    REMOTE_STORAGE_ENABLE,
    DeletedTierRecord,
    TieredSegmentRecord,
    TierReapedRecord,
    TiersDelta,
    TierStartRecord,
)
from strandline.proto.acls import AclBinding, binding_fault
from strandline.proto.errors import FatalError
from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch, TopicId


class MetadataDelta:
    """Applies records to a copy-on-write overlay of `base` and remembers what they touched.

    What changed (all dicts, in the order of first change, so that every process sees one order):

    * `partitions`: topic id -> partition numbers created or changed (and still there);
    * `created_topics`: ids of topics that are not in `base`;
    * `deleted_topics`: id -> the topic as `base` had it;
    * `brokers`: node id -> the broker now, or None when it was unregistered;
    * `configs`: resource -> the keys set or removed;
    * `scram.changed`: the SCRAM credentials set or removed;
    * `acls`: access control entry -> whether it was added (or else removed);
    * `features`: the levels of features that the metadata have a record of, as they are now;
    * `quotas.changed`: entity of quotas -> the keys set or removed;
    * `tiers.changed`: the partitions whose tier is another; `tiers.changed_deleted`: deleted topics that left objects
      in the store, or whose objects are gone.

    A record that does not fit the image (an unknown topic, an ISR outside the replicas) raises FatalError: metadata
    that cannot be replayed is damaged, and nothing may be decided, least of all deleted, on its word (schedule 31).
    """

    __slots__ = (
        "_acls",
        "_brokers",
        "_configs",
        "_own_topics",
        "_supported",
        "_topic_by_id",
        "_topics",
        "acls",
        "base",
        "brokers",
        "configs",
        "created_topics",
        "deleted_topics",
        "features",
        "metadata_version",
        "next_producer_id",
        "partitions",
        "quotas",
        "scram",
        "tiers",
    )

    def __init__(self, base: MetadataImage, supported: Supported = OWN_LEVELS) -> None:
        """`supported`: the levels that this node's build knows."""
        self.base = base
        self._supported = supported
        self.metadata_version = base.metadata_version
        self.features: Mapping[str, int] = base.features
        self.next_producer_id = base.next_producer_id
        self.partitions: dict[TopicId, dict[int, None]] = {}
        self.created_topics: dict[TopicId, None] = {}
        self.deleted_topics: dict[TopicId, TopicInfo] = {}
        self.brokers: dict[NodeId, RegisterBrokerRecord | None] = {}
        self.configs: dict[ConfigResource, dict[str, None]] = {}
        self.scram = ScramDelta(base.scram)
        self.acls: dict[AclBinding, bool] = {}
        self.quotas = QuotasDelta(base.quotas)
        self.tiers = TiersDelta(base.tiering)
        self._brokers: dict[NodeId, RegisterBrokerRecord] | None = None
        self._topics: dict[str, TopicInfo] | None = None
        self._topic_by_id: dict[TopicId, TopicInfo] | None = None
        self._configs: dict[ConfigResource, Mapping[str, str]] | None = None
        self._own_topics: dict[TopicId, dict[int, PartitionRecord]] = {}
        self._acls: dict[AclBinding, None] | None = None

    @property
    def empty(self) -> bool:
        """Nothing that a broker acts upon changed (producer id blocks and credentials do not count)."""
        topics = self.partitions or self.created_topics or self.deleted_topics
        tiers = self.tiers.changed or self.tiers.changed_deleted
        return not (topics or self.brokers or self.configs or self.acls or self.quotas.changed or tiers)

    def apply_all(self, records: Iterable[MetadataRecord]) -> None:
        """Apply records in order. Raises FatalError for one that does not fit."""
        for record in records:
            self.apply(record)

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record. Raises FatalError when it does not fit the image, or its level is not finalized."""
        _APPLY[type(record)](self, record)
        needed = level_of(record)
        if needed > self.metadata_version:  # rule A32/records-of-a-level-that-is-not-finalized
            raise FatalError(
                f"A {type(record).__name__} needs {METADATA_FEATURE} {needed}, and the cluster is at "
                f"{self.metadata_version}: raise it by `strandline upgrade finalize`."
            )

    def check_whole(self) -> None:
        """A batch was applied whole. Raises FatalError for a topic without partitions, which no snapshot holds."""
        for topic_id in self.created_topics:
            if not self._own_topics[topic_id]:  # rule A10/metadata-that-cannot-be-is-loaded
                raise FatalError(f"Topic {topic_id} is created without partitions: the metadata is damaged.")

    def image(self, offset: int, epoch: int, timestamp_ms: int) -> MetadataImage:
        """The image after all records applied so far, the last of which stands at `offset`. Raises as `check_whole`."""
        self.check_whole()
        base = self.base
        return MetadataImage(
            cluster_id=base.cluster_id,
            metadata_version=self.metadata_version,
            features=self.features,
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            brokers=base.brokers if self._brokers is None else self._brokers,
            topics=base.topics if self._topics is None else self._topics,
            topic_by_id=base.topic_by_id if self._topic_by_id is None else self._topic_by_id,
            configs=base.configs if self._configs is None else self._configs,
            next_producer_id=self.next_producer_id,
            scram=self.scram.image(),
            acls=base.acls if self._acls is None else self._acls,
            quotas=self.quotas.image(),
            tiering=self.tiers.image(),
        )

    # Each kind of record

    def _metadata_version(self, record: MetadataVersionRecord) -> None:
        self._require_known(METADATA_FEATURE, record.level, record.release)
        self.metadata_version = record.level
        if record.level < LEVEL_OF_FEATURES:
            self.features = {}

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        self._require_known(record.name, record.level, record.release)
        features = {**self.features, record.name: record.level}
        self.features = {name: level for name, level in features.items() if level > 0}

    def _require_known(self, name: str, level: int, release: str) -> None:
        known = self._supported.get(name, NO_LEVELS)
        if level not in known:  # rule A32/a-level-of-a-newer-build-is-replayed
            raise FatalError(
                f"The metadata log is of {name} {level}; this program knows {known}. "
                f"Install {what_to_install(release)} on this node."
            )

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._require_version()
        if record.node_id < 0 or record.broker_epoch < 0:
            raise FatalError(
                f"A record registers broker {record.node_id} of epoch {record.broker_epoch}; neither can be negative: "
                "the metadata is damaged."
            )
        self._set_broker(record)

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker_of(record.node_id, record.broker_epoch, "unregister")
        del self._writable_brokers()[record.node_id]
        self.brokers[record.node_id] = None

    def _broker_change(self, record: BrokerChangeRecord) -> None:
        broker = self._broker_of(record.node_id, record.broker_epoch, "change")
        if record.fenced is not None:
            broker = replace(broker, fenced=record.fenced)
        if record.in_controlled_shutdown is not None:
            broker = replace(broker, in_controlled_shutdown=record.in_controlled_shutdown)
        if record.disk_full is not None:
            broker = replace(broker, disk_full=record.disk_full)
        self._set_broker(broker)

    def _topic(self, record: TopicRecord) -> None:
        self._require_version()
        topics = self._writable_topics()
        if record.name in topics:
            raise FatalError(f"A record creates topic {record.name!r}, which exists already: the metadata is damaged.")
        by_id = self._writable_topic_by_id()
        if record.topic_id in by_id:  # rule A16/topic-id-is-taken-twice/3
            raise FatalError(
                f"A record creates topic {record.name!r} with id {record.topic_id}, which topic "
                f"{by_id[record.topic_id].name!r} has already: the metadata is damaged."
            )
        partitions: dict[int, PartitionRecord] = {}
        self._own_topics[record.topic_id] = partitions
        topic = TopicInfo(record.name, record.topic_id, partitions)
        topics[record.name] = topic
        by_id[record.topic_id] = topic
        self.created_topics[record.topic_id] = None

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic_of(record.topic_id, "remove")
        del self._writable_topics()[topic.name]
        del self._writable_topic_by_id()[record.topic_id]
        self._own_topics.pop(record.topic_id, None)
        self.partitions.pop(record.topic_id, None)
        if record.topic_id in self.created_topics:
            del self.created_topics[record.topic_id]
        else:
            self.deleted_topics[record.topic_id] = self.base.topic_by_id[record.topic_id]
        resource = topic_resource(topic.name)
        removed = self._writable_configs().pop(resource, None)
        if removed:
            self.configs.setdefault(resource, {}).update(dict.fromkeys(removed))
        enabled = (removed or {}).get(REMOTE_STORAGE_ENABLE) == "true"
        self.tiers.topic_removed(record.topic_id, topic.name, topic.partitions, enabled=enabled)

    def _partition(self, record: PartitionRecord) -> None:
        partitions = self._writable_partitions(record.topic_id, "add a partition to")
        if record.partition != len(partitions):
            raise FatalError(
                f"A record adds partition {record.partition} to topic {record.topic_id}, which has {len(partitions)}: "
                "the metadata is damaged."
            )
        self._put_partition(partitions, record)

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        partitions = self._writable_partitions(record.topic_id, "change a partition of")
        old = partitions.get(record.partition)
        if old is None:
            raise FatalError(
                f"A record changes partition {record.partition} of topic {record.topic_id}, which does not exist: "
                "the metadata is damaged."
            )
        self._put_partition(partitions, merge(old, record))

    def _config(self, record: ConfigRecord) -> None:
        self._require_version()
        if record.resource_type not in ResourceType.__members__.values():
            raise FatalError(
                f"A record sets {record.name} of a resource of type {record.resource_type}, which this version of "
                "Strandline does not know."
            )
        resource = (ResourceType(record.resource_type), record.resource_name)
        configs = self._writable_configs()
        values = dict(configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            configs[resource] = values
        else:
            configs.pop(resource, None)
        self.configs.setdefault(resource, {})[record.name] = None

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id <= self.next_producer_id:
            raise FatalError(
                f"A record sets the next producer id to {record.next_producer_id}, but {self.next_producer_id} was "
                "reached already: a producer id would be given out twice."
            )
        self.next_producer_id = record.next_producer_id

    def _scram_credential(self, record: UserScramCredentialRecord) -> None:
        self._require_version()
        self.scram.set_credential(record)

    def _remove_scram_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        self.scram.remove_credential(record)

    def _scram_secret(self, record: ScramSecretRecord) -> None:
        self._require_version()
        self.scram.set_secret(record)

    def _add_acl(self, record: AccessControlEntryRecord) -> None:
        self._require_version()
        fault = binding_fault(record.binding)
        if fault:  # rule A20/damaged-acls-are-replayed
            raise FatalError(
                f"A record adds an ACL that cannot be, {record.binding}: {fault}. The metadata is damaged."
            )
        acls = self._writable_acls()
        if record.binding in acls:
            raise FatalError(f"A record adds an ACL that is there already, {record.binding}: the metadata is damaged.")
        acls[record.binding] = None
        self.acls[record.binding] = True

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        acls = self._writable_acls()
        if record.binding not in acls:
            raise FatalError(f"A record removes an ACL that is not there, {record.binding}: the metadata is damaged.")
        del acls[record.binding]
        self.acls[record.binding] = False

    def _quota(self, record: ClientQuotaRecord) -> None:
        self._require_version()
        self.quotas.apply(record)

    def _tiered_segment(self, record: TieredSegmentRecord) -> None:
        self._require_partition(record.topic_id, record.partition)
        self.tiers.add(record)

    def _tier_start(self, record: TierStartRecord) -> None:
        self._require_partition(record.topic_id, record.partition)
        self.tiers.raise_start(record)

    def _deleted_tier(self, record: DeletedTierRecord) -> None:
        self._require_version()
        self.tiers.set_deleted(record)

    def _tier_reaped(self, record: TierReapedRecord) -> None:
        self.tiers.reaped(record)

    # Copy on write

    def _writable_acls(self) -> dict[AclBinding, None]:
        if self._acls is None:
            self._acls = dict(self.base.acls)
        return self._acls

    def _writable_brokers(self) -> dict[NodeId, RegisterBrokerRecord]:
        if self._brokers is None:
            self._brokers = dict(self.base.brokers)
        return self._brokers

    def _writable_topics(self) -> dict[str, TopicInfo]:
        if self._topics is None:
            self._topics = dict(self.base.topics)
        return self._topics

    def _writable_topic_by_id(self) -> dict[TopicId, TopicInfo]:
        if self._topic_by_id is None:
            self._topic_by_id = dict(self.base.topic_by_id)
        return self._topic_by_id

    def _writable_configs(self) -> dict[ConfigResource, Mapping[str, str]]:
        if self._configs is None:
            self._configs = dict(self.base.configs)
        return self._configs

    def _writable_partitions(self, topic_id: TopicId, what: str) -> dict[int, PartitionRecord]:
        own = self._own_topics.get(topic_id)
        if own is None:
            topic = self._topic_of(topic_id, what)
            own = self._own_topics[topic_id] = dict(topic.partitions)
            copy = TopicInfo(topic.name, topic_id, own)
            self._writable_topics()[topic.name] = copy
            self._writable_topic_by_id()[topic_id] = copy
        return own

    def _put_partition(self, partitions: dict[int, PartitionRecord], partition: PartitionRecord) -> None:
        check_partition(partition)
        partitions[partition.partition] = partition
        self.partitions.setdefault(partition.topic_id, {})[partition.partition] = None

    def _set_broker(self, broker: RegisterBrokerRecord) -> None:
        self._writable_brokers()[broker.node_id] = broker
        self.brokers[broker.node_id] = broker

    def _topic_of(self, topic_id: TopicId, what: str) -> TopicInfo:
        by_id = self.base.topic_by_id if self._topic_by_id is None else self._topic_by_id
        topic = by_id.get(topic_id)
        if topic is None:
            raise FatalError(f"A record wants to {what} topic {topic_id}, which is unknown: the metadata is damaged.")
        return topic

    def _require_partition(self, topic_id: TopicId, number: int) -> None:
        if number not in self._topic_of(topic_id, "change a tier of").partitions:
            raise FatalError(
                f"A record changes the tier of partition {number} of topic {topic_id}, which does not exist: "
                "the metadata is damaged."
            )

    def _broker_of(self, node_id: NodeId, broker_epoch: int, what: str) -> RegisterBrokerRecord:
        brokers = self.base.brokers if self._brokers is None else self._brokers
        broker = brokers.get(node_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            known = "is not registered" if broker is None else f"is registered with epoch {broker.broker_epoch}"
            raise FatalError(
                f"A record wants to {what} broker {node_id} of epoch {broker_epoch}, which {known}: "
                "the metadata is damaged."
            )
        return broker

    def _require_version(self) -> None:
        if self.metadata_version == 0:
            raise FatalError("The metadata does not begin with its metadata.version record: it is damaged.")


def merge(old: PartitionRecord, change: PartitionChangeRecord) -> PartitionRecord:
    """The partition after a change. Naming a leader bumps the leader epoch, any change the partition epoch."""
    # rule B1/election-without-a-leader-epoch, rule B1/isr-change-bumps-the-leader-epoch
    leader_epoch = old.leader_epoch if change.leader is None else LeaderEpoch(old.leader_epoch + 1)
    # rule B1/change-without-a-partition-epoch
    return PartitionRecord(
        topic_id=old.topic_id,
        partition=old.partition,
        replicas=old.replicas if change.replicas is None else change.replicas,
        isr=old.isr if change.isr is None else change.isr,
        eligible_leader_replicas=(
            old.eligible_leader_replicas if change.eligible_leader_replicas is None else change.eligible_leader_replicas
        ),
        last_known_elr=old.last_known_elr if change.last_known_elr is None else change.last_known_elr,
        leader=old.leader if change.leader is None else change.leader,
        leader_epoch=leader_epoch,
        partition_epoch=PartitionEpoch(old.partition_epoch + 1),
        recovering=old.recovering if change.recovering is None else change.recovering,
    )


def check_partition(info: PartitionRecord) -> None:
    """The invariants of a partition at rest; a breach means damaged metadata or a bug, and the node must stop.

    * the replicas are distinct, no negative node ids, and not empty; ISR and ELR lie within them;
    * ISR and ELR are disjoint;
    * the leader, if any, is in the ISR;
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
    elif min(replicas) < 0 or info.leader_epoch < 0 or info.partition_epoch < 0:
        broken = "a node id or an epoch of it is negative"
    if broken:
        raise FatalError(f"Partition {info.partition} of topic {info.topic_id} cannot stand, {broken}: {info}")


_APPLY: dict[type[MetadataRecord], Callable[[MetadataDelta, Any], None]] = {
    MetadataVersionRecord: MetadataDelta._metadata_version,
    RegisterBrokerRecord: MetadataDelta._register_broker,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    BrokerChangeRecord: MetadataDelta._broker_change,
    TopicRecord: MetadataDelta._topic,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    PartitionRecord: MetadataDelta._partition,
    PartitionChangeRecord: MetadataDelta._partition_change,
    ConfigRecord: MetadataDelta._config,
    ProducerIdsRecord: MetadataDelta._producer_ids,
    UserScramCredentialRecord: MetadataDelta._scram_credential,
    RemoveUserScramCredentialRecord: MetadataDelta._remove_scram_credential,
    ScramSecretRecord: MetadataDelta._scram_secret,
    AccessControlEntryRecord: MetadataDelta._add_acl,
    RemoveAccessControlEntryRecord: MetadataDelta._remove_acl,
    ClientQuotaRecord: MetadataDelta._quota,
    TieredSegmentRecord: MetadataDelta._tiered_segment,
    TierStartRecord: MetadataDelta._tier_start,
    DeletedTierRecord: MetadataDelta._deleted_tier,
    TierReapedRecord: MetadataDelta._tier_reaped,
    FeatureLevelRecord: MetadataDelta._feature_level,
}
