"""DescribeConfigs (32)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.kafka.api import Call, message_api
from strandline.cluster.service.configs import DescribedConfig, DescribedResource
from strandline.proto.error_codes import ErrorCode

DOCUMENTATION_SINCE = 3


def _config(call: Call, config: DescribedConfig) -> Any:
    synonyms = config.synonyms if call.request.include_synonyms else ()
    documented = call.context.version >= DOCUMENTATION_SINCE and call.request.include_documentation
    return call.make(
        "DescribeConfigsResourceResult",
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        synonyms=tuple(
            call.make("DescribeConfigsSynonym", name=name, value=value, source=source)
            for name, value, source in synonyms
        ),
        config_type=config.type,
        documentation=config.doc if documented else None,
    )


def _respond(call: Call, resources: list[DescribedResource]) -> Any:
    results = tuple(
        call.make(
            "DescribeConfigsResult",
            error_code=resource.error,
            error_message=resource.message or None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(_config(call, config) for config in resource.configs),
        )
        for resource in resources
    )
    return call.make("DescribeConfigsResponse", throttle_time=0, results=results)


def _answer(call: Call) -> Any:
    """Each resource once: what is asked in ten bytes is answered in thousands."""
    asked = {(resource.resource_type, resource.resource_name): resource for resource in call.request.resources}
    return _respond(
        call,
        [
            call.service.describe_configs(
                call.context, resource.resource_type, resource.resource_name, resource.configuration_keys
            )
            for resource in asked.values()
        ],
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(
        call,
        [
            DescribedResource(resource.resource_type, resource.resource_name, error, message, [])
            for resource in call.request.resources
        ],
    )


API = message_api(
    key=32,
    name="DescribeConfigs",
    schema="describe_configs",
    first=1,
    last=4,
    flexible_since=4,
    refuse=_refuse,
    answer=_answer,
)
