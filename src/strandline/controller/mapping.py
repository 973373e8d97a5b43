"""Dataclasses to protobuf messages and back, field by field of the same name.

The types that the program works with are frozen dataclasses (ids typed, collections immutable, UUIDs as UUIDs); the
messages in `proto/v1` are their form on disk and on the wire. Once per pair of types the annotations are compiled into
two functions, so that no pair needs conversions written by hand, and a name that only one side knows raises at import.

| annotation of the dataclass                 | field of the message                      |
|---------------------------------------------|-------------------------------------------|
| int, str, bool, bytes, float, NewTypes      | the scalar                                |
| UUID                                        | bytes (16)                                |
| an IntEnum                                  | an integer                                |
| Endpoint                                    | message with host and port                |
| another mapped dataclass                    | its message                               |
| tuple[X, ...]                               | repeated X                                |
| Mapping[str, Endpoint]                      | repeated message (name, host, port)       |
| Mapping[str, str or None]                   | repeated message (name, optional value)   |
| X or None                                   | optional X (`NodeList` for a tuple of ids)|
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

from google.protobuf.message import DecodeError, Message

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import Endpoint

T = TypeVar("T")

_Put = Callable[[Message, Any], None]
_Get = Callable[[Message], Any]


class Mapper(Generic[T]):
    """Converts one dataclass. `nested` maps every dataclass that occurs inside to its own mapper.

    Attributes:
        kind: the dataclass.
        message: the protobuf class.
    """

    def __init__(self, kind: type[T], message: type[Message], nested: Mapping[type, Mapper[Any]] | None = None) -> None:
        self.kind = kind
        self.message = message
        assert is_dataclass(kind)
        hints = typing.get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        known = {field.name for field in message.DESCRIPTOR.fields}
        if known != set(names):
            raise TypeError(f"{kind.__name__} and {message.__name__} differ in {sorted(known ^ set(names))}")
        self._puts: list[tuple[str, _Put]] = []
        self._gets: list[_Get] = []
        for name in names:
            put, get = _compile(name, hints[name], nested or {})
            self._puts.append((name, put))
            self._gets.append(get)

    def to_message(self, value: T) -> Message:
        """The message for a value of the dataclass."""
        message = self.message()
        self.fill(message, value)
        return message

    def fill(self, message: Message, value: T) -> None:
        """Write a value into a message that is already there."""
        for name, put in self._puts:
            put(message, getattr(value, name))

    def of_message(self, message: Message) -> T:
        """The value for a message.

        Raises:
            ValueError: a field holds what its type does not allow (an id that is not 16 bytes, an unknown number).
        """
        return self.kind(*[get(message) for get in self._gets])

    def encode(self, value: T) -> bytes:
        """The bytes for a value."""
        return self.to_message(value).SerializeToString(deterministic=True)

    def decode(self, data: bytes) -> T:
        """The value of bytes.

        Raises:
            ProtocolError: they are not such a message.
        """
        try:
            return self.of_message(self.message.FromString(data))
        except (DecodeError, ValueError) as error:
            raise ProtocolError(f"not a {self.message.__name__} of {len(data)} bytes: {error}") from error


def _compile(name: str, hint: Any, nested: Mapping[type, Mapper[Any]]) -> tuple[_Put, _Get]:
    optional, hint = _strip_none(hint)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _compile_tuple(name, typing.get_args(hint)[0], optional, nested)
    if origin is not None and issubclass(origin, Mapping):
        return _compile_mapping(name, typing.get_args(hint)[1])
    base = _base(hint)
    if base is Endpoint:
        return _optional_message(name, optional, _put_endpoint, _get_endpoint)
    if base in nested:
        mapper = nested[base]
        return _optional_message(name, optional, mapper.fill, mapper.of_message)
    to_wire, of_wire = _scalar(base)
    if optional:
        return _put_optional(name, to_wire), _get_optional(name, of_wire)
    return _put_scalar(name, to_wire), _get_scalar(name, of_wire)


def _strip_none(hint: Any) -> tuple[bool, Any]:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        rest = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        if len(rest) == 1:
            return True, rest[0]
    return False, hint


def _base(hint: Any) -> Any:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def _scalar(base: Any) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    if base is UUID:
        return (lambda value: value.bytes), (lambda data: UUID(bytes=data))
    if isinstance(base, type) and issubclass(base, IntEnum):
        return int, base
    if base in {int, str, bool, bytes, float}:
        return None, None
    raise TypeError(f"no mapping for {base!r}")


def _put_scalar(name: str, to_wire: Callable[[Any], Any] | None) -> _Put:
    if to_wire is None:
        return lambda message, value: setattr(message, name, value)
    return lambda message, value: setattr(message, name, to_wire(value))


def _get_scalar(name: str, of_wire: Callable[[Any], Any] | None) -> _Get:
    if of_wire is None:
        return lambda message: getattr(message, name)
    return lambda message: of_wire(getattr(message, name))


def _put_optional(name: str, to_wire: Callable[[Any], Any] | None) -> _Put:
    def put(message: Message, value: Any) -> None:
        if value is not None:
            setattr(message, name, value if to_wire is None else to_wire(value))

    return put


def _get_optional(name: str, of_wire: Callable[[Any], Any] | None) -> _Get:
    def get(message: Message) -> Any:
        if not message.HasField(name):
            return None
        value = getattr(message, name)
        return value if of_wire is None else of_wire(value)

    return get


def _optional_message(name: str, optional: bool, fill: Callable[[Message, Any], None], read: _Get) -> tuple[_Put, _Get]:
    def put(message: Message, value: Any) -> None:
        if value is not None:
            part = getattr(message, name)
            part.SetInParent()
            fill(part, value)

    def get(message: Message) -> Any:
        if optional and not message.HasField(name):
            return None
        return read(getattr(message, name))

    return put, get


def _put_endpoint(message: Any, value: Endpoint) -> None:
    message.host, message.port = value


def _get_endpoint(message: Any) -> Endpoint:
    return Endpoint(message.host, message.port)


def _compile_tuple(name: str, item: Any, optional: bool, nested: Mapping[type, Mapper[Any]]) -> tuple[_Put, _Get]:
    base = _base(item)
    if base in nested:
        mapper = nested[base]

        def put_messages(message: Message, value: Any) -> None:
            items = getattr(message, name)
            for one in value:
                mapper.fill(items.add(), one)

        return put_messages, lambda message: tuple(map(mapper.of_message, getattr(message, name)))
    to_wire, of_wire = _scalar(base)

    def put(message: Message, value: Any) -> None:
        getattr(message, name).extend(value if to_wire is None else map(to_wire, value))

    def get(message: Message) -> Any:
        items = getattr(message, name)
        return tuple(items) if of_wire is None else tuple(map(of_wire, items))

    if not optional:
        return put, get

    def put_list(message: Message, value: Any) -> None:
        if value is not None:
            part = getattr(message, name)
            part.SetInParent()
            part.nodes.extend(value)

    def get_list(message: Message) -> Any:
        return tuple(getattr(message, name).nodes) if message.HasField(name) else None

    return put_list, get_list


def _compile_mapping(name: str, item: Any) -> tuple[_Put, _Get]:
    _, base = _strip_none(item)
    if base is Endpoint:

        def put_endpoints(message: Message, value: Any) -> None:
            items = getattr(message, name)
            for key in sorted(value):
                endpoint = value[key]
                items.add(name=key, host=endpoint.host, port=endpoint.port)

        return put_endpoints, lambda message: {
            item.name: Endpoint(item.host, item.port) for item in getattr(message, name)
        }

    def put(message: Message, value: Any) -> None:
        items = getattr(message, name)
        for key, text in value.items():
            items.add(name=key, value=text)

    def get(message: Message) -> Any:
        return {item.name: item.value if item.HasField("value") else None for item in getattr(message, name)}

    return put, get
