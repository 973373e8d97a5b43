"""DescribeTopicPartitions (75): topics in pages, with their eligible leader replicas (KIP-966)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.brokers import offline_replicas, reachable
from strandline.cluster.broker.request import OPERATIONS_NOT_ASKED, Authorizer, RequestContext, operations_bits, topic
from strandline.cluster.broker.requested_topics import DescribedTopic, TopicRef, describe_topic
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.kafka.apis import Api


class PartitionPage(NamedTuple):
    """Consecutive partitions of one topic, as part of a page (KIP-966)."""

    topic: DescribedTopic
    partitions: list[PartitionRecord]


class TopicPages(NamedTuple):
    """A page of topics. `next_topic`, `next_partition`: start of the next page; None and -1 at the end."""

    pages: list[PartitionPage]
    next_topic: str | None
    next_partition: int


class TopicPartitionsHandler:
    """Describes topics in the order of their names. `partitions_max`: `max.request.partition.size.limit`."""

    def __init__(self, *, image: Callable[[], MetadataImage], authorizer: Authorizer, partitions_max: int) -> None:
        self._image = image
        self._authorizer = authorizer
        self._partitions_max = partitions_max

    def describe(self, call: Call) -> Any:
        """Answer DescribeTopicPartitions: a page of topics, with a cursor to the start of the next page."""
        request = call.request
        start = None if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
        pages = self._pages(call.context, [one.name for one in request.topics], request.response_partition_limit, start)
        cursor = None
        if pages.next_topic is not None:
            cursor = part(topic_name=pages.next_topic, partition_index=pages.next_partition)
        return part(
            topics=tuple(self._topic(call, page) for page in pages.pages),
            next_cursor=cursor,
        )

    def _pages(
        self, context: RequestContext, names: Sequence[str], limit: int, start: tuple[str, int] | None
    ) -> TopicPages:
        """Return topics sorted by name, with `limit` partitions at most; no names: all topics.

        Raises:
            KafkaError: INVALID_REQUEST for an invalid start.
        """
        image = self._image()
        first_topic, first_partition = start if start is not None else ("", 0)
        if first_partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
        if names and start is not None and first_topic not in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the topics asked for lack the cursor's {first_topic!r}")
        chosen = sorted(name for name in dict.fromkeys(names or image.topics) if name >= first_topic)
        room = max(1, min(limit, self._partitions_max))
        pages: list[PartitionPage] = []
        for name in chosen:
            described = describe_topic(self._authorizer, context, image, TopicRef(name), noted=bool(names))
            if described.info is None:
                if names:
                    pages.append(PartitionPage(described, []))
                continue
            if room == 0:
                return TopicPages(pages, name, 0)
            begin = first_partition if name == first_topic else 0
            partitions = [info for index, info in described.info.partitions.items() if index >= begin]
            pages.append(PartitionPage(described, partitions[:room]))
            if len(partitions) > room:
                return TopicPages(pages, name, partitions[room].partition)
            room -= len(partitions)
        return TopicPages(pages, None, -1)

    def _topic(self, call: Call, page: PartitionPage) -> Any:
        info = page.topic.info
        name = page.topic.ref.name if info is None else info.name
        return part(
            error_code=page.topic.error,
            name=name,
            topic_id=None if info is None else info.topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=tuple(self._partition(call, partition) for partition in page.partitions),
            topic_authorized_operations=(
                OPERATIONS_NOT_ASKED
                if info is None
                else operations_bits(self._authorizer, call.context, topic(info.name))
            ),
        )

    def _partition(self, call: Call, info: PartitionRecord) -> Any:
        image, listener = self._image(), call.context.peer.listener
        has_leader = reachable(image.brokers.get(info.leader), listener)
        return part(
            error_code=ErrorCode.NONE,
            partition_index=info.partition,
            leader_id=info.leader if has_leader else NO_NODE,
            leader_epoch=info.leader_epoch,
            replica_nodes=info.replicas,
            isr_nodes=info.isr,
            eligible_leader_replicas=info.eligible_leader_replicas,
            last_known_elr=info.last_known_elr,
            offline_replicas=tuple(offline_replicas(image, info, listener)),
        )


ROWS = (by_schema(Api.DESCRIBE_TOPIC_PARTITIONS, (0, 0), TopicPartitionsHandler, TopicPartitionsHandler.describe),)
