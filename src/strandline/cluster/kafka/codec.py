"""Kafka's small messages: kio's schemas, our own reader.

kio has every message and version as a typed dataclass; a version's module is imported when the first client asks for
it (all of them would cost 2 s and 39 MB). Writing goes through kio. Reading does not: what a peer sends is read here,
because kio's native reader reserves memory for as many elements as a message *claims* to hold (five bytes from a
stranger abort the process) and raises KeyError for a tagged field that is newer than its schema. This reader

* checks every length and count against the bytes that are left before anything is allocated;
* skips tagged fields it does not know (KIP-482);
* raises ProtocolError, and nothing else, whatever the bytes are.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from strandline.cluster.kafka.elements import ELEMENTS_MAX, Elements, check_tags
from strandline.proto.errors import ProtocolError
from strandline.proto.varint import read_uvarint

Reader = Callable[[memoryview, int], tuple[Any, int]]
"""(buffer, position) -> (value, position after it). Raises ProtocolError."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_elements = Elements()
"""Of the message that is being read: `decode` is never entered twice, and runs in one thread."""


# ---------------------------------------------------------------- writing


def make(kind: Any, **values: Any) -> Any:
    """A message or part of one; values that this version of the message does not have are left out.

    Milliseconds become kio's timedelta, error numbers its enum, so that handlers speak in plain integers.
    """
    known = _convert_of(kind)
    return kind(**{name: known[name](value) for name, value in values.items() if name in known})


def encode(message: Any) -> bytes:
    """The bytes of a message made by `make`, without length and header."""
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def _same(value: Any) -> Any:
    return value


MESSAGE_CHARS_MAX = 1000
"""A sentence beside an error quotes what the client has sent; the older formats have room for 32,767 bytes."""


def short(message: str | None) -> str | None:
    """The message, cut to what every version has room for."""
    return message if message is None or len(message) <= MESSAGE_CHARS_MAX else message[:MESSAGE_CHARS_MAX] + "..."


def _milliseconds(value: float) -> timedelta:
    return timedelta(milliseconds=value)


def milliseconds_of(duration: timedelta) -> int:
    """What a message's duration is on the wire."""
    return duration // timedelta(milliseconds=1)


@cache
def _convert_of(kind: Any) -> Mapping[str, Callable[[Any], Any]]:
    from kio.schema.errors import ErrorCode as KioErrorCode

    converters: dict[str, Callable[[Any], Any]] = {
        "error_code": KioErrorCode,
        "timedelta_i32": _milliseconds,
        "timedelta_i64": _milliseconds,
    }
    named: dict[str, Callable[[Any], Any]] = {"error_message": short}
    return {
        field.name: named.get(field.name) or converters.get(field.metadata.get("kafka_type", ""), _same)
        for field in dataclasses.fields(kind)
    }


# ---------------------------------------------------------------- reading


def decode(kind: Any, buffer: memoryview, position: int = 0) -> Any:
    """Read a whole message that begins at `position` and ends with the buffer.

    Raises:
        ProtocolError: truncated, a lying length or count, a value that cannot be, too many elements, or bytes after the
            message.
    """
    _elements.left = ELEMENTS_MAX
    message, end = _entity_reader(kind)(buffer, position)
    if end != len(buffer):
        raise ProtocolError(f"{len(buffer) - end} bytes after the end of {kind.__name__} v{kind.__version__}")
    return message


def skip_tagged_fields(buffer: memoryview, position: int) -> int:
    """Pass over a tagged-field section of which nothing is of interest. Raises ProtocolError."""
    count, position = read_uvarint(buffer, position)
    _check_count(count, 2, buffer, position)
    check_tags(count)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += _checked(size, buffer, position)
    return position


def _checked(size: int, buffer: memoryview, position: int) -> int:
    if size > len(buffer) - position:
        raise ProtocolError(f"A field claims {size} bytes, {len(buffer) - position} are left")
    return size


def _check_count(count: int, element_bytes_min: int, buffer: memoryview, position: int) -> None:
    if count * element_bytes_min > len(buffer) - position:
        raise ProtocolError(f"An array claims {count} elements, {len(buffer) - position} bytes are left")


def _fixed(code: str, convert: Callable[[Any], Any] = _same) -> Reader:
    layout = struct.Struct(">" + code)
    unpack, size = layout.unpack_from, layout.size

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if size > len(buffer) - position:
            raise ProtocolError(f"A field of {size} bytes, {len(buffer) - position} are left")
        return convert(unpack(buffer, position)[0]), position + size

    return read


_MILLISECONDS_MAX = 10**14
"""3,000 years: more than any duration can mean, and less than a timedelta can hold."""


def _clamped_milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=max(-_MILLISECONDS_MAX, min(value, _MILLISECONDS_MAX)))


def _uuid(raw: bytes) -> UUID | None:
    return UUID(bytes=raw) if any(raw) else None


_FIXED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bool": ("?", _same),
    "int8": ("b", _same),
    "int16": ("h", _same),
    "int32": ("i", _same),
    "int64": ("q", _same),
    "uint16": ("H", _same),
    "uint32": ("I", _same),
    "float64": ("d", _same),
    "uuid": ("16s", _uuid),
    "timedelta_i32": ("i", _milliseconds),
    "timedelta_i64": ("q", _clamped_milliseconds),
}


def _length_reader(layout: struct.Struct | None) -> Callable[[memoryview, int], tuple[int, int]]:
    """Reads a length or count, -1 for null: compact (None) or of a fixed layout."""

    def compact(buffer: memoryview, position: int) -> tuple[int, int]:
        value, position = read_uvarint(buffer, position)
        return value - 1, position

    if layout is None:
        return compact
    unpack, size = layout.unpack_from, layout.size

    def legacy(buffer: memoryview, position: int) -> tuple[int, int]:
        if size > len(buffer) - position:
            raise ProtocolError(f"A length of {size} bytes, {len(buffer) - position} are left")
        length = unpack(buffer, position)[0]
        if length < -1:
            raise ProtocolError(f"A negative length: {length}")
        return length, position + size

    return legacy


def _sized(layout: struct.Struct | None, nullable: bool, convert: Callable[[memoryview], Any]) -> Reader:
    read_length = _length_reader(layout)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            if not nullable:
                raise ProtocolError("Null where the message must have a value")
            return None, position
        end = position + _checked(length, buffer, position)
        return convert(buffer[position:end]), end

    return read


def _text(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("A string that is not UTF-8") from error


def _array(item: Reader, item_bytes_min: int, flexible: bool, nullable: bool) -> Reader:
    read_length = _length_reader(None if flexible else _INT32)

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            if not nullable:
                raise ProtocolError("A null array where the message must have one")
            return None, position
        _check_count(count, item_bytes_min, buffer, position)
        _elements.take(count)
        items = []
        for _ in range(count):
            value, position = item(buffer, position)
            items.append(value)
        return tuple(items), position

    return read


def _nullable_entity(entity: Reader) -> Reader:
    """KIP-893: a struct that may be null has a marker byte before it."""

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if position >= len(buffer):
            raise ProtocolError("The message ends before a struct's marker")
        marker = buffer[position]
        return (None, position + 1) if marker >= 0x80 else entity(buffer, position + 1)

    return read


def _primitive(kafka_type: str, flexible: bool, nullable: bool) -> tuple[Reader, int]:
    """A reader and the fewest bytes that such a value takes."""
    fixed = _FIXED.get(kafka_type)
    if fixed is not None:
        return _fixed(*fixed), struct.calcsize(">" + fixed[0])
    if kafka_type == "string":
        return _sized(None if flexible else _INT16, nullable, _text), 1 if flexible else 2
    if kafka_type in ("bytes", "records"):
        return _sized(None if flexible else _INT32, nullable, bytes), 1 if flexible else 4
    raise TypeError(f"Requests have no fields of type {kafka_type!r}")


def _unwrap_optional(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (UnionType, Union):
        inner = [part for part in get_args(annotation) if part is not NoneType]
        return inner[0], True
    return annotation, False


def _field_reader(field: dataclasses.Field[Any], flexible: bool) -> tuple[Reader, int]:
    """A reader of one field, and the fewest bytes that the field takes."""
    annotation, nullable = _unwrap_optional(field.type)
    is_array = get_origin(annotation) is tuple
    inner: Any = _unwrap_optional(get_args(annotation)[0])[0] if is_array else annotation
    reader: Reader
    if "kafka_type" not in field.metadata:
        reader, size = _entity_reader(inner), _entity_bytes_min(inner)
        if nullable and not is_array:
            return _nullable_entity(reader), 1
    else:
        reader, size = _primitive(field.metadata["kafka_type"], flexible, nullable and not is_array)
    if is_array:
        return _array(reader, max(size, 1), flexible, nullable), 1 if flexible else 4
    return reader, size


def _plain_fields(kind: Any) -> list[tuple[str, Reader, int]]:
    return [
        (field.name, *_field_reader(field, kind.__flexible__))
        for field in dataclasses.fields(kind)
        if "tag" not in field.metadata
    ]


@cache
def _entity_bytes_min(kind: Any) -> int:
    return sum(size for _, _, size in _plain_fields(kind)) + (1 if kind.__flexible__ else 0)


@cache
def _entity_reader(kind: Any) -> Reader:
    plain = [(name, reader) for name, reader, _ in _plain_fields(kind)]
    tagged = {
        field.metadata["tag"]: (field.name, _field_reader(field, True)[0])
        for field in dataclasses.fields(kind)
        if "tag" in field.metadata
    }
    flexible = kind.__flexible__

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, reader in plain:
            values[name], position = reader(buffer, position)
        if flexible:
            position = _read_tagged(buffer, position, tagged, values)
        return kind(**values), position

    return read


def _read_tagged(
    buffer: memoryview, position: int, known: Mapping[int, tuple[str, Reader]], values: dict[str, Any]
) -> int:
    count, position = read_uvarint(buffer, position)
    _check_count(count, 2, buffer, position)
    check_tags(count)
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = position + _checked(size, buffer, position)
        if tag in known:
            name, reader = known[tag]
            values[name], stop = reader(buffer[:end], position)
            if stop != end:
                raise ProtocolError(f"Tagged field {tag} claims {size} bytes and has {stop - position}")
        position = end
    return position
