"""The gRPC twin of the Rpc port keeps the port's promises."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import grpc.aio
import pytest
from tests.ports import free_port

from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.proto.ids import Endpoint
from strandline.proto.ports import Rpc, RpcRejected, RpcTimeout, RpcUnavailable, Stream

ANY = Endpoint("127.0.0.1", 0)
ECHO = "/strandline.v1.Test/Echo"
STREAM = "/strandline.v1.Test/Stream"

AT_ONCE_S = 4.0
"""Less than a keep-alive takes to find a dead peer (KEEPALIVE_TIME_MS), and room for a machine that is busy."""


async def echo(request: bytes) -> bytes:
    return request


async def echo_stream(stream: Stream) -> None:
    while (frame := await stream.read()) is not None:
        await stream.write(frame)


async def write_for_ever(stream: Stream) -> None:
    while True:
        await stream.write(b"into nothing")


def run(body: Callable[[GrpcRpc], Awaitable[None]]) -> None:
    async def main() -> None:
        rpc = GrpcRpc()
        try:
            await body(rpc)
        finally:
            await rpc.close()

    asyncio.run(main())


def test_call_and_stream_carry_raw_bytes() -> None:
    """The port: bytes in, bytes out, per method; large frames included."""

    async def body(rpc: GrpcRpc) -> None:
        port: Rpc = rpc
        server = await port.serve(ANY, {ECHO: echo}, {STREAM: echo_stream})
        assert server.endpoint.port > 0
        assert await port.call(server.endpoint, ECHO, b"\x00\xff", timeout_ms=5000) == b"\x00\xff"
        large = bytes(20 * 1024 * 1024)
        assert await port.call(server.endpoint, ECHO, large, timeout_ms=5000) == large
        stream = await port.open_stream(server.endpoint, STREAM, timeout_ms=5000)
        for frame in (b"one", b"", b"three" * 100_000):
            await stream.write(frame)
            assert await stream.read() == frame
        stream.close()
        with pytest.raises(RpcUnavailable):
            await stream.read()
        with pytest.raises(RpcUnavailable):
            await stream.write(b"x")
        await server.close()

    run(body)


def test_nobody_listens_is_refused() -> None:
    """The port: `refused` is true when nobody listens there; a suspicion rests on it (quorum and broker sessions)."""

    async def body(rpc: GrpcRpc) -> None:
        nobody = Endpoint("127.0.0.1", free_port())
        for _ in range(3):
            with pytest.raises(RpcUnavailable) as raised:
                await rpc.call(nobody, ECHO, b"", timeout_ms=5000)
            assert raised.value.refused
        with pytest.raises(RpcUnavailable) as raised:
            await rpc.open_stream(nobody, STREAM, timeout_ms=5000)
        assert raised.value.refused

    run(body)


@pytest.mark.parametrize("host", ["x" * 64, "a..b", "a\0b", "127.0.0.1"])
def test_what_can_be_no_address_is_unavailable(host: str) -> None:
    """A peer tells where it is: what no look-up takes, and a port above all ports, ends no node."""

    async def body(rpc: GrpcRpc) -> None:
        with pytest.raises(RpcUnavailable, match="70000"):
            await rpc.call(Endpoint(host, 70_000), ECHO, b"", timeout_ms=5000)

    run(body)


async def _first_of(rpc: GrpcRpc, endpoint: Endpoint, method: str) -> bytes | None:
    """The first frame of a stream."""
    return await (await rpc.open_stream(endpoint, method, timeout_ms=5000)).read()


def test_handlers_errors_and_unknown_methods_are_rejections() -> None:
    """The port: an exception of the handler reaches the caller as RpcRejected, and so does a method nobody serves."""

    async def fails(request: bytes) -> bytes:
        raise ValueError(f"no {request!r}")

    async def stream_fails(stream: Stream) -> None:
        await stream.read()
        raise ValueError("not this")

    async def body(rpc: GrpcRpc) -> None:
        server = await rpc.serve(ANY, {ECHO: fails}, {STREAM: stream_fails})
        with pytest.raises(RpcRejected, match="ValueError: no b'x'"):
            await rpc.call(server.endpoint, ECHO, b"x", timeout_ms=5000)
        with pytest.raises(RpcRejected):
            await rpc.call(server.endpoint, "/strandline.v1.Test/Unknown", b"", timeout_ms=5000)
        with pytest.raises(RpcRejected):
            await _first_of(rpc, server.endpoint, "/strandline.v1.Test/Unknown")
        stream = await rpc.open_stream(server.endpoint, STREAM, timeout_ms=5000)
        await stream.write(b"go")
        with pytest.raises(RpcRejected, match="not this"):
            await stream.read()
        await server.close()

    run(body)


def test_no_answer_in_time() -> None:
    """The port: RpcTimeout when the peer does not answer, with the handler's work cancelled."""

    async def body(rpc: GrpcRpc) -> None:
        ended = asyncio.Event()

        started = False

        async def slow(_request: bytes) -> bytes:
            nonlocal started
            started = True
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            return b""

        server = await rpc.serve(ANY, {ECHO: slow}, {})
        async with asyncio.timeout(30):
            while not started:  # a call may use up its time before it has reached the handler
                with pytest.raises(RpcTimeout):
                    await rpc.call(server.endpoint, ECHO, b"", timeout_ms=50)
            await ended.wait()
        await server.close()

    run(body)


def test_each_side_learns_the_end_of_the_other() -> None:
    """The port: a handler that returns ends the stream (None at the reader); a peer that goes ends or breaks it."""

    async def body(rpc: GrpcRpc) -> None:
        handler_ended: asyncio.Queue[str] = asyncio.Queue()

        async def one_frame(stream: Stream) -> None:
            if await stream.read() == b"bye":
                return
            await stream.write(b"come in")
            try:
                last = await stream.read()
            except RpcUnavailable:
                last = None
            handler_ended.put_nowait("still there" if last is not None else "gone")
            with pytest.raises(RpcUnavailable):
                await write_for_ever(stream)
            handler_ended.put_nowait("write failed")

        server = await rpc.serve(ANY, {}, {STREAM: one_frame})
        stream = await rpc.open_stream(server.endpoint, STREAM, timeout_ms=5000)
        await stream.write(b"bye")
        assert await stream.read() is None
        stream = await rpc.open_stream(server.endpoint, STREAM, timeout_ms=5000)
        await stream.write(b"hello")
        assert await stream.read() == b"come in"
        stream.close()
        async with asyncio.timeout(20):
            assert await handler_ended.get() == "gone"
            assert await handler_ended.get() == "write failed"
        await server.close()

    run(body)


def test_server_closes_streams_and_calls() -> None:
    """The port: `RpcServer.close` ends every call and stream; the peers see a broken connection at once."""

    async def body(rpc: GrpcRpc) -> None:
        called = asyncio.Event()

        async def never(_request: bytes) -> bytes:
            called.set()
            await asyncio.sleep(60)
            return b""

        server = await rpc.serve(ANY, {ECHO: never}, {STREAM: echo_stream})
        stream = await rpc.open_stream(server.endpoint, STREAM, timeout_ms=5000)
        call = asyncio.ensure_future(rpc.call(server.endpoint, ECHO, b"", timeout_ms=50_000))
        await called.wait()
        began = time.monotonic()
        await server.close()
        with pytest.raises(RpcUnavailable):
            await stream.read()
        with pytest.raises(RpcUnavailable):
            await call
        assert time.monotonic() - began < AT_ONCE_S

    run(body)


def test_cancelling_the_caller_is_a_cancellation() -> None:
    """A cancelled task sees CancelledError and nothing else; closing a stream under a reader is RpcUnavailable."""

    async def body(rpc: GrpcRpc) -> None:
        async def silent(stream: Stream) -> None:
            await stream.read()

        server = await rpc.serve(ANY, {}, {STREAM: silent})
        stream = await rpc.open_stream(server.endpoint, STREAM, timeout_ms=5000)
        reader = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0.02)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        other = await rpc.open_stream(server.endpoint, STREAM, timeout_ms=5000)
        reader = asyncio.ensure_future(other.read())
        await asyncio.sleep(0.02)
        other.close()
        with pytest.raises(RpcUnavailable):
            await reader
        await server.close()

    run(body)


def test_a_taken_port_is_an_os_error() -> None:
    """The port: OSError when the address cannot be bound."""

    async def body(rpc: GrpcRpc) -> None:
        server = await rpc.serve(ANY, {}, {})
        with pytest.raises(OSError, match="in use"):
            await rpc.serve(server.endpoint, {}, {})
        await server.close()

    run(body)


def test_health_and_reflection_answer() -> None:
    """The internal port serves gRPC's health checks and lists its services."""

    async def body(rpc: GrpcRpc) -> None:
        from grpc_health.v1 import health_pb2
        from grpc_reflection.v1alpha import reflection_pb2

        server = await rpc.serve(ANY, {ECHO: echo}, {})
        request = health_pb2.HealthCheckRequest().SerializeToString()
        for serving in (True, False):
            server.set_serving(serving)
            raw = await rpc.call(server.endpoint, "/grpc.health.v1.Health/Check", request, timeout_ms=5000)
            status = health_pb2.HealthCheckResponse.FromString(raw).status
            assert (status == health_pb2.HealthCheckResponse.SERVING) is serving
        async with grpc.aio.insecure_channel(str(server.endpoint)) as channel:
            call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
            raw_reply = await call.read()
            call.cancel()
        listed = reflection_pb2.ServerReflectionResponse.FromString(raw_reply).list_services_response.service
        assert "strandline.v1.Test" in [service.name for service in listed]
        await server.close()

    run(body)


SERVER = """
import asyncio, sys
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.proto.ids import Endpoint

async def main():
    async def echo(request): return request
    async def stream(s):
        while (frame := await s.read()) is not None:
            await s.write(frame)
    where = Endpoint("127.0.0.1", int(sys.argv[1]))
    server = await GrpcRpc().serve(
        where, {"/strandline.v1.Test/Echo": echo}, {"/strandline.v1.Test/Stream": stream})
    print(server.endpoint.port, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Peer:
    """An echo server in a process of its own."""

    def __init__(self, port: int = 0) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.endpoint = Endpoint("127.0.0.1", int(self.process.stdout.readline()))

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_a_killed_peer_is_noticed_at_once_and_found_again() -> None:
    """Rule B12 (suspicion): kill -9 breaks stream and call within milliseconds; a restarted node is reached again
    within the reconnect backoff."""
    peer = Peer()

    async def body(rpc: GrpcRpc) -> None:
        nonlocal peer
        stream = await rpc.open_stream(peer.endpoint, STREAM, timeout_ms=5000)
        await stream.write(b"a")
        assert await stream.read() == b"a"
        began = time.monotonic()
        peer.kill()
        with pytest.raises(RpcUnavailable):
            await stream.read()
        assert time.monotonic() - began < AT_ONCE_S
        for _ in range(3):
            with pytest.raises(RpcUnavailable) as raised:
                await rpc.call(peer.endpoint, ECHO, b"", timeout_ms=5000)
            assert raised.value.refused
            await asyncio.sleep(0.2)
        peer = Peer(peer.endpoint.port)
        began = time.monotonic()
        while True:
            try:
                assert await rpc.call(peer.endpoint, ECHO, b"again", timeout_ms=5000) == b"again"
                break
            except RpcUnavailable:
                await asyncio.sleep(0.01)
        assert time.monotonic() - began < AT_ONCE_S

    try:
        run(body)
    finally:
        peer.kill()
