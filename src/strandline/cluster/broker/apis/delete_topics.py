"""DeleteTopics (20)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.controller.api import TopicOutcome, TopicRef
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.apis import Api

BY_ID_SINCE = 6


def _wanted(call: Call) -> list[TopicRef]:
    if call.context.version >= BY_ID_SINCE:
        return [TopicRef(topic.name or "", topic.topic_id or ZERO_UUID) for topic in call.request.topics]
    return [TopicRef(name) for name in call.request.topic_names]


def _respond(call: Call, outcomes: list[TopicOutcome]) -> Any:
    by_id = call.context.version >= BY_ID_SINCE
    responses = tuple(
        part(
            name=outcome.name or None if by_id else outcome.name,
            topic_id=outcome.topic_id,
            error_code=outcome.error,
            error_message=outcome.message or None,
        )
        for outcome in outcomes
    )
    return part(throttle_time=0, responses=responses)


async def _answer(call: Call) -> Any:
    timeout_ms = call.request.timeout
    return _respond(call, await call.service.delete_topics(call.context, _wanted(call), timeout_ms=timeout_ms))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [TopicOutcome(ref.name, ref.topic_id, error, message) for ref in _wanted(call)])


API = message_api(
    Api.DELETE_TOPICS,
    first=1,
    last=6,
    refuse=_refuse,
    answer_later=_answer,
)
