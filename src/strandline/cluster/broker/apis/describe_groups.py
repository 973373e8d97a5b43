"""DescribeGroups (15)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.group_admin import DescribedGroup
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

OPERATIONS_SINCE = 3
NOT_FOUND_SINCE = 6
OPERATIONS_NOT_ASKED = -(2**31)

DEAD = "Dead"
"""Kafka's state of a group that does not exist."""


async def _answer(call: Call) -> Any:
    return _respond(call, await call.service.describe_groups(call.context, list(dict.fromkeys(call.request.groups))))


def _respond(call: Call, groups: list[DescribedGroup]) -> Any:
    return part(throttle_time=0, groups=tuple(_group(call, described) for described in groups))


def _group(call: Call, group: DescribedGroup) -> Any:
    version, error, found = call.context.version, group.error, group.description
    missing = error is ErrorCode.GROUP_ID_NOT_FOUND
    if missing and version < NOT_FOUND_SINCE:
        error = ErrorCode.NONE
    state = DEAD if missing else ""
    asked = version >= OPERATIONS_SINCE and call.request.include_authorized_operations and found is not None
    operations = call.service.group_operations(call.context, group.group_id) if asked else OPERATIONS_NOT_ASKED
    return part(
        error_code=error,
        error_message=(group.message or None) if error is not ErrorCode.NONE else None,
        group_id=group.group_id,
        group_state=state if found is None else found.state,
        protocol_type="" if found is None else found.protocol_type,
        protocol_data="" if found is None else found.protocol_name,
        members=()
        if found is None
        else tuple(
            part(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription,
                member_assignment=member.assignment,
            )
            for member in found.members
        ),
        authorized_operations=operations,
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [DescribedGroup(group_id, None, error, message) for group_id in call.request.groups])


API = message_api(
    Api.DESCRIBE_GROUPS,
    first=0,
    last=6,
    refuse=_refuse,
    answer_later=_answer,
)
