"""A client of a few lines: requests written by kio, answers read by kio, over a real socket."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from kio.serial import entity_reader, entity_writer

from strandline.proto.ids import Endpoint
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.schema import kind_of, without_none


def request_class(api: str, version: int) -> Any:
    return kind_of(Api[api.upper()], version, "request")


def response_class(api: str, version: int) -> Any:
    return kind_of(Api[api.upper()], version, "response")


def frame(
    key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool, client_id: str = "test"
) -> bytes:
    header = struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id.encode()
    if flexible:
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


class KafkaClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation_id = 0
        self.client_id = "test"

    def send(self, api: str, version: int, **values: Any) -> tuple[int, Any]:
        """Write a request; returns what `receive` needs. Values by kio's names; parts as dicts."""
        kind = request_class(api, version)
        out = io.BytesIO()
        entity_writer(kind)(out, build(sys.modules[kind.__module__], kind, values))
        self.correlation_id += 1
        key, flexible = kind.__api_key__, kind.__flexible__
        self.writer.write(
            frame(key, version, self.correlation_id, out.getvalue(), flexible=flexible, client_id=self.client_id)
        )
        return self.correlation_id, response_class(api, version)

    async def receive(self, sent: tuple[int, Any]) -> Any:
        correlation_id, kind = sent
        raw = await self.receive_frame()
        assert struct.unpack_from(">i", raw)[0] == correlation_id
        position = 4
        if kind.__flexible__ and kind.__api_key__ != 18:
            assert raw[4] == 0
            position = 5
        message, size = entity_reader(kind)(raw, position)
        assert position + size == len(raw), "bytes after the answer"
        return message

    async def receive_frame(self) -> bytes:
        async with asyncio.timeout(20):
            size = struct.unpack(">i", await self.reader.readexactly(4))[0]
            return await self.reader.readexactly(size)

    async def ask(self, api: str, version: int, **values: Any) -> Any:
        return await self.receive(self.send(api, version, **values))

    async def closed(self) -> bool:
        """The other side has closed, without another byte."""
        async with asyncio.timeout(20):
            return await self.reader.read(1) == b""


def build(module: Any, kind: Any, values: dict[str, Any]) -> Any:
    """A kio message from plain values: dicts become the parts that the field's type names."""
    fields = {field.name: field for field in kind.__dataclass_fields__.values()}
    made = {}
    for name, value in values.items():
        if name not in fields:
            continue
        annotation = without_none(fields[name].type)[0]
        is_list = getattr(annotation, "__origin__", None) is tuple
        inner = without_none(annotation.__args__[0])[0] if is_list else annotation
        if is_list and value is not None:
            made[name] = tuple(build(module, inner, one) if isinstance(one, dict) else one for one in value)
        elif isinstance(value, dict):
            made[name] = build(module, inner, value)
        elif fields[name].metadata.get("kafka_type", "").startswith("timedelta"):
            made[name] = timedelta(milliseconds=value)
        else:
            made[name] = value
    for name, field in fields.items():
        if name not in made and field.default is dataclasses.MISSING:
            made[name] = nothing(field)
    return kind(**made)


def nothing(field: Any) -> Any:
    """A value that says the least."""
    annotation, nullable = without_none(field.type)
    if nullable:
        return None
    if getattr(annotation, "__origin__", None) is tuple:
        return ()
    kafka_type = field.metadata["kafka_type"]
    return {
        "bool": False,
        "string": "",
        "bytes": b"",
        "timedelta_i32": timedelta(0),
        "timedelta_i64": timedelta(0),
    }.get(kafka_type, 0)


@asynccontextmanager
async def connect(endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> AsyncIterator[KafkaClient]:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=1 << 26, ssl=tls)
    try:
        yield KafkaClient(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass
