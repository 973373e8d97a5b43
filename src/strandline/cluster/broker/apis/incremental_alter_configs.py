"""IncrementalAlterConfigs (44)."""

from __future__ import annotations

from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, message_api, part
from strandline.controller.api import ConfigAlteration, ConfigOperation, ResourceAlteration
from strandline.controller.metadata.image import ResourceType
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


class Outcome(NamedTuple):
    """What became of one resource, as it was named."""

    error: ErrorCode
    message: str
    resource_type: int
    resource_name: str


def _alteration(resource: Any) -> ResourceAlteration | str:
    """The change, or a sentence why it cannot be one."""
    try:
        kind = ResourceType(resource.resource_type)
    except ValueError:
        return f"resources of type {resource.resource_type} have no configs here"
    try:
        changes = tuple(
            ConfigAlteration(config.name, ConfigOperation(config.config_operation), config.value)
            for config in resource.configs
        )
    except ValueError:
        return "an operation is 0 (set), 1 (delete), 2 (append) or 3 (subtract)"
    return ResourceAlteration(kind, resource.resource_name, changes)


def _respond(outcomes: list[Outcome]) -> Any:
    responses = tuple(
        part(
            error_code=outcome.error,
            error_message=outcome.message or None,
            resource_type=outcome.resource_type,
            resource_name=outcome.resource_name,
        )
        for outcome in outcomes
    )
    return part(throttle_time=0, responses=responses)


async def config_outcomes(call: Call, wanted: list[ResourceAlteration | str]) -> list[Outcome]:
    """Carry out what can be; one outcome for each resource of the request, in order. A text is why one cannot be."""
    asked = [one for one in wanted if isinstance(one, ResourceAlteration)]
    answered = iter(
        await call.service.incremental_alter_configs(call.context, asked, dry_run=call.request.validate_only)
    )
    outcomes = []
    for resource, one in zip(call.request.resources, wanted, strict=True):
        if isinstance(one, str):
            error, message = ErrorCode.INVALID_REQUEST, one
        else:
            outcome = next(answered)
            error, message = outcome.error, outcome.message
        outcomes.append(Outcome(error, message, resource.resource_type, resource.resource_name))
    return outcomes


async def _answer(call: Call) -> Any:
    return _respond(await config_outcomes(call, [_alteration(one) for one in call.request.resources]))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(
        [
            Outcome(error, message, resource.resource_type, resource.resource_name)
            for resource in call.request.resources
        ],
    )


API = message_api(
    Api.INCREMENTAL_ALTER_CONFIGS,
    first=0,
    last=1,
    refuse=_refuse,
    answer_later=_answer,
)
