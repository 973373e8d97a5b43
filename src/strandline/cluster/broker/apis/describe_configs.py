"""DescribeConfigs (32).

Tools ask for all topics at once: 1,500 of them are 4 MB of answer, and half a second of work if each value of each
topic is written anew. Most topics go by the same values, so each is written once for a request; and others have their
turn in between.
"""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.cluster.broker.api import Call, message_api, part, short
from strandline.cluster.broker.service.configs import DescribedConfig, DescribedResource
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT8, INT16, INT32, NO_TAGS, array_head, nullable_string, string

DOCUMENTATION_SINCE = 3
FLEXIBLE_SINCE = 4

SLICE_MS = 10.0
"""How long resources are described at a stretch."""


def _config(call: Call, config: DescribedConfig) -> Any:
    synonyms = config.synonyms if call.request.include_synonyms else ()
    documented = call.context.version >= DOCUMENTATION_SINCE and call.request.include_documentation
    return part(
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        synonyms=tuple(part(name=name, value=value, source=source) for name, value, source in synonyms),
        config_type=config.type,
        documentation=config.doc if documented else None,
    )


def _respond(call: Call, resources: list[DescribedResource]) -> Any:
    results = tuple(
        part(
            error_code=resource.error,
            error_message=resource.message or None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(_config(call, config) for config in resource.configs),
        )
        for resource in resources
    )
    return part(throttle_time=0, results=results)


def _encoded(call: Call, resource: DescribedResource, known: dict[DescribedConfig, bytes]) -> bytes:
    """A DescribeConfigsResult; `known` are the configs that were written before."""
    flexible = call.context.version >= FLEXIBLE_SINCE
    parts = [
        INT16.pack(resource.error),
        nullable_string(short(resource.message) or None, flexible),
        INT8.pack(resource.resource_type),
        string(resource.resource_name, flexible),
        array_head(len(resource.configs), flexible),
    ]
    one = schema.response_part(Api.DESCRIBE_CONFIGS, call.context.version, "DescribeConfigsResourceResult")
    for config in resource.configs:
        encoded = known.get(config)
        if encoded is None:
            encoded = known[config] = bytes(one.encode(_config(call, config)))
        parts.append(encoded)
    parts.append(NO_TAGS if flexible else b"")
    return b"".join(parts)


async def _answer(call: Call) -> list[bytes]:
    """Each resource once: what is asked in ten bytes is answered in thousands."""
    asked = {(resource.resource_type, resource.resource_name): resource for resource in call.request.resources}
    flexible = call.context.version >= FLEXIBLE_SINCE
    clock, known = call.service.clock, dict[DescribedConfig, bytes]()
    parts = [INT32.pack(0), array_head(len(asked), flexible)]
    slice_end_ms = clock.monotonic_ms() + SLICE_MS
    for (kind, name), resource in asked.items():
        described = call.service.describe_configs(call.context, kind, name, resource.configuration_keys)
        parts.append(_encoded(call, described, known))
        if clock.monotonic_ms() >= slice_end_ms:
            await asyncio.sleep(0)
            slice_end_ms = clock.monotonic_ms() + SLICE_MS
    parts.append(NO_TAGS if flexible else b"")
    return [b"".join(parts)]


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(
        call,
        [
            DescribedResource(resource.resource_type, resource.resource_name, error, message, [])
            for resource in call.request.resources
        ],
    )


API = message_api(
    Api.DESCRIBE_CONFIGS,
    first=1,
    last=4,
    refuse=_refuse,
    answer_later=_answer,
)
