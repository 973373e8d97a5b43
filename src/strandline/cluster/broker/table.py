"""The table of APIs: the served versions, and the handlers that answer them.

Each listed version is implemented completely; only these are advertised.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.broker.api import ApiRow, Handlers, ServedApi
from strandline.cluster.broker.handlers import (
    acls,
    alter_configs,
    api_versions,
    cluster,
    consumer_groups,
    coordinators,
    delete_records,
    describe_configs,
    elections,
    features,
    fetch,
    group_admin,
    group_members,
    log_dirs,
    metadata,
    offset_commit,
    offset_fetch,
    offsets,
    produce,
    producers,
    quotas,
    reassignments,
    sasl,
    scram_credentials,
    telemetry,
    topic_partitions,
    topics,
    transactions,
    write_markers,
)
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

_FAMILIES = (
    produce,
    fetch,
    metadata,
    api_versions,
    sasl,
    offsets,
    topic_partitions,
    topics,
    delete_records,
    describe_configs,
    alter_configs,
    acls,
    producers,
    write_markers,
    transactions,
    coordinators,
    group_members,
    consumer_groups,
    offset_commit,
    offset_fetch,
    group_admin,
    cluster,
    elections,
    reassignments,
    features,
    log_dirs,
    quotas,
    scram_credentials,
    telemetry,
)

APIS: Mapping[int, ApiRow] = {row.api: row for family in _FAMILIES for row in family.ROWS}
"""Rows by API key."""

BY_TITLE: Mapping[str, ApiRow] = {row.api.title: row for row in APIS.values()}
"""Rows by Kafka's name of the API."""


def served_by(handlers: Handlers) -> Mapping[int, ServedApi]:
    """Return the APIs by key, bound to the handlers of one broker."""
    return {row.api: row.bind(handlers) for row in APIS.values()}


def in_other_version(served: ServedApi, version: int) -> tuple[ServedApi, int]:
    """Return the API that answers a version that is not served, and the version whose format the response has.

    ApiVersions answers in version 0 (KIP-511); other APIs answer UNSUPPORTED_VERSION, if the schema knows the format
    of that version.

    Raises:
        ProtocolError: there is no format for a response.
    """
    api = served.api
    if api is Api.API_VERSIONS:
        return served, 0
    if served.by_schema and schema.knows(api, version):
        return served, version
    raise ProtocolError(f"version {version} of {api.title} is not served, only {served.first} to {served.last}")
