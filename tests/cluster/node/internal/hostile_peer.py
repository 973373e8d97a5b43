"""A peer that speaks HTTP/2 frame by frame, right or wrong, over a plain socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable

from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/x.X/Echo"),
    (":authority", "a"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]


def hello() -> bytes:
    """What a client begins with."""
    return PREFACE + SettingsFrame(0).serialize()


def headers(stream_id: int, fields: Iterable[tuple[str, str]] = REQUEST, flags: tuple[str, ...] = ()) -> bytes:
    """A HEADERS frame; without a table that both sides share, so that each stands for itself."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return HeadersFrame(stream_id, encoder.encode(list(fields)), flags=["END_HEADERS", *flags]).serialize()


def continuation(stream_id: int, data: bytes, *, last: bool) -> bytes:
    """A CONTINUATION frame."""
    return ContinuationFrame(stream_id, data, flags=["END_HEADERS"] if last else []).serialize()


def data(stream_id: int, payload: bytes, *flags: str, padding: int = 0) -> bytes:
    """A DATA frame."""
    return DataFrame(stream_id, payload, pad_length=padding, flags=flags).serialize()


def message(content: bytes, *, compressed: int = 0, claims: int | None = None) -> bytes:
    """A gRPC message; `claims`: the length that its prefix says."""
    return struct.pack(">BI", compressed, len(content) if claims is None else claims) + content


def window_update(stream_id: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return WindowUpdateFrame(stream_id, window_increment=size).serialize()


def reset(stream_id: int) -> bytes:
    """A RST_STREAM frame."""
    return RstStreamFrame(stream_id, error_code=ErrorCodes.CANCEL).serialize()


def raw(kind: int, flags: int, stream_id: int, body: bytes, claims: int | None = None) -> bytes:
    """Any frame; `claims`: the length that its head says."""
    size = len(body) if claims is None else claims
    return struct.pack(">IBI", (size << 8) | kind, flags, stream_id) + body


async def frames_from(reader: asyncio.StreamReader) -> list[Frame]:
    """Every frame until the end."""
    met: list[Frame] = []
    try:
        while True:
            frame, size = Frame.parse_frame_header(memoryview(await reader.readexactly(9)))
            frame.parse_body(memoryview(await reader.readexactly(size)))
            met.append(frame)
    except (asyncio.IncompleteReadError, ConnectionError):
        return met


def ending(frames: list[Frame]) -> tuple[str, str]:
    """Code and words of the GOAWAY with which a connection ended."""
    for frame in frames:
        if isinstance(frame, GoAwayFrame):
            return ErrorCodes(frame.error_code).name, frame.additional_data.decode()
    return "", ""
