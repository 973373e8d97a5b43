"""ConsumerGroupHeartbeat (68): joins, lives, reconciles and leaves in one API (KIP-848)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.groups.consumer_protocol.commands import ConsumerHeartbeat
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.consumer_group_records import Assignment

OWN_ID_SINCE = 1
"""From this version on members make their ids themselves, and subscribe by pattern."""


async def _answer(call: Call) -> Any:
    request, version = call.request, call.context.version
    if version >= OWN_ID_SINCE and not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a member makes its own id")
    command = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=call.context.client_id,
        client_host=f"/{call.context.peer.host}",
        instance_id=request.instance_id,
        rack=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout,
        topics=request.subscribed_topic_names,
        regex=request.subscribed_topic_regex if version >= OWN_ID_SINCE else None,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
    )
    answer = await call.service.consumer_heartbeat(call.context, command)
    return part(
        throttle_time=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval=answer.heartbeat_interval_ms,
        assignment=None if answer.assigned is None else _assignment(answer.assigned),
    )


def _owned(topics: Any) -> Assignment:
    found: dict[Any, tuple[int, ...]] = {}
    for topic in topics:
        topic_id = topic.topic_id or ZERO_UUID
        if topic.partitions:
            found[topic_id] = (*found.get(topic_id, ()), *topic.partitions)
    return found


def _assignment(assigned: Assignment) -> Any:
    return part(
        topic_partitions=tuple(
            part(topic_id=topic_id, partitions=partitions) for topic_id, partitions in assigned.items()
        ),
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return part(
        throttle_time=0,
        error_code=error,
        error_message=message or None,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=0,
        assignment=None,
    )


API = message_api(
    Api.CONSUMER_GROUP_HEARTBEAT,
    first=0,
    last=1,
    refuse=_refuse,
    answer_later=_answer,
)
