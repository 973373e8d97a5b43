"""ListGroups (16)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.groups.commands import ListedGroup
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

STATES_SINCE = 4
TYPES_SINCE = 5


async def _answer(call: Call) -> Any:
    version = call.context.version
    states = call.request.states_filter if version >= STATES_SINCE else ()
    types = call.request.types_filter if version >= TYPES_SINCE else ()
    return _respond(ErrorCode.NONE, await call.service.list_groups(call.context, states, types))


def _respond(error: ErrorCode, groups: list[ListedGroup]) -> Any:
    return part(
        throttle_time=0,
        error_code=error,
        groups=tuple(
            part(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.type,
            )
            for group in groups
        ),
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(error, [])


API = message_api(
    Api.LIST_GROUPS,
    first=0,
    last=5,
    refuse=_refuse,
    answer_later=_answer,
)
