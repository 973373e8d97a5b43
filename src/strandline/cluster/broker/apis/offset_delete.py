"""OffsetDelete (47)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


async def _answer(call: Call) -> Any:
    request = call.request
    asked = [(topic.name, tuple(one.partition_index for one in topic.partitions)) for topic in request.topics]
    errors = await call.service.delete_offsets(call.context, request.group_id, asked)
    topics = tuple(
        part(
            name=topic.name,
            partitions=tuple(
                part(partition_index=one.partition_index, error_code=error)
                for one, error in zip(topic.partitions, own, strict=True)
            ),
        )
        for topic, own in zip(request.topics, errors, strict=True)
    )
    return part(error_code=ErrorCode.NONE, throttle_time=0, topics=topics)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return part(error_code=error, throttle_time=0, topics=())


API = message_api(
    Api.OFFSET_DELETE,
    first=0,
    last=0,
    refuse=_refuse,
    answer_later=_answer,
)
