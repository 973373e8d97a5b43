"""The `Rpc` port in memory, on whatever loop runs: for tests of the replica alone, without a simulated world."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcRejected, RpcUnavailable, StreamHandler, UnaryHandler


class MemoryStream:
    """One side of a stream; frames arrive at once, the writer waits while too many are unread."""

    def __init__(self, unread_max: int) -> None:
        self.peer: MemoryStream
        self._unread_max = unread_max
        self._frames: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._broken = False
        self._ended = False
        self.frames_sent = 0
        self.bytes_sent = 0

    async def read(self) -> bytes | None:
        while not self._frames:
            if self._broken:
                raise RpcUnavailable("the connection broke")
            if self._ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        frame = self._frames.popleft()
        peer = self.peer
        if peer._room is not None and not peer._room.done():
            peer._room.set_result(None)
        return frame

    async def read_all(self, take: Callable[[bytes], None]) -> None:
        while (frame := await self.read()) is not None:
            take(frame)

    async def write(self, frame: bytes) -> None:
        peer = self.peer
        while len(peer._frames) >= self._unread_max and not self._ended and not self._broken:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if self._broken or self._ended or peer._ended:
            raise RpcUnavailable("the stream has ended")
        self.frames_sent += 1
        self.bytes_sent += len(frame)
        peer._frames.append(frame)
        peer._wake()

    def _wake(self) -> None:
        for future in (self._waiter, self._room):
            if future is not None and not future.done():
                future.set_result(None)

    def close(self) -> None:
        for side in (self, self.peer):
            side._ended = True
            side._wake()

    def break_off(self) -> None:
        for side in (self, self.peer):
            side._broken = True
            side._frames.clear()
            side._wake()


class MemoryServer:
    def __init__(
        self,
        network: MemoryNetwork,
        endpoint: Endpoint,
        unary: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
    ) -> None:
        self._network = network
        self.endpoint = endpoint
        self.unary = unary
        self.streams = streams

    async def close(self) -> None:
        self._network.servers.pop(self.endpoint, None)


class MemoryNetwork:
    """Who listens where, and which streams are open."""

    def __init__(self) -> None:
        self.servers: dict[Endpoint, MemoryServer] = {}
        self.open: list[tuple[Endpoint, Endpoint, MemoryStream]] = []
        self.blocked: set[tuple[Endpoint, Endpoint]] = set()
        self.handlers: set[asyncio.Task[None]] = set()
        self.unread_max = 64
        """How many frames a stream takes before its writer waits."""

    def rpc(self, endpoint: Endpoint) -> MemoryRpc:
        return MemoryRpc(self, endpoint)

    def cut(self, endpoint: Endpoint) -> None:
        """Break every stream from and to `endpoint`."""
        for client, server, stream in self.open:
            if endpoint in (client, server):
                stream.break_off()
        self.open = [entry for entry in self.open if endpoint not in entry[:2]]

    def block(self, client: Endpoint, server: Endpoint) -> None:
        """Break the streams that `client` opened to `server`, and let it open no others."""
        self.blocked.add((client, server))
        for one, other, stream in self.open:
            if (one, other) == (client, server):
                stream.break_off()


class MemoryRpc:
    """One node's way into the network."""

    def __init__(self, network: MemoryNetwork, endpoint: Endpoint) -> None:
        self._network = network
        self._endpoint = endpoint

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        server = self._network.servers.get(endpoint)
        if server is None:
            raise RpcUnavailable(f"nobody listens at {endpoint}", refused=True)
        if method not in server.unary:
            raise RpcRejected(f"{method} is not served")
        return await server.unary[method](request)

    async def open_stream(self, endpoint: Endpoint, method: str, *, timeout_ms: float) -> MemoryStream:
        network = self._network
        server = network.servers.get(endpoint)
        if server is None or (self._endpoint, endpoint) in network.blocked:
            raise RpcUnavailable(f"nobody listens at {endpoint}", refused=True)
        mine, theirs = MemoryStream(network.unread_max), MemoryStream(network.unread_max)
        mine.peer, theirs.peer = theirs, mine
        network.open.append((self._endpoint, endpoint, mine))
        task = asyncio.get_running_loop().create_task(self._handle(server.streams[method], theirs))
        network.handlers.add(task)
        task.add_done_callback(network.handlers.discard)
        return mine

    async def _handle(self, handler: StreamHandler, stream: MemoryStream) -> None:
        try:
            await handler(stream)
        finally:
            stream.close()

    async def serve(
        self, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> MemoryServer:
        server = self._network.servers[endpoint] = MemoryServer(self._network, endpoint, unary, streams)
        return server

    async def close(self) -> None:
        return None
