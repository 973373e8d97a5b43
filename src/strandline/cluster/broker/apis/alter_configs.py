"""AlterConfigs (33), the old way: what a resource's configs shall be altogether. What is not named goes back to its
default; IncrementalAlterConfigs took its place in Kafka 2.3, and some clients still speak this one."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.apis.incremental_alter_configs import Outcome, config_outcomes
from strandline.controller.api import ConfigAlteration, ConfigOperation, ResourceAlteration
from strandline.controller.metadata.image import ResourceType
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


def _alteration(call: Call, resource: Any) -> ResourceAlteration | str:
    """The steps that lead there from what is set now, or a sentence why there are none."""
    try:
        kind = ResourceType(resource.resource_type)
    except ValueError:
        return f"resources of type {resource.resource_type} have no configs here"
    now = call.service.image().config((kind, resource.resource_name))
    named = {config.name for config in resource.configs}
    steps = [ConfigAlteration(config.name, ConfigOperation.SET, config.value) for config in resource.configs]
    steps += [ConfigAlteration(name, ConfigOperation.DELETE, None) for name in now if name not in named]
    return ResourceAlteration(kind, resource.resource_name, tuple(steps))


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


async def _answer(call: Call) -> Any:
    return _respond(await config_outcomes(call, [_alteration(call, one) for one in call.request.resources]))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond([Outcome(error, message, one.resource_type, one.resource_name) for one in call.request.resources])


API = message_api(
    Api.ALTER_CONFIGS,
    first=0,
    last=2,
    refuse=_refuse,
    answer_later=_answer,
)
