"""DescribeTopicPartitions (75): topics in pages, with their eligible leader replicas (KIP-966)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.metadata import PartitionPage, offline_replicas, reachable
from strandline.cluster.broker.service.topics import INTERNAL_TOPICS
from strandline.controller.metadata.image import PartitionInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE
from strandline.proto.kafka.apis import Api

OPERATIONS_NOT_ASKED = -(2**31)


def _partition(call: Call, info: PartitionInfo) -> Any:
    image, listener = call.service.image(), call.context.peer.listener
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


def _topic(call: Call, page: PartitionPage) -> Any:
    info = page.topic.info
    name = page.topic.ref.name if info is None else info.name
    return part(
        error_code=page.topic.error,
        name=name,
        topic_id=None if info is None else info.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(_partition(call, partition) for partition in page.partitions),
        topic_authorized_operations=(
            OPERATIONS_NOT_ASKED if info is None else call.service.topic_operations(call.context, info.name)
        ),
    )


def _answer(call: Call) -> Any:
    request = call.request
    start = None if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
    pages = call.service.describe_topic_pages(
        call.context, [topic.name for topic in request.topics], request.response_partition_limit, start
    )
    cursor = None
    if pages.next_topic is not None:
        cursor = part(topic_name=pages.next_topic, partition_index=pages.next_partition)
    return part(
        throttle_time=0,
        topics=tuple(_topic(call, page) for page in pages.pages),
        next_cursor=cursor,
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    topics = tuple(
        part(
            error_code=error,
            name=topic.name,
            topic_id=None,
            is_internal=False,
            partitions=(),
        )
        for topic in call.request.topics
    )
    return part(throttle_time=0, topics=topics, next_cursor=None)


API = message_api(
    Api.DESCRIBE_TOPIC_PARTITIONS,
    first=0,
    last=0,
    refuse=_refuse,
    answer=_answer,
)
