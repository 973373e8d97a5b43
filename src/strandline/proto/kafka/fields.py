"""The pieces of Kafka's messages: integers, strings, arrays, ids and tagged fields, in the old and the flexible format;
and what stands before a message on a connection.

Reading functions take (buffer, position) and give the value and the position after it. They raise ProtocolError when
the bytes are not there or not what they say. A frame bounds the bytes of a message; `Elements` bounds the objects that
they become.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.apis import Api

Buffer = bytes | memoryview
"""Input of the readers."""

REQUEST_ELEMENTS_MAX = 20_000
"""Array elements of one request, all arrays together. An element may be two bytes long and costs the event loop some
ten microseconds to read, look up and answer: 4 MiB of them would hold the node for half a minute. Whoever has more
partitions than this to ask for asks twice."""

RESPONSE_ELEMENTS_MAX = 2_000_000
"""Array elements of one answer, all arrays together: Metadata of 200,000 partitions with three replicas each has 1.4
million. An element may be a byte long and become an object of 100 bytes: 256 MiB of them would take the client 25
GiB; so many take a quarter of one."""

RESPONSE_BYTES_MAX = 256 << 20
"""Maximum bytes of a response. Kafka's clients have no limit, and run out of memory if a port speaks another
protocol."""

TAGS_MAX = 64
"""Tagged fields of one section. Kafka's messages have at most a handful."""


class Elements:
    """Number of array elements that a message may still have."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def take(self, count: int) -> None:
        """`count` more elements are about to be read. Raises ProtocolError beyond the limit."""
        if count > self._left:
            raise ProtocolError(f"The message holds more than {self._most} elements")
        if count > 0:
            self._left -= count


def check_size(size: int, left: int) -> None:
    """Raises ProtocolError for a field of `size` bytes where only `left` are."""
    if size > left:
        raise ProtocolError(f"A field claims {size} bytes, {left} are left")


def check_count(count: int, element_bytes_min: int, left: int) -> None:
    """Raises ProtocolError for an array of more elements than `left` bytes can hold."""
    if count * element_bytes_min > left:
        raise ProtocolError(f"An array claims {count} elements, {left} bytes are left")


def check_tags(count: int) -> None:
    """Raises ProtocolError for a section of more tagged fields than any message has."""
    if count > TAGS_MAX:
        raise ProtocolError(f"A section claims {count} tagged fields, {TAGS_MAX} are possible")


# ---------------------------------------------------------------- varints: unsigned (KIP-482), lowest seven bits first

VALUE_MAX = 2**31 - 1
"""The protocol's lengths, counts and tags have 31 bits."""


def read_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """The value at `position` and the position after it.

    Raises:
        ProtocolError: the buffer ends in it, or it is longer than 5 bytes or 31 bits.
    """
    try:
        byte = buffer[position]
        if byte < 0x80:
            return byte, position + 1
        value = byte & 0x7F
        for shift in (7, 14, 21, 28):
            position += 1
            byte = buffer[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > VALUE_MAX:
                    raise ProtocolError(f"A length of {value} is beyond the protocol's 31 bits")
                return value, position + 1
    except IndexError:
        pass
    raise ProtocolError("A varint does not end")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append `value`."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def uvarint(value: int) -> bytes:
    """`value` alone."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


Piece = bytes | bytearray | memoryview
"""A part of what is sent, as it is."""

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

UUID_BYTES = 16
NO_TAGS = b"\x00"
V = TypeVar("V", bytes, memoryview)

TOPIC_BYTES_MIN = 3
"""A topic with an empty name, no partition and no tagged field takes a byte each."""

LEADER: Final = struct.Struct(">iib")  # who leads now (KIP-951): node id, leader epoch, no tagged fields
LEADER_KNOWN: Final = struct.Struct(">ii")

NO_FIELDS: Mapping[int, Buffer] = {}


class Unencodable(ProtocolError):
    """The caller's value does not fit the message, e.g. a number in a text field. A retry does not help."""


# ---------------------------------------------------------------- writing


def array_head(count: int, flexible: bool) -> bytes:
    """The count before an array's elements."""
    return uvarint(count + 1) if flexible else INT32.pack(count)


def bytes_head(size: int, flexible: bool) -> bytes:
    """The length before bytes, which have the same format as an array of them."""
    return uvarint(size + 1) if flexible else INT32.pack(size)


def string(value: str, flexible: bool) -> bytes:
    """A string that is not null."""
    raw = value.encode()
    return (uvarint(len(raw) + 1) if flexible else INT16.pack(len(raw))) + raw


def nullable_string(value: str | None, flexible: bool) -> bytes:
    """A string or null."""
    if value is None:
        return NO_TAGS if flexible else INT16.pack(-1)
    return string(value, flexible)


def int32_array(values: Sequence[int], flexible: bool) -> bytes:
    """An array of int32."""
    return array_head(len(values), flexible) + struct.pack(f">{len(values)}i", *values)


def topic_reference(topic: str | UUID, flexible: bool) -> bytes:
    """A topic by its id or its name, whichever the version has (KIP-516)."""
    return topic.bytes if isinstance(topic, UUID) else string(topic, flexible)


def tagged_field(tag: int, value: bytes) -> bytes:
    """One tagged field, without the section's count."""
    return uvarint(tag) + uvarint(len(value)) + value


def tag_section(fields: Sequence[bytes]) -> bytes:
    """A section of `tagged_field`s, in the order of their tags."""
    return uvarint(len(fields)) + b"".join(fields) if fields else NO_TAGS


# ---------------------------------------------------------------- reading


def unreadable(message: str, error: Exception) -> ProtocolError:
    """The exception for a message that could not be read because of `error`."""
    return ProtocolError(f"{message} cannot be read: {error}")


def read_length(buffer: Buffer, position: int, layout: struct.Struct | None) -> tuple[int, int]:
    """A length or count, -1 for null: of a fixed layout, or (None) compact. Nothing is held against it yet."""
    if layout is None:
        length, position = read_uvarint(buffer, position)
        return length - 1, position
    (length,), position = read_fixed(buffer, position, layout)
    if length < -1:
        raise ProtocolError(f"A negative length: {length}")
    return length, position


def read_string(buffer: Buffer, position: int, flexible: bool) -> tuple[str | None, int]:
    """A string or None for null."""
    size, position = read_length(buffer, position, None if flexible else INT16)
    if size < 0:
        return None, position
    check_size(size, len(buffer) - position)
    end = position + size
    return text(buffer[position:end]), end


def text(raw: Buffer) -> str:
    """Raises ProtocolError for bytes that are not UTF-8."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("A string that is not UTF-8") from error


def read_name(buffer: Buffer, position: int, flexible: bool) -> tuple[str, int]:
    """A string that must not be null."""
    name, position = read_string(buffer, position, flexible)
    if name is None:
        raise ProtocolError("Null where the message must have a name")
    return name, position


def read_fixed(buffer: Buffer, position: int, layout: struct.Struct) -> tuple[tuple[int, ...], int]:
    """Integers of a fixed layout."""
    if position + layout.size > len(buffer):
        raise ProtocolError("The message ends within a field")
    return layout.unpack_from(buffer, position), position + layout.size


def read_int16(buffer: Buffer, position: int) -> tuple[int, int]:
    """One int16."""
    (value,), position = read_fixed(buffer, position, INT16)
    return value, position


def read_bool(buffer: Buffer, position: int) -> tuple[bool, int]:
    """A byte; anything but zero is true."""
    (value,), position = read_fixed(buffer, position, INT8)
    return value != 0, position


def read_uuid(buffer: Buffer, position: int) -> tuple[UUID, int]:
    """A topic id; all zeros is ZERO_UUID."""
    end = position + UUID_BYTES
    if end > len(buffer):
        raise ProtocolError("The message ends within an id")
    raw = bytes(buffer[position:end])
    return (UUID(bytes=raw) if any(raw) else ZERO_UUID), end


def read_topic(buffer: Buffer, position: int, by_id: bool, flexible: bool) -> tuple[str | None, UUID | None, int]:
    """(name, id, position after it); one of name and id is None."""
    if by_id:
        topic_id, position = read_uuid(buffer, position)
        return None, topic_id, position
    name, position = read_name(buffer, position, flexible)
    return name, None, position


def read_count(
    buffer: Buffer, position: int, element_bytes_min: int, flexible: bool, elements: Elements | None = None
) -> tuple[int, int]:
    """The count of an array, held against the bytes that are left and what the message may still hold; -1: null."""
    if flexible:
        count, position = read_uvarint(buffer, position)
        count -= 1
    else:
        count, position = read_length(buffer, position, INT32)
    check_count(count, element_bytes_min, len(buffer) - position)
    if elements is not None:
        elements.take(count)
    return count, position


def read_bytes(view: V, position: int, flexible: bool) -> tuple[V | None, int]:
    """Bytes, of a view as a view of the same buffer, or None for null."""
    size, position = read_length(view, position, None if flexible else INT32)
    if size < 0:
        return None, position
    check_size(size, len(view) - position)
    end = position + size
    return view[position:end], end


def read_tags(buffer: Buffer, position: int) -> tuple[Mapping[int, Buffer], int]:
    """The tagged fields of one section, by tag (KIP-482). Newer peers send some that nobody here knows."""
    count, position = read_uvarint(buffer, position)
    if not count:
        return NO_FIELDS, position
    check_count(count, 2, len(buffer) - position)
    check_tags(count)
    found: dict[int, Buffer] = {}
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        check_size(size, len(buffer) - position)
        found[tag] = buffer[position : position + size]
        position += size
    return found, position


def skip_tags(buffer: Buffer, position: int) -> int:
    """Pass over a section of which nothing is of interest."""
    return read_tags(buffer, position)[1]


def check_end(buffer: Buffer, position: int, what: str) -> None:
    """Raises ProtocolError for bytes after the end of `what`."""
    if position != len(buffer):
        raise ProtocolError(f"{len(buffer) - position} bytes after the end of {what}")


# ---------------------------------------------------------------- frames
#
# request    length int32, API key int16, version int16, correlation id int32, client id, tagged fields if flexible
# answer     length int32, correlation id int32, tagged fields if flexible

OWN_CLIENT = "strandline-python"
"""Client software name of this project's client (KIP-511). Strandline's brokers then report which replicas had synced a
batch."""

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
    """Length and header of a request whose body has `body_bytes` bytes."""
    # The client id has the old format even in the flexible header.
    rest = nullable_string(client_id, False) + (NO_TAGS if api.flexible(version) else b"")
    size = REQUEST_HEADER_BYTES_MIN + len(rest) + body_bytes
    return _REQUEST.pack(size, api, version, correlation_id) + rest


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of a request frame without its length. Raises ProtocolError."""
    (key, version, correlation_id), _ = read_fixed(frame, 0, _HEADER)
    return RequestHeader(key, version, correlation_id)


def read_client_id(frame: memoryview, flexible: bool) -> tuple[str, int]:
    """The rest of a request's header: (client id, position of the body). Raises ProtocolError."""
    client_id, position = read_string(frame, REQUEST_HEADER_BYTES_MIN, False)
    if flexible:
        position = skip_tags(frame, position)
    return client_id or "", position


def response_head(correlation_id: int, body_bytes: int, flexible: bool) -> bytes:
    """Length and header of a response whose body has `body_bytes` bytes."""
    if flexible:
        return _RESPONSE_FLEXIBLE.pack(body_bytes + 5, correlation_id, 0)
    return _RESPONSE.pack(body_bytes + 4, correlation_id)


def read_correlation_id(frame: memoryview) -> int:
    """Read the correlation id of a response frame without its length. Raises ProtocolError."""
    return read_fixed(frame, 0, INT32)[0][0]


def response_body(frame: memoryview, flexible: bool) -> memoryview:
    """The body of a response, after its header. Raises ProtocolError if the header is not valid."""
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
    """Protocol that a peer speaks, recognised by the first four bytes of what should be a frame; None if unknown."""
    head = start[:4]
    if head in _HTTP_METHODS:
        return Foreign.HTTP_REQUEST
    if head == b"HTTP":
        return Foreign.HTTP_RESPONSE
    if head[:2] in _TLS_RECORDS:
        return Foreign.TLS
    return Foreign.SSH if head == b"SSH-" else None
