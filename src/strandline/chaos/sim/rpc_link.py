"""One end of an RPC connection, and the streams over it. `rpc` makes the caller's end and the server's of it."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from typing import Any, NamedTuple

from strandline.chaos.sim.sockets import Socket
from strandline.proto.ports import RpcError, RpcRejected, RpcUnavailable

FRAME_OVERHEAD_BYTES = 24
_STREAM_WINDOW_BYTES = 1 << 20
_KEEPALIVE_S = 5.0


class Frame(NamedTuple):
    kind: str
    """call, reply, refuse, cancel | open, accept, data, credit, end, reset, abort | ping, pong"""
    call: int
    text: str
    """The method of a call or an open, the words of a refuse or an abort."""
    body: bytes
    credit: int = 0


class Link:
    """One end of an RPC connection: sends frames, and hands those that arrive to its subclass."""

    ending: str
    """How a stream that is closed on this side ends on the other: the server's ends, the caller's resets."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.streams: dict[int, SimStream] = {}
        self.broken: RpcUnavailable | None = None
        self._heard = True
        self._pinged = False
        self._watch()

    def _watch(self) -> None:
        """Keep-alive: a machine that lost its power sends no end of stream."""
        self.socket.network.loop.call_later(_KEEPALIVE_S, self._keep_alive, context=self.socket.process.context)

    def _keep_alive(self) -> None:
        if self.broken is not None:
            return
        if self._pinged and not self._heard:
            self.on_broken(TimeoutError(110, "keepalive ping timed out"))
            self.socket.close(reset=True)
            return
        self._pinged = not self._heard
        if self._pinged:
            self.send(Frame("ping", 0, "", b""))
        self._heard = False
        self._watch()

    def send(self, frame: Frame) -> None:
        if frame.body:
            self.socket.network.loop.mix(zlib.crc32(frame.body))
        self.socket.send(frame, len(frame.body) + FRAME_OVERHEAD_BYTES)

    def on_item(self, item: Any, size: int) -> None:
        self.socket.consumed(size)
        self._heard = True
        if item.kind == "ping":
            self.send(Frame("pong", 0, "", b""))
        else:
            self.on_frame(item)

    def on_frame(self, frame: Frame) -> None:
        stream = self.streams.get(frame.call)
        if stream is None:
            return
        if frame.kind == "data":
            stream.feed(frame.body)
        elif frame.kind == "credit":
            stream.grant(frame.credit)
        elif frame.kind == "end":
            stream.feed(None)
        elif frame.kind == "reset":
            self.reset(stream)
        elif frame.kind == "abort":
            stream.fail(RpcRejected(frame.text))

    def too_large(self, body: bytes) -> str:
        """What gRPC says of a message that it does not send; nothing if it does."""
        size_max = self.socket.network.config.frame_bytes_max
        return f"Sent message larger than max ({len(body)} vs. {size_max})" if len(body) > size_max else ""

    def reset(self, stream: SimStream) -> None:
        """The peer cancelled the stream: unread frames may be gone, and the end looks like one or like a break."""
        rng = self.socket.network.rng
        if rng.random() < 0.5:
            stream.drop_unread()
        if rng.random() < 0.5:
            stream.feed(None)
        else:
            stream.fail(RpcUnavailable("the stream was cancelled"))

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

    def __init__(self, link: Link, call: int) -> None:
        self._link = link
        self.call = call
        self._frames: deque[bytes | None] = deque()
        self._credit = _STREAM_WINDOW_BYTES
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._error: RpcError | None = None
        self._ended = False
        self._closed = False

    async def read(self) -> bytes | None:
        if self._closed:
            raise RpcUnavailable("the stream is closed")
        while not self._frames:
            if self._closed:
                raise RpcUnavailable("the stream was closed")
            if self._ended:
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
            self._link.send(Frame("credit", self.call, "", b"", len(frame)))
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
        fault = self._link.too_large(frame)
        if fault:
            self._give_up(fault)
            raise RpcUnavailable("the stream is closed")
        self._credit -= len(frame)
        self._link.send(Frame("data", self.call, "", bytes(frame)))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._link.streams.pop(self.call, None)
            if self._error is None and self._link.socket.process.alive:
                self._link.send(Frame(self._link.ending, self.call, "", b""))
            self._wake()

    def _give_up(self, fault: str) -> None:
        """A frame that is too large ends the call: the caller's reads say why, the server's end."""
        if self._link.ending == "end":
            self._link.send(Frame("abort", self.call, fault, b""))
            self.feed(None)
        else:
            self._link.send(Frame("end", self.call, "", b""))
            self.fail(RpcRejected(fault))

    def drop_unread(self) -> None:
        """A reset overtakes what was not read yet."""
        self._frames.clear()

    def feed(self, body: bytes | None) -> None:
        """A frame arrived; None is the peer's end."""
        self._frames.append(body)
        if body is None:
            self._link.streams.pop(self.call, None)
        self._wake()

    def grant(self, credit: int) -> None:
        self._credit += credit
        if self._credit > 0 and self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def fail(self, error: RpcError) -> None:
        """The connection broke, or the call did: what arrived can still be read, then both directions raise."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
