"""FindCoordinator (10)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.coordinators import CoordinatorAnswer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

MANY_SINCE = 4
KIND_SINCE = 1


def _keys(call: Call) -> list[str]:
    return list(call.request.coordinator_keys) if call.context.version >= MANY_SINCE else [call.request.key]


def _where(one: CoordinatorAnswer) -> dict[str, Any]:
    """The coordinator of one key, or why there is none."""
    host, port = ("", -1) if one.endpoint is None else one.endpoint
    return {
        "node_id": one.node_id,
        "host": host,
        "port": port,
        "error_code": one.error,
        "error_message": one.message or None,
    }


def _respond(call: Call, answers: list[CoordinatorAnswer]) -> Any:
    if call.context.version < MANY_SINCE:
        return part(throttle_time=0, **_where(answers[0]))
    coordinators = tuple(part(key=one.key, **_where(one)) for one in answers)
    return part(throttle_time=0, coordinators=coordinators)


async def _answer(call: Call) -> Any:
    kind = call.request.key_type if call.context.version >= KIND_SINCE else 0
    return _respond(call, await call.service.find_coordinators(call.context, kind, _keys(call)))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [CoordinatorAnswer(key, error, message) for key in _keys(call)])


API = message_api(
    Api.FIND_COORDINATOR,
    first=0,
    last=6,
    refuse=_refuse,
    answer_later=_answer,
)
