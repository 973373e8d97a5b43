"""ApiVersions (18): the served APIs, versions and features. It is the first request of every client, and the only one
that is answered in any version."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable

from strandline.cluster.broker.api import by_hand
from strandline.cluster.broker.request import Exchange
from strandline.controller.metadata.features import Supported
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT16, INT32, INT64, NO_TAGS, array_head, string, tagged_field, uvarint

FIRST, LAST = VERSIONS = (0, 5)
FLEXIBLE_SINCE = 3
THROTTLE_SINCE = 1
EXPECTED_SINCE = 5

SUPPORTED_FEATURES_TAG = 0
FINALIZED_EPOCH_TAG = 1
FINALIZED_FEATURES_TAG = 2

ZERO_SINCE = 4
"""First version whose clients can read a feature whose first level is 0 (KAFKA-17011); older ones do not get these."""

SOFTWARE_CHARS_MAX = 64
"""Maximum characters kept of a client's software name and version, which may be as long as a frame and are kept as long
as the connection."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_VERSIONS = struct.Struct(">hhh")


class ApiVersionsHandler:
    """Answers ApiVersions. `served`: (key, first version, last version) of each API."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        served: Iterable[tuple[int, int, int]],
        image: Callable[[], MetadataImage],
        supported: Supported,
    ) -> None:
        self._node_id = node_id
        self._served = sorted(served)
        self._supported = supported
        self._image = image

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Store the client's software name and version, and answer; in version 0 if the request's version is not served
        (KIP-511)."""
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
        if context.version >= EXPECTED_SINCE and error is ErrorCode.NONE:
            error = self._misrouted(request.cluster_id, request.node_id)
        exchange.respond(
            [self._written(context.version, error, self._features(context.version), exchange.throttle_ms())]
        )

    def _misrouted(self, cluster_id: str | None, node_id: int) -> ErrorCode:
        """Return REBOOTSTRAP_REQUIRED if the client meant another broker or cluster (KIP-1242), INVALID_REQUEST if it
        names only one of the two, else NONE. A client that uses a bootstrap address names neither."""
        if (cluster_id is None) != (node_id < 0):
            return ErrorCode.INVALID_REQUEST
        if cluster_id is None or (cluster_id, node_id) == (self._image().cluster_id, self._node_id):
            return ErrorCode.NONE
        return ErrorCode.REBOOTSTRAP_REQUIRED  # rule B42/misrouted-connections-are-served

    def refuse_all(self, exchange: Exchange, _body: memoryview, error: ErrorCode) -> bool:
        """Answer with `error` for the whole request."""
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

    def _features(self, version: int) -> bytes:
        """Return the tagged fields with this node's supported and the cluster's finalized features (KIP-584)."""
        image = self._image()
        known = [(name, *levels) for name, levels in sorted(self._supported.items())]
        if version < ZERO_SINCE:
            known = [row for row in known if row[1] > 0]
        fields = [tagged_field(SUPPORTED_FEATURES_TAG, _rows(known))]
        if image.metadata_version > 0:
            finalized = [(name, level, level) for name, level in sorted(image.finalized.items()) if level > 0]
            fields.append(tagged_field(FINALIZED_EPOCH_TAG, INT64.pack(image.offset)))
            fields.append(tagged_field(FINALIZED_FEATURES_TAG, _rows(finalized)))
        return uvarint(len(fields)) + b"".join(fields)


def _rows(features: list[tuple[str, int, int]]) -> bytes:
    """Encode features with two levels: first and last supported, or highest and lowest finalized."""
    rows = [string(name, True) + INT16.pack(one) + INT16.pack(other) + NO_TAGS for name, one, other in features]
    return array_head(len(rows), True) + b"".join(rows)


ROWS = (by_hand(Api.API_VERSIONS, VERSIONS, ApiVersionsHandler),)
