"""A dataclass's protobuf message, made from its annotations (see `forms`), and values converted field by field.

The conversions are prepared once a class; a value then costs about as much as by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_type_hints

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from strandline.proto.errors import ProtocolError
from strandline.proto.messages.forms import Convert, Label, Slot, slot_of

T = TypeVar("T")

_Put = Callable[[Any, Any], None]


class Mapper(Generic[T]):
    """Converts one dataclass or NamedTuple; `mapper_of` makes it once.

    Attributes:
        kind: the class.
        message: the protobuf class made from it.
    """

    def __init__(self, kind: type[T]) -> None:
        """Raises TypeError for a field without a number, or of a type that has no form."""
        self.kind = kind
        hints = get_type_hints(kind, include_extras=True)
        slots = [slot_of(kind, name, hint) for name, hint in hints.items()]
        self.message = _message_class(kind, slots)
        self._plain = [slot.name for slot in slots if _is_plain(slot)]
        self._read_plain = _reader(self._plain)
        self._puts = [(slot.name, _put(slot)) for slot in slots if not _is_plain(slot)]
        self._read_all = _reader(list(hints))
        self._gets: list[tuple[int, Convert]] = []
        self._optional: list[tuple[int, str, Convert | None]] = []
        for index, slot in enumerate(slots):
            get = _get(slot)
            if slot.label is Label.OPTIONAL:
                self._optional.append((index, slot.name, get))
            elif get is not None:
                self._gets.append((index, get))

    def to_message(self, value: T) -> Any:
        """The message for a value."""
        message = self.message()
        self.fill(message, value)
        return message

    def fill(self, message: Message, value: T) -> None:
        """Write a value into an empty message."""
        for name, plain in zip(self._plain, self._read_plain(value), strict=True):
            setattr(message, name, plain)
        for name, put in self._puts:
            put(message, getattr(value, name))

    def of_message(self, message: Message) -> T:
        """The value for a message.

        Raises:
            ValueError: a field holds what its type does not allow (an id that is not 16 bytes, an unknown number).
        """
        values = [*self._read_all(message)]
        for index, get in self._gets:
            values[index] = get(values[index])
        for index, name, optional in self._optional:
            if not message.HasField(name):
                values[index] = None
            elif optional is not None:
                values[index] = optional(values[index])
        return self.kind(*values)

    def encode(self, value: T) -> bytes:
        """The bytes for a value. Raises ValueError for an integer outside its form."""
        data: bytes = self.to_message(value).SerializeToString()
        return data

    def decode(self, data: bytes) -> T:
        """The value of bytes.

        Raises:
            ProtocolError: they are not such a message.
        """
        try:
            return self.of_message(self.message.FromString(data))
        except (DecodeError, ValueError) as error:
            raise ProtocolError(f"not a {self.kind.__name__} of {len(data)} bytes: {error}") from error


_MAPPERS: dict[type, Mapper[Any]] = {}


def mapper_of(kind: type[T]) -> Mapper[T]:
    """The mapper of a class, made once. Raises TypeError as `Mapper` does."""
    mapper = _MAPPERS.get(kind)
    if mapper is None:
        mapper = _MAPPERS[kind] = Mapper(kind)
    return mapper


def _message_class(kind: type, slots: list[Slot]) -> type[Message]:
    """The protobuf class with these fields, made by protobuf from a description."""
    file = FileDescriptorProto(name=f"{kind.__module__}.{kind.__qualname__}", package=kind.__module__, syntax="proto3")
    proto = file.message_type.add(name=kind.__name__)
    for slot in slots:
        field = proto.field.add(name=slot.name, number=slot.number, type=slot.form.proto_type)
        field.label = field.LABEL_REPEATED if slot.label is Label.REPEATED else field.LABEL_OPTIONAL
        if slot.form.nested is not None:
            part = mapper_of(slot.form.nested).message.DESCRIPTOR
            field.type_name = "." + part.full_name
            if part.file.name not in file.dependency:
                file.dependency.append(part.file.name)
        elif slot.label is Label.OPTIONAL:
            field.proto3_optional = True
            field.oneof_index = len(proto.oneof_decl)
            proto.oneof_decl.add(name="_" + slot.name)
    pool = descriptor_pool.Default()
    try:
        pool.Add(file)
    except TypeError as error:
        raise TypeError(f"{kind.__qualname__}: {error}") from None
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{kind.__module__}.{kind.__name__}"))


def _reader(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Reads attributes, all in one call of C."""
    if len(names) >= 2:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _is_plain(slot: Slot) -> bool:
    """The value itself is written."""
    converted = slot.form.to_wire is not None or slot.form.nested is not None or slot.stand_in is not None
    return slot.label is Label.SINGLE and not converted


def _put(slot: Slot) -> _Put:
    """Writes a value into its field."""
    put = _put_items(slot) if slot.label is Label.REPEATED else _put_one(slot)
    if slot.stand_in is None and slot.label is not Label.OPTIONAL:
        return put
    to_wire = None if slot.stand_in is None else slot.stand_in.to_wire

    def put_present(message: Any, value: Any) -> None:
        if value is not None:
            put(message, value if to_wire is None else to_wire(value))

    return put_present


def _put_one(slot: Slot) -> _Put:
    name, to_wire = slot.name, slot.form.to_wire
    if slot.form.nested is not None:
        fill = mapper_of(slot.form.nested).fill

        def put_message(message: Any, value: Any) -> None:
            part = getattr(message, name)
            part.SetInParent()  # also where every field is zero: it is present
            fill(part, value)

        return put_message
    if to_wire is None:
        return lambda message, value: setattr(message, name, value)
    return lambda message, value: setattr(message, name, to_wire(value))


def _put_items(slot: Slot) -> _Put:
    name, to_wire = slot.name, slot.form.to_wire
    if slot.form.nested is not None:
        fill = mapper_of(slot.form.nested).fill

        def put_messages(message: Any, value: Any) -> None:
            add = getattr(message, name).add
            for item in value:
                fill(add(), item)

        return put_messages
    if to_wire is None:
        return lambda message, value: getattr(message, name).extend(value)
    return lambda message, value: getattr(message, name).extend(map(to_wire, value))


def _get(slot: Slot) -> Convert | None:
    """Converts what stands in the field to the value; None: it is the value."""
    read = slot.form.of_wire if slot.form.nested is None else mapper_of(slot.form.nested).of_message
    if slot.label is Label.REPEATED:
        read = _tuple_of(read)
    if slot.stand_in is None:
        return read
    return slot.stand_in.of_wire if read is None else _then(read, slot.stand_in.of_wire)


def _tuple_of(read: Convert | None) -> Convert:
    return tuple if read is None else lambda items: tuple(map(read, items))


def _then(first: Convert, second: Convert) -> Convert:
    return lambda value: second(first(value))
