"""Encoding of the small APIs: mappings in, namespaces out, laid out by kio's generated schema classes.

kio supplies the layout of every message and version; the walk over it is ours, because a client must outlive brokers
newer than itself: an unknown tagged field is skipped (KIP-482), an unknown error number becomes UNKNOWN_SERVER_ERROR,
and every length and count is held against the bytes that are left. One mapping serves all versions of a request: names
that a version does not have are left out. Values are plain: durations whole milliseconds, error codes `ErrorCode`.

kio costs 10 ms and its schemas some milliseconds each, so both are imported when first used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from strandline.client.wire.apis import Api
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka.kio_modules import module as kio_module
from strandline.proto.varint import read_uvarint, write_uvarint

Reader = Callable[[bytes, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

_NUMBERS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q",
    "uint8": ">B", "uint16": ">H", "uint32": ">I", "uint64": ">Q", "float64": ">d",
    "timedelta_i32": ">i", "timedelta_i64": ">q", "datetime_i64": ">q",
}  # fmt: skip
_ZERO_UUID = bytes(16)


class Codec(NamedTuple):
    """Both directions of one message at one version."""

    read: Reader
    write: Writer


class Unencodable(ProtocolError):
    """What the caller asked for fits no request: a number where a text belongs, say. Asking again does not help."""


class _Slot(NamedTuple):
    name: str
    codec: Codec
    default: Any
    tag: int | None


def encode_request(api: Api, version: int, values: Mapping[str, Any]) -> bytearray:
    """The body of a request.

    Raises:
        Unencodable: a field without a default is missing, or a value does not fit its field.
    """
    out = bytearray()
    try:
        _codec(api, version, "request").write(out, values)
    except (struct.error, KeyError, TypeError, AttributeError) as error:
        raise Unencodable(f"{api.name} request v{version} cannot be encoded: {error!r}") from error
    return out


def decode_response(api: Api, version: int, body: bytes) -> Any:
    """A response's body as a namespace, fields under kio's names.

    Raises:
        ProtocolError: it is shorter than it says, or is not this message.
    """
    try:
        value, _ = _codec(api, version, "response").read(body, 0)
    except (struct.error, IndexError, ProtocolError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{api.name} response v{version} cannot be read: {error}") from error
    return value


@cache
def _codec(api: Api, version: int, side: str) -> Codec:
    name = api.name.lower()
    module = kio_module(name, version, side)
    return entity_codec(getattr(module, "".join(part.capitalize() for part in name.split("_")) + side.capitalize()))


@cache
def entity_codec(kind: type[Any]) -> Codec:
    """The codec of one of kio's schema classes."""
    flexible = bool(kind.__flexible__)
    slots = []
    for item in fields(kind):
        tag = item.metadata.get("tag")
        codec = _field_codec(item.type, str(item.metadata.get("kafka_type", "")), flexible, tag is not None)
        slots.append(_Slot(item.name, codec, _plain_default(item), tag))
    plain = [slot for slot in slots if slot.tag is None]
    tagged = {slot.tag: slot for slot in slots if slot.tag is not None}
    reads = [(slot.name, slot.codec.read) for slot in plain]
    tag_defaults = {slot.name: slot.default for slot in tagged.values()}

    def read(buffer: bytes, pos: int) -> tuple[Any, int]:
        values = dict(tag_defaults)
        for name, read_field in reads:
            values[name], pos = read_field(buffer, pos)
        if flexible:
            pos = _read_tags(buffer, pos, tagged, values)
        return SimpleNamespace(**values), pos

    def write(out: bytearray, value: Any) -> None:
        for slot in plain:
            given = value.get(slot.name, slot.default)
            if given is MISSING:
                raise KeyError(f"{kind.__name__}.{slot.name} is missing")
            slot.codec.write(out, given)
        if flexible:
            _write_tags(out, tagged, value)

    return Codec(read, write)


def _read_tags(buffer: bytes, pos: int, tagged: Mapping[int, _Slot], values: dict[str, Any]) -> int:
    count, pos = read_uvarint(buffer, pos)
    for _ in range(count):
        tag, pos = read_uvarint(buffer, pos)
        size, pos = read_uvarint(buffer, pos)
        if size > len(buffer) - pos:
            raise IndexError(f"tagged field {tag} of {size} bytes, {len(buffer) - pos} left")
        slot = tagged.get(tag)
        if slot is not None:
            values[slot.name], _ = slot.codec.read(buffer, pos)
        pos += size
    return pos


def _write_tags(out: bytearray, tagged: Mapping[int, _Slot], value: Mapping[str, Any]) -> None:
    given = [tagged[tag] for tag in sorted(tagged) if tagged[tag].name in value]
    write_uvarint(out, len(given))
    for slot in given:
        body = bytearray()
        slot.codec.write(body, value[slot.name])
        write_uvarint(out, slot.tag or 0)
        write_uvarint(out, len(body))
        out += body


def _plain_default(item: Any) -> Any:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    if is_dataclass(default) and not isinstance(default, type):
        return {part.name: _plain_default(part) for part in fields(default)}
    return default


def _field_codec(annotation: Any, kafka_type: str, flexible: bool, tagged: bool) -> Codec:
    kind, nullable = _strip_none(annotation)
    if get_origin(kind) is tuple:
        inner, _ = _strip_none(get_args(kind)[0])
        item = entity_codec(inner) if hasattr(inner, "__flexible__") else _primitive(kafka_type, flexible, False)
        return _array(item, flexible)
    if hasattr(kind, "__flexible__"):
        codec = entity_codec(kind)
        return _nullable_entity(codec) if nullable and not tagged else codec
    return _primitive(kafka_type, flexible, nullable)


def _strip_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0], len(kinds) < len(get_args(annotation))


def _nullable_entity(codec: Codec) -> Codec:
    def read(buffer: bytes, pos: int) -> tuple[Any, int]:
        if buffer[pos] > 127:
            return None, pos + 1
        return codec.read(buffer, pos + 1)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(255)
        else:
            out.append(1)
            codec.write(out, value)

    return Codec(read, write)


def _array(item: Codec, flexible: bool) -> Codec:
    read_item, write_item = item

    def read(buffer: bytes, pos: int) -> tuple[Any, int]:
        count, pos = _read_length(buffer, pos, flexible, 4)
        if count is None:
            return None, pos
        values = []
        for _ in range(count):
            value, pos = read_item(buffer, pos)
            values.append(value)
        return tuple(values), pos

    def write(out: bytearray, value: Any) -> None:
        _write_length(out, None if value is None else len(value), flexible, ">i")
        for element in value or ():
            write_item(out, element)

    return Codec(read, write)


def _primitive(kafka_type: str, flexible: bool, nullable: bool) -> Codec:
    layout = _NUMBERS.get(kafka_type)
    if layout is not None:
        return _number(struct.Struct(layout))
    if kafka_type == "bool":
        return Codec(lambda buffer, pos: (buffer[pos] != 0, pos + 1), lambda out, value: out.append(1 if value else 0))
    if kafka_type == "error_code":
        short = struct.Struct(">h")
        return Codec(
            lambda buffer, pos: (ErrorCode.of(short.unpack_from(buffer, pos)[0]), pos + 2),
            lambda out, value: out.extend(short.pack(value)),
        )
    if kafka_type == "uuid":
        return Codec(_read_uuid, lambda out, value: out.extend(value.bytes if value is not None else _ZERO_UUID))
    if kafka_type in ("string", "bytes", "records"):
        return _blob(kafka_type == "string", flexible)
    raise ProtocolError(f"no codec for fields of type {kafka_type!r}")


def _number(layout: struct.Struct) -> Codec:
    unpack, pack, size = layout.unpack_from, layout.pack, layout.size
    return Codec(
        lambda buffer, pos: (unpack(buffer, pos)[0], pos + size),
        lambda out, value: out.extend(pack(value)),
    )


def _read_uuid(buffer: bytes, pos: int) -> tuple[UUID | None, int]:
    raw = bytes(buffer[pos : pos + 16])
    if len(raw) < 16:
        raise IndexError("a UUID is cut off")
    return (None if raw == _ZERO_UUID else UUID(bytes=raw)), pos + 16


def _blob(text: bool, flexible: bool) -> Codec:
    width = 2 if text else 4
    layout = ">h" if text else ">i"

    def read(buffer: bytes, pos: int) -> tuple[Any, int]:
        size, pos = _read_length(buffer, pos, flexible, width)
        if size is None:
            return None, pos
        raw = bytes(buffer[pos : pos + size])
        return (raw.decode() if text else raw), pos + size

    def write(out: bytearray, value: Any) -> None:
        raw = value.encode() if isinstance(value, str) else value
        _write_length(out, None if raw is None else len(raw), flexible, layout)
        if raw:
            out += raw

    return Codec(read, write)


def _read_length(buffer: bytes, pos: int, flexible: bool, width: int) -> tuple[int | None, int]:
    """A length or count, None for null, held against the bytes that are left (an element is never empty)."""
    if flexible:
        raw, pos = read_uvarint(buffer, pos)
        size = raw - 1
    else:
        size = struct.unpack_from(">h" if width == 2 else ">i", buffer, pos)[0]
        pos += width
    if size > len(buffer) - pos:
        raise IndexError(f"a length of {size} where {len(buffer) - pos} bytes are left")
    return (None if size < 0 else size), pos


def _write_length(out: bytearray, size: int | None, flexible: bool, layout: str) -> None:
    if flexible:
        write_uvarint(out, 0 if size is None else size + 1)
    else:
        out += struct.pack(layout, -1 if size is None else size)
