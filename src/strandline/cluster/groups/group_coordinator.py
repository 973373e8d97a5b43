"""The coordinator of consumer groups on one broker: the runtime with shards of groups, and their topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from strandline.cluster.groups.commands import FetchOffsets, ForgetTopics
from strandline.cluster.groups.config import GroupConfig
from strandline.cluster.groups.consumer_protocol.commands import TopicsChanged
from strandline.cluster.groups.context import GroupCounters
from strandline.cluster.groups.internal_topic import (
    SETTLE_MS,
    InternalTopic,
    InternalTopicConfig,
)
from strandline.cluster.groups.partitions import OFFSETS_TOPIC, partition_of
from strandline.cluster.groups.runtime import CoordinatorRuntime
from strandline.cluster.groups.shard import GroupShard
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ports import Clock, Rng
from strandline.replica.manager import ReplicaManager

NEWS_MS = 20.0
"""Milliseconds between two looks whether the metadata have what is waited for."""

CREATED_MS_MAX = 3_000.0
"""A topic that was created is known here after so long, or the client asks again."""

CREATE_TIMEOUT_MS = 5_000.0

NAMED_MS_MAX = 1_000.0
"""Milliseconds that a client waits which some broker sent here: what made this broker the coordinator is known by
then, or the client looks for the coordinator again. What made it so is known here after so long, or the client looks
for the coordinator again."""


class GroupCoordinator:
    """Commands of groups to the shard that has them. Subscribe `on_metadata` behind the replicas."""

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
        self._image = image
        self._clock = clock
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC,
            replicas=replicas,
            clock=clock,
            make_shard=lambda: GroupShard(config, rng, self.counters, image),
            write_timeout_ms=config.commit_timeout_ms,
        )
        self._topic = InternalTopic(
            InternalTopicConfig(
                OFFSETS_TOPIC,
                config.topic_partitions,
                config.topic_replication_factor,
                {
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.topic_segment_bytes),
                },
            ),
            image=image,
            controller=controller,
            clock=clock,
            timeout_ms=CREATE_TIMEOUT_MS,
            settle_ms=settle_ms,
        )

    def close(self) -> None:
        """Serve nothing any more."""
        self.runtime.close()

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Leaderships came or went; topics were deleted."""
        self.runtime.on_metadata(delta, image)
        gone = tuple(topic.name for topic in delta.deleted_topics.values())
        if gone:
            self.runtime.tell_all(ForgetTopics(gone))
        if gone or _topics_grew(delta, image):
            self.runtime.tell_all(TopicsChanged())

    async def ask(self, group_id: str, command: Any, *, asked_ms: float | None = None) -> Any:
        """The answer of the group's shard. `asked_ms`: when the request came (monotonic), for one that asks for many
        groups: it waits for the news once. Raises KafkaError NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or what the
        shard says."""
        asked_ms = self._clock.monotonic_ms() if asked_ms is None else asked_ms
        patient = isinstance(command, FetchOffsets)  # rule B34/elected-anew-it-denies-offsets
        return await self.runtime.ask(await self._named_for(group_id, asked_ms, patient=patient), command)

    async def _named_for(self, group_id: str, asked_ms: float, *, patient: bool) -> int:
        """The partition that has the group. The news that this broker leads it may come here a moment later than to the
        broker that named it (rule B34): NOT_COORDINATOR, after which librdkafka asks for committed offsets no more,
        would be said in error. Where a leadership of it has ended here most come late, and look for the new one at
        once; `patient`: this one waits all the same."""
        until_ms = asked_ms + NAMED_MS_MAX  # rule B34/named-coordinator-denies-it
        while True:
            topic = self._image().topics.get(OFFSETS_TOPIC)
            partition = None if topic is None else partition_of(group_id, len(topic.partitions))
            if partition is not None and (
                self.runtime.knows(partition) or (self.runtime.gave_up(partition) and not patient)
            ):
                return partition
            if self._clock.monotonic_ms() >= until_ms:
                if partition is None:
                    raise KafkaError(ErrorCode.NOT_COORDINATOR, "no group has been used yet")
                return partition
            await asyncio.sleep(NEWS_MS / 1000)

    def placed(self, group_id: str) -> PartitionRecord | None:
        """The partition that has the group, or None while the topic does not exist."""
        topic = self._image().topics.get(OFFSETS_TOPIC)
        return None if topic is None else topic.partitions[partition_of(group_id, len(topic.partitions))]

    async def ensure_topic(self) -> None:
        """Return once the topic exists and this broker knows it. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        if OFFSETS_TOPIC in self._image().topics:
            return
        await self._topic.ensure()
        waited_ms = 0.0
        while OFFSETS_TOPIC not in self._image().topics:
            if waited_ms >= CREATED_MS_MAX:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is being created")
            await asyncio.sleep(NEWS_MS / 1000)
            waited_ms += NEWS_MS


def _topics_grew(delta: MetadataDelta, image: MetadataImage) -> bool:
    """True if topics were created, or have more partitions; elections change nothing for a group."""
    if delta.created_topics:
        return True
    before = delta.base.topic_by_id
    return any(
        topic_id in before and len(before[topic_id].partitions) != len(image.topic_by_id[topic_id].partitions)
        for topic_id in delta.partitions
        if topic_id in image.topic_by_id
    )
