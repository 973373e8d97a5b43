"""It is gRPC on the wire: grpcio as the peer, on either side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.node.internal.grpc_stream import GrpcStream
from strandline.cluster.node.internal.options import MESSAGE_BYTES_MAX, STREAM_WINDOW_BYTES
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcRejected, RpcTimeout, RpcUnavailable, Stream

ANY = Endpoint("127.0.0.1", 0)
CALL_MS = 30_000.0
SIZES = (0, 1, 5, 1000, 16_379, 16_380, 65_535, 1 << 20, STREAM_WINDOW_BYTES + 1, 5_000_000)
NO_LIMIT = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120):
            await body()

    asyncio.run(main())


async def echo(request: bytes) -> bytes:
    return request


async def echo_stream(stream: Stream) -> None:
    while (frame := await stream.read()) is not None:
        await stream.write(frame)


@asynccontextmanager
async def served_by_us(
    unary: dict[str, Any] | None = None, streams: dict[str, Any] | None = None
) -> AsyncIterator[tuple[grpc.aio.Channel, Any]]:
    """A channel of grpcio to our server."""
    server = await GrpcRpc().serve(ANY, unary or {}, streams or {})
    async with grpc.aio.insecure_channel(str(server.endpoint), options=NO_LIMIT) as channel:
        yield channel, server
    await server.close()


class GrpcioHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What a server of grpcio serves."""

    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)


@asynccontextmanager
async def served_by_grpcio(
    options: tuple[tuple[str, int], ...] = NO_LIMIT, **streams: Any
) -> AsyncIterator[tuple[GrpcRpc, Endpoint, Any]]:
    """Our client, and a server of grpcio with these handlers of streams and one unary echo."""

    async def unary(request: bytes, context: Any) -> bytes:
        if request == b"abort":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not höre: 100%")
        if request == b"sleep":
            await asyncio.sleep(100)
        return request

    methods = {f"/x.X/{name}": grpc.stream_stream_rpc_method_handler(handler) for name, handler in streams.items()}
    methods["/x.X/Unary"] = grpc.unary_unary_rpc_method_handler(unary)
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((GrpcioHandlers(methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    rpc = GrpcRpc()
    yield rpc, Endpoint("127.0.0.1", port), server
    await rpc.close()
    await server.stop(None)


async def grpcio_echo(_requests: Any, context: Any) -> None:
    await context.send_initial_metadata(())  # else its server says only with the first message that it has begun
    while (frame := await context.read()) is not grpc.aio.EOF:
        await context.write(frame)


def test_a_client_of_grpcio_talks_to_our_server() -> None:
    """Streams and calls, sizes around every limit: the prefix, gRPC's frames of 16 KiB, its and our window."""

    async def body() -> None:
        async with served_by_us({"/x.X/Echo": echo}, {"/x.X/Stream": echo_stream}) as (channel, _):
            call = channel.stream_stream("/x.X/Stream")()
            for size in SIZES:
                await call.write(b"s" * size)
                assert await call.read() == b"s" * size
                assert await channel.unary_unary("/x.X/Echo")(b"u" * size) == b"u" * size
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK

    run(body)


def test_our_client_talks_to_a_server_of_grpcio() -> None:
    """The other way round."""

    async def body() -> None:
        async with served_by_grpcio(Echo=grpcio_echo) as (rpc, where, _):
            stream = await rpc.open_stream(where, "/x.X/Echo", timeout_ms=CALL_MS)
            for size in SIZES:
                await stream.write(b"s" * size)
                assert await stream.read() == b"s" * size
                assert await rpc.call(where, "/x.X/Unary", b"u" * size, timeout_ms=CALL_MS) == b"u" * size
            assert isinstance(stream, GrpcStream)
            stream.end_writing()
            assert await stream.read() is None

    run(body)


@pytest.mark.parametrize("who", ["ours", "grpcio"])
def test_many_messages_both_ways_at_once(who: str) -> None:
    """Several times the windows, and nothing is lost or out of order."""
    frames = [b"%d" % number * (number * 997 % 9_000 + 1) for number in range(2_000)]

    async def body() -> None:
        async with (
            served_by_us({}, {"/x.X/Echo": echo_stream}) as (channel, _),
            served_by_grpcio(Echo=grpcio_echo) as (rpc, where, _),
        ):
            if who == "grpcio":
                call = channel.stream_stream("/x.X/Echo")()
            else:
                call = await rpc.open_stream(where, "/x.X/Echo", timeout_ms=CALL_MS)

            async def write() -> None:
                for frame in frames:
                    await call.write(frame)

            writer = asyncio.ensure_future(write())
            assert [await call.read() for _ in frames] == frames
            await writer
            (call.cancel if who == "grpcio" else call.close)()

    run(body)


def test_our_errors_reach_a_client_of_grpcio() -> None:
    """A handler's error is UNKNOWN with its words, whatever characters; a method nobody serves is UNIMPLEMENTED."""

    async def fails(request: bytes) -> bytes:
        raise ValueError("not höre:\n100%")

    async def stream_fails(stream: Stream) -> None:
        await stream.write(b"one")
        raise ValueError("no")

    async def body() -> None:
        async with served_by_us({"/x.X/Fails": fails}, {"/x.X/Stream": stream_fails}) as (channel, _):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/x.X/Fails")(b"")
            assert caught.value.code() is grpc.StatusCode.UNKNOWN
            assert caught.value.details() == "ValueError: not höre:\n100%"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/x.X/Nothing")(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            call = channel.stream_stream("/x.X/Stream")()
            assert await call.read() == b"one"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.details() == "ValueError: no"

    run(body)


def test_errors_of_grpcio_reach_our_client() -> None:
    """Statuses become errors of the port; a call that is given up is cancelled there."""

    async def body() -> None:
        async with served_by_grpcio(Echo=grpcio_echo) as (rpc, where, _):
            with pytest.raises(RpcRejected, match="not höre: 100%"):
                await rpc.call(where, "/x.X/Unary", b"abort", timeout_ms=CALL_MS)
            with pytest.raises(RpcRejected):
                await rpc.call(where, "/x.X/Nothing", b"", timeout_ms=CALL_MS)
            with pytest.raises(RpcRejected):
                await (await rpc.open_stream(where, "/x.X/Nothing", timeout_ms=CALL_MS)).read()
            with pytest.raises(RpcTimeout):
                await rpc.call(where, "/x.X/Unary", b"sleep", timeout_ms=200)
            assert await rpc.call(where, "/x.X/Unary", b"x", timeout_ms=CALL_MS) == b"x"

    run(body)


def test_a_message_above_the_limit_of_grpcio_is_its_error_and_our_words() -> None:
    """grpcio ends the call with RESOURCE_EXHAUSTED; for us that is a rejection."""

    async def body() -> None:
        async with served_by_grpcio((("grpc.max_receive_message_length", 1000),)) as (rpc, where, _):
            with pytest.raises(RpcRejected, match="larger than max"):
                await rpc.call(where, "/x.X/Unary", bytes(1001), timeout_ms=CALL_MS)
            assert await rpc.call(where, "/x.X/Unary", bytes(1000), timeout_ms=CALL_MS) == bytes(1000)

    run(body)


def test_a_client_of_grpcio_sends_more_than_we_take() -> None:
    """A message above the limit: an error for its sender that says so, and the server serves the next."""

    async def body() -> None:
        async with served_by_us({"/x.X/Echo": echo}) as (channel, _):
            with pytest.raises(grpc.aio.AioRpcError, match=r"RESOURCE_EXHAUSTED[\s\S]*larger than max"):
                await channel.unary_unary("/x.X/Echo")(bytes(MESSAGE_BYTES_MAX + 1))
            assert await channel.unary_unary("/x.X/Echo")(b"x") == b"x"

    run(body)


def test_each_side_of_grpcio_waits_for_a_slow_reader_of_ours() -> None:
    """Back pressure: a writer is stopped after the windows and the sockets are full, and goes on when it is read."""
    frame = bytes(100_000)

    async def body() -> None:
        gate = asyncio.Event()
        got = 0

        async def slow(stream: Stream) -> None:
            nonlocal got
            await gate.wait()
            while await stream.read() is not None:
                got += 1
            await stream.write(b"%d" % got)

        async with served_by_us({}, {"/x.X/Slow": slow}) as (channel, _):
            call = channel.stream_stream("/x.X/Slow")()
            written = 0

            async def flood() -> None:
                nonlocal written
                for _ in range(400):
                    await call.write(frame)
                    written += 1
                await call.done_writing()

            writer = asyncio.ensure_future(flood())
            await _until_still(lambda: written)
            assert 10 <= written < 200
            gate.set()
            await writer
            assert await call.read() == b"400"

    run(body)


def test_our_writer_waits_for_a_slow_reader_of_grpcio() -> None:
    """The other way round: what the peer did not grant is not sent."""
    frame = bytes(100_000)

    async def body() -> None:
        gate = asyncio.Event()

        async def slow(_requests: Any, context: Any) -> None:
            await context.send_initial_metadata(())
            await gate.wait()
            for _ in range(400):
                assert await context.read() == frame
            await context.write(b"all")

        async with served_by_grpcio(Slow=slow) as (rpc, where, _):
            stream = await rpc.open_stream(where, "/x.X/Slow", timeout_ms=CALL_MS)
            written = 0

            async def flood() -> None:
                nonlocal written
                for _ in range(400):
                    await stream.write(frame)
                    written += 1

            writer = asyncio.ensure_future(flood())
            await _until_still(lambda: written)
            assert written < 200
            gate.set()
            await writer
            assert await stream.read() == b"all"

    run(body)


async def _until_still(value: Callable[[], int]) -> None:
    seen = -1
    while value() != seen:
        seen = value()
        await asyncio.sleep(0.7)


def test_a_server_of_grpcio_that_stops_in_good_order_lets_a_stream_end() -> None:
    """GOAWAY: no new stream on this connection, and what is open goes on."""

    async def body() -> None:
        async with served_by_grpcio(Echo=grpcio_echo) as (rpc, where, server):
            stream = await rpc.open_stream(where, "/x.X/Echo", timeout_ms=CALL_MS)
            assert isinstance(stream, GrpcStream)
            stopping = asyncio.ensure_future(server.stop(20))
            while stream._connection.leaving is None:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
            for size in SIZES:
                await stream.write(b"s" * size)
                assert await stream.read() == b"s" * size
            stream.end_writing()
            assert await stream.read() is None
            await stopping
            with pytest.raises(RpcUnavailable) as caught:
                await rpc.open_stream(where, "/x.X/Echo", timeout_ms=CALL_MS)
            assert caught.value.refused

    run(body)


def test_a_server_of_grpcio_that_dies_breaks_the_stream() -> None:
    """RpcUnavailable, and not the end of the stream."""

    async def body() -> None:
        async with served_by_grpcio(Echo=grpcio_echo) as (rpc, where, server):
            stream = await rpc.open_stream(where, "/x.X/Echo", timeout_ms=CALL_MS)
            await stream.write(b"a")
            assert await stream.read() == b"a"
            await server.stop(None)
            with pytest.raises(RpcUnavailable):
                await stream.read()

    run(body)


def test_a_client_of_grpcio_that_cancels_is_told_to_the_handler() -> None:
    """RST_STREAM: the handler's read says that the stream is gone; that of a call is cancelled."""

    async def body() -> None:
        met: asyncio.Queue[str] = asyncio.Queue()

        async def waits(stream: Stream) -> None:
            try:
                await stream.read()
            except RpcUnavailable as error:
                met.put_nowait(str(error))

        async def slow(_request: bytes) -> bytes:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                met.put_nowait("cancelled")
                raise
            return b""

        async with served_by_us({"/x.X/Slow": slow}, {"/x.X/Waits": waits}) as (channel, _):
            call = channel.stream_stream("/x.X/Waits")()
            await call.initial_metadata()
            call.cancel()
            assert "the peer has reset the stream (CANCEL)" in await met.get()
            with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                await channel.unary_unary("/x.X/Slow")(b"", timeout=0.5)
            assert await met.get() == "cancelled"

    run(body)


def test_both_ends_send_at_once() -> None:
    """TCP_NODELAY is set on both sides: asyncio sets it, and this holds asyncio to it."""

    async def body() -> None:
        options: list[int] = []

        def option(stream: Any) -> int:
            sock = stream._connection._transport.get_extra_info("socket")
            return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        async def looks(stream: Stream) -> None:
            options.append(option(stream))

        rpc = GrpcRpc()
        server = await rpc.serve(ANY, {}, {"/x.X/Looks": looks})
        stream = await rpc.open_stream(server.endpoint, "/x.X/Looks", timeout_ms=CALL_MS)
        options.append(option(stream))
        assert await stream.read() is None
        assert all(options)
        assert len(options) == 2
        await rpc.close()
        await server.close()

    run(body)
