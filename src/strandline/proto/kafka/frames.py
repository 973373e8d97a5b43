"""What stands before a message on a connection: the frame's length, and the header of a request or an answer.

request    length int32, API key int16, version int16, correlation id int32, client id, tagged fields if flexible
answer     length int32, correlation id int32, tagged fields if flexible
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from strandline.proto.errors import ProtocolError
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT32, NO_TAGS, nullable_string, read_fixed, read_string, skip_tags

OWN_CLIENT = "strandline-python"
"""How brokers know this project's client (KIP-511); Strandline's tell it who had synced a batch."""

LENGTH_BYTES = 4
REQUEST_HEADER_BYTES_MIN = 8
"""API key, version and correlation id."""
RESPONSE_HEADER_BYTES_MIN = 4
"""The correlation id."""

_REQUEST = struct.Struct(">ihhi")
_RESPONSE = struct.Struct(">ii")
_RESPONSE_FLEXIBLE = struct.Struct(">iib")
_HEADER = struct.Struct(">hhi")


class RequestHeader(NamedTuple):
    """The part of a request's header that has one format in all versions; `key` may be no `Api`."""

    key: int
    version: int
    correlation_id: int


def request_head(api: Api, version: int, correlation_id: int, client_id: str, body_bytes: int) -> bytes:
    """Length and header of a request whose body has so many bytes."""
    # The client id has the old format even in the flexible header.
    rest = nullable_string(client_id, False) + (NO_TAGS if api.flexible(version) else b"")
    size = REQUEST_HEADER_BYTES_MIN + len(rest) + body_bytes
    return _REQUEST.pack(size, api, version, correlation_id) + rest


def read_request_header(frame: memoryview) -> RequestHeader:
    """Of a frame without its length. Raises ProtocolError."""
    (key, version, correlation_id), _ = read_fixed(frame, 0, _HEADER)
    return RequestHeader(key, version, correlation_id)


def read_client_id(frame: memoryview, flexible: bool) -> tuple[str, int]:
    """The rest of a request's header: (client id, position of the body). Raises ProtocolError."""
    client_id, position = read_string(frame, REQUEST_HEADER_BYTES_MIN, False)
    if flexible:
        position = skip_tags(frame, position)
    return client_id or "", position


def response_head(correlation_id: int, body_bytes: int, flexible: bool) -> bytes:
    """Length and header of an answer whose body has so many bytes."""
    if flexible:
        return _RESPONSE_FLEXIBLE.pack(body_bytes + 5, correlation_id, 0)
    return _RESPONSE.pack(body_bytes + 4, correlation_id)


def read_correlation_id(frame: memoryview) -> int:
    """Of an answer without its length. Raises ProtocolError."""
    return read_fixed(frame, 0, INT32)[0][0]


def response_body(frame: memoryview, flexible: bool) -> memoryview:
    """What follows an answer's header. Raises ProtocolError for a header that is broken."""
    try:
        return frame[skip_tags(frame, RESPONSE_HEADER_BYTES_MIN) if flexible else RESPONSE_HEADER_BYTES_MIN :]
    except ProtocolError as error:
        raise ProtocolError(f"a broken response header: {error}") from error


class Foreign(Enum):
    """Protocols that turn up where Kafka's is spoken: naming them helps more than a frame size of 1.2 GB."""

    HTTP_REQUEST = "an HTTP request"
    HTTP_RESPONSE = "an HTTP response"
    TLS = "TLS"
    SSH = "an SSH client"


_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""An alert and a handshake, of version 3.x."""


def foreign_protocol(start: bytes) -> Foreign | None:
    """What is spoken, by the first four bytes of what should be a frame; None if they say nothing."""
    head = start[:4]
    if head in _HTTP_METHODS:
        return Foreign.HTTP_REQUEST
    if head == b"HTTP":
        return Foreign.HTTP_RESPONSE
    if head[:2] in _TLS_RECORDS:
        return Foreign.TLS
    return Foreign.SSH if head == b"SSH-" else None
