"""The promises of the Rpc port, each a test, on real sockets and on the simulator's.

(The largest frame is in `tests/chaos/test_rpc_limits.py`.)
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import pytest
from tests.ports import free_port

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.proto.ids import Endpoint
from strandline.proto.ports import (
    Rpc,
    RpcError,
    RpcRejected,
    RpcServer,
    RpcTimeout,
    RpcUnavailable,
    Stream,
    StreamHandler,
    UnaryHandler,
)

CALL_MS = 20_000.0
"""Long enough for a busy machine; the simulator's clock does not mind."""
SHORT_MS = 200.0


class Scene(Protocol):
    """A caller, and the place where it finds a server."""

    rpc: Rpc

    async def serve(
        self, unary: Mapping[str, UnaryHandler] | None = None, streams: Mapping[str, StreamHandler] | None = None
    ) -> Endpoint:
        """Serve in another node."""

    async def serve_again(self, where: Endpoint) -> None:
        """Serve a second time, at the same place."""

    async def stop_serving(self) -> None:
        """Close the server."""

    async def nobody(self) -> Endpoint:
        """Where nobody listens."""


Body = Callable[[Scene], Coroutine[Any, Any, None]]


class Real:
    """On this machine's loopback."""

    def __init__(self) -> None:
        self.rpc: Rpc = GrpcRpc()
        self._serving = GrpcRpc()
        self._server: RpcServer | None = None

    async def serve(
        self, unary: Mapping[str, UnaryHandler] | None = None, streams: Mapping[str, StreamHandler] | None = None
    ) -> Endpoint:
        self._server = await self._serving.serve(Endpoint("127.0.0.1", 0), unary or {}, streams or {})
        return self._server.endpoint

    async def serve_again(self, where: Endpoint) -> None:
        await self._serving.serve(where, {}, {})

    async def stop_serving(self) -> None:
        assert self._server is not None
        await self._server.close()

    async def nobody(self) -> Endpoint:
        return Endpoint("127.0.0.1", free_port())

    @classmethod
    def run(cls, body: Body) -> None:
        """Play it on a real loop."""

        async def main() -> None:
            scene = cls()
            try:
                async with asyncio.timeout(100):
                    await body(scene)
            finally:
                await scene.rpc.close()
                if scene._server is not None:
                    await scene._server.close()

        asyncio.run(main())


class Simulated:
    """Two machines in a world."""

    def __init__(self, rpc: Rpc, server: Rpc, of_server: contextvars.Context) -> None:
        self.rpc = rpc
        self._serving = server
        self._of_server = of_server
        self._server: RpcServer | None = None

    async def serve(
        self, unary: Mapping[str, UnaryHandler] | None = None, streams: Mapping[str, StreamHandler] | None = None
    ) -> Endpoint:
        starting = self._serving.serve(Endpoint("server", 0), unary or {}, streams or {})
        self._server = await asyncio.get_running_loop().create_task(starting, context=self._of_server)
        return Endpoint("server", self._server.endpoint.port)

    async def serve_again(self, where: Endpoint) -> None:
        starting = self._serving.serve(where, {}, {})
        await asyncio.get_running_loop().create_task(starting, context=self._of_server)

    async def stop_serving(self) -> None:
        assert self._server is not None
        await self._server.close()

    async def nobody(self) -> Endpoint:
        return Endpoint("server", 7)

    @classmethod
    def run(cls, body: Body) -> None:
        """Play it in virtual time."""
        world = World(1)
        for name in ("server", "client"):
            world.add_machine(name)
        servers: list[tuple[Rpc, contextvars.Context]] = []

        async def serve(ports: Ports) -> None:
            servers.append((ports.rpc, contextvars.copy_context()))
            await asyncio.get_running_loop().create_future()

        async def call(ports: Ports) -> None:
            await body(cls(ports.rpc, *servers[0]))

        async def scenario() -> None:
            world.spawn("server", serve)
            await asyncio.sleep(0.01)
            process = world.spawn("client", call)
            assert process.main is not None
            await process.main

        world.run(scenario())
        assert world.loop.unhandled == []


@pytest.fixture(params=[Real, Simulated], ids=["grpc", "simulated"])
def play(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Either transport."""
    run: Callable[[Body], None] = request.param.run
    return run


async def echo(request: bytes) -> bytes:
    """What it was asked."""
    return request


async def echo_stream(stream: Stream) -> None:
    """Every frame back, to the end."""
    while (frame := await stream.read()) is not None:
        await stream.write(frame)


async def outcome(work: Awaitable[bytes | None]) -> bytes | type[BaseException] | None:
    """What comes of it, or the kind of error."""
    try:
        return await work
    except RpcError as error:
        return type(error)


def test_a_call_carries_bytes(play: Callable[[Body], None]) -> None:
    """Any bytes, none, and many."""

    async def body(scene: Scene) -> None:
        server = await scene.serve({"/t.T/Echo": echo})
        for request in (b"\x00\xff", b"", b"x" * 3_000_000):
            assert await scene.rpc.call(server, "/t.T/Echo", request, timeout_ms=CALL_MS) == request

    play(body)


def test_calls_at_once_are_answered_each_for_itself(play: Callable[[Body], None]) -> None:
    """One connection, and none waits for another."""

    async def body(scene: Scene) -> None:
        gate = asyncio.Event()

        async def waits(request: bytes) -> bytes:
            if request == b"0":
                await gate.wait()
            return request

        server = await scene.serve({"/t.T/Waits": waits})
        first = asyncio.ensure_future(scene.rpc.call(server, "/t.T/Waits", b"0", timeout_ms=CALL_MS))
        others = [scene.rpc.call(server, "/t.T/Waits", b"%d" % number, timeout_ms=CALL_MS) for number in range(1, 20)]
        assert await asyncio.gather(*others) == [b"%d" % number for number in range(1, 20)]
        assert not first.done()
        gate.set()
        assert await first == b"0"

    play(body)


def test_what_a_handler_raises_is_a_rejection(play: Callable[[Body], None]) -> None:
    """With its words; so is a method that nobody serves. The connection is as good as before."""

    async def bad(request: bytes) -> bytes:
        raise ValueError(f"no {request!r}")

    async def body(scene: Scene) -> None:
        server = await scene.serve({"/t.T/Bad": bad, "/t.T/Echo": echo})
        with pytest.raises(RpcRejected, match="ValueError: no b'x'"):
            await scene.rpc.call(server, "/t.T/Bad", b"x", timeout_ms=CALL_MS)
        with pytest.raises(RpcRejected):
            await scene.rpc.call(server, "/t.T/Nope", b"", timeout_ms=CALL_MS)
        assert await scene.rpc.call(server, "/t.T/Echo", b"y", timeout_ms=CALL_MS) == b"y"

    play(body)


def test_a_deadline(play: Callable[[Body], None]) -> None:
    """RpcTimeout, and the handler is cancelled; the next call is served."""

    async def body(scene: Scene) -> None:
        ended = asyncio.Event()
        begun = asyncio.Event()

        async def slow(_request: bytes) -> bytes:
            begun.set()
            try:
                await asyncio.sleep(1_000)
            finally:
                ended.set()
            return b""

        server = await scene.serve({"/t.T/Slow": slow, "/t.T/Echo": echo})
        assert await scene.rpc.call(server, "/t.T/Echo", b"a", timeout_ms=CALL_MS) == b"a"
        while not begun.is_set():  # a busy machine may use up the time before the handler begins
            with pytest.raises(RpcTimeout):
                await scene.rpc.call(server, "/t.T/Slow", b"", timeout_ms=SHORT_MS)
        await ended.wait()
        assert await scene.rpc.call(server, "/t.T/Echo", b"b", timeout_ms=CALL_MS) == b"b"

    play(body)


def test_a_caller_that_is_cancelled(play: Callable[[Body], None]) -> None:
    """It sees its cancellation and nothing else; the handler sees one too. So with a reader of a stream, which goes on
    to be read."""

    async def body(scene: Scene) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def slow(_request: bytes) -> bytes:
            begun.set()
            try:
                await asyncio.sleep(1_000)
            finally:
                ended.set()
            return b""

        server = await scene.serve({"/t.T/Slow": slow}, {"/t.T/Echo": echo_stream})
        call = asyncio.ensure_future(scene.rpc.call(server, "/t.T/Slow", b"", timeout_ms=CALL_MS))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await ended.wait()
        stream = await scene.rpc.open_stream(server, "/t.T/Echo", timeout_ms=CALL_MS)
        await stream.write(b"a")
        assert await stream.read() == b"a"
        reader = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0.05)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        stream.close()

    play(body)


def test_nobody_listens(play: Callable[[Body], None]) -> None:
    """`refused`: told at once, for calls and for streams, and again for whoever asks a moment later."""

    async def body(scene: Scene) -> None:
        nowhere = await scene.nobody()
        for _ in range(3):
            with pytest.raises(RpcUnavailable) as caught:
                await scene.rpc.call(nowhere, "/t.T/Echo", b"", timeout_ms=CALL_MS)
            assert caught.value.refused
        with pytest.raises(RpcUnavailable) as caught:
            await scene.rpc.open_stream(nowhere, "/t.T/Echo", timeout_ms=CALL_MS)
        assert caught.value.refused

    play(body)


def test_frames_come_whole_and_in_order(play: Callable[[Body], None]) -> None:
    """Both ways at once, small and large, empty ones too."""

    async def body(scene: Scene) -> None:
        server = await scene.serve({}, {"/t.T/Echo": echo_stream})
        stream = await scene.rpc.open_stream(server, "/t.T/Echo", timeout_ms=CALL_MS)
        frames = [b"", b"a", *(b"%d" % number * (number * 997 % 50_000 + 1) for number in range(100))]

        async def write() -> None:
            for frame in frames:
                await stream.write(frame)

        writer = asyncio.ensure_future(write())
        assert [await stream.read() for _ in frames] == frames
        await writer
        stream.close()

    play(body)


def test_a_handler_that_returns_ends_the_stream(play: Callable[[Body], None]) -> None:
    """What it had written is read first, then comes the end; whoever goes on writing is told that nobody reads."""

    async def body(scene: Scene) -> None:
        async def some(stream: Stream) -> None:
            for number in range(50):
                await stream.write(b"%d" % number)

        server = await scene.serve({}, {"/t.T/Some": some})
        stream = await scene.rpc.open_stream(server, "/t.T/Some", timeout_ms=CALL_MS)
        await asyncio.sleep(0.2)
        assert [await stream.read() for _ in range(50)] == [b"%d" % number for number in range(50)]
        assert await stream.read() is None
        with pytest.raises(RpcUnavailable):
            await _write_for_ever(stream)
        stream.close()

    play(body)


async def _write_for_ever(stream: Stream) -> None:
    while True:
        await stream.write(b"into nothing")


def test_a_stream_that_nobody_serves_is_rejected(play: Callable[[Body], None]) -> None:
    """When it is opened, or by the first read."""

    async def first(scene: Scene, server: Endpoint) -> bytes | None:
        return await (await scene.rpc.open_stream(server, "/t.T/Nope", timeout_ms=CALL_MS)).read()

    async def body(scene: Scene) -> None:
        server = await scene.serve({}, {"/t.T/Echo": echo_stream})
        with pytest.raises(RpcRejected):
            await first(scene, server)

    play(body)


def test_a_stream_that_its_caller_closes(play: Callable[[Body], None]) -> None:
    """To its caller it is gone, also to one that waits for a frame; its handler learns of it by reads and writes."""

    async def body(scene: Scene) -> None:
        learned: asyncio.Queue[str] = asyncio.Queue()

        async def silent(stream: Stream) -> None:
            assert await stream.read() == b"hello"
            await stream.write(b"come in")
            try:
                last = await stream.read()
            except RpcUnavailable:
                last = None
            learned.put_nowait("still there" if last is not None else "gone")
            try:
                await _write_for_ever(stream)
            except RpcUnavailable:
                learned.put_nowait("write failed")

        server = await scene.serve({}, {"/t.T/Silent": silent})
        stream = await scene.rpc.open_stream(server, "/t.T/Silent", timeout_ms=CALL_MS)
        await stream.write(b"hello")
        assert await stream.read() == b"come in"
        reader = asyncio.ensure_future(outcome(stream.read()))
        await asyncio.sleep(0.05)
        stream.close()
        stream.close()
        assert await reader is RpcUnavailable
        with pytest.raises(RpcUnavailable):
            await stream.read()
        with pytest.raises(RpcUnavailable):
            await stream.write(b"x")
        assert await learned.get() == "gone"
        assert await learned.get() == "write failed"

    play(body)


def test_a_writer_waits_for_its_reader(play: Callable[[Body], None]) -> None:
    """Back pressure: a stream holds a few megabytes at most, whatever is written into it."""

    async def body(scene: Scene) -> None:
        written: list[int] = []
        frame = bytes(1_000_000)

        async def flood(stream: Stream) -> None:
            for number in range(64):
                await stream.write(frame)
                written.append(number)

        server = await scene.serve({}, {"/t.T/Flood": flood})
        stream = await scene.rpc.open_stream(server, "/t.T/Flood", timeout_ms=CALL_MS)
        seen = -1
        while len(written) != seen:
            seen = len(written)
            await asyncio.sleep(0.5)
        assert 1 <= len(written) <= 16
        for _ in range(64):
            assert await stream.read() == frame
        assert await stream.read() is None
        assert len(written) == 64
        stream.close()

    play(body)


def test_a_server_that_closes_breaks_what_is_out(play: Callable[[Body], None]) -> None:
    """Calls and streams; whether they were carried out is unknown, so nobody is told that nobody listens."""

    async def body(scene: Scene) -> None:
        begun = asyncio.Event()

        async def slow(_request: bytes) -> bytes:
            begun.set()
            await asyncio.sleep(1_000)
            return b""

        server = await scene.serve({"/t.T/Slow": slow}, {"/t.T/Echo": echo_stream})
        stream = await scene.rpc.open_stream(server, "/t.T/Echo", timeout_ms=CALL_MS)
        call = asyncio.ensure_future(scene.rpc.call(server, "/t.T/Slow", b"", timeout_ms=CALL_MS))
        await begun.wait()
        await scene.stop_serving()
        with pytest.raises(RpcUnavailable) as caught:
            await call
        assert not caught.value.refused
        with pytest.raises(RpcUnavailable):
            await stream.read()

    play(body)


def test_a_caller_that_closes_its_connections(play: Callable[[Body], None]) -> None:
    """What is out ends, and nothing more goes out."""

    async def body(scene: Scene) -> None:
        begun = asyncio.Event()

        async def slow(_request: bytes) -> bytes:
            begun.set()
            await asyncio.sleep(1_000)
            return b""

        server = await scene.serve({"/t.T/Slow": slow, "/t.T/Echo": echo})
        call = asyncio.ensure_future(outcome(scene.rpc.call(server, "/t.T/Slow", b"", timeout_ms=CALL_MS)))
        await begun.wait()
        await scene.rpc.close()
        await scene.rpc.close()
        assert await call is RpcUnavailable
        assert await outcome(scene.rpc.call(server, "/t.T/Echo", b"", timeout_ms=CALL_MS)) is RpcUnavailable
        with pytest.raises(RpcUnavailable):
            await scene.rpc.open_stream(server, "/t.T/Echo", timeout_ms=CALL_MS)

    play(body)


def test_a_taken_port_is_an_os_error(play: Callable[[Body], None]) -> None:
    """And the server that has it goes on."""

    async def body(scene: Scene) -> None:
        server = await scene.serve({"/t.T/Echo": echo})
        with pytest.raises(OSError, match=r"in use"):
            await scene.serve_again(server)
        assert await scene.rpc.call(server, "/t.T/Echo", b"x", timeout_ms=CALL_MS) == b"x"

    play(body)
