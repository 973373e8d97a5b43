"""Messages by kio's own classes, to hold the project's reading and writing against."""

from __future__ import annotations

import dataclasses
import io
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from strandline.proto.kafka.schema import without_none


def written_by_kio(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def read_by_kio(kind: Any, raw: bytes) -> Any:
    entity, size = entity_reader(kind)(raw, 0)
    assert size == len(raw), "bytes are left over"
    return entity


def plain(value: Any) -> Any:
    """A value of kio's as this project has it: structs as dicts, durations in milliseconds."""
    if isinstance(value, tuple) and not hasattr(value, "_asdict"):
        return [plain(one) for one in value]
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    return value


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Any instance of a kio class, with short lists and texts."""

    def of_field(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
        annotation, nullable = without_none(field.type)
        if getattr(annotation, "__origin__", None) is tuple:
            inner = without_none(annotation.__args__[0])[0]
            values = st.lists(of_type(inner, field), max_size=2).map(tuple)
        else:
            values = of_type(annotation, field)
        # A null id is written as zeros; other values of tagged fields may not be null on the wire.
        return st.none() | values if nullable and "tag" not in field.metadata else values

    def of_type(inner: Any, field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
        kafka_type = field.metadata.get("kafka_type")
        return instances(inner) if kafka_type is None else VALUES[kafka_type]

    return st.builds(kind, **{field.name: of_field(field) for field in dataclasses.fields(kind)})


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=6),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
    "uuid": st.uuids(),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(_milliseconds),
    "timedelta_i64": st.integers(-1, 10**13).map(_milliseconds),
}
