"""LeaveGroup (13)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.groups.commands import LeaveGroup, Leaver
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

MANY_SINCE = 3


def _leavers(call: Call) -> tuple[Leaver, ...]:
    if call.context.version < MANY_SINCE:
        return (Leaver(call.request.member_id),)
    return tuple(Leaver(member.member_id, member.group_instance_id) for member in call.request.members)


async def _answer(call: Call) -> Any:
    leavers = _leavers(call)
    command = LeaveGroup(call.request.group_id, leavers)
    errors = await call.service.leave_group(call.context, command)
    if call.context.version < MANY_SINCE:
        return part(throttle_time=0, error_code=errors[0])
    members = tuple(
        part(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error)
        for leaver, error in zip(leavers, errors, strict=True)
    )
    return part(throttle_time=0, error_code=ErrorCode.NONE, members=members)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return part(throttle_time=0, error_code=error, members=())


API = message_api(
    Api.LEAVE_GROUP,
    first=0,
    last=5,
    refuse=_refuse,
    answer_later=_answer,
)
