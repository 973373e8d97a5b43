"""One gRPC stream over an HTTP/2 connection: messages, their flow control, and how it ends. The `Stream` port.

A message goes in as many DATA frames as the windows and the peer's largest frame ask for; what comes is the `Inbox`'s.
A request ends with the end of its half of the stream, a response with trailers and a status.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Protocol

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error

from strandline.cluster.node.internal import status
from strandline.cluster.node.internal.options import STREAM_WINDOW_BYTES
from strandline.proto.ports import RpcError, RpcRejected, RpcUnavailable

PREFIX = Struct(">BI")
"""Compressed or not, length."""


class Violation(Exception):
    """The peer breaks the protocol; `code` is HTTP/2's word for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Inbox:
    """Messages that have come, and a part of one: each is five bytes (compressed or not, length) and its content, in as
    many frames as its sender liked.

    Invariants:
        * what was received and not granted again is at most the window;
        * a message that is not complete is granted again only while the reader waits for it: a peer cannot fill the
          memory of one that does not read.
    """

    __slots__ = ("_goal", "_held", "_message_bytes_max", "_partial", "_unread", "_window", "messages")

    def __init__(self, message_bytes_max: int) -> None:
        self.messages: deque[bytes] = deque()
        self._message_bytes_max = message_bytes_max
        self._partial = bytearray()
        self._goal = 0
        self._window = STREAM_WINDOW_BYTES
        self._held = 0
        self._unread = 0

    @property
    def within_message(self) -> bool:
        """True if a part of a message has come."""
        return bool(self._partial)

    def expect(self, size: int) -> None:
        """A frame of this size begins. Raises Violation."""
        self._window -= size
        if self._window < 0:  # rule A17/a-stream-has-no-window
            raise Violation("DATA beyond the window of its stream", ErrorCodes.FLOW_CONTROL_ERROR)

    def feed(self, view: memoryview) -> None:
        """A part of the payload. Raises CallError for a message that is not taken."""
        self._held += len(view)
        if self._partial:
            self._partial += view
            if len(self._partial) < self._goal:
                return
            whole, self._partial = self._partial, bytearray()
            view = memoryview(whole)
        at, end = 0, len(view)
        self._goal = PREFIX.size
        while end - at >= PREFIX.size:
            compressed, size = PREFIX.unpack_from(view, at)
            if compressed:
                raise status.CallError(status.UNIMPLEMENTED, "Received a compressed message, which was not offered")
            if size > self._message_bytes_max:  # rule A17/a-message-of-any-size
                words = f"Received message larger than max ({size} vs. {self._message_bytes_max})"
                raise status.CallError(status.RESOURCE_EXHAUSTED, words)
            stop = at + PREFIX.size + size
            if stop > end:
                self._goal = stop - at
                break
            self.messages.append(bytes(view[at + PREFIX.size : stop]))
            self._unread += stop - at
            at = stop
        if at < end:
            self._partial += view[at:]

    def take(self) -> bytes:
        """The next message."""
        message = self.messages.popleft()
        self._unread -= len(message) + PREFIX.size
        return message

    def to_grant(self, *, reader_waits: bool, ended: bool) -> int:
        """Bytes that the peer may send again; 0 while that is little, for each grant costs a frame."""
        # rule A17/what-is-not-read-is-granted-again
        kept = self._unread if reader_waits else self._unread + len(self._partial)
        consumed = self._held - kept
        if consumed < STREAM_WINDOW_BYTES // 4 and not ended:
            return 0
        self._held -= consumed
        self._window += consumed
        return consumed

    def padding(self, size: int) -> None:
        """Padding counts against the window, and is granted again at once."""
        self._window += size

    def clear(self) -> int:
        """Nobody reads any more; returns how much was held."""
        self.messages.clear()
        self._partial = bytearray()
        held, self._held, self._unread = self._held, 0, 0
        return held


_FRAME = Struct(">IBI")
"""Length (3 bytes) and kind (DATA is 0), flags, stream."""
_FRAME_AND_PREFIX = Struct(">IBIBI")


class Connection(Protocol):
    """The connection below (`http2`), as its streams use it."""

    h2: H2Connection
    is_client: bool
    frame_bytes_max: int
    message_bytes_max: int
    write_paused: bool
    broken: RpcUnavailable | None
    where: str
    certificate: Mapping[str, Any] | None

    def write(self, data: bytes) -> None:
        """Send frames of DATA."""

    def flush(self) -> None:
        """Send what h2 has to send."""

    def cork(self) -> None:
        """Keep what is sent until `uncork`."""

    def uncork(self) -> None:
        """Send what was kept."""

    def grant(self, size: int, stream_id: int) -> None:
        """The peer may send as much again; on a stream, too, unless it is 0."""

    def forget(self, stream: GrpcStream) -> None:
        """The stream is over."""


class GrpcStream:
    """Either end of a stream. One reader and one writer coroutine at most."""

    __slots__ = (
        "_closed", "_connection", "_ended", "_error", "_h2_stream", "_inbox", "_mid_message", "_reader",
        "_request_ended", "_responded", "_status", "_take", "_writer", "accepted", "id", "name", "on_lost",
    )  # fmt: skip

    def __init__(self, connection: Connection, stream_id: int, name: str) -> None:
        self._connection = connection
        self.id = stream_id
        self.name = name
        self._h2_stream = connection.h2.streams[stream_id]
        self._inbox = Inbox(connection.message_bytes_max)
        self._reader: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._mid_message = False
        self._request_ended = False
        self._responded = False
        self._status: tuple[int, str] | None = None
        self._ended = False
        self._error: RpcError | None = None
        self._closed = False
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the peer's handler has begun, or never will."""
        self.on_lost: Callable[[], object] | None = None
        """Callback for a stream that has ended before its handler did."""

    @property
    def peer(self) -> str:
        """host:port of the other side."""
        return self._connection.where

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Certificate of the other side, where TLS is spoken."""
        return self._connection.certificate

    # What the peer does: called by the connection

    def on_request(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """The method that is asked for; "" when it is no call of gRPC."""
        method = status.method_of(headers)
        if method:
            self.name = f"{method} from {self.name}"
        return method

    def on_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """A response, or its trailers, or both in one. (Trailers of a request say nothing.)"""
        if self._connection.is_client:
            self._responded = True
            self._status = status.status_of(headers)
            _wake(self.accepted)

    def expect_data(self, size: int) -> None:
        """A DATA frame of this size begins. Raises Violation."""
        if self._ended or (self._connection.is_client and not self._responded):  # rule A17/data-after-the-end
            raise Violation(f"DATA on stream {self.id}, where none may come", ErrorCodes.STREAM_CLOSED)
        self._inbox.expect(size)

    def feed(self, view: memoryview) -> None:
        """A part of the payload."""
        try:
            self._inbox.feed(view)
        except status.CallError as error:
            self._refuse_message(error.code, str(error))
            return
        if not self._inbox.messages:
            self._grant_consumed()
        elif self._take is None:
            _wake(self._reader)
        elif self._reader is not None and not self._reader.done():  # whoever reads was not cancelled meanwhile
            self._deliver(self._take, self._reader)

    def _refuse_message(self, code: int, words: str) -> None:
        """A message that is not taken ends the call, as gRPC ends it: nothing of it is kept."""
        if self._connection.is_client:
            self.reset(ErrorCodes.CANCEL)
            self.lose(status.rpc_error(code, words, self.name))
        else:
            self.finish(code, words)
            if self.on_lost is not None:
                self.on_lost()

    def on_end(self) -> None:
        """The peer has ended its half."""
        if self._inbox.within_message:
            self.reset(ErrorCodes.PROTOCOL_ERROR)
            self.lose(RpcUnavailable(f"{self.name}: the peer ended the stream within a message"))
            return
        self._ended = True
        if self._connection.is_client:
            code, words = self._status or (status.UNAVAILABLE, "the peer ended the stream without a status")
            if code != status.OK:
                self._error = status.rpc_error(code, words, self.name)
            if not self._request_ended:
                self.reset(ErrorCodes.CANCEL)
            self._connection.forget(self)
        self._wake_all()

    def lose(self, error: RpcError) -> None:
        """The stream is gone, or its connection: what was not read yet is dropped."""
        if self._error is None:
            self._error = error
        self._release()
        self._connection.forget(self)
        self._wake_all()
        if self.on_lost is not None:
            self.on_lost()

    def wake_writer(self) -> None:
        """Wake the writer: there may be room."""
        _wake(self._writer)

    def _wake_all(self) -> None:
        _wake(self._reader)
        _wake(self._writer)
        _wake(self.accepted)

    # Reading

    async def read(self) -> bytes | None:
        """The next message, or None once the peer has ended its side.

        Raises:
            RpcUnavailable: the connection or the stream broke.
            RpcRejected, RpcTimeout: the status with which the peer ended it.
        """
        while not self._inbox.messages:
            if self._closed:
                raise self._gone()
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            self._grant_consumed()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._inbox.take()
        self._grant_consumed()
        return message

    async def read_all(self, take: Callable[[bytes], None]) -> None:
        """Read all messages as the port does. A task that is woken for each message would take another turn of the
        loop."""
        while self._inbox.messages:
            take(self._inbox.take())
        if not self._closed and self._error is None and not self._ended:
            self._take, self._reader = take, asyncio.get_running_loop().create_future()
            self._grant_consumed()
            try:
                await self._reader
            finally:
                self._take = self._reader = None
        if self._closed:
            raise self._gone()
        if self._error is not None:
            raise self._error

    def _deliver(self, take: Callable[[bytes], None], reader: asyncio.Future[None]) -> None:
        try:
            while self._inbox.messages:
                take(self._inbox.take())
        except Exception as error:
            self._take = None
            if not reader.done():
                reader.set_exception(error)
        self._grant_consumed()

    def _grant_consumed(self) -> None:
        if size := self._inbox.to_grant(reader_waits=self._reader is not None, ended=self._ended):
            self._connection.grant(size, 0 if self._ended else self.id)

    def _release(self) -> None:
        """Nobody reads any more: what is held is the connection's again."""
        held = self._inbox.clear()
        if held:
            self._connection.grant(held, 0)  # rule A17/what-a-lost-stream-held-is-never-granted

    def pad(self, size: int) -> None:
        """Padding counts against the window, and nobody reads it."""
        self._inbox.padding(size)
        self._connection.grant(size, self.id)

    # Writing

    async def write(self, frame: bytes) -> None:
        """Send one message; returns when the transport takes another. Raises RpcUnavailable."""
        connection, stream = self._connection, self._h2_stream
        if self._closed or self._error is not None or (self._ended and connection.is_client):
            raise self._gone()
        size = len(frame)
        if size > connection.message_bytes_max:
            self._refuse_to_send(size, connection.message_bytes_max)
            raise self._gone()
        whole = size + PREFIX.size
        # rule A17/a-writer-overruns-the-stream, rule A17/a-writer-overruns-the-connection
        if (
            connection.write_paused
            or whole > connection.frame_bytes_max
            or whole > connection.h2.outbound_flow_control_window
            or whole > stream.outbound_flow_control_window
        ):
            await self._write_in_pieces(memoryview(PREFIX.pack(0, size) + frame))
            return
        connection.h2.outbound_flow_control_window -= whole
        stream.outbound_flow_control_window -= whole
        connection.write(_FRAME_AND_PREFIX.pack(whole << 8, 0, self.id, 0, size) + frame)

    async def _write_in_pieces(self, data: memoryview) -> None:
        """Write what does not fit into one frame or into the windows, or comes while the socket takes no more."""
        connection, h2, stream = self._connection, self._connection.h2, self._h2_stream
        connection.uncork()  # else what the windows wait for would not leave
        self._mid_message = True
        while data:
            room = min(connection.frame_bytes_max, h2.outbound_flow_control_window, stream.outbound_flow_control_window)
            if room <= 0 or connection.write_paused:
                self._writer = asyncio.get_running_loop().create_future()
                try:
                    await self._writer
                finally:
                    self._writer = None
                if self._closed or self._error is not None or (self._ended and connection.is_client):
                    raise self._gone()
                continue
            piece, data = data[:room], data[room:]
            h2.outbound_flow_control_window -= len(piece)
            stream.outbound_flow_control_window -= len(piece)
            connection.write(b"".join((_FRAME.pack(len(piece) << 8, 0, self.id), piece)))
        self._mid_message = False

    def _refuse_to_send(self, size: int, size_max: int) -> None:
        """A message that the peer would not take ends the call, as gRPC ends it."""
        words = f"Sent message larger than max ({size} vs. {size_max})"
        if self._connection.is_client:
            self.reset(ErrorCodes.CANCEL)
            self.lose(RpcRejected(f"{self.name}: {words}"))
        else:
            self.finish(status.RESOURCE_EXHAUSTED, words)

    def _gone(self) -> RpcUnavailable:
        if isinstance(self._error, RpcUnavailable):
            return self._error
        return RpcUnavailable(f"{self.name}: the stream is {'closed' if self._closed else 'ended by the peer'}")

    async def send_request(self, request: bytes) -> None:
        """The client's half of a call, in one piece. Raises RpcUnavailable."""
        self._connection.cork()
        self._connection.flush()
        try:
            await self.write(request)
            self.end_writing()
        finally:
            self._connection.uncork()

    async def send_reply(self, reply: bytes) -> None:
        """The server's half of a call, in one piece. Raises RpcUnavailable."""
        self._connection.cork()
        try:
            self.respond()
            await self.write(reply)
            self.finish()
        finally:
            self._connection.uncork()

    # The client's half

    async def wait_until_accepted(self) -> None:
        """Return once the peer's handler has begun. Raises the RpcError that ended the stream, if one did."""
        await self.accepted
        if self._error is not None:
            raise self._error

    def end_writing(self) -> None:
        """The request is complete."""
        if self._connection.broken is None and self._error is None and not self._ended:
            self._request_ended = True
            self._connection.h2.end_stream(self.id)
            self._connection.flush()

    # The server's half

    def respond(self) -> None:
        """Tell the caller that its handler begins."""
        if self._closed or self._error is not None:
            return  # it was gone before that
        self._responded = True
        self._send_headers(list(status.RESPONSE_HEAD))

    def finish(self, code: int = status.OK, words: str = "") -> None:
        """End the call with this status. Idempotent: the first one counts."""
        if self._closed or self._error is not None:
            return
        self._closed = True
        if self._mid_message:
            self.reset(ErrorCodes.INTERNAL_ERROR)
        else:
            head = [] if self._responded else [*status.RESPONSE_HEAD]
            self._send_headers(head + status.trailers(code, words), ends=True)
            if not self._ended:
                self.reset(ErrorCodes.NO_ERROR)
        self._release()
        self._connection.forget(self)
        self._wake_all()

    def _send_headers(self, headers: list[tuple[bytes, bytes]], *, ends: bool = False) -> None:
        if self._connection.broken is None:
            self._connection.h2.send_headers(self.id, headers, end_stream=ends)
            self._connection.flush()

    # The end

    def reset(self, code: int) -> None:
        """Tell the peer that nothing more comes and nothing more is wanted, if it does not know."""
        if self._connection.broken is None:
            try:
                self._connection.h2.reset_stream(self.id, code)
            except H2Error:
                return  # it has ended on both sides
            self._connection.flush()

    def close(self) -> None:
        """End the stream now, in both directions. Idempotent."""
        if self._closed:
            return
        if not self._connection.is_client:
            self.finish()
        elif self._error is None and not self._ended:
            self.reset(ErrorCodes.CANCEL)
        self._closed = True
        self._release()
        self._connection.forget(self)
        self._wake_all()
        if self.on_lost is not None:
            self.on_lost()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
