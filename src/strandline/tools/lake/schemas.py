"""Schemas of values in JSON and Avro, as columns. Needs pyarrow; Avro needs fastavro.

What has no column type (unions of several types, a schema that contains itself) is refused before anything is read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.proto.errors import ConfigError, MissingExtra
from strandline.proto.json_text import read_json
from strandline.tools.lake.shape import TIME, Typed

Convert = Callable[[Any], Any]

_NAMES: Mapping[str, pa.DataType] = {
    "string": pa.string(), "boolean": pa.bool_(), "int": pa.int32(), "integer": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "number": pa.float64(), "timestamp": TIME, "date": pa.date32(),
}  # fmt: skip
"""Types in a mapping of names, and in a JSON Schema."""

_FORMATS: Mapping[str, pa.DataType] = {"date-time": TIME, "date": pa.date32()}


def json_values(path: Path) -> Typed:
    """Values in JSON, by a JSON Schema or by a mapping of names to types: {"id": "long", "at": "timestamp"}.

    Fields that the schema does not name are left out. A timestamp is ISO 8601 or milliseconds since 1970.

    Raises:
        ConfigError: a schema of what has no columns.
        OSError.
    """
    schema = _document(path)
    if isinstance(schema.get("properties"), dict):
        kind, convert = _json_struct(schema["properties"], path.name)
        required = frozenset(schema.get("required", ()))
    else:
        kind, convert = _json_struct(schema, path.name)
        required = frozenset()

    def read(value: bytes) -> Mapping[str, Any]:
        fields = read_json(value, parse_constant=_no_number)
        if not isinstance(fields, dict):
            raise ValueError(f"a value is a JSON object, not {type(fields).__name__}")
        converted: Mapping[str, Any] = convert(fields)
        return converted

    return Typed(kind, read, required & {one.name for one in kind})


def avro_values(path: Path) -> Typed:
    """Values in Avro's binary form, without a header or framing, all by one schema (.avsc) of a record.

    Raises:
        ConfigError: a schema of what has no columns.
        MissingExtra, OSError.
    """
    try:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.schema import expand_schema
    except ImportError as error:
        raise MissingExtra.of("--value avro", "lake", error) from error
    document = _document(path)
    try:
        expanded = expand_schema(document)
    except Exception as error:
        raise ConfigError("--schema", str(path), f"an Avro schema ({error})") from error
    kind = _avro_type(expanded, path.name)
    if not pa.types.is_struct(kind):
        raise ConfigError("--schema", str(path), "the schema of a record")
    # Logical types that have no column are read as what they are made of: `_avro_type` has taken their names out.
    parsed = parse_schema(expanded)

    def read(value: bytes) -> Mapping[str, Any]:
        data = io.BytesIO(value)
        try:
            fields: Any = schemaless_reader(data, parsed, None)
        except RecursionError:  # a schema may hold itself
            raise ValueError("it is nested too deeply") from None
        if data.tell() != len(value):
            raise ValueError(f"{len(value) - data.tell()} bytes are left over")
        assert isinstance(fields, dict)
        return fields

    return Typed(kind, read)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path.read_text())
    except ValueError as error:
        raise ConfigError("--schema", str(path), f"a file of JSON ({error})") from error
    if not isinstance(document, dict):
        raise ConfigError("--schema", str(path), "a JSON object")
    return document


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _json_type(schema: Any, where: str) -> tuple[pa.DataType, Convert]:
    """A column's type, and what makes pyarrow's values of JSON's."""
    if isinstance(schema, str):
        schema = {"type": schema}
    name: Any = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(name, list):
        name = next((one for one in name if one != "null"), None) if len(set(name) - {"null"}) == 1 else None
    if name == "object" and isinstance(schema.get("properties"), dict):
        return _json_struct(schema["properties"], where)
    if name == "array" and "items" in schema:
        kind, convert = _json_type(schema["items"], f"{where}[]")
        return pa.list_(pa.field("element", kind)), lambda items: [convert(one) for one in _is(items, list)]
    if name == "string" and schema.get("format") in _FORMATS:
        name = {"date-time": "timestamp"}.get(schema["format"], schema["format"])
    if name not in _NAMES:
        allowed = f"one of {', '.join(_NAMES)}, an array with items or an object with properties"
        raise ConfigError(f"--schema, type of {where}", name or json.dumps(schema), allowed)
    kind = _NAMES[name]
    if pa.types.is_integer(kind):
        return kind, _integer
    return kind, {"timestamp": _timestamp, "date": _date}.get(name, _as_it_is)


def _json_struct(properties: Mapping[str, Any], where: str) -> tuple[pa.DataType, Convert]:
    kinds = {name: _json_type(one, f"{where}.{name}") for name, one in properties.items()}
    _some_fields(kinds, where)
    converts = {name: convert for name, (_, convert) in kinds.items()}

    def convert(fields: Any) -> dict[str, Any]:
        given = _is(fields, dict)
        return {name: None if given.get(name) is None else make(given[name]) for name, make in converts.items()}

    return pa.struct([(name, kind) for name, (kind, _) in kinds.items()]), convert


def _is(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} is expected, not {type(value).__name__}")
    return value


def _as_it_is(value: Any) -> Any:
    return value


def _integer(value: Any) -> Any:
    """Convert a whole number, and refuse another: pyarrow would cut 1.5 to 1."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"an integer is expected, not {value}")
    return value


def _timestamp(value: Any) -> Any:
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return datetime.fromtimestamp(_is(value, int) / 1000, UTC)


def _date(value: Any) -> Any:
    return date.fromisoformat(_is(value, str))


_AVRO: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
_AVRO_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(), "timestamp-millis": TIME, "timestamp-micros": TIME,
}  # fmt: skip


def _avro_type(schema: Any, where: str) -> pa.DataType:
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise ConfigError(f"--schema, type of {where}", json.dumps(schema), "a union of null and one other type")
        return _avro_type(others[0], where)
    name = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(name, dict | list):
        return _avro_type(name, where)
    if name == "record":
        kinds = {one["name"]: _avro_type(one["type"], f"{where}.{one['name']}") for one in schema["fields"]}
        _some_fields(kinds, where)
        return pa.struct(list(kinds.items()))
    if name == "array":
        return pa.list_(pa.field("element", _avro_type(schema["items"], f"{where}[]")))
    if name == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], f"{where}{{}}"))
    logical: Any = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    if logical == "decimal" and schema.get("precision", 0) <= 38:
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical is not None:
        del schema["logicalType"]
    if name not in _AVRO:
        raise ConfigError(f"--schema, type of {where}", name, "a type of Avro that does not contain itself")
    return _AVRO[name]


def _some_fields(kinds: Mapping[str, Any], where: str) -> None:
    if not kinds:
        raise ConfigError("--schema", where, "a record with fields: Parquet has no empty one")
