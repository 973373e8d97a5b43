"""Imports and caches of the first messages of a run: done once, in the process whose forks run the seeds."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

_MESSAGES = (
    (Api.API_VERSIONS, 5),
    (Api.CREATE_TOPICS, 7),
    (Api.INIT_PRODUCER_ID, 5),
    (Api.LIST_OFFSETS, 10),
    (Api.METADATA, 13),
    (Api.OFFSET_FOR_LEADER_EPOCH, 4),
)
_MODULES = (
    "strandline.chaos.sim.transport",
    "kio.schema.request_header.v1.header",
    "kio.schema.request_header.v2.header",
    "kio.schema.response_header.v0.header",
    "kio.schema.response_header.v1.header",
)


@cache
def preload() -> None:
    """Import the schemas and fill the caches; without it each fork spends a fifth of a short run on that."""
    for name in _MODULES:
        import_module(name)
    for api, version in _MESSAGES:
        schema.request(api, version)
        schema.response(api, version)
