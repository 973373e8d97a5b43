"""Kafka's messages by kio's schemas: mappings in, records of plain values out, in every version, in both directions.

kio supplies the layout of each message and version. The walk over it is this module's own: kio's native reader reserves
memory for as many elements as a message *claims* to hold (five bytes from a stranger abort the process), and raises
KeyError for a tagged field that is newer than its schema. Records of internal topics, which kio does not have, take the
same walk over layouts that are declared (`declared`).

* One mapping serves all versions of a message: names that a version does not have are left out.
* Values are plain: durations and times are whole milliseconds, error numbers `ErrorCode` (an unknown one is
  UNKNOWN_SERVER_ERROR), arrays tuples, a UUID of zeros None.
* What a peer sends is read within `bounds`; tagged fields that nobody here knows are skipped (KIP-482).

kio costs 10 ms and its schemas some milliseconds each, so they are imported when a message is first asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import struct
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from datetime import timedelta
from functools import cache, lru_cache, partial
from types import ModuleType, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import (
    INT16,
    INT32,
    REQUEST_ELEMENTS_MAX,
    RESPONSE_ELEMENTS_MAX,
    Buffer,
    Elements,
    Unencodable,
    check_count,
    check_end,
    check_size,
    read_length,
    read_tags,
    text,
    unreadable,
    write_uvarint,
)
from strandline.proto.lean_imports import import_without
from strandline.proto.steps import Pace, Steps

Reader = Callable[[Buffer, int, Elements], tuple[Any, int]]
"""(buffer, position, what the message may still hold) -> (value, position after it)."""

Writer = Callable[[bytearray, Any], None]

SteppingReader = Callable[[Buffer, int, Elements, Pace], Steps[tuple[Any, int]]]
SteppingWriter = Callable[[bytearray, Any, Pace], Steps[None]]
"""Writer that pauses between steps, for messages with arrays: `Message.decode_in_steps`, `Message.encode_in_steps`."""

NUMBERS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q",
    "uint8": ">B", "uint16": ">H", "uint32": ">I", "uint64": ">Q", "float64": ">d", "bool": ">?",
    "timedelta_i32": ">i", "timedelta_i64": ">q", "datetime_i64": ">q",
}  # fmt: skip
_ZERO_UUID = bytes(16)

SMALL_BYTES = 512
"""A message below this size is read in one step: it holds 250 elements at most."""

_UNREADABLE = (struct.error, IndexError, ProtocolError)
_UNWRITABLE = (struct.error, KeyError, TypeError, AttributeError, ValueError)


class Codec(NamedTuple):
    """Both directions of one value, and the fewest bytes that it takes.

    Attributes:
        read_in_steps, write_in_steps: of a value that holds arrays; None where it is one step in any case.
    """

    read: Reader
    write: Writer
    bytes_min: int
    read_in_steps: SteppingReader | None = None
    write_in_steps: SteppingWriter | None = None


class Slot(NamedTuple):
    """A field of a struct. `tag` is None for one that always stands there."""

    name: str
    codec: Codec
    default: Any
    tag: int | None


class Message(NamedTuple):
    """One message, or a part of one, of one version."""

    name: str
    codec: Codec
    elements_max: int

    def encode(self, values: Mapping[str, Any] | tuple[Any, ...]) -> bytearray:
        """The bytes, without length and header. The values of a declared struct are one of its tuples.

        Raises:
            Unencodable: a field without a default is missing, or a value does not fit its field.
        """
        out = bytearray()
        try:
            self.codec.write(out, values)
        except _UNWRITABLE as error:
            raise Unencodable(f"{self.name} cannot be encoded: {error!r}") from error
        return out

    def encode_in_steps(self, values: Mapping[str, Any]) -> Steps[bytearray]:
        """Encode a message that may be large, with pauses between steps."""
        if self.codec.write_in_steps is None:
            return self.encode(values)
        out = bytearray()
        try:
            yield from self.codec.write_in_steps(out, values, Pace())
        except _UNWRITABLE as error:
            raise Unencodable(f"{self.name} cannot be encoded: {error!r}") from error
        return out

    def decode(self, buffer: Buffer) -> Any:
        """The message that fills the buffer, its fields under kio's names.

        Raises:
            ProtocolError: truncated, a lying length or count, a value that cannot be, too many elements, or bytes after
                the message.
        """
        raw = bytes(buffer)  # indexing bytes is half as dear as a view, and strings are copied in any case
        try:
            value, end = self.codec.read(raw, 0, Elements(self.elements_max))
            check_end(raw, end, "the message")
        except _UNREADABLE as error:
            raise unreadable(self.name, error) from error
        return value

    def decode_in_steps(self, buffer: Buffer) -> Steps[Any]:
        """Decode a message that may be large, with pauses between steps."""
        if self.codec.read_in_steps is None or len(buffer) < SMALL_BYTES:
            return self.decode(buffer)
        raw = bytes(buffer)
        try:
            value, end = yield from self.codec.read_in_steps(raw, 0, Elements(self.elements_max), Pace())
            check_end(raw, end, "the message")
        except _UNREADABLE as error:
            raise unreadable(self.name, error) from error
        return value


class Later(NamedTuple):
    """A version that kio does not have yet: as its version `like`, but for some fields."""

    like: int
    more: tuple[tuple[str, Any, str, Any], ...] = ()
    """Fields behind those: name, Python's type, Kafka's type, and the default."""
    as_in: Mapping[str, tuple[Api, int]] = {}
    """Fields that are laid out as in another message, by name."""


LATER: Mapping[tuple[Api, int, str], Later] = {
    (Api.API_VERSIONS, 5, "request"): Later(
        4, more=(("cluster_id", str | None, "string", None), ("node_id", int, "int32", -1))
    ),
    (Api.API_VERSIONS, 5, "response"): Later(4),
    (Api.TXN_OFFSET_COMMIT, 6, "request"): Later(5, as_in={"topics": (Api.OFFSET_COMMIT, 10)}),
    (Api.TXN_OFFSET_COMMIT, 6, "response"): Later(5, as_in={"topics": (Api.OFFSET_COMMIT, 10)}),
}
"""(API, version, request or response) -> message."""


@cache
def request(api: Api, version: int) -> Message:
    """A request. Raises ModuleNotFoundError where kio has no such version."""
    return _message(kind_of(api, version, "request"), version, REQUEST_ELEMENTS_MAX)


@cache
def response(api: Api, version: int) -> Message:
    """An answer. Raises ModuleNotFoundError where kio has no such version."""
    return _message(kind_of(api, version, "response"), version, RESPONSE_ELEMENTS_MAX)


@cache
def response_part(api: Api, version: int, kind: str) -> Message:
    """A struct within an answer, by kio's name, for answers that are put together from encoded parts."""
    part = getattr(_kio(api.name.lower(), version, "response"), kind)
    return _message(part, version, RESPONSE_ELEMENTS_MAX)


def knows(api: Api, version: int) -> bool:
    """Whether kio has this version."""
    return importlib.util.find_spec(f"kio.schema.{api.name.lower()}.v{version}") is not None


def _kio(api: str, version: int, kind: str) -> ModuleType:
    """kio's module of one message: `_kio("list_offsets", 6, "request").ListOffsetsRequest`; all cost 2 s and 39 MB.

    Raises:
        ModuleNotFoundError: kio has no such version.
    """
    _keep_test_library_out()
    return importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")


@lru_cache(maxsize=1)
def _keep_test_library_out() -> None:
    """kio registers strategies with hypothesis where that is installed: 14 MB and 0.1 to 0.2 s that neither a node nor
    a client has a use for."""
    import_without("kio.static.primitive", "hypothesis", "hypothesis.strategies")


@cache
def kind_of(api: Api, version: int, side: str) -> Any:
    """kio's class of a request or a response ("request", "response"); for a version of `LATER` one that is made like
    it. Raises ModuleNotFoundError where kio has no such version."""
    later = LATER.get((api, version, side))
    like = version if later is None else later.like
    kind = getattr(_kio(api.name.lower(), like, side), f"{api.title}{side.title()}")
    return kind if later is None else _made(kind, later, side)


def _made(kind: Any, later: Later, side: str) -> Any:
    made = {one.name: _again(one) for one in fields(kind)}
    for name, other in later.as_in.items():
        made[name] = next(_again(one) for one in fields(kind_of(*other, side)) if one.name == name)
    for name, python_type, kafka_type, default in later.more:
        made[name] = name, python_type, field(default=default, metadata={"kafka_type": kafka_type})
    whose = ("__module__", "__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")
    space = {name: getattr(kind, name) for name in whose}
    return make_dataclass(kind.__name__, made.values(), namespace=space, frozen=True, slots=True, kw_only=True)


def _again(one: Any) -> tuple[str, Any, Any]:
    return one.name, one.type, field(default=one.default, default_factory=one.default_factory, metadata=one.metadata)


def _message(kind: Any, version: int, elements_max: int) -> Message:
    return Message(f"{kind.__name__} v{version}", entity_codec(kind), elements_max)


# ---------------------------------------------------------------- structs


@cache
def entity_codec(kind: type[Any]) -> Codec:
    """The codec of one of kio's schema classes."""
    flexible = bool(kind.__flexible__)
    slots = [_slot(item, flexible) for item in fields(kind)]
    return struct_codec(kind.__name__, slots, flexible, partial(_record, kind.__name__))


def struct_codec(
    name: str, slots: Sequence[Slot], flexible: bool, maker: Callable[[list[str]], Callable[[list[Any]], Any]]
) -> Codec:
    """The codec of a struct, wherever its layout comes from: kio's classes, or a declaration of this project.

    Args:
        maker: called once with the names of the fields in the order of their values: those that always stand there,
            then the tagged ones. Returns what makes a struct of its values.
    """
    plain = [slot for slot in slots if slot.tag is None]
    tagged = {slot.tag: slot for slot in sorted(slots, key=lambda one: one.tag or 0) if slot.tag is not None}
    absent = {tag: _absent(slot) for tag, slot in tagged.items()}
    codecs = [slot.codec for slot in plain]
    reads = [codec.read for codec in codecs]
    writes = [(slot.name, slot.default, slot.codec.write) for slot in plain]
    make = maker([slot.name for slot in (*plain, *tagged.values())])

    def read(buffer: Buffer, position: int, elements: Elements) -> tuple[Any, int]:
        values = []
        for read_field in reads:
            value, position = read_field(buffer, position, elements)
            values.append(value)
        if flexible:
            position = read_tagged(buffer, position, elements, values)
        return make(values), position

    def read_tagged(buffer: Buffer, position: int, elements: Elements, values: list[Any]) -> int:
        found, position = read_tags(buffer, position)
        for tag, slot in tagged.items():
            values.append(_tagged_value(slot, found[tag], elements) if tag in found else absent[tag])
        return position

    def read_in_steps(buffer: Buffer, position: int, elements: Elements, pace: Pace) -> Steps[tuple[Any, int]]:
        values = []
        for codec in codecs:
            if codec.read_in_steps is None:
                value, position = codec.read(buffer, position, elements)
            else:
                value, position = yield from codec.read_in_steps(buffer, position, elements, pace)
            values.append(value)
        if flexible:
            position = read_tagged(buffer, position, elements, values)
        return make(values), position

    def write(out: bytearray, values: Any) -> None:
        for field_name, default, write_field in writes:
            given = values.get(field_name, default)
            if given is MISSING:
                raise KeyError(f"{name}.{field_name} is missing")
            write_field(out, given)
        if flexible:
            _write_tags(out, tagged, values)

    def write_in_steps(out: bytearray, values: Any, pace: Pace) -> Steps[None]:
        for slot in plain:
            given = values.get(slot.name, slot.default)
            if given is MISSING:
                raise KeyError(f"{name}.{slot.name} is missing")
            if slot.codec.write_in_steps is None:
                slot.codec.write(out, given)
            else:
                yield from slot.codec.write_in_steps(out, given, pace)
        if flexible:
            _write_tags(out, tagged, values)

    bytes_min = sum(codec.bytes_min for codec in codecs) + (1 if flexible else 0)
    if all(codec.read_in_steps is None for codec in codecs):
        return Codec(read, write, bytes_min)
    return Codec(read, write, bytes_min, read_in_steps, write_in_steps)


def _record(name: str, names: list[str]) -> Callable[[list[Any]], Any]:
    """Makes a tuple with named fields: a fifth of what a namespace takes, and made as fast."""
    record: Any = namedtuple(name, names)  # type: ignore[misc]  # mypy wants to read the names
    make: Callable[[list[Any]], Any] = record._make
    return make


def _slot(item: Any, flexible: bool) -> Slot:
    tag = item.metadata.get("tag")
    codec = _field_codec(item.type, str(item.metadata.get("kafka_type", "")), flexible, tag is not None)
    return Slot(item.name, codec, plain_default(item), tag)


def plain_default(item: Any) -> Any:
    """Default of a field of kio's classes, as messages hold it; MISSING if it has none."""
    default = item.default if item.default_factory is MISSING else item.default_factory()
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    if is_dataclass(default) and not isinstance(default, type):
        return {part.name: plain_default(part) for part in fields(default)}
    return default


def _absent(slot: Slot) -> Any:
    """Value of a tagged field that is absent."""
    if not isinstance(slot.default, dict):
        return slot.default
    out = bytearray()
    slot.codec.write(out, slot.default)
    return slot.codec.read(bytes(out), 0, Elements(0))[0]


def _tagged_value(slot: Slot, raw: Buffer, elements: Elements) -> Any:
    value, end = slot.codec.read(raw, 0, elements)
    check_end(raw, end, f"the tagged field {slot.name}")
    return value


def _write_tags(out: bytearray, tagged: Mapping[int, Slot], values: Mapping[str, Any]) -> None:
    """A field that has its default is left out, as Kafka does."""
    given = [slot for slot in tagged.values() if values.get(slot.name, slot.default) != slot.default]
    write_uvarint(out, len(given))
    for slot in given:
        body = bytearray()
        slot.codec.write(body, values[slot.name])
        write_uvarint(out, slot.tag or 0)
        write_uvarint(out, len(body))
        out += body


# ---------------------------------------------------------------- fields


def _field_codec(annotation: Any, kafka_type: str, flexible: bool, tagged: bool) -> Codec:
    kind, nullable = without_none(annotation)
    is_array = get_origin(kind) is tuple
    inner = without_none(get_args(kind)[0])[0] if is_array else kind
    item = entity_codec(inner) if hasattr(inner, "__flexible__") else kafka_type
    return field_codec(item, flexible, is_array=is_array, nullable=nullable, tagged=tagged)


def field_codec(item: str | Codec, flexible: bool, *, is_array: bool, nullable: bool, tagged: bool) -> Codec:
    """The codec of a field.

    Args:
        item: Kafka's name of a primitive type, or the codec of a struct.
        is_array: the field holds any number of them.
    """
    if is_array:
        if item in NUMBERS:
            return _numbers(NUMBERS[str(item)], flexible, nullable)
        return _array(item if isinstance(item, Codec) else _primitive(item, flexible, False), flexible, nullable)
    if isinstance(item, Codec):
        return _nullable_entity(item, tagged) if nullable else item
    return _primitive(item, flexible, nullable)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """The type of a field, and whether it may be null."""
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0], len(kinds) < len(get_args(annotation))


def _nullable_entity(codec: Codec, tagged: bool) -> Codec:
    """KIP-893: a struct that may be null has a marker before it. Null is -1, or 0 in a tagged field."""
    null = 0 if tagged else 255

    def read(buffer: Buffer, position: int, elements: Elements) -> tuple[Any, int]:
        marker = buffer[position]
        if marker == 0 if tagged else marker > 127:
            return None, position + 1
        return codec.read(buffer, position + 1, elements)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(null)
        else:
            out.append(1)
            codec.write(out, value)

    return Codec(read, write, 1)  # what may be null holds no long array anywhere


def _array(item: Codec, flexible: bool, nullable: bool) -> Codec:
    read_item, write_item = item.read, item.write
    layout = None if flexible else INT32

    def begin(buffer: Buffer, position: int, elements: Elements) -> tuple[int, int]:
        count, position = read_length(buffer, position, layout)
        if count < 0:
            return -1, _after_null(nullable, position)
        check_count(count, item.bytes_min, len(buffer) - position)
        elements.take(count)
        return count, position

    def read(buffer: Buffer, position: int, elements: Elements) -> tuple[Any, int]:
        count, position = begin(buffer, position, elements)
        if count < 0:
            return None, position
        values = []
        for _ in range(count):
            value, position = read_item(buffer, position, elements)
            values.append(value)
        return tuple(values), position

    def read_in_steps(buffer: Buffer, position: int, elements: Elements, pace: Pace) -> Steps[tuple[Any, int]]:
        count, position = begin(buffer, position, elements)
        if count < 0:
            return None, position
        values = []
        for _ in range(count):
            if item.read_in_steps is None:
                value, position = read_item(buffer, position, elements)
            else:
                value, position = yield from item.read_in_steps(buffer, position, elements, pace)
            values.append(value)
            if pace.is_due():  # rule A48/requests-are-read-in-one-turn
                yield
        return tuple(values), position

    def write(out: bytearray, value: Any) -> None:
        _write_length(out, None if value is None else len(value), layout, nullable)
        for element in value or ():
            write_item(out, element)

    def write_in_steps(out: bytearray, value: Any, pace: Pace) -> Steps[None]:
        _write_length(out, None if value is None else len(value), layout, nullable)
        for element in value or ():
            if item.write_in_steps is None:
                write_item(out, element)
            else:
                yield from item.write_in_steps(out, element, pace)
            if pace.is_due():  # rule A48/answers-are-written-in-one-turn
                yield

    return Codec(read, write, 1 if flexible else 4, read_in_steps, write_in_steps)


def _numbers(number: str, flexible: bool, nullable: bool) -> Codec:
    """An array of numbers, unpacked in one go."""
    code, size = number[1], struct.calcsize(number)
    layout = None if flexible else INT32

    def read(buffer: Buffer, position: int, elements: Elements) -> tuple[Any, int]:
        count, position = read_length(buffer, position, layout)
        if count < 0:
            return None, _after_null(nullable, position)
        check_count(count, size, len(buffer) - position)
        elements.take(count)
        return struct.unpack_from(f">{count}{code}", buffer, position), position + count * size

    def write(out: bytearray, value: Any) -> None:
        _write_length(out, None if value is None else len(value), layout, nullable)
        if value:
            out += struct.pack(f">{len(value)}{code}", *value)

    return Codec(read, write, 1 if flexible else 4)


def _primitive(kafka_type: str, flexible: bool, nullable: bool) -> Codec:
    if kafka_type in NUMBERS:
        return _number(struct.Struct(NUMBERS[kafka_type]))
    if kafka_type == "error_code":
        unpack = INT16.unpack_from
        return Codec(
            lambda buffer, position, _: (ErrorCode.of(unpack(buffer, position)[0]), position + 2),
            lambda out, value: out.extend(INT16.pack(value)),
            2,
        )
    if kafka_type == "uuid":
        return Codec(_read_uuid, lambda out, value: out.extend(value.bytes if value is not None else _ZERO_UUID), 16)
    if kafka_type == "string":
        return _blob(text, str.encode, None if flexible else INT16, nullable)
    if kafka_type in ("bytes", "records"):
        return _blob(bytes, _same, None if flexible else INT32, nullable)
    raise TypeError(f"no codec for fields of type {kafka_type!r}")


def _number(layout: struct.Struct) -> Codec:
    unpack, pack, size = layout.unpack_from, layout.pack, layout.size
    return Codec(
        lambda buffer, position, _: (unpack(buffer, position)[0], position + size),
        lambda out, value: out.extend(pack(value)),
        size,
    )


def _read_uuid(buffer: Buffer, position: int, _: Elements) -> tuple[UUID | None, int]:
    raw = bytes(buffer[position : position + 16])
    if len(raw) < 16:
        raise ProtocolError("The message ends within an id")
    return (None if raw == _ZERO_UUID else UUID(bytes=raw)), position + 16


def _blob(
    made: Callable[[Buffer], Any], raw_of: Callable[[Any], bytes], layout: struct.Struct | None, nullable: bool
) -> Codec:
    """A string or bytes: a length and what it says."""

    def read(buffer: Buffer, position: int, _: Elements) -> tuple[Any, int]:
        size, position = read_length(buffer, position, layout)
        if size < 0:
            return None, _after_null(nullable, position)
        check_size(size, len(buffer) - position)
        end = position + size
        return made(buffer[position:end]), end

    def write(out: bytearray, value: Any) -> None:
        raw = None if value is None else raw_of(value)
        _write_length(out, None if raw is None else len(raw), layout, nullable)
        if raw:
            out += raw

    return Codec(read, write, 1 if layout is None else layout.size)


def _same(value: Any) -> Any:
    return value


def _after_null(nullable: bool, position: int) -> int:
    if not nullable:
        raise ProtocolError("Null where the message must have a value")
    return position


def _write_length(out: bytearray, size: int | None, layout: struct.Struct | None, nullable: bool) -> None:
    if size is None and not nullable:
        raise ValueError("null where the message must have a value")
    if layout is None:
        write_uvarint(out, 0 if size is None else size + 1)
    else:
        out += layout.pack(-1 if size is None else size)
