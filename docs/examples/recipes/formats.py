"""One order in JSON, Avro and Protobuf: bytes for any language, and back.

pip install fastavro grpcio-tools
python -m grpc_tools.protoc -I. --python_out=. order.proto      # makes order_pb2.py
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
from order_pb2 import Order as Message

SCHEMA = fastavro.parse_schema(json.loads(Path(__file__).with_name("order.avsc").read_text()))

Order = dict[str, Any]


def to_json(order: Order) -> bytes:
    return json.dumps(order).encode()


def to_avro(order: Order) -> bytes:
    """The schema is not written with it: the reader has it, too."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, order)
    return out.getvalue()


def from_avro(data: bytes) -> Order:
    return fastavro.schemaless_reader(io.BytesIO(data), SCHEMA)


def to_protobuf(order: Order) -> bytes:
    return Message(**order).SerializeToString()


def from_protobuf(data: bytes) -> Order:
    message = Message.FromString(data)
    return {"table": message.table, "dish": message.dish, "extras": list(message.extras)}


WRITE = {"orders.json": to_json, "orders.avro": to_avro, "orders.protobuf": to_protobuf}
READ = {"orders.json": json.loads, "orders.avro": from_avro, "orders.protobuf": from_protobuf}
"""For `Consumer(value_deserializer=...)`."""
