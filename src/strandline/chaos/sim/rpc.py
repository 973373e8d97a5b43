"""The `Rpc` port over the simulated network: the twin of the gRPC transport, frames instead of HTTP/2.

One connection per peer endpoint carries all calls and streams to it; when it breaks, all of them fail with
`RpcUnavailable`, and the next call connects anew. `refused` is true only when the peer's machine answered that nobody
listens. A cancelled or timed-out call cancels its handler on the server, as gRPC does.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.chaos.sim.network import Network
from strandline.chaos.sim.sockets import Socket
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcRejected, RpcTimeout, RpcUnavailable, StreamHandler, UnaryHandler

if TYPE_CHECKING:
    from strandline.chaos.sim.process import Process

_FRAME_OVERHEAD_BYTES = 24
_STREAM_WINDOW_BYTES = 1 << 20


class _Frame(NamedTuple):
    kind: str
    """call, reply, refuse, cancel | open, accept, data, credit, end"""
    call: int
    text: str
    """The method of a call or an open, the words of a refuse."""
    body: bytes
    credit: int = 0


class _Link:
    """One end of an RPC connection: sends frames, and hands those that arrive to its subclass."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.streams: dict[int, SimStream] = {}
        self.broken: RpcUnavailable | None = None

    def send(self, frame: _Frame) -> None:
        if frame.body:
            self.socket.network.loop.mix(zlib.crc32(frame.body))
        self.socket.send(frame, len(frame.body) + _FRAME_OVERHEAD_BYTES)

    def on_item(self, item: Any, size: int) -> None:
        self.socket.consumed(size)
        self.on_frame(item)

    def on_frame(self, frame: _Frame) -> None:
        stream = self.streams.get(frame.call)
        if stream is None:
            return
        if frame.kind == "data":
            stream.feed(frame.body)
        elif frame.kind == "credit":
            stream.grant(frame.credit)
        elif frame.kind == "end":
            stream.feed(None)

    def on_end(self) -> None:
        self.on_broken(ConnectionResetError(104, "the peer closed the connection"))
        self.socket.close()

    def on_broken(self, error: Exception | None) -> None:
        if self.broken is None:
            self.broken = RpcUnavailable(f"{self.socket.remote[0]}:{self.socket.remote[1]}: {error}")
            self.fail(self.broken)

    def fail(self, error: RpcUnavailable) -> None:
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.fail(error)

    def on_writable(self) -> None:
        """Flow control is per stream."""

    def close(self) -> None:
        self.on_broken(ConnectionError("closed here"))
        self.socket.close()


class SimStream:
    """One side of a bidirectional stream: the `Stream` port."""

    def __init__(self, link: _Link, call: int) -> None:
        self._link = link
        self._call = call
        self._frames: deque[bytes | None] = deque()
        self._credit = _STREAM_WINDOW_BYTES
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._error: RpcUnavailable | None = None
        self._ended = False
        self._closed = False

    async def read(self) -> bytes | None:
        while not self._frames:
            if self._ended or self._closed:
                return None
            if self._error is not None:
                raise self._error
            self._reader = self._link.socket.network.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        frame = self._frames.popleft()
        if frame is None:
            self._ended = True
            return None
        if not self._closed and self._error is None:
            self._link.send(_Frame("credit", self._call, "", b"", len(frame)))
        return frame

    async def write(self, frame: bytes) -> None:
        while self._credit <= 0 and self._error is None and not self._closed and not self._ended:
            self._writer = self._link.socket.network.loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self._error is not None:
            raise self._error
        if self._closed or self._ended:
            raise RpcUnavailable("the stream is closed")
        self._credit -= len(frame)
        self._link.send(_Frame("data", self._call, "", bytes(frame)))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._link.streams.pop(self._call, None)
            if self._error is None and self._link.socket.process.alive:
                self._link.send(_Frame("end", self._call, "", b""))
            self._wake()

    def feed(self, body: bytes | None) -> None:
        """A frame arrived; None is the peer's end."""
        self._frames.append(body)
        if body is None:
            self._link.streams.pop(self._call, None)
        self._wake()

    def grant(self, credit: int) -> None:
        self._credit += credit
        if self._credit > 0 and self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def fail(self, error: RpcUnavailable) -> None:
        """The connection broke: what arrived can still be read, then both directions raise."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


class _ClientLink(_Link):
    """The caller's end."""

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self.pending: dict[int, asyncio.Future[bytes]] = {}

    def on_frame(self, frame: _Frame) -> None:
        if frame.kind in {"reply", "accept", "refuse"}:
            future = self.pending.pop(frame.call, None)
            if future is None or future.done():
                return
            if frame.kind == "refuse":
                future.set_exception(RpcRejected(frame.text))
            else:
                future.set_result(frame.body)
        else:
            super().on_frame(frame)

    def fail(self, error: RpcUnavailable) -> None:
        pending, self.pending = self.pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(error)
        super().fail(error)


class _ServerLink(_Link):
    """The server's end of one client's connection."""

    def __init__(self, socket: Socket, server: SimRpcServer) -> None:
        super().__init__(socket)
        self._server = server
        self._handlers: dict[int, asyncio.Task[None]] = {}

    def on_frame(self, frame: _Frame) -> None:
        if frame.kind == "call":
            self._start(frame.call, self._answer(frame))
        elif frame.kind == "open":
            self._open(frame)
        elif frame.kind == "cancel":
            task = self._handlers.pop(frame.call, None)
            if task is not None:
                task.cancel()
        else:
            super().on_frame(frame)

    def _start(self, call: int, coro: Any) -> None:
        task = self.socket.network.loop.create_task(coro)
        self._handlers[call] = task
        task.add_done_callback(lambda _: self._handlers.pop(call, None))

    async def _answer(self, frame: _Frame) -> None:
        handler = self._server.unary.get(frame.text)
        if handler is None:
            self.send(_Frame("refuse", frame.call, f"unknown method {frame.text}", b""))
            return
        try:
            reply = await handler(frame.body)
        except Exception as error:
            self.send(_Frame("refuse", frame.call, f"{type(error).__name__}: {error}", b""))
        else:
            self.send(_Frame("reply", frame.call, "", bytes(reply)))

    def _open(self, frame: _Frame) -> None:
        handler = self._server.streams.get(frame.text)
        if handler is None:
            self.send(_Frame("refuse", frame.call, f"unknown method {frame.text}", b""))
            return
        stream = self.streams[frame.call] = SimStream(self, frame.call)
        self.send(_Frame("accept", frame.call, "", b""))
        self._start(frame.call, self._serve(handler, stream))

    async def _serve(self, handler: StreamHandler, stream: SimStream) -> None:
        try:
            await handler(stream)
        except RpcUnavailable:
            pass  # the caller is gone: how a stream that was open usually ends
        finally:
            stream.close()

    def fail(self, error: RpcUnavailable) -> None:
        super().fail(error)
        for task in list(self._handlers.values()):
            task.cancel()
        self._server.links.pop(self, None)


@dataclass(eq=False)
class SimRpcServer:
    """A bound RPC port: the `RpcServer` port."""

    network: Network
    process: Process
    unary: Mapping[str, UnaryHandler]
    streams: Mapping[str, StreamHandler]
    endpoint: Endpoint = field(default=Endpoint("", 0))
    links: dict[_ServerLink, None] = field(default_factory=dict)

    def accept(self, socket: Socket) -> None:
        link = _ServerLink(socket, self)
        self.links[link] = None
        socket.attach(link)

    async def close(self) -> None:
        self.network.unbind((self.process.machine.name, self.endpoint.port), self)
        for link in list(self.links):
            link.close()


class SimRpc:
    """The `Rpc` port of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self._links: dict[Endpoint, _ClientLink] = {}
        self._connecting: dict[Endpoint, asyncio.Future[None]] = {}
        self._calls = 0

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        return await self._ask("call", endpoint, method, bytes(request), timeout_ms)

    async def open_stream(self, endpoint: Endpoint, method: str, *, timeout_ms: float) -> SimStream:
        self._process.require_alive()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                link = await self._link(endpoint)
                call = self._next_call()
                stream = link.streams[call] = SimStream(link, call)
                try:
                    await self._exchange(link, _Frame("open", call, method, b""))
                except BaseException:
                    stream.close()
                    link.send(_Frame("cancel", call, "", b""))
                    raise
                return stream
        except TimeoutError:
            raise RpcTimeout(f"{endpoint} {method}: no stream within {timeout_ms:.0f} ms") from None

    async def _ask(self, kind: str, endpoint: Endpoint, method: str, body: bytes, timeout_ms: float) -> bytes:
        self._process.require_alive()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                link = await self._link(endpoint)
                call = self._next_call()
                try:
                    return await self._exchange(link, _Frame(kind, call, method, body))
                except asyncio.CancelledError:
                    link.send(_Frame("cancel", call, "", b""))
                    raise
        except TimeoutError:
            raise RpcTimeout(f"{endpoint} {method}: no answer within {timeout_ms:.0f} ms") from None

    async def _exchange(self, link: _ClientLink, frame: _Frame) -> bytes:
        if link.broken is not None:
            raise link.broken
        future: asyncio.Future[bytes] = self._network.loop.create_future()
        link.pending[frame.call] = future
        link.send(frame)
        try:
            return await future
        finally:
            link.pending.pop(frame.call, None)

    def _next_call(self) -> int:
        self._calls += 1
        return self._calls

    async def _link(self, endpoint: Endpoint) -> _ClientLink:
        """The connection to `endpoint`, opened by whoever needs it first; others wait for that one attempt."""
        while True:
            link = self._links.get(endpoint)
            if link is not None and link.broken is None:
                return link
            attempt = self._connecting.get(endpoint)
            if attempt is None:
                return await self._connect(endpoint)
            await asyncio.wait([attempt])

    async def _connect(self, endpoint: Endpoint) -> _ClientLink:
        done: asyncio.Future[None] = self._network.loop.create_future()
        self._connecting[endpoint] = done
        try:
            socket = await self._network.connect(endpoint.host, endpoint.port)
        except ConnectionRefusedError as error:
            raise RpcUnavailable(str(error), refused=True) from error
        except TimeoutError as error:
            raise RpcUnavailable(str(error)) from error
        except OSError as error:
            raise RpcUnavailable(str(error)) from error
        finally:
            del self._connecting[endpoint]
            if not done.done():
                done.set_result(None)
        link = self._links[endpoint] = _ClientLink(socket)
        socket.attach(link)
        return link

    async def serve(
        self, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> SimRpcServer:
        server = SimRpcServer(self._network, self._process, unary, streams)
        _, port = self._network.bind(self._process, endpoint.host, endpoint.port, server)
        server.endpoint = Endpoint(endpoint.host, port)
        return server

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.close()
