"""Values in Protobuf as columns, by a FileDescriptorSet (`protoc --include_imports --descriptor_set_out`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from strandline.proto.errors import ConfigError
from strandline.tools.lake.shape import TIME, Typed

Convert = Callable[[Any], Any]

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TYPES: Mapping[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(), FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(), FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(), FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(), FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}  # fmt: skip
"""Columns of the plain types. Iceberg has no unsigned numbers: a uint32 is a long, a uint64 a decimal of 20 digits."""


def protobuf_values(path: Path, message: str | None) -> Typed:
    """Values that are messages of one type, without framing; fields that its schema does not know are left out.

    Args:
        path: a FileDescriptorSet.
        message: the full name; None: the only message of the last file of the set.

    Raises:
        ConfigError: no such set or message, or a message that contains itself.
        OSError.
    """
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(path.read_bytes())
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise ConfigError("--schema", str(path), f"a FileDescriptorSet with all imports ({error})") from error
    names = [f"{file.package}.{one.name}".lstrip(".") for file in files.file for one in file.message_type]
    if message is None and len(names) == 1:
        message = names[0]
    try:
        if message is None:
            raise KeyError
        descriptor = pool.FindMessageTypeByName(message)
    except KeyError:
        raise ConfigError("--message", message, f"one of {', '.join(names)}") from None
    kind, convert = _message(descriptor, ())
    made = message_factory.GetMessageClass(descriptor)

    def read(value: bytes) -> Mapping[str, Any]:
        converted: Mapping[str, Any] = convert(made.FromString(value))
        return converted

    return Typed(kind, read)


def _message(descriptor: Descriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    if descriptor.full_name == _TIMESTAMP:
        return TIME, lambda it: _EPOCH + timedelta(seconds=it.seconds, microseconds=it.nanos // 1000)
    if descriptor.full_name in above or not descriptor.fields:
        allowed = "a message with fields, which does not contain itself"
        raise ConfigError("--schema", descriptor.full_name, allowed)
    inside = (*above, descriptor.full_name)
    fields = [(one, *_field(one, inside)) for one in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            one.name: make(getattr(message, one.name)) if not one.has_presence or message.HasField(one.name) else None
            for one, _, make in fields
        }

    return pa.struct([(one.name, kind) for one, kind, _ in fields]), convert


def _field(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        by_name = message.fields_by_name
        (key, make_key), (kind, make) = _one(by_name["key"], above), _one(by_name["value"], above)
        return pa.map_(key, kind), lambda items: [(make_key(name), make(items[name])) for name in items]
    kind, make = _one(field, above)
    if field.is_repeated:
        return pa.list_(pa.field("element", kind)), lambda items: [make(one) for one in items]
    return kind, make


def _one(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    if field.message_type is not None:
        return _message(field.message_type, above)
    if field.enum_type is not None:
        return pa.string(), _enum(field.enum_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string(), lambda value: value
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        from decimal import Decimal

        return _TYPES[field.cpp_type], Decimal
    return _TYPES[field.cpp_type], lambda value: value


def _enum(kind: EnumDescriptor) -> Convert:
    """Convert a number of an enum to its name; a number that the schema does not know stays a number."""
    names = {number: value.name for number, value in kind.values_by_number.items()}
    return lambda number: names.get(number, str(number))
