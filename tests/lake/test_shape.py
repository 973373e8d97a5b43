"""Values as columns, and records that fit none: told apart one by one, with the reason."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.log.batch import RecordBatchBuilder, decode_columns, parse_header
from strandline.log.columns import RecordColumns
from strandline.proto.errors import ConfigError
from strandline.tools.lake.protobuf import protobuf_values
from strandline.tools.lake.schemas import avro_values, json_values
from strandline.tools.lake.shape import FIRST_MS, LAST_MS, Rows, Shape, Typed

NOON_MS = 1_795_435_200_000


def rows(typed: Typed | None, *values: bytes | None, times: list[int] | None = None) -> Rows:
    """Values as records of partition 3, from offset 0."""
    builder = RecordBatchBuilder()
    for at, value in enumerate(values):
        builder.append(NOON_MS if times is None else times[at], b"k", value, (("h", b"1"),) if at % 2 else ())
    batch = memoryview(builder.build())
    columns = RecordColumns.empty()
    decode_columns(columns, parse_header(batch), batch, 0, len(values), with_headers=True)
    return Shape(typed).rows("orders", 3, columns)


def reasons(found: Rows) -> dict[int, str]:
    return {row["offset"]: row["reason"] for row in found.bad.to_pylist()}


def schema(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(document))
    return path


def test_bytes_stay_bytes_beside_where_the_record_lies() -> None:
    found = rows(None, b"one", None, b"three")
    assert found.bad.num_rows == 0
    assert found.good.to_pylist()[1] == {
        "topic": "orders",
        "partition": 3,
        "offset": 1,
        "timestamp": datetime(2026, 11, 23, 12, tzinfo=UTC),
        "key": b"k",
        "headers": [{"name": "h", "value": b"1"}],
        "value": None,
    }
    assert found.good["headers"].to_pylist()[0] is None


def test_a_time_without_a_day_does_not_fit() -> None:
    """A timestamp is the producer's to choose, up to 64 bits."""
    times = [FIRST_MS, 2**62, -1, LAST_MS, FIRST_MS - 1]
    found = rows(None, b"a", b"b", b"c", b"d", b"e", times=times)
    assert found.good["offset"].to_pylist() == [0, 2, 3]
    assert str(found.good["timestamp"].to_pylist()[0].year) == "1"
    assert found.bad["timestamp_ms"].to_pylist() == [2**62, FIRST_MS - 1]
    assert "4611686018427387904 ms since 1970 lies in none of the years" in reasons(found)[1]
    assert found.bad["value"].to_pylist() == [b"b", b"e"]


def test_json_by_a_mapping_of_names(tmp_path: Path) -> None:
    path = schema(tmp_path, {"id": "long", "price": "double", "at": "timestamp", "day": "date", "ok": "boolean"})
    good = b'{"id": 7, "price": 1, "at": "2026-11-23T12:00:00+01:00", "day": "2026-11-23", "ok": true, "more": [1]}'
    found = rows(json_values(path), good, b'{"id": 8, "at": 1795435200000}', None)
    assert found.bad.num_rows == 0
    first, second, tombstone = found.good.drop_columns(
        ["topic", "partition", "key", "headers", "timestamp"]
    ).to_pylist()
    assert first == {
        "offset": 0, "id": 7, "price": 1.0, "at": datetime(2026, 11, 23, 11, tzinfo=UTC),
        "day": date(2026, 11, 23), "ok": True,
    }  # fmt: skip
    assert (second["id"], second["at"], second["price"]) == (8, datetime(2026, 11, 23, 12, tzinfo=UTC), None)
    assert tombstone == {"offset": 2, "id": None, "price": None, "at": None, "day": None, "ok": None}


def test_json_that_does_not_fit_says_why(tmp_path: Path) -> None:
    path = schema(tmp_path, {"id": "long", "price": "double", "at": "timestamp", "name": "string"})
    values = [
        b'{"id": 1}', b'{"id": "1"}', b'{"id": 1.5}', b'{"id": true}', b'{"id": 9223372036854775808}', b"no json",
        b"[1]", b'{"at": "yesterday"}', b'{"name": 5}', b'{"price": NaN}', b'{"name": "\\ud800"}', b"\xff", b"",
        b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"id": 2}',
    ]  # fmt: skip
    found = rows(json_values(path), *values)
    assert found.good["id"].to_pylist() == [1, 2]
    told = reasons(found)
    assert set(told) == set(range(1, 14))
    assert told[1].startswith("id: ArrowInvalid: Could not convert '1' with type str")
    assert "JSON object, not list" in told[6]
    assert "NaN is no JSON" in told[9]
    assert found.bad["value"].to_pylist() == values[1:14]


def test_a_json_schema(tmp_path: Path) -> None:
    document = {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer"},
            "note": {"type": ["string", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "lines": {
                "type": "array",
                "items": {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}},
            },
        },
    }
    found = rows(
        json_values(schema(tmp_path, document)),
        b'{"id": 1, "lines": [{"sku": "a", "n": 2}], "note": null}',
        b'{"lines": []}',
        b'{"id": 2, "lines": {"sku": "a"}}',
    )
    assert found.good["lines"].to_pylist() == [[{"sku": "a", "n": 2}]]
    assert "id is required and not there" in reasons(found)[1]
    assert "a list is expected, not dict" in reasons(found)[2]


def test_fields_with_the_names_of_the_records_own_columns(tmp_path: Path) -> None:
    shape = Shape(json_values(schema(tmp_path, {"key": "string", "date": "date", "value": "long"})))
    assert shape.schema.names[-3:] == ["value_key", "value_date", "value"]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"id": "decimal"}, "type of schema.json.id"),
        ({}, "a record with fields"),
        ([1], "a JSON object"),
        ({"properties": {"a": {"anyOf": []}}}, "type of schema.json.a"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "type of schema.json.a"),
    ],
)
def test_a_schema_without_columns_is_refused(tmp_path: Path, document: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        json_values(schema(tmp_path, document))


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "L", "fields": [
            {"name": "sku", "type": "string"}]}}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip


def test_avro(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed: pip install fastavro")
    order = {
        "id": 7, "note": None, "at": datetime(2026, 11, 23, 12, tzinfo=UTC), "price": Decimal("12.50"), "state": "PAID",
        "tags": {"a": 1}, "lines": [{"sku": "x"}], "ref": "00000000-0000-0000-0000-000000000001",
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), order)
    typed = avro_values(schema(tmp_path, AVRO))
    found = rows(typed, out.getvalue(), out.getvalue()[:-3], out.getvalue() + b"!", b"\x00\x00\x00\x00\x05junk")
    [row] = found.good.select(list(order)).to_pylist()
    assert row == {**order, "tags": [("a", 1)]}
    assert set(reasons(found)) == {1, 2, 3}
    assert "1 bytes are left over" in reasons(found)[2]


def test_avro_without_columns_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install fastavro")
    field = {"name": "x", "type": ["string", "int"]}
    with pytest.raises(ConfigError, match="union of null and one other type"):
        avro_values(schema(tmp_path, {"type": "record", "name": "R", "fields": [field]}))
    itself = {"name": "next", "type": ["null", "R"]}
    with pytest.raises(ConfigError, match="--schema"):
        avro_values(schema(tmp_path, {"type": "record", "name": "R", "fields": [itself]}))


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  uint64 big = 4;
  enum State { NEW = 0; PAID = 1; }
  State state = 5;
  map<string, int32> tags = 6;
  repeated Line lines = 7;
  bytes raw = 8;
}
message Line { string sku = 1; }
message Tree { repeated Tree below = 1; }
"""


def test_protobuf(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed: pip install grpcio-tools")
    from importlib.resources import files

    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    (tmp_path / "shop.proto").write_text(PROTO)
    path = tmp_path / "shop.desc"
    include = files("grpc_tools") / "_proto"
    words = ["protoc", f"-I{tmp_path}", f"-I{include}", "--include_imports", f"--descriptor_set_out={path}"]
    assert protoc.main([*words, str(tmp_path / "shop.proto")]) == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
        pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message = order(id=7, big=2**64 - 1, state=1, tags={"a": 1}, lines=[{"sku": "x"}], raw=b"\xff")
    message.at.FromJsonString("2026-11-23T12:00:00Z")
    found = rows(protobuf_values(path, "shop.Order"), message.SerializeToString(), b"", b"\xff\xff")
    first, empty = found.good.drop_columns(["topic", "partition", "key", "headers", "timestamp", "offset"]).to_pylist()
    assert first == {
        "id": 7, "note": None, "at": datetime(2026, 11, 23, 12, tzinfo=UTC), "big": Decimal(2**64 - 1), "state": "PAID",
        "tags": [("a", 1)], "lines": [{"sku": "x"}], "raw": b"\xff",
    }  # fmt: skip
    assert (empty["id"], empty["note"], empty["at"], empty["state"]) == (0, None, None, "NEW")
    assert reasons(found)[2].startswith("DecodeError")
    with pytest.raises(ConfigError, match=r"one of .*shop\.Order, shop\.Line, shop\.Tree"):
        protobuf_values(path, None)
    with pytest.raises(ConfigError, match="which does not contain itself"):
        protobuf_values(path, "shop.Tree")


def test_every_column_has_a_type_of_parquet(tmp_path: Path) -> None:
    """What is said of a shape holds of the files: `pa.schema` is what is written."""
    shape = Shape(json_values(schema(tmp_path, {"id": "int"})))
    assert shape.schema.field("id").type == pa.int32()
    assert shape.schema.field("timestamp").type == pa.timestamp("us", "UTC")
