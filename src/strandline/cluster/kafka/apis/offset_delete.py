"""OffsetDelete (47)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.kafka.api import Call, message_api
from strandline.proto.error_codes import ErrorCode


async def _answer(call: Call) -> Any:
    request = call.request
    asked = [(topic.name, tuple(one.partition_index for one in topic.partitions)) for topic in request.topics]
    errors = await call.service.delete_offsets(call.context, request.group_id, asked)
    topics = tuple(
        call.make(
            "OffsetDeleteResponseTopic",
            name=topic.name,
            partitions=tuple(
                call.make("OffsetDeleteResponsePartition", partition_index=one.partition_index, error_code=error)
                for one, error in zip(topic.partitions, own, strict=True)
            ),
        )
        for topic, own in zip(request.topics, errors, strict=True)
    )
    return call.make("OffsetDeleteResponse", error_code=ErrorCode.NONE, throttle_time=0, topics=topics)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return call.make("OffsetDeleteResponse", error_code=error, throttle_time=0, topics=())


API = message_api(
    key=47,
    name="OffsetDelete",
    schema="offset_delete",
    first=0,
    last=0,
    flexible_since=1,
    refuse=_refuse,
    answer_later=_answer,
)
