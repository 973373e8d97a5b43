"""OffsetCommit (8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.group_offsets import OffsetCommit, OffsetsOfTopic, PartitionOffset
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

RETENTION_UNTIL = 4
EPOCH_SINCE = 6
INSTANCE_SINCE = 7
TOPIC_ID_SINCE = 10

RETENTION_MS_MAX = 10**14
"""3,000 years: more than a retention can mean, and added to a time still less than a record can hold."""


async def _answer(call: Call) -> Any:
    request, version = call.request, call.context.version
    retention_ms = min(request.retention_time, RETENTION_MS_MAX) if version <= RETENTION_UNTIL else -1
    by_id = version >= TOPIC_ID_SINCE
    topics = tuple(
        OffsetsOfTopic(
            None if by_id else topic.name,
            topic.topic_id if by_id else None,
            tuple(
                PartitionOffset(
                    one.partition_index,
                    one.committed_offset,
                    one.committed_leader_epoch if version >= EPOCH_SINCE else -1,
                    one.committed_metadata,
                )
                for one in topic.partitions
            ),
        )
        for topic in request.topics
    )
    commit = OffsetCommit(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id if version >= INSTANCE_SINCE else None,
        retention_ms=retention_ms if retention_ms >= 0 else None,
        topics=topics,
    )
    return _respond(call, await call.service.commit_offsets(call.context, commit))


def _respond(call: Call, errors: Sequence[Sequence[ErrorCode]]) -> Any:
    by_id = call.context.version >= TOPIC_ID_SINCE
    topics = tuple(
        part(
            **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
            partitions=tuple(
                part(partition_index=one.partition_index, error_code=error)
                for one, error in zip(topic.partitions, own, strict=True)
            ),
        )
        for topic, own in zip(call.request.topics, errors, strict=True)
    )
    return part(throttle_time=0, topics=topics)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [[error] * len(topic.partitions) for topic in call.request.topics])


API = message_api(
    Api.OFFSET_COMMIT,
    first=2,
    last=10,
    refuse=_refuse,
    answer_later=_answer,
)
