"""CreatePartitions (37)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.controller.api import PartitionsToAdd, ReplicaAssignment, TopicOutcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID, NodeId
from strandline.proto.kafka.apis import Api


def _wanted(call: Call) -> list[PartitionsToAdd]:
    """The wire numbers the new partitions by their place; how many there are already, the image knows."""
    image = call.service.image()
    wanted = []
    for topic in call.request.topics:
        known = image.topics.get(topic.name)
        first = 0 if known is None else len(known.partitions)
        assignments = tuple(
            ReplicaAssignment(first + place, tuple(NodeId(node) for node in one.broker_ids))
            for place, one in enumerate(topic.assignments or ())
        )
        wanted.append(PartitionsToAdd(topic.name, topic.count, assignments))
    return wanted


def _respond(outcomes: list[TopicOutcome]) -> Any:
    results = tuple(
        part(
            name=outcome.name,
            error_code=outcome.error,
            error_message=outcome.message or None,
        )
        for outcome in outcomes
    )
    return part(throttle_time=0, results=results)


async def _answer(call: Call) -> Any:
    outcomes = await call.service.create_partitions(
        call.context,
        _wanted(call),
        dry_run=call.request.validate_only,
        timeout_ms=call.request.timeout,
    )
    return _respond(outcomes)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond([TopicOutcome(topic.name, ZERO_UUID, error, message) for topic in call.request.topics])


API = message_api(
    Api.CREATE_PARTITIONS,
    first=0,
    last=3,
    refuse=_refuse,
    answer_later=_answer,
)
