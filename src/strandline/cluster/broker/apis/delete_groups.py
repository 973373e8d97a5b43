"""DeleteGroups (42)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


def _names(call: Call) -> tuple[str, ...]:
    """A group that is named twice is deleted once, and answered once."""
    return tuple(dict.fromkeys(call.request.groups_names))


async def _answer(call: Call) -> Any:
    return _respond(call, await call.service.delete_groups(call.context, _names(call)))


def _respond(call: Call, errors: Sequence[ErrorCode]) -> Any:
    results = tuple(
        part(group_id=group_id, error_code=error) for group_id, error in zip(_names(call), errors, strict=True)
    )
    return part(throttle_time=0, results=results)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [error] * len(_names(call)))


API = message_api(
    Api.DELETE_GROUPS,
    first=0,
    last=2,
    refuse=_refuse,
    answer_later=_answer,
)
