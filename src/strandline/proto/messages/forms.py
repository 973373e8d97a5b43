"""What stands in a protobuf message for a field of a dataclass.

| annotation of the dataclass            | field of the message                                            |
|----------------------------------------|-----------------------------------------------------------------|
| int, and NewTypes of it                | the integer that `fields` says                                  |
| str, bool, bytes                       | the same                                                        |
| UUID                                   | bytes, 16                                                       |
| ErrorCode                              | int32; a number that is not known is UNKNOWN_SERVER_ERROR       |
| any other IntEnum                      | int32; a number that is not known is refused                    |
| a dataclass or NamedTuple with numbers | its message                                                     |
| tuple[X, ...]                          | repeated X                                                      |
| X or None                              | optional X                                                      |
| a type in `STAND_INS`                  | its stand-in                                                    |
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum, IntEnum, auto
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID, Endpoint, NodeId
from strandline.proto.messages.fields import Field, Int32, Int64, OrEmpty, SInt32, SInt64, UInt32

Convert = Callable[[Any], Any]


class Label(Enum):
    """Number of times that a field may occur."""

    SINGLE = auto()
    OPTIONAL = auto()
    REPEATED = auto()


class Form(NamedTuple):
    """One value of a field.

    Attributes:
        proto_type: protobuf's number of its type.
        to_wire: converts a value; None: it stands as it is.
        of_wire: converts back, and raises ValueError for what no value stands for.
        nested: the class whose message it is; it has no conversions of its own.
    """

    proto_type: FieldDescriptorProto.Type.ValueType
    to_wire: Convert | None = None
    of_wire: Convert | None = None
    nested: type[Any] | None = None


class Slot(NamedTuple):
    """One field of a message; `stand_in` converts its whole value before, and after, what its form does."""

    name: str
    number: int
    label: Label
    form: Form
    stand_in: StandIn | None


# Stand-ins


class ListenerEndpoint(NamedTuple):
    """One listener of a broker, by name."""

    name: Annotated[str, 1]
    host: Annotated[str, 2]
    port: Annotated[int, UInt32(3)]


class ConfigValue(NamedTuple):
    """One config; the value None is null."""

    name: Annotated[str, 1]
    value: Annotated[str | None, 2]


class NodeList(NamedTuple):
    """A list that may be absent: a repeated field alone cannot tell "unchanged" from "now empty"."""

    nodes: Annotated[tuple[NodeId, ...], Int32(1)]


@dataclass(frozen=True, slots=True)
class StandIn:
    """A type that protobuf has no field for stands in messages as a value of `hint`.

    The two conversions get no None: an optional field is absent instead.
    """

    hint: Any
    to_wire: Convert
    of_wire: Convert


STAND_INS: dict[Any, StandIn] = {
    Mapping[str, Endpoint]: StandIn(
        tuple[ListenerEndpoint, ...],
        lambda listeners: [ListenerEndpoint(name, *listeners[name]) for name in sorted(listeners)],
        lambda items: {item.name: Endpoint(item.host, item.port) for item in items},
    ),
    Mapping[str, str | None]: StandIn(
        tuple[ConfigValue, ...], lambda configs: [ConfigValue(*item) for item in configs.items()], dict
    ),
    tuple[NodeId, ...] | None: StandIn(NodeList | None, NodeList, attrgetter("nodes")),
}
"""type -> its stand-in. Whoever has another such type adds it before the first mapper that meets it."""


# Annotations


def slot_of(owner: type, name: str, hint: Any) -> Slot:
    """The field of an annotated attribute. Raises TypeError where it has no number, or its type no form."""
    where = f"{owner.__name__}.{name}"
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{where} has no number: Annotated[{hint}, number]")
    marker, hint = hint.__metadata__[0], hint.__origin__
    field = Field(marker) if isinstance(marker, int) else marker
    stand_in = STAND_INS.get(hint)
    label, base = _label(hint if stand_in is None else stand_in.hint, field)
    return Slot(name, field.number, label, _form(where, base, field), stand_in)


def _label(hint: Any, field: Field) -> tuple[Label, Any]:
    """(how often the field occurs, the type of one value)."""
    label, base = Label.SINGLE, hint
    if get_origin(hint) is tuple:
        label, base = Label.REPEATED, get_args(hint)[0]
    elif get_origin(hint) in (Union, types.UnionType):
        (base,) = (argument for argument in get_args(hint) if argument is not type(None))
        label = Label.SINGLE if isinstance(field, OrEmpty) else Label.OPTIONAL
    while hasattr(base, "__supertype__"):  # a NewType
        base = base.__supertype__
    return label, base


_BYTES = FieldDescriptorProto.TYPE_BYTES
_INT32 = FieldDescriptorProto.TYPE_INT32
_INTEGERS = {
    Int32: _INT32,
    Int64: FieldDescriptorProto.TYPE_INT64,
    SInt32: FieldDescriptorProto.TYPE_SINT32,
    SInt64: FieldDescriptorProto.TYPE_SINT64,
    UInt32: FieldDescriptorProto.TYPE_UINT32,
}
_SAME = {str: FieldDescriptorProto.TYPE_STRING, bool: FieldDescriptorProto.TYPE_BOOL, bytes: _BYTES}


def _form(where: str, base: Any, field: Field) -> Form:
    if base is int and type(field) in _INTEGERS:
        return Form(_INTEGERS[type(field)], None, None if field.minimum is None else _from(where, field.minimum))
    if base is UUID and type(field) is OrEmpty:
        return Form(_BYTES, lambda value: b"" if value is None else value.bytes, _uuid_or_empty(where))
    if type(field) is Field:
        if base is UUID:
            return Form(_BYTES, attrgetter("bytes"), _uuid(where))
        if base is ErrorCode:
            return Form(_INT32, int, ErrorCode.of)
        if isinstance(base, type) and issubclass(base, IntEnum):
            return Form(_INT32, int, base)
        if base in _SAME:
            return Form(_SAME[base])
        if is_dataclass(base) or hasattr(base, "_fields"):
            return Form(FieldDescriptorProto.TYPE_MESSAGE, nested=base)
    raise TypeError(f"{where}: no form for {base!r} with {field!r}")


def _uuid(where: str) -> Convert:
    def read(data: bytes) -> UUID:
        if len(data) != 16:
            raise ValueError(f"{where} has 16 bytes, and is not {data.hex()!r}")
        return _uuid_of(data)

    return read


@lru_cache(1 << 14)
def _uuid_of(data: bytes) -> UUID:
    """Decode an id. The same id gives the same object, because a topic's id is in the record of each of its
    partitions."""
    return UUID(int=int.from_bytes(data))


def _uuid_or_empty(where: str) -> Convert:
    def read(data: bytes) -> UUID | None:
        if not data:
            return None
        if len(data) != 16 or data == ZERO_UUID.bytes:  # rule A11/the-zero-id-is-a-directory
            raise ValueError(f"{where} has 16 bytes, not all of them zero, and is not {data.hex()!r}")
        return UUID(int=int.from_bytes(data))

    return read


def _from(where: str, minimum: int) -> Convert:
    def read(value: int) -> int:
        if value < minimum:  # rule A17/numbers-below-zero-reach-the-core
            raise ValueError(f"{where} = {value} is below {minimum}")
        return value

    return read
