"""ApiVersions (18): what is served. The first request of every client, and the only one answered in any version."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.exchange import Exchange
from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.controller.metadata.image import SUPPORTED_METADATA_VERSIONS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT16, INT32, INT64, NO_TAGS, array_head, string, tagged_field
from strandline.proto.varint import uvarint

FIRST, LAST = 0, 4
FLEXIBLE_SINCE = 3
THROTTLE_SINCE = 1

SUPPORTED_FEATURES_TAG = 0
FINALIZED_EPOCH_TAG = 1
FINALIZED_FEATURES_TAG = 2

FEATURE = "metadata.version"
"""The one feature that has levels here; its numbers are Strandline's own, not Kafka's."""

SOFTWARE_CHARS_MAX = 64
"""How much of a client's name and version is kept: both stay as long as its connection, and may fill a frame."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_VERSIONS = struct.Struct(">hhh")


def make_api(served: Mapping[int, ServedApi]) -> ServedApi:
    """The API that answers with `served`, which may still grow."""

    def handle(exchange: Exchange, body: memoryview, service: BrokerService) -> None:
        context = exchange.context
        if not FIRST <= context.version <= LAST:
            exchange.respond([_answer(served, 0, ErrorCode.UNSUPPORTED_VERSION, b"")])
            return
        request = schema.request(Api.API_VERSIONS, context.version).decode(body)
        error = ErrorCode.NONE
        if context.version >= FLEXIBLE_SINCE:
            name, version = request.client_software_name, request.client_software_version
            if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version):
                peer = context.peer
                peer.software_name, peer.software_version = name[:SOFTWARE_CHARS_MAX], version[:SOFTWARE_CHARS_MAX]
                exchange.connection.software_told()
            else:
                error = ErrorCode.INVALID_REQUEST
        exchange.respond([_answer(served, context.version, error, _features(service))])

    def refuse_all(exchange: Exchange, _body: memoryview, _service: BrokerService, error: ErrorCode) -> bool:
        exchange.respond([_answer(served, exchange.context.version, error, b"")])
        return True

    return ServedApi(Api.API_VERSIONS, FIRST, LAST, handle, refuse_all)


def _answer(served: Mapping[int, ServedApi], version: int, error: ErrorCode, features: bytes) -> bytes:
    flexible = version >= FLEXIBLE_SINCE
    end = NO_TAGS if flexible else b""
    keys = [_VERSIONS.pack(key, served[key].first, served[key].last) + end for key in sorted(served)]
    out = INT16.pack(error) + array_head(len(keys), flexible) + b"".join(keys)
    if version >= THROTTLE_SINCE:
        out += INT32.pack(0)
    if flexible:
        out += features if error is ErrorCode.NONE else NO_TAGS
    return out


def _features(service: BrokerService) -> bytes:
    """The tagged fields: what this node can replay, and what the cluster has settled on (KIP-584)."""
    image = service.image()
    first, last = SUPPORTED_METADATA_VERSIONS[0], SUPPORTED_METADATA_VERSIONS[-1]
    name = string(FEATURE, True)
    fields = [tagged_field(SUPPORTED_FEATURES_TAG, uvarint(2) + name + INT16.pack(first) + INT16.pack(last) + NO_TAGS)]
    if image.metadata_version > 0:
        level = INT16.pack(image.metadata_version)
        fields.append(tagged_field(FINALIZED_EPOCH_TAG, INT64.pack(image.offset)))
        fields.append(tagged_field(FINALIZED_FEATURES_TAG, uvarint(2) + name + level + level + NO_TAGS))
    return uvarint(len(fields)) + b"".join(fields)
