"""The windows of HTTP/2 between nodes: what is not read is not granted, what is given up is, and no more is sent than
the peer has granted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hyperframe.frame import DataFrame, Frame, SettingsFrame, WindowUpdateFrame
from tests.cluster.node.internal.hostile_peer import REQUEST, data, frames_from, headers, hello, message
from tests.cluster.node.internal.test_hostile_http2 import ANY, FULL_FRAME, OPEN, echo, run, sleeps

from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.node.internal.options import CONNECTION_WINDOW_BYTES, DATA_FRAME_BYTES_MAX, STREAM_WINDOW_BYTES
from strandline.proto.ports import Stream


async def answers_to(sent: bytes, handler: Callable[[Stream], Awaitable[None]]) -> list[Frame]:
    """What a server of this handler answers within a moment."""
    server = await GrpcRpc().serve(ANY, {}, {"/x.X/Echo": handler})
    reader, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port)
    writer.write(sent)
    await asyncio.sleep(0.1)
    writer.write_eof()
    met = await frames_from(reader)
    writer.close()
    await server.close()
    return met


def test_what_nobody_reads_is_not_granted_again() -> None:
    """A message that is not complete fills the window of a handler that does not read, and no more comes."""

    async def body() -> None:
        part = message(b"", claims=STREAM_WINDOW_BYTES * 4) + FULL_FRAME[5:]
        met = await answers_to(OPEN + data(1, part), sleeps)
        assert [frame for frame in met if isinstance(frame, WindowUpdateFrame) and frame.stream_id] == []

    run(body)


@pytest.mark.parametrize(("of_a_stream", "most"), [(20_000, 20_000), (1 << 20, 65_535)])
def test_what_a_peer_has_not_granted_is_not_sent(of_a_stream: int, most: int) -> None:
    """Neither beyond the window of the stream nor beyond that of the connection, which begins with 65,535 bytes."""

    async def floods(stream: Stream) -> None:
        while True:
            await stream.write(bytes(3_000))

    async def body() -> None:
        met = await answers_to(hello() + SettingsFrame(0, {4: of_a_stream}).serialize() + headers(1), floods)
        assert sum(len(frame.data) for frame in met if isinstance(frame, DataFrame)) == most

    run(body)


def test_streams_that_are_given_up_cost_the_others_no_window() -> None:
    """Handlers that leave most of a message unread, and DATA that come after they went: several times the window of the
    connection. All of it is granted again, and the next call on the connection is served."""

    async def reads_one(stream: Stream) -> None:
        await stream.read()
        await asyncio.sleep(0.02)

    async def body() -> None:
        server = await GrpcRpc().serve(ANY, {"/x.X/Call": echo}, {"/x.X/Echo": reads_one})
        reader, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port)
        writer.write(hello())
        rest = message(b"", claims=STREAM_WINDOW_BYTES * 4) + FULL_FRAME[:-100]
        streams = range(1, 3 * (CONNECTION_WINDOW_BYTES // DATA_FRAME_BYTES_MAX), 2)
        for stream in streams:
            writer.write(headers(stream) + data(stream, message(b"first") + rest[:-100]))
            await writer.drain()
            await asyncio.sleep(0.04)
            writer.write(data(stream, FULL_FRAME))
        call = [(name, "/x.X/Call" if name == ":path" else value) for name, value in REQUEST]
        last = streams[-1] + 2
        writer.write(headers(last, call) + data(last, message(b"last"), "END_STREAM"))
        await asyncio.sleep(0.1)
        writer.write_eof()
        met = await frames_from(reader)
        assert b"".join(frame.data for frame in met if isinstance(frame, DataFrame)) == message(b"last")
        writer.close()
        await server.close()

    run(body)
