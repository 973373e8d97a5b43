"""SyncGroup (14)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.groups.commands import SyncAnswer, SyncGroup
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

INSTANCE_SINCE = 3
PROTOCOL_SINCE = 5
"""From this version on a member says which protocol it was told (KIP-559); null is refused, as Kafka does."""


async def _answer(call: Call) -> Any:
    request, version = call.request, call.context.version
    if version >= PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name):
        return _respond(SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    command = SyncGroup(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id if version >= INSTANCE_SINCE else None,
        protocol_type=request.protocol_type if version >= PROTOCOL_SINCE else None,
        protocol_name=request.protocol_name if version >= PROTOCOL_SINCE else None,
        assignments=tuple((one.member_id, one.assignment) for one in request.assignments),
    )
    return _respond(await call.service.sync_group(call.context, command))


def _respond(answer: SyncAnswer) -> Any:
    return part(
        throttle_time=0,
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(SyncAnswer(error))


API = message_api(
    Api.SYNC_GROUP,
    first=0,
    last=5,
    refuse=_refuse,
    answer_later=_answer,
)
