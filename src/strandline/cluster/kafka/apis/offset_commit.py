"""OffsetCommit (8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.cluster.kafka.api import Call, message_api
from strandline.cluster.kafka.codec import milliseconds_of
from strandline.cluster.service.group_offsets import OffsetCommit, OffsetsOfTopic, PartitionOffset
from strandline.proto.error_codes import ErrorCode

RETENTION_UNTIL = 4
EPOCH_SINCE = 6
INSTANCE_SINCE = 7
TOPIC_ID_SINCE = 10


async def _answer(call: Call) -> Any:
    request, version = call.request, call.context.version
    retention_ms = milliseconds_of(request.retention_time) if version <= RETENTION_UNTIL else -1
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
        call.make(
            "OffsetCommitResponseTopic",
            **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
            partitions=tuple(
                call.make("OffsetCommitResponsePartition", partition_index=one.partition_index, error_code=error)
                for one, error in zip(topic.partitions, own, strict=True)
            ),
        )
        for topic, own in zip(call.request.topics, errors, strict=True)
    )
    return call.make("OffsetCommitResponse", throttle_time=0, topics=topics)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [[error] * len(topic.partitions) for topic in call.request.topics])


API = message_api(
    key=8,
    name="OffsetCommit",
    schema="offset_commit",
    first=2,
    last=10,
    flexible_since=8,
    refuse=_refuse,
    answer_later=_answer,
)
