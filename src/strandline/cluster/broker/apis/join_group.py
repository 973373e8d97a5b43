"""JoinGroup (11)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.groups.commands import JoinAnswer, JoinGroup
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

REBALANCE_TIMEOUT_SINCE = 1
MEMBER_ID_REQUIRED_SINCE = 4
INSTANCE_SINCE = 5
NULL_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


async def _answer(call: Call) -> Any:
    request, version = call.request, call.context.version
    session_ms = request.session_timeout
    rebalance_ms = request.rebalance_timeout if version >= REBALANCE_TIMEOUT_SINCE else -1
    command = JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id if version >= INSTANCE_SINCE else None,
        client_id=call.context.client_id,
        client_host=f"/{call.context.peer.host}",  # as Kafka writes addresses, and its tools show them
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=session_ms if rebalance_ms < 0 else rebalance_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        member_id_required=version >= MEMBER_ID_REQUIRED_SINCE,
        may_skip_assignment=version >= SKIP_ASSIGNMENT_SINCE,
    )
    return _respond(call, await call.service.join_group(call.context, command))


def _respond(call: Call, answer: JoinAnswer) -> Any:
    protocol_name = answer.protocol_name
    if protocol_name is None and call.context.version < NULL_PROTOCOL_SINCE:
        protocol_name = ""
    return part(
        throttle_time=0,
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            part(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.subscription,
            )
            for member in answer.members
        ),
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, JoinAnswer(error, call.request.member_id))


API = message_api(
    Api.JOIN_GROUP,
    first=0,
    last=9,
    refuse=_refuse,
    answer_later=_answer,
)
