"""Coordinator of consumer groups on one broker: the runtime with shards of groups, and their topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.cluster.groups.commands import FetchOffsets, ForgetTopics
from strandline.cluster.groups.config import GroupConfig
from strandline.cluster.groups.connections import ConnectionNumbers
from strandline.cluster.groups.consumer_protocol.commands import TopicsChanged
from strandline.cluster.groups.context import GroupCounters
from strandline.cluster.groups.coordinator import Coordinator
from strandline.cluster.groups.internal_topic import SETTLE_MS, InternalTopicConfig
from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.cluster.groups.runtime import CoordinatorRuntime
from strandline.cluster.groups.shard import GroupShard
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.log.transactions import Verification
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock, Rng
from strandline.replica.manager import ReplicaManager


class GroupCoordinator(Coordinator[GroupShard]):
    """Sends each command of a group to the group's shard."""

    none_yet = "no group has been used yet"

    def __init__(
        self,
        config: GroupConfig,
        *,
        image: Callable[[], MetadataImage],
        replicas: ReplicaManager,
        controller: ControllerChannel,
        clock: Clock,
        rng: Rng,
        settle_ms: float = SETTLE_MS,
    ) -> None:
        self.config = config
        self.counters = GroupCounters()
        self.connection_numbers = numbers = ConnectionNumbers()
        runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC,
            replicas=replicas,
            clock=clock,
            make_shard=lambda _partition, _epoch: GroupShard(config, rng, self.counters, image, numbers),
            write_timeout_ms=config.commit_timeout_ms,
        )
        topic = InternalTopicConfig(
            OFFSETS_TOPIC,
            config.topic_partitions,
            config.topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.topic_segment_bytes),
            },
        )
        super().__init__(runtime, topic, image=image, controller=controller, clock=clock, settle_ms=settle_ms)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Handle changed leaderships, and topics that were created, deleted or got more partitions."""
        super().on_metadata(delta, image)
        gone = tuple(topic.name for topic in delta.deleted_topics.values())
        if gone:
            self.runtime.tell_all(ForgetTopics(gone))
        if gone or _topics_grew(delta, image):
            self.runtime.tell_all(TopicsChanged())

    async def ask(self, key: str, command: Any, *, asked_ms: float | None = None, patient: bool = False) -> Any:
        """Send a command to the shard of a group, as every coordinator does; `key` is the group id."""
        patient = patient or isinstance(command, FetchOffsets)  # rule B34/elected-anew-it-denies-offsets
        return await super().ask(key, command, asked_ms=asked_ms, patient=patient)

    async def begin_verification(
        self, group_id: str, producer_id: int, producer_epoch: int, *, own_epoch: bool
    ) -> tuple[TopicPartition, Verification | None]:
        """Return the partition of the group, and the result of `CoordinatorRuntime.begin_verification` for it. Raises
        KafkaError."""
        partition = await self._named_for(group_id, self._clock.monotonic_ms(), patient=False)
        verification = self.runtime.begin_verification(partition, producer_id, producer_epoch, own_epoch=own_epoch)
        return TopicPartition(OFFSETS_TOPIC, partition), verification


def _topics_grew(delta: MetadataDelta, image: MetadataImage) -> bool:
    """Return whether topics were created or got more partitions; elections do not matter for a group."""
    if delta.created_topics:
        return True
    before = delta.base.topic_by_id
    return any(
        topic_id in before and len(before[topic_id].partitions) != len(image.topic_by_id[topic_id].partitions)
        for topic_id in delta.partitions
        if topic_id in image.topic_by_id
    )
