"""ApiVersions (18): what is served. The first request of every client, and the only one answered in any version."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable

from strandline.cluster.broker.api import by_hand
from strandline.cluster.broker.request import Exchange
from strandline.controller.metadata.image import SUPPORTED_METADATA_VERSIONS, MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT16, INT32, INT64, NO_TAGS, array_head, string, tagged_field, uvarint

FIRST, LAST = VERSIONS = (0, 4)
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


class ApiVersionsHandler:
    """Answers with `served`: (key, first version, last version) of each API."""

    def __init__(self, *, served: Iterable[tuple[int, int, int]], image: Callable[[], MetadataImage]) -> None:
        self._served = sorted(served)
        self._image = image

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Remember what the client says of itself; answer in version 0 to a version that is not served (KIP-511)."""
        context = exchange.context
        if not FIRST <= context.version <= LAST:
            exchange.respond([self._written(0, ErrorCode.UNSUPPORTED_VERSION, b"")])
            return
        request = schema.request(Api.API_VERSIONS, context.version).decode(body)
        error = ErrorCode.NONE
        if context.version >= FLEXIBLE_SINCE:
            name, version = request.client_software_name, request.client_software_version
            if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version):
                peer = context.peer
                peer.software_name, peer.software_version = name[:SOFTWARE_CHARS_MAX], version[:SOFTWARE_CHARS_MAX]
                exchange.connection.count_software()
            else:
                error = ErrorCode.INVALID_REQUEST
        exchange.respond([self._written(context.version, error, self._features(), exchange.throttle_ms())])

    def refuse_all(self, exchange: Exchange, _body: memoryview, error: ErrorCode) -> bool:
        """The answer is this error."""
        exchange.respond([self._written(exchange.context.version, error, b"")])
        return True

    def _written(self, version: int, error: ErrorCode, features: bytes, throttle_ms: int = 0) -> bytes:
        flexible = version >= FLEXIBLE_SINCE
        end = NO_TAGS if flexible else b""
        keys = [_VERSIONS.pack(*row) + end for row in self._served]
        out = INT16.pack(error) + array_head(len(keys), flexible) + b"".join(keys)
        if version >= THROTTLE_SINCE:
            out += INT32.pack(throttle_ms)
        if flexible:
            out += features if error is ErrorCode.NONE else NO_TAGS
        return out

    def _features(self) -> bytes:
        """The tagged fields: what this node can replay, and what the cluster has settled on (KIP-584)."""
        image = self._image()
        first, last = SUPPORTED_METADATA_VERSIONS[0], SUPPORTED_METADATA_VERSIONS[-1]
        name = string(FEATURE, True)
        fields = [
            tagged_field(SUPPORTED_FEATURES_TAG, uvarint(2) + name + INT16.pack(first) + INT16.pack(last) + NO_TAGS)
        ]
        if image.metadata_version > 0:
            level = INT16.pack(image.metadata_version)
            fields.append(tagged_field(FINALIZED_EPOCH_TAG, INT64.pack(image.offset)))
            fields.append(tagged_field(FINALIZED_FEATURES_TAG, uvarint(2) + name + level + level + NO_TAGS))
        return uvarint(len(fields)) + b"".join(fields)


ROWS = (by_hand(Api.API_VERSIONS, VERSIONS, ApiVersionsHandler),)
