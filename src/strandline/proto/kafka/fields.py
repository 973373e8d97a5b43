"""The pieces of Kafka's messages: integers, strings, arrays, ids and tagged fields, in the old and the flexible format.

Reading functions take (buffer, position) and give the value and the position after it. They raise ProtocolError when
the bytes are not there or not what they say.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.bounds import Elements, check_count, check_size, check_tags
from strandline.proto.varint import read_uvarint, uvarint

Buffer = bytes | memoryview
"""What is read."""

Piece = bytes | bytearray | memoryview
"""A part of what is sent, as it is."""

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

UUID_BYTES = 16
NO_TAGS = b"\x00"
V = TypeVar("V", bytes, memoryview)

NO_FIELDS: Mapping[int, Buffer] = {}


class Unencodable(ProtocolError):
    """What the caller asked for fits no message: a number where a text belongs, say. Asking again does not help."""


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
    """What to raise for a message whose reading ended with `error`."""
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
