"""Coordinator on one broker: its internal topic, the runtime with the topic's shards, and the shard of a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from strandline.cluster.groups.internal_topic import SETTLE_MS, InternalTopic, InternalTopicConfig
from strandline.cluster.groups.machine import Shard
from strandline.cluster.groups.partitions import partition_of
from strandline.cluster.groups.runtime import CoordinatorRuntime
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ports import Clock

NEWS_MS = 20.0
"""Milliseconds between two checks whether the metadata contain the expected change."""

CREATED_MS_MAX = 3_000.0
"""Maximum milliseconds to wait until this broker knows a topic that was just created; after that the client retries."""

CREATE_TIMEOUT_MS = 5_000.0

NAMED_MS_MAX = 1_000.0
"""Maximum milliseconds that a request for a shard that is not led here waits for metadata, because another broker named
this one as its coordinator. After that the client looks for the coordinator again."""

S = TypeVar("S", bound=Shard)


class Coordinator(Generic[S]):
    """Sends each command to the shard of its key. Subscribe `on_metadata` after the replicas.

    Attributes:
        none_yet: message of the error while the topic does not exist.
    """

    none_yet = "nothing is coordinated yet"

    def __init__(
        self,
        runtime: CoordinatorRuntime[S],
        topic: InternalTopicConfig,
        *,
        image: Callable[[], MetadataImage],
        controller: ControllerChannel,
        clock: Clock,
        settle_ms: float = SETTLE_MS,
    ) -> None:
        self.runtime = runtime
        self._image = image
        self._clock = clock
        self._topic = InternalTopic(
            topic, image=image, controller=controller, clock=clock, timeout_ms=CREATE_TIMEOUT_MS, settle_ms=settle_ms
        )

    def close(self) -> None:
        """Stop serving."""
        self.runtime.close()

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Handle that partitions of the topic may have got or lost their leadership here."""
        self.runtime.on_metadata(delta, image)

    async def ask(self, key: str, command: Any, *, asked_ms: float | None = None, patient: bool = False) -> Any:
        """Send a command to the key's shard and return its answer. `asked_ms`: monotonic time at which the request
        came, for a request with many keys, which waits for metadata only once. `patient`: see `_named_for`. Raises
        KafkaError NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or the shard's error."""
        asked_ms = self._clock.monotonic_ms() if asked_ms is None else asked_ms
        return await self.runtime.ask(await self._named_for(key, asked_ms, patient=patient), command)

    async def _named_for(self, key: str, asked_ms: float, *, patient: bool) -> int:
        """Return the partition of the key. The metadata by which this broker leads it may arrive here a moment later
        than at the broker that named this one (rule B34): NOT_COORDINATOR would be wrong then, and librdkafka does not
        ask for committed offsets again after it. If the partition was led here before, most requests come late and
        their clients look for the new coordinator at once; `patient`: the request waits in this case, too. Without a
        replica here there is no wait: a broker that is elected has learned of its replica before."""
        until_ms = asked_ms + NAMED_MS_MAX  # rule B34/named-coordinator-denies-it
        while True:
            topic = self._image().topics.get(self.runtime.topic)
            partition = None if topic is None else partition_of(key, len(topic.partitions))
            if topic is not None and partition is not None:
                if self.runtime.knows(partition) or (self.runtime.gave_up(partition) and not patient):
                    return partition
                if not self.runtime.has_copy(topic.partitions[partition]):  # rule B34/without-a-copy-it-waits
                    return partition
            if self._clock.monotonic_ms() >= until_ms:
                if partition is None:
                    raise KafkaError(ErrorCode.NOT_COORDINATOR, self.none_yet)
                return partition
            await asyncio.sleep(NEWS_MS / 1000)

    def placed(self, key: str) -> PartitionRecord | None:
        """The partition that has the key, or None while the topic does not exist."""
        topic = self._image().topics.get(self.runtime.topic)
        return None if topic is None else topic.partitions[partition_of(key, len(topic.partitions))]

    async def ensure_topic(self) -> None:
        """Return once the topic exists and this broker knows it. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        if self.runtime.topic in self._image().topics:
            return
        await self._topic.ensure()
        waited_ms = 0.0
        while self.runtime.topic not in self._image().topics:
            if waited_ms >= CREATED_MS_MAX:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.runtime.topic} is being created")
            await asyncio.sleep(NEWS_MS / 1000)
            waited_ms += NEWS_MS
