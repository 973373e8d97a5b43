"""Kafka's schemas declared in Python, for the records of internal topics: kio has none of them.

A struct is a NamedTuple whose fields stand in the order of Kafka's JSON. The annotation of a field is its layout:

    class OffsetValue(NamedTuple):
        offset: Int64
        leader_epoch: Annotated[Int32, Field("3+", default=-1)]       # a version without it reads -1
        metadata: String                                              # `String | None`: nullable
        topic_id: Annotated[Uuid | None, Field("4+", tag=0)] = None   # a tagged field (KIP-482)
        racks: tuple[Rack, ...]                                       # an array, here of structs

A `RecordType` names the structs of a record's key and value, with their versions. Nothing else has to be written: the
codecs are those of `schema`, and read what stands on a disk as carefully as what comes from a peer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from strandline.proto.errors import ProtocolError
from strandline.proto.kafka.fields import INT16, RESPONSE_ELEMENTS_MAX, Buffer, Elements, read_int16
from strandline.proto.kafka.keyed_record import Record
from strandline.proto.kafka.schema import Codec, Message, Slot, field_codec, struct_codec, without_none

Int8 = Annotated[int, "int8"]
Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
String = Annotated[str, "string"]
Bytes = Annotated[bytes, "bytes"]
Uuid = Annotated[UUID, "uuid"]
"""Zeros are read as None."""

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V", bound=tuple[Any, ...])


class Field(NamedTuple):
    """What a field's type does not say.

    Attributes:
        versions: that have the field, as Kafka writes them: "3+", "0-2", "1".
        tag: its number among the tagged fields; None for a field that always stands there.
        default: read where the field does not stand. A tagged field that has it is not written.
    """

    versions: str = "0+"
    tag: int | None = None
    default: Any = None


class Seen(NamedTuple):
    """A field whose value is not what the wire has.

    Attributes:
        layout: the annotation of what the wire has.
        read: makes the value of that. It raises ProtocolError for what cannot be.
        write: makes that of the value.
    """

    layout: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def has_version(versions: str, version: int) -> bool:
    """Whether `versions`, as Kafka writes them, has this one."""
    first, dash, last = versions.rstrip("+").partition("-")
    if versions.endswith("+"):
        return version >= int(first)
    return int(first) <= version <= int(last if dash else first)


# ---------------------------------------------------------------- structs


@cache
def _codec(kind: Any, version: int, flexible: bool) -> Codec:
    """The codec of a declared struct in one version."""
    annotations = get_type_hints(kind, include_extras=True)
    declared = {name: (_field(annotation), annotation) for name, annotation in annotations.items()}
    slots = [
        Slot(name, _field_codec(annotation, version, flexible, field.tag is not None), field.default, field.tag)
        for name, (field, annotation) in declared.items()
        if has_version(field.versions, version)
    ]
    absent = {name: field.default for name, (field, _) in declared.items()}
    codec = struct_codec(kind.__name__, slots, flexible, partial(_maker, kind, absent))

    def write(out: bytearray, values: Any) -> None:
        codec.write(out, values._asdict())

    return Codec(codec.read, write, codec.bytes_min)


def _maker(kind: Any, absent: dict[str, Any], names: list[str]) -> Callable[[list[Any]], Any]:
    if tuple(names) == kind._fields:
        make: Callable[[list[Any]], Any] = kind._make
        return make
    return lambda values: kind(**{**absent, **dict(zip(names, values, strict=True))})


def _field(annotation: Any) -> Field:
    return next((extra for extra in _peeled(annotation)[1] if isinstance(extra, Field)), Field())


def _peeled(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type, and what its annotation says of it."""
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def _field_codec(annotation: Any, version: int, flexible: bool, tagged: bool) -> Codec:
    whole, extras = _peeled(annotation)
    for extra in extras:
        if isinstance(extra, Seen):
            return _seen_codec(_field_codec(extra.layout, version, flexible, tagged), extra)
    kind, nullable = without_none(whole)
    is_array = get_origin(kind) is tuple
    inner, inner_extras = _peeled(get_args(kind)[0] if is_array else kind)
    item: str | Codec
    if hasattr(inner, "_fields"):
        item = _codec(inner, version, flexible)
    else:
        item = next((extra for extra in (*extras, *inner_extras) if isinstance(extra, str)), "")
    return field_codec(item, flexible, is_array=is_array, nullable=nullable, tagged=tagged)


def _seen_codec(codec: Codec, seen: Seen) -> Codec:
    def read(buffer: Buffer, position: int, elements: Elements) -> tuple[Any, int]:
        value, position = codec.read(buffer, position, elements)
        return seen.read(value), position

    def write(out: bytearray, value: Any) -> None:
        codec.write(out, seen.write(value))

    return Codec(read, write, codec.bytes_min)


# ---------------------------------------------------------------- records


class RecordType(Generic[K, V]):
    """A type of record of an internal topic: Kafka's schemas of its key and of its value.

    Args:
        name: of Kafka's value schema, for errors.
        key: the struct of the key, which is not flexible.
        key_versions: versions of the key. In these topics they name the type of the record; the last is written.
        value: the struct of the value.
        versions: of the value, as Kafka writes them.
        flexible: versions of the value that have tagged fields.
        written: the version in which a value is written unless the caller says another.
    """

    def __init__(
        self,
        name: str,
        key: type[K],
        key_versions: tuple[int, ...],
        value: type[V],
        *,
        versions: str = "0-0",
        flexible: str = "0+",
        written: int = 0,
    ) -> None:
        self.name = name
        self.key_versions = key_versions
        self._key = key
        self._value = value
        self._versions = versions
        self._flexible = flexible
        self._written = written
        self._keys: dict[int, Message] = {}
        self._values: dict[int, Message] = {}

    def record(self, key: K, value: V | None, version: int | None = None) -> Record:
        """The record; of None the tombstone. Raises Unencodable for a value that does not fit its field."""
        number = self.key_versions[-1]
        raw_key = INT16.pack(number) + self._of_key(number).encode(key)
        if value is None:
            return Record(raw_key, None)
        version = self._written if version is None else version
        return Record(raw_key, INT16.pack(version) + self._of_value(version).encode(value))

    def read_key(self, raw: bytes) -> K:
        """Decode a key of one of `key_versions`. Raises ProtocolError for bytes that are no such key."""
        version, position = read_int16(raw, 0)
        key: K = self._of_key(version).decode(raw[position:])
        return key

    def read(self, raw: bytes) -> V:
        """The value. Raises ProtocolError for bytes that are none."""
        version, position = read_int16(raw, 0)
        value: V = self._of_value(version).decode(raw[position:])
        return value

    def _of_key(self, version: int) -> Message:
        found = self._keys.get(version)
        if found is None:
            codec = _codec(self._key, version, flexible=False)
            found = self._keys[version] = Message(f"The key of {self.name} v{version}", codec, RESPONSE_ELEMENTS_MAX)
        return found

    def _of_value(self, version: int) -> Message:
        found = self._values.get(version)
        if found is None:
            if not has_version(self._versions, version):
                raise ProtocolError(f"{self.name} of version {version}; {self._versions} can be read")
            codec = _codec(self._value, version, has_version(self._flexible, version))
            found = self._values[version] = Message(f"{self.name} v{version}", codec, RESPONSE_ELEMENTS_MAX)
        return found


def by_key_version(*types: RecordType[Any, Any]) -> dict[int, RecordType[Any, Any]]:
    """The types of a topic by the version that a key begins with."""
    return {version: one for one in types for version in one.key_versions}
