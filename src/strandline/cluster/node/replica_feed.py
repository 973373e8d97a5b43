"""Link from the metadata image to the replica manager: translates changes into the replica manager's types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from strandline.controller import broker_api, operations
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage, ResourceType, TopicInfo
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.metadata.settings import BrokerSettings
from strandline.log.findings import RecoveryFinding
from strandline.proto.ids import (
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.settings import Setting
from strandline.proto.tier import TierChange, TierOutcome
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import BrokerState, PartitionState, ReplicaConfig, ReplicaStatus, Role

T = TypeVar("T")

ALTER_PARTITION_TIMEOUT_MS = 5_000.0
"""Timeout in ms of one proposal of ISR changes, retries at another controller included; then replicas propose again."""

ALTER_TIERS_TIMEOUT_MS = 5_000.0
"""Timeout in ms of one request for changes of tiers, i.e. of the segments in the object store."""


class ReplicaFeed:
    """A metadata subscriber that keeps a replica manager's partitions in line with the committed image.

    Subscribe it only once the image has reached this broker's own registration: older metadata tell of leaderships of
    an earlier process.
    """

    def __init__(self, node_id: NodeId, resolver: ConfigResolver, replicas: ReplicaManager) -> None:
        self._node_id = node_id
        self._resolver = resolver
        self._replicas = replicas

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the changes of a committed batch of metadata records."""
        resolver = self._resolver
        self._replicas.set_throttled_rates(
            resolver.leader_throttled_rate(image), resolver.follower_throttled_rate(image)
        )
        self._replicas.reconfigure(upkeep_config(self._replicas.config, self._resolver, image))
        changes = [self._state(image, topic, info) for topic, info in self._changed(delta, image)]
        deleted = [
            TopicIdPartition(topic.topic_id, number)
            for topic in delta.deleted_topics.values()
            for number in topic.partitions
        ]
        if changes or deleted or delta[MetadataImage.brokers]:
            self._replicas.apply(changes, deleted, broker_states(image))

    def _changed(self, delta: MetadataDelta, image: MetadataImage) -> Iterator[tuple[TopicInfo, PartitionRecord]]:
        """Yield the partitions with a replica here, now or before the change, whose metadata or settings changed."""
        changed: dict[TopicId, dict[int, None]] = {topic: dict(numbers) for topic, numbers in delta.partitions.items()}
        for reconfigured in self._reconfigured(delta, image):
            changed.setdefault(reconfigured.topic_id, {}).update(dict.fromkeys(reconfigured.partitions))
        for topic_id, number in delta[MetadataImage.tiers].changed:
            changed.setdefault(topic_id, {})[number] = None  # rule B21/replicas-do-not-hear-of-tiers
        for topic_id, numbers in changed.items():
            topic = image.topic_by_id.get(topic_id)
            if topic is None:
                continue
            before = delta.base.topic_by_id.get(topic_id)
            for number in numbers:
                info = topic.partitions[number]
                old = None if before is None else before.partitions.get(number)
                if self._node_id in info.replicas or (old is not None and self._node_id in old.replicas):
                    yield topic, info

    def _reconfigured(self, delta: MetadataDelta, image: MetadataImage) -> list[TopicInfo]:
        """Return topics whose settings may have changed: their own, or the defaults of this broker or of all."""
        topics: dict[str, TopicInfo] = {}
        configs = delta[MetadataImage.configs]
        for resource_type, name in (*configs.removed, *configs.changed):
            if resource_type is ResourceType.TOPIC:
                if name in image.topics:
                    topics[name] = image.topics[name]
            elif resource_type is ResourceType.BROKER:
                return list(image.topics.values())
        return list(topics.values())

    def _state(self, image: MetadataImage, topic: TopicInfo, info: PartitionRecord) -> PartitionState:
        resolver = self._resolver
        return PartitionState(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=info.partition,
            replicas=info.replicas,
            isr=info.isr,
            leader=info.leader,
            leader_epoch=info.leader_epoch,
            partition_epoch=info.partition_epoch,
            recovering=info.recovering,
            min_insync_replicas=resolver.min_insync_replicas(image, topic.name, info),
            log_config=resolver.log_config(image, topic.name),
            unclean_leader_election=resolver.unclean_election_enabled(image, topic.name),
            leader_throttled=resolver.leader_throttled(image, topic.name, info.partition),
            follower_throttled=resolver.follower_throttled(image, topic.name, info.partition),
            tier=image.tier(topic.topic_id, info.partition),
            adding=info.adding_replicas,
            removing=info.removing_replicas,
        )


def upkeep_config(config: ReplicaConfig, resolver: ConfigResolver, image: MetadataImage) -> ReplicaConfig:
    """Return `config` with this broker's current settings of compaction, scrub, and reserved disk space."""

    def value(row: Setting[T]) -> T:
        return resolver.broker_value(image, row)

    of = BrokerSettings
    return config.replaced(
        cleaner_backoff_ms=value(of.log_cleaner_backoff_ms),
        cleaner_dedupe_buffer_bytes=value(of.log_cleaner_dedupe_buffer_size),
        cleaner_io_max_bytes_per_second=value(of.log_cleaner_io_max_bytes_per_second),
        disk_reserve_bytes=value(of.log_dir_reserve_bytes),
        scrub_interval_ms=value(of.log_scrub_interval_ms),
        scrub_bytes_per_second=value(of.log_scrub_max_bytes_per_second),
    )


def assigned_partitions(image: MetadataImage, node_id: NodeId) -> dict[TopicPartition, TopicId]:
    """Return all partitions that have a replica on a node, with their topic ids."""
    return {
        TopicPartition(topic.name, info.partition): topic.topic_id
        for topic, info in image.partitions()
        if node_id in info.replicas
    }


def knows_topics(image: MetadataImage) -> bool:
    """Return whether the cluster has a topic that is not internal."""
    return any(name not in INTERNAL_TOPICS for name in image.topics)


def broker_states(image: MetadataImage) -> Mapping[NodeId, BrokerState]:
    """Return all registered brokers, in the type of the replica manager."""
    return {
        node_id: BrokerState(
            node_id,
            broker.internal,
            broker.broker_epoch,
            broker.fenced,
            broker.in_controlled_shutdown,
            broker.disk_full,
        )
        for node_id, broker in image.brokers.items()
    }


def replica_offsets(replicas: ReplicaManager) -> Iterator[broker_api.ReplicaOffsets]:
    """Yield the offsets of the hosted replicas, for heartbeats."""
    for status in replicas.hosted():
        if status.log_end_offset >= 0:
            yield broker_api.ReplicaOffsets(
                topic_id=status.topic_id,
                partition=status.partition,
                high_watermark=Offset(status.high_watermark),
                log_end_offset=Offset(status.log_end_offset),
                last_epoch=LeaderEpoch(status.last_epoch),
                leader_epoch=status.leader_epoch,
            )


def unserved_replicas(replicas: ReplicaManager) -> broker_api.ReplicaSet:
    """Return the replicas that cannot be served here, for heartbeats."""
    return _replica_set(replicas, lambda status: replicas.disk_stalls.hung or status.role is Role.OFFLINE)


def replicas_without_room(replicas: ReplicaManager) -> broker_api.ReplicaSet:
    """Return the replicas that take no writes because their directory is full, for heartbeats; none if all directories
    are full, which is reported for the broker as a whole."""
    directories = replicas.directories
    full = {directory.path for directory in directories.usable if directory.room.full}
    if not full or directories.full:
        return broker_api.ReplicaSet()
    return _replica_set(replicas, lambda status: status.directory in full)


def rotten_replicas(replicas: ReplicaManager) -> broker_api.ReplicaSet:
    """Return the replicas whose log has damaged parts, for heartbeats."""
    return _replica_set(replicas, lambda status: status.rotten)


def _replica_set(replicas: ReplicaManager, is_in: Callable[[ReplicaStatus], bool]) -> broker_api.ReplicaSet:
    topics: dict[TopicId, list[int]] = {}
    for status in replicas.hosted():
        if is_in(status):
            topics.setdefault(status.topic_id, []).append(status.partition)
    return broker_api.ReplicaSet(
        tuple(broker_api.TopicReplicaSet(topic_id, tuple(sorted(numbers))) for topic_id, numbers in topics.items())
    )


def topic_findings(findings: Mapping[TopicPartition, RecoveryFinding]) -> tuple[broker_api.TopicFindings, ...]:
    """Return the findings of recovery on this broker's logs, grouped by topic, for a registration."""
    topics: dict[tuple[str, TopicId], list[tuple[int, RecoveryFinding]]] = {}
    for tp, finding in findings.items():
        topics.setdefault((tp.topic, finding.topic_id), []).append((tp.partition, finding))
    return tuple(
        broker_api.TopicFindings(
            topic=topic,
            topic_id=topic_id,
            partitions=tuple(number for number, _ in found),
            log_end_offsets=tuple(finding.log_end_offset for _, finding in found),
            last_epochs=tuple(finding.last_epoch for _, finding in found),
            conditions=tuple(finding.condition for _, finding in found),
        )
        for (topic, topic_id), found in topics.items()
    )


def isr_proposer(
    node_id: NodeId, channel: ControllerChannel, broker_epoch: Callable[[], BrokerEpoch]
) -> Callable[[list[AlterPartitionItem]], Awaitable[list[AlterPartitionOutcome]]]:
    """Return a function by which the replica manager asks the active controller to change ISRs."""

    async def propose(items: list[AlterPartitionItem]) -> list[AlterPartitionOutcome]:
        request = broker_api.AlterPartitionRequest(node_id, broker_epoch(), tuple(items))
        reply = await channel.ask(operations.ALTER_PARTITION, request, timeout_ms=ALTER_PARTITION_TIMEOUT_MS)
        return list(reply.outcomes)

    return propose


def tier_changer(
    node_id: NodeId, channel: ControllerChannel, broker_epoch: Callable[[], BrokerEpoch]
) -> Callable[[Sequence[TierChange]], Awaitable[list[TierOutcome]]]:
    """Return a function by which leaders ask the active controller to change the tiers of their partitions; a call may
    name each partition once."""

    async def change(changes: Sequence[TierChange]) -> list[TierOutcome]:
        request = broker_api.AlterTiersRequest(node_id, broker_epoch(), tuple(changes))
        reply = await channel.ask(operations.ALTER_TIERS, request, timeout_ms=ALTER_TIERS_TIMEOUT_MS)
        return list(reply.outcomes)

    return change


def tier_reaper(
    node_id: NodeId, channel: ControllerChannel, broker_epoch: Callable[[], BrokerEpoch]
) -> Callable[[Sequence[TopicId]], Awaitable[None]]:
    """Return a function by which a broker tells the active controller that deleted topics have no objects left."""

    async def reaped(topic_ids: Sequence[TopicId]) -> None:
        request = broker_api.AlterTiersRequest(node_id, broker_epoch(), reaped=tuple(topic_ids))
        await channel.ask(operations.ALTER_TIERS, request, timeout_ms=ALTER_TIERS_TIMEOUT_MS)

    return reaped
