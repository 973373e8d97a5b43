"""Pieces of Kafka's wire for the messages that are read and written by hand: Produce, Fetch, Metadata, ApiVersions.

The reading functions take (view, position) and raise ProtocolError when the bytes are not there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from strandline.cluster.kafka.elements import Elements
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.varint import read_uvarint, uvarint

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

UUID_BYTES = 16
NO_TAGS = b"\x00"


def array_head(count: int, flexible: bool) -> bytes:
    """The count before an array's elements."""
    return uvarint(count + 1) if flexible else INT32.pack(count)


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


def tagged_field(tag: int, value: bytes) -> bytes:
    """One tagged field, without the section's count."""
    return uvarint(tag) + uvarint(len(value)) + value


def read_string(view: memoryview, position: int, flexible: bool) -> tuple[str | None, int]:
    """A string or None for null."""
    if flexible:
        size, position = read_uvarint(view, position)
        size -= 1
    else:
        size, position = read_int16(view, position)
    if size < 0:
        return None, position
    end = position + size
    if end > len(view):
        raise ProtocolError(f"A string claims {size} bytes, {len(view) - position} are left")
    try:
        return str(view[position:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise ProtocolError("A string that is not UTF-8") from error


def read_name(view: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    """A string that must not be null."""
    name, position = read_string(view, position, flexible)
    if name is None:
        raise ProtocolError("Null where the message must have a name")
    return name, position


def read_fixed(view: memoryview, position: int, layout: struct.Struct) -> tuple[tuple[int, ...], int]:
    """Integers of a fixed layout."""
    if position + layout.size > len(view):
        raise ProtocolError("The message ends within a field")
    return layout.unpack_from(view, position), position + layout.size


def skip_tags(view: memoryview, position: int) -> int:
    """Pass over tagged fields, whatever they are: newer versions add some."""
    count, position = read_uvarint(view, position)
    for _ in range(count):
        _, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        position += size
        if position > len(view):
            raise ProtocolError("The message ends within a tagged field")
    return position


def read_int16(view: memoryview, position: int) -> tuple[int, int]:
    if position + 2 > len(view):
        raise ProtocolError("The message ends within a field")
    return INT16.unpack_from(view, position)[0], position + 2


def read_bool(view: memoryview, position: int) -> tuple[bool, int]:
    if position >= len(view):
        raise ProtocolError("The message ends within a field")
    return view[position] != 0, position + 1


def read_uuid(view: memoryview, position: int) -> tuple[UUID, int]:
    """A topic id; all zeros is ZERO_UUID."""
    end = position + UUID_BYTES
    if end > len(view):
        raise ProtocolError("The message ends within an id")
    raw = bytes(view[position:end])
    return (UUID(bytes=raw) if any(raw) else ZERO_UUID), end


def read_count(
    view: memoryview, position: int, element_bytes_min: int, flexible: bool, elements: Elements | None = None
) -> tuple[int, int]:
    """The count of an array, held against the bytes that are left and what the request may still hold; -1: null."""
    if flexible:
        count, position = read_uvarint(view, position)
        count -= 1
    else:
        if position + 4 > len(view):
            raise ProtocolError("The message ends within a count")
        count, position = INT32.unpack_from(view, position)[0], position + 4
        if count < -1:
            raise ProtocolError(f"A negative count: {count}")
    if count * element_bytes_min > len(view) - position:
        raise ProtocolError(f"An array claims {count} elements, {len(view) - position} bytes are left")
    if elements is not None:
        elements.take(count)
    return count, position


def read_bytes(view: memoryview, position: int, flexible: bool) -> tuple[memoryview | None, int]:
    """Bytes as a view of the buffer, or None for null."""
    if flexible:
        size, position = read_uvarint(view, position)
        size -= 1
    else:
        if position + 4 > len(view):
            raise ProtocolError("The message ends within a length")
        size, position = INT32.unpack_from(view, position)[0], position + 4
    if size < 0:
        return None, position
    end = position + size
    if end > len(view):
        raise ProtocolError(f"Records claim {size} bytes, {len(view) - position} are left")
    return view[position:end], end
