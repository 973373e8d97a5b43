"""The `Rpc` port over the simulated network: the twin of the gRPC transport, frames instead of HTTP/2.

One connection per peer endpoint carries all calls and streams to it; when it breaks, all of them fail with
`RpcUnavailable`, and the next call connects anew. gRPC's own, as `cluster.node.internal` sets it up, is so here:

- `refused` is true only when the peer's machine answered that nobody listens; after a failed attempt the same error is
  given again for a back-off of 100 to 300 ms, without a new attempt; an attempt gives up after 2 s,
- an idle connection is probed after 5 s, and broken when no answer comes within 5 s more,
- a cancelled or timed-out call cancels its handler on the server,
- a stream's handler learns of a lost peer by its reads (an end, or RpcUnavailable) and is cancelled 5 s later,
- a caller who closes a stream resets it: what it had written last may never be read,
- a request, reply or frame above `MESSAGE_BYTES_MAX` is not sent, and ends its call or its whole stream.

Where the network says so (`Network.lateness`, `repetition`), single calls overtake each other and arrive twice, as they
do when a client repeats what it believes lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from strandline.chaos.sim.network import Network
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.rpc_link import Frame, Link, SimStream
from strandline.chaos.sim.sockets import Socket
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcError, RpcRejected, RpcTimeout, RpcUnavailable, StreamHandler, UnaryHandler

_CONNECT_TIMEOUT_S = 2.0
_BACKOFF_MS = (100, 300)
_HANDLER_GRACE_S = 5.0


class _ClientLink(Link):
    """The caller's end."""

    ending = "reset"

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self.pending: dict[int, asyncio.Future[bytes]] = {}

    def on_frame(self, frame: Frame) -> None:
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


class _ServerLink(Link):
    """The server's end of one client's connection."""

    ending = "end"

    def __init__(self, socket: Socket, server: SimRpcServer) -> None:
        super().__init__(socket)
        self._server = server
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}

    def on_frame(self, frame: Frame) -> None:
        if frame.kind == "call":
            self._arrived(frame)
        elif frame.kind == "open":
            self._open(frame)
        elif frame.kind == "cancel":
            task = self._calls.pop(frame.call, None)
            if task is not None:
                task.cancel()
        else:
            super().on_frame(frame)

    def _arrived(self, frame: Frame) -> None:
        """A call; the network may keep it back behind younger ones, and bring it again."""
        socket = self.socket
        network, route = socket.network, (socket.remote[0], socket.local[0])
        context = socket.process.context
        late_us = network.lateness(*route)
        if late_us:
            network.loop.call_at_us(network.loop.now_us + late_us, self._begin, frame, context=context)
        else:
            self._begin(frame)
        again_us = network.repetition(*route)
        if again_us:
            network.loop.call_at_us(network.loop.now_us + again_us, self._repeat, frame, context=context)

    def _begin(self, frame: Frame) -> None:
        """A call that its caller gave up meanwhile is carried out all the same, unless the connection broke."""
        if self.broken is None:
            self._start(self._calls, frame.call, self._answer(frame))

    def _repeat(self, frame: Frame) -> None:
        handler = self._server.unary.get(frame.text)
        if handler is not None:
            self._start(self._calls, -self.socket.network.loop.next_number(), self._unheard(handler, frame.body))

    async def _unheard(self, handler: UnaryHandler, body: bytes) -> None:
        """A call that arrived again: whatever comes of it, nobody waits for the answer."""
        with suppress(Exception):
            await handler(body)

    def reset(self, stream: SimStream) -> None:
        super().reset(stream)
        self._cancel_later(stream.call)

    def _cancel_later(self, call: int) -> None:
        """A handler that does not notice that its peer is gone is ended in the end."""
        task = self._serving.get(call)
        if task is not None:
            self.socket.network.loop.call_later(_HANDLER_GRACE_S, task.cancel)

    def _start(self, tasks: dict[int, asyncio.Task[None]], call: int, coro: Any) -> None:
        task = tasks[call] = self.socket.network.loop.create_task(coro)
        task.add_done_callback(lambda _: tasks.pop(call, None))

    async def _answer(self, frame: Frame) -> None:
        handler = self._server.unary.get(frame.text)
        if handler is None:
            self.send(Frame("refuse", frame.call, f"unknown method {frame.text}", b""))
            return
        try:
            reply = await handler(frame.body)
        except Exception as error:
            self.send(Frame("refuse", frame.call, f"{type(error).__name__}: {error}", b""))
        else:
            fault = self.too_large(reply)
            self.send(
                Frame("refuse", frame.call, fault, b"") if fault else Frame("reply", frame.call, "", bytes(reply))
            )

    def _open(self, frame: Frame) -> None:
        handler = self._server.streams.get(frame.text)
        if handler is None:
            self.send(Frame("refuse", frame.call, f"unknown method {frame.text}", b""))
            return
        stream = self.streams[frame.call] = SimStream(self, frame.call)
        self.send(Frame("accept", frame.call, "", b""))
        self._start(self._serving, frame.call, self._serve(handler, stream))

    async def _serve(self, handler: StreamHandler, stream: SimStream) -> None:
        try:
            await handler(stream)
        except RpcError:
            pass  # the caller is gone: how a stream that was open usually ends
        finally:
            stream.close()

    def fail(self, error: RpcUnavailable) -> None:
        lost, self.streams = self.streams, {}
        for stream in lost.values():
            self.reset(stream)
        for task in list(self._calls.values()):
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
        self._failures: dict[Endpoint, tuple[float, float, RpcUnavailable]] = {}
        """endpoint -> (no attempt before, last back-off in seconds, what the last attempt met)."""
        self._calls = 0
        self._closed = False

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
                    await self._exchange(link, Frame("open", call, method, b""))
                except BaseException:
                    stream.close()
                    link.send(Frame("cancel", call, "", b""))
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
                    return await self._exchange(link, Frame(kind, call, method, body))
                except asyncio.CancelledError:
                    link.send(Frame("cancel", call, "", b""))
                    raise
        except TimeoutError:
            raise RpcTimeout(f"{endpoint} {method}: no answer within {timeout_ms:.0f} ms") from None

    async def _exchange(self, link: _ClientLink, frame: Frame) -> bytes:
        if link.broken is not None:
            raise link.broken
        fault = link.too_large(frame.body)
        if fault:
            raise RpcRejected(fault)
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
        """The connection to `endpoint`, opened by the first caller; others wait for that one attempt."""
        while True:
            link = self._links.get(endpoint)
            if link is not None and link.broken is None:
                return link
            if self._closed:
                raise RpcUnavailable("this node has closed its connections")
            attempt = self._connecting.get(endpoint)
            if attempt is None:
                return await self._connect(endpoint)
            await asyncio.wait([attempt])

    async def _connect(self, endpoint: Endpoint) -> _ClientLink:
        loop = self._network.loop
        not_before, last_s, failure = self._failures.get(endpoint, (0.0, 0.0, None))
        if failure is not None and loop.time() < not_before:
            raise RpcUnavailable(str(failure), refused=failure.refused)
        done: asyncio.Future[None] = loop.create_future()
        self._connecting[endpoint] = done
        try:
            socket = await self._attempt(endpoint)
        except RpcUnavailable as error:
            first_ms, most_ms = _BACKOFF_MS
            backoff_s = min(max(last_s * 1.6, first_ms / 1000), most_ms / 1000)
            self._failures[endpoint] = (loop.time() + backoff_s * self._network.rng.uniform(0.8, 1.2), backoff_s, error)
            raise
        finally:
            del self._connecting[endpoint]
            if not done.done():
                done.set_result(None)
        self._failures.pop(endpoint, None)
        link = self._links[endpoint] = _ClientLink(socket)
        socket.attach(link)
        return link

    async def _attempt(self, endpoint: Endpoint) -> Socket:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                return await self._network.connect(endpoint.host, endpoint.port)
        except ConnectionRefusedError as error:
            raise RpcUnavailable(str(error), refused=True) from error
        except OSError as error:  # TimeoutError is one
            raise RpcUnavailable(str(error)) from error

    async def serve(
        self, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> SimRpcServer:
        server = SimRpcServer(self._network, self._process, unary, streams)
        _, port = self._network.bind(self._process, endpoint.host, endpoint.port, server)
        server.endpoint = Endpoint(endpoint.host, port)
        return server

    async def close(self) -> None:
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close()
