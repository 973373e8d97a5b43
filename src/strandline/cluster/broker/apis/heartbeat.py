"""Heartbeat (12): of members of classic groups."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.groups.commands import Heartbeat
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

INSTANCE_SINCE = 3


async def _answer(call: Call) -> Any:
    request = call.request
    command = Heartbeat(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id if call.context.version >= INSTANCE_SINCE else None,
    )
    return _refuse(call, await call.service.heartbeat(call.context, command), "")


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return part(throttle_time=0, error_code=error)


API = message_api(
    Api.HEARTBEAT,
    first=0,
    last=4,
    refuse=_refuse,
    answer_later=_answer,
)
