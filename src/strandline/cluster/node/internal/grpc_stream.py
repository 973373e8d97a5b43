"""One gRPC stream over an HTTP/2 connection: its messages, flow control and end. It implements the `Stream` port.

A message is sent in as many DATA frames as the windows and the peer's maximum frame size require; received messages are
assembled in an `Inbox`. A request ends with END_STREAM, a response with trailers that contain a status.
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
"""Prefix of a message: compressed or not (1 byte), length (4 bytes)."""


class Violation(Exception):
    """The peer violates the protocol; `code` is HTTP/2's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Inbox:
    """Received messages of one stream, and the received part of the next one. A message consists of five bytes
    (`PREFIX`) and its content, in any number of frames.

    Invariants:
        * bytes received and not granted to the peer again are at most the window;
        * bytes of an incomplete message are granted again only while a reader waits for it, so that a peer cannot fill
          the memory of a node that does not read.
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
        """True if a part of a message has been received, and the rest is missing."""
        return bool(self._partial)

    def expect(self, size: int) -> None:
        """Count a DATA frame of `size` bytes, which begins, against the window. Raises Violation if it exceeds that."""
        self._window -= size
        if self._window < 0:  # rule A17/a-stream-has-no-window
            raise Violation("DATA beyond the window of its stream", ErrorCodes.FLOW_CONTROL_ERROR)

    def feed(self, view: memoryview) -> None:
        """Add a part of a frame's payload. Raises CallError for a message that is compressed or too large."""
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
        """Remove and return the next message. Raises IndexError if there is none."""
        message = self.messages.popleft()
        self._unread -= len(message) + PREFIX.size
        return message

    def to_grant(self, *, reader_waits: bool, ended: bool) -> int:
        """Count the consumed bytes as granted again, and return their number. Returns 0 while they are few, as each
        grant costs a frame."""
        # rule A17/what-is-not-read-is-granted-again
        kept = self._unread if reader_waits else self._unread + len(self._partial)
        consumed = self._held - kept
        if consumed < STREAM_WINDOW_BYTES // 4 and not ended:
            return 0
        self._held -= consumed
        self._window += consumed
        return consumed

    def padding(self, size: int) -> None:
        """Add `size` bytes of padding to the window again, at once."""
        self._window += size

    def clear(self) -> int:
        """Drop all messages, as nobody reads any more. Returns the number of bytes held."""
        self.messages.clear()
        self._partial = bytearray()
        held, self._held, self._unread = self._held, 0, 0
        return held


_FRAME = Struct(">IBI")
"""Head of an HTTP/2 frame: length (3 bytes) and type (1 byte; DATA is 0), flags, stream id."""
_FRAME_AND_PREFIX = Struct(">IBIBI")


class Connection(Protocol):
    """The HTTP/2 connection (`http2`) as its streams use it."""

    h2: H2Connection
    is_client: bool
    frame_bytes_max: int
    message_bytes_max: int
    write_paused: bool
    broken: RpcUnavailable | None
    where: str
    certificate: Mapping[str, Any] | None

    def write(self, data: bytes) -> None:
        """Send DATA frames."""

    def flush(self) -> None:
        """Send the frames that h2 has queued."""

    def cork(self) -> None:
        """Hold back frames until `uncork`."""

    def uncork(self) -> None:
        """Send the frames that were held back."""

    def grant(self, size: int, stream_id: int) -> None:
        """Allow the peer to send `size` more bytes on the connection, and on the stream unless `stream_id` is 0."""

    def forget(self, stream: GrpcStream) -> None:
        """Remove a stream that has ended."""


class GrpcStream:
    """The client's or the server's end of a stream. At most one coroutine may read, and one may write."""

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
        """Done when the peer's handler has begun, or the stream has ended before that."""
        self.on_lost: Callable[[], object] | None = None
        """Called if the stream ends before its user has finished with it."""

    @property
    def peer(self) -> str:
        """host:port of the peer."""
        return self._connection.where

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Certificate of the peer; None: no TLS."""
        return self._connection.certificate

    # Called by the connection when the peer acts

    def on_request(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the method of a request; "": it is no gRPC call."""
        method = status.method_of(headers)
        if method:
            self.name = f"{method} from {self.name}"
        return method

    def on_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Handle the headers of a response, its trailers, or both in one. (Trailers of a request have no meaning.)"""
        if self._connection.is_client:
            self._responded = True
            self._status = status.status_of(headers)
            _wake(self.accepted)

    def expect_data(self, size: int) -> None:
        """Check and count a DATA frame of `size` bytes, which begins. Raises Violation."""
        if self._ended or (self._connection.is_client and not self._responded):  # rule A17/data-after-the-end
            raise Violation(f"DATA on stream {self.id}, where none may come", ErrorCodes.STREAM_CLOSED)
        self._inbox.expect(size)

    def feed(self, view: memoryview) -> None:
        """Handle a part of a DATA frame's payload."""
        try:
            self._inbox.feed(view)
        except status.CallError as error:
            self._refuse_message(error.code, str(error))
            return
        if not self._inbox.messages:
            self._grant_consumed()
        elif self._take is None:
            _wake(self._reader)
        elif self._reader is not None and not self._reader.done():  # the reader has not been cancelled meanwhile
            self._deliver(self._take, self._reader)

    def _refuse_message(self, code: int, words: str) -> None:
        """End the call because of a refused message, as gRPC does; nothing of the message is kept."""
        if self._connection.is_client:
            self.reset(ErrorCodes.CANCEL)
            self.lose(status.rpc_error(code, words, self.name))
        else:
            self.finish(code, words)
            if self.on_lost is not None:
                self.on_lost()

    def on_end(self) -> None:
        """Handle END_STREAM: the peer has ended its side."""
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
        """End the stream with an error, as it or its connection is lost; messages not read yet are dropped."""
        if self._error is None:
            self._error = error
        self._release()
        self._connection.forget(self)
        self._wake_all()
        if self.on_lost is not None:
            self.on_lost()

    def wake_writer(self) -> None:
        """Wake a waiting writer, as a window or the transport may have room."""
        _wake(self._writer)

    def _wake_all(self) -> None:
        _wake(self._reader)
        _wake(self._writer)
        _wake(self.accepted)

    # Reading

    async def read(self) -> bytes | None:
        """Return the next message, or None once the peer has ended its side.

        Raises:
            RpcUnavailable: the connection or the stream broke.
            RpcRejected, RpcTimeout: the peer ended the stream with an error status.
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
        """Call `take` with all messages, as the port defines. Waking a task for each message would cost one more turn
        of the event loop each."""
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
        """Drop all messages, as nobody reads any more, and grant their bytes to the connection again."""
        held = self._inbox.clear()
        if held:
            self._connection.grant(held, 0)  # rule A17/what-a-lost-stream-held-is-never-granted

    def pad(self, size: int) -> None:
        """Grant `size` bytes of padding again at once; they count against the windows, but nobody reads them."""
        self._inbox.padding(size)
        self._connection.grant(size, self.id)

    # Writing

    async def write(self, frame: bytes) -> None:
        """Send one message; return when the transport accepts more. Raises RpcUnavailable."""
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
        """Write a message that does not fit into one frame or the windows, or while the socket accepts no more."""
        connection, h2, stream = self._connection, self._connection.h2, self._h2_stream
        connection.uncork()  # otherwise frames for whose WINDOW_UPDATE this waits would not be sent
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
        """End the call because of a message that is larger than the peer accepts, as gRPC does."""
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
        """Send the client's side of a call in one write: headers, message, END_STREAM. Raises RpcUnavailable."""
        self._connection.cork()
        self._connection.flush()
        try:
            await self.write(request)
            self.end_writing()
        finally:
            self._connection.uncork()

    async def send_reply(self, reply: bytes) -> None:
        """Send the server's side of a call in one write: headers, message, trailers. Raises RpcUnavailable."""
        self._connection.cork()
        try:
            self.respond()
            await self.write(reply)
            self.finish()
        finally:
            self._connection.uncork()

    # The client's side

    async def wait_until_accepted(self) -> None:
        """Return once the peer's handler has begun. Raises the RpcError that ended the stream, if one did."""
        await self.accepted
        if self._error is not None:
            raise self._error

    def end_writing(self) -> None:
        """Send END_STREAM: the request is complete."""
        if self._connection.broken is None and self._error is None and not self._ended:
            self._request_ended = True
            self._connection.h2.end_stream(self.id)
            self._connection.flush()

    # The server's side

    def respond(self) -> None:
        """Send the response headers, which tell the caller that the handler has begun."""
        if self._closed or self._error is not None:
            return  # the stream has ended before
        self._responded = True
        self._send_headers(list(status.RESPONSE_HEAD))

    def finish(self, code: int = status.OK, words: str = "") -> None:
        """End the call with this status. Idempotent: the first status counts."""
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
        """Send RST_STREAM, unless the stream has ended on both sides or the connection is broken."""
        if self._connection.broken is None:
            try:
                self._connection.h2.reset_stream(self.id, code)
            except H2Error:
                return  # the stream has ended on both sides
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
