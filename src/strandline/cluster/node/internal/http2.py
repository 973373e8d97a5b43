"""One end, client's or server's, of an HTTP/2 connection between nodes: the h2 library, and a shortcut for DATA frames.

h2 handles the set-up, headers, SETTINGS, PING, WINDOW_UPDATE and RST_STREAM, with all checks. DATA frames, the bulk of
a replication stream, bypass h2: received payload goes from the receive buffer directly to its stream (`grpc_stream`),
and a message is sent in one write. A round trip of a kilobyte costs half of what it costs through h2, and a third of
what it costs through a poller thread (docs/benchmarks.md).

Flow control: the windows for sending are h2's own numbers; this code subtracts sent bytes, and h2 adds what the peer
grants and checks overflows. The windows for receiving are kept here and in the streams: a DATA frame beyond one of them
ends the connection, and bytes that readers have consumed are granted again.

TLS is below this layer (`internal_tls`). A connection that has not agreed on h2 by ALPN, or whose peer is no node of
the cluster, is ended in `connection_made`, before anything is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, cast

import structlog
from h2.errors import ErrorCodes
from h2.events import (
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error

from strandline.cluster.node.internal.grpc_stream import GrpcStream, Violation
from strandline.cluster.node.internal.options import (
    CONNECTION_WINDOW_BYTES,
    CONTROL_FRAME_BYTES_MAX,
    DATA_FRAME_BYTES_MAX,
    KEEPALIVE_S,
    MESSAGE_BYTES_MAX,
    UNPAID_FRAMES_MAX,
    WRITE_BUFFER_BYTES,
    h2_connection,
    name_of,
)
from strandline.cluster.node.internal.status import request_head
from strandline.proto.ids import peer_of
from strandline.proto.ports import RpcUnavailable

log = structlog.get_logger("strandline.internal")

PREFACE_BYTES = 24
DEFAULT_WINDOW_BYTES = 65_535
HEAD_BYTES = 9
DATA, HEADERS, PUSH_PROMISE, GOAWAY, CONTINUATION = 0, 1, 5, 7, 9
END_STREAM, END_HEADERS, PADDED = 1, 4, 8

_HEAD = Struct(">IBI")
"""Head of a frame: length (3 bytes) and type (1 byte), flags, stream id."""
_GOAWAY = Struct(">II")
_WINDOW_UPDATE = Struct(">IBII")
_WINDOW_UPDATE_START = (4 << 8) | 8

_SCRATCH = bytearray(256 * 1024)
"""Receive buffer shared by all connections: its content is processed at once, within `buffer_updated`."""
_SCRATCH_VIEW = memoryview(_SCRATCH)

Accept = Callable[[GrpcStream, str], None]
"""Callback for a stream that the peer has opened: (stream, method)."""

Refuses = Callable[[Mapping[str, Any] | None], str | None]
"""Returns why a peer with this certificate is refused; None: it is accepted."""


class Http2Connection(asyncio.BufferedProtocol):
    """Protocol of one connection: frames, flow control, keep-alive.

    Invariants:
        * the bytes held of a stream are at most its window and one message, those of all streams at most the
          connection's window and one message per stream;
        * whatever bytes the peer sends, the worst that happens is that this connection ends, with one log line.
    """

    def __init__(
        self,
        accept: Accept | None = None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        refuses: Refuses | None = None,
    ) -> None:
        """`accept`: serves streams that the peer opens; None: this is the client's end. `refuses`: checks the peer's
        certificate; None: no TLS."""
        client = self.is_client = accept is None
        self._accept = accept
        self.message_bytes_max = message_bytes_max
        self.h2 = h2_connection(client=client)
        self.streams: dict[int, GrpcStream] = {}
        self.frame_bytes_max = self.h2.max_outbound_frame_size
        """Maximum bytes of a DATA frame to send."""
        self.write_paused = False
        self.broken: RpcUnavailable | None = None
        """Error for which the connection is broken or closed; None: it is open."""
        self.leaving: RpcUnavailable | None = None
        """Error for which no new streams can be opened (GOAWAY of the peer); None: they can."""
        self.paid_frames = UNPAID_FRAMES_MAX
        """Frames without data that the peer may still send now; data in either direction allow more."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.where = "?"
        self.certificate: Mapping[str, Any] | None = None
        self.on_refused: Callable[[str, str], None] | None = None
        """Callback for a refused peer: (address, reason)."""
        self._refuses = refuses
        self._transport: asyncio.Transport | None = None
        self._preface_left = 0 if client else PREFACE_BYTES
        self._corked: list[bytes] | None = None
        self._window = CONNECTION_WINDOW_BYTES
        self._to_grant = 0
        self._rest = bytearray()
        self._need = 0
        self._receiving: GrpcStream | None = None
        self._payload_left = 0
        self._ends_after_payload = False
        self._in_headers = False
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and SETTINGS, and check the peer of a TLS connection. (asyncio sets TCP_NODELAY.)"""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peername = transport.get_extra_info("peername")
        self.where = peer_of(peername)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
        self.flush()
        self._timer = self._loop.call_later(KEEPALIVE_S, self._keep_alive)
        if self._refuses is not None:
            self._look_at_peer(transport, self._refuses)

    def _look_at_peer(self, transport: asyncio.BaseTransport, refuses: Refuses) -> None:
        """End the connection if TLS has not agreed on h2, or if the peer's certificate is refused."""
        self.certificate = transport.get_extra_info("peercert")
        tls = transport.get_extra_info("ssl_object")
        agreed = None if tls is None else tls.selected_alpn_protocol()
        reason = refuses(self.certificate) if agreed == "h2" else f"it speaks {agreed or 'no protocol by ALPN'}, not h2"
        if reason is not None:
            if self.on_refused is not None:
                self.on_refused(self.where, reason)
            self._break(reason, ErrorCodes.INADEQUATE_SECURITY, reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SCRATCH_VIEW

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        if self.broken is not None:
            return
        try:
            self._received(_SCRATCH_VIEW[:nbytes])
        except Violation as error:
            self._end(error.code, str(error))
        except H2Error as error:
            self._end(getattr(error, "error_code", ErrorCodes.PROTOCOL_ERROR), str(error) or type(error).__name__)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake_writers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(str(exc) if exc is not None else "the peer closed the connection")
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    # Receiving

    def _received(self, view: memoryview) -> None:
        rest = self._rest
        if not rest:
            taken = self._take(view)
            if taken < len(view):
                rest += view[taken:]
            return
        rest += view
        if len(rest) < self._need:
            return
        self._rest = bytearray()
        whole = memoryview(rest)
        taken = self._take(whole)
        self._rest += whole[taken:]

    def _take(self, view: memoryview) -> int:
        """Process complete frames, and payload of DATA frames as it arrives; return the number of bytes processed."""
        at, end = 0, len(view)
        if self._preface_left:
            at = min(self._preface_left, end)
            self._preface_left -= at
            self._to_h2(view[:at])
        while at < end and self.broken is None:
            if self._payload_left:
                at += self._take_payload(view[at:])
                continue
            self._need = HEAD_BYTES
            if end - at < HEAD_BYTES:
                break
            start, flags, stream_id = _HEAD.unpack_from(view, at)
            size, kind = start >> 8, start & 0xFF
            is_data = kind == DATA and not self._in_headers
            if size > (DATA_FRAME_BYTES_MAX if is_data else CONTROL_FRAME_BYTES_MAX):  # rule A17/any-frame-is-received
                raise Violation(f"a frame of kind {kind} claims {size} bytes", ErrorCodes.FRAME_SIZE_ERROR)
            if is_data and not flags & PADDED:
                at += HEAD_BYTES
                self._begin_data(stream_id & 0x7FFFFFFF, size, size, flags)
                continue
            self._need = HEAD_BYTES + size
            if end - at < self._need:
                break
            frame = view[at : at + self._need]
            at += self._need
            self._charge()
            if is_data:
                self._padded_data(frame, stream_id & 0x7FFFFFFF, size, flags)
            elif kind == GOAWAY and size >= _GOAWAY.size and not self._in_headers:
                self._peer_leaves(frame)
            else:
                self._control(frame, kind, flags)
        return at if self.broken is None else end

    def _begin_data(self, stream_id: int, size: int, payload: int, flags: int) -> None:
        """Begin a DATA frame: `size` bytes count against the windows, and `payload` bytes of messages follow."""
        self._window -= size
        if self._window < 0:  # rule A17/a-connection-has-no-window
            raise Violation("DATA beyond the connection's window", ErrorCodes.FLOW_CONTROL_ERROR)
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):  # rule A17/data-of-no-stream
                raise Violation(f"DATA on stream {stream_id}, which was never opened", ErrorCodes.PROTOCOL_ERROR)
            self._charge()  # the stream was reset here while this frame was on its way
        else:
            stream.expect_data(size)
            if payload:
                self.paid_frames += 1
            else:
                self._charge()
        self._receiving, self._payload_left = stream, payload
        self._ends_after_payload = bool(flags & END_STREAM)
        if not payload:
            self._payload_ended()

    def _take_payload(self, view: memoryview) -> int:
        size = min(self._payload_left, len(view))
        self._payload_left -= size
        if self._receiving is not None:
            self._receiving.feed(view[:size])
        else:
            # rule A17/data-of-a-lost-stream-are-never-granted
            self.grant(size, 0)  # nobody reads it
        if not self._payload_left:
            self._payload_ended()
        return size

    def _payload_ended(self) -> None:
        stream, self._receiving = self._receiving, None
        if self._ends_after_payload and stream is not None:
            # h2 gets an empty frame that ends the stream, as the payload is not counted in its windows.
            self._to_h2(_HEAD.pack(DATA, END_STREAM, stream.id))

    def _padded_data(self, frame: memoryview, stream_id: int, size: int, flags: int) -> None:
        padding = frame[HEAD_BYTES] if size else 0
        if padding >= size:
            raise Violation("a DATA frame is shorter than its padding", ErrorCodes.PROTOCOL_ERROR)
        payload = size - 1 - padding
        self._begin_data(stream_id, size, payload, flags)
        if self._receiving is not None:
            self._receiving.pad(size - payload)
        else:
            self.grant(size - payload, 0)
        if payload:
            self._take_payload(frame[HEAD_BYTES + 1 : HEAD_BYTES + 1 + payload])

    def _is_idle(self, stream_id: int) -> bool:
        ours = stream_id % 2 == int(self.is_client)
        highest = self.h2.highest_outbound_stream_id if ours else self.h2.highest_inbound_stream_id
        return not 0 < stream_id <= highest

    def _control(self, frame: memoryview, kind: int, flags: int) -> None:
        if kind in {HEADERS, PUSH_PROMISE, CONTINUATION}:
            self._in_headers = not flags & END_HEADERS
        self._to_h2(frame)

    def _charge(self) -> None:
        """Charge the peer for a frame without data. Raises Violation if it sends too many, as in floods of PING,
        SETTINGS, RST_STREAM or CONTINUATION."""
        self.paid_frames -= 1
        if self.paid_frames < 0:  # rule A17/a-flood-is-no-fault
            raise Violation("too many frames that carry no data", ErrorCodes.ENHANCE_YOUR_CALM)

    def _to_h2(self, data: memoryview | bytes) -> None:
        for event in self.h2.receive_data(data):
            self._on_event(event)
        self.flush()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, WindowUpdated):
            if event.stream_id:
                self._stream(event.stream_id, GrpcStream.wake_writer)
            else:
                self._wake_writers()
        elif isinstance(event, RequestReceived) and self._accept is not None:
            stream = self.streams[event.stream_id] = GrpcStream(self, event.stream_id, self.where)
            self._accept(stream, stream.on_request(event.headers))
        elif isinstance(event, (ResponseReceived, TrailersReceived)):
            stream_of = self.streams.get(event.stream_id)
            if stream_of is not None:
                stream_of.on_headers(event.headers)
        elif isinstance(event, StreamEnded):
            self._stream(event.stream_id, GrpcStream.on_end)
        elif isinstance(event, StreamReset):
            lost = self.streams.get(event.stream_id)
            if lost is not None:
                side = "the peer" if event.remote_reset else "this node"
                lost.lose(RpcUnavailable(f"{lost.name}: {side} has reset the stream ({name_of(event.error_code)})"))
        elif isinstance(event, RemoteSettingsChanged):
            self.frame_bytes_max = min(self.h2.max_outbound_frame_size, DATA_FRAME_BYTES_MAX)
            self._wake_writers()

    def _stream(self, stream_id: int, action: Callable[[GrpcStream], None]) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            action(stream)

    def _peer_leaves(self, frame: memoryview) -> None:
        """Handle GOAWAY. h2 would regard the connection as closed, but a server that stops in an orderly way completes
        its open streams; so these go on if the error code is NO_ERROR."""
        last_stream_id, code = _GOAWAY.unpack_from(frame, HEAD_BYTES)
        words = bytes(frame[HEAD_BYTES + _GOAWAY.size :]).decode(errors="replace")[:200]
        reason = f"{name_of(code)}: {words}" if words else name_of(code)
        self.leaving = RpcUnavailable(f"{self.where}: the peer is going away ({reason})")
        if code != ErrorCodes.NO_ERROR:
            self._break(f"the peer has ended the connection ({reason})")
        for stream in list(self.streams.values()):
            if self.is_client and stream.id > (last_stream_id & 0x7FFFFFFF):
                stream.lose(self.leaving)
        if not self.streams:
            self.close()

    # Sending

    def open(self, method: str, where: str) -> GrpcStream:
        """Open a stream; its headers are sent by the next `flush`. Raises RpcUnavailable."""
        for reason in (self.broken, self.leaving):
            if reason is not None:
                raise reason
        try:
            stream_id = self.h2.get_next_available_stream_id()
            self.h2.send_headers(stream_id, request_head(method, where))
        except H2Error as error:
            self.leaving = RpcUnavailable(f"{method} at {where}: no further stream on this connection: {error}")
            raise self.leaving from None
        stream = self.streams[stream_id] = GrpcStream(self, stream_id, f"{method} at {where}")
        return stream

    def write(self, data: bytes) -> None:
        """Send a DATA frame, which allows the peer to send more frames without data (`paid_frames`)."""
        self.paid_frames += 2
        self._send(data)

    def flush(self) -> None:
        """Send the frames that h2 has queued."""
        data = self.h2.data_to_send()
        if data:
            self._send(data)

    def _send(self, data: bytes) -> None:
        if self._corked is not None:
            self._corked.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def cork(self) -> None:
        """Hold back frames until `uncork`, so that headers, message and end of a call are sent in one write."""
        if self._corked is None:
            self._corked = []

    def uncork(self) -> None:
        """Send the frames that were held back. Idempotent."""
        kept, self._corked = self._corked, None
        if kept:
            self._send(b"".join(kept))

    def grant(self, size: int, stream_id: int) -> None:
        """Allow the peer to send `size` more bytes on the connection, and on the stream unless `stream_id` is 0 (the
        stream has ended)."""
        update = _WINDOW_UPDATE.pack(_WINDOW_UPDATE_START, 0, stream_id, size) if stream_id else b""
        self._to_grant += size
        if self._to_grant >= CONNECTION_WINDOW_BYTES // 8:
            update += _WINDOW_UPDATE.pack(_WINDOW_UPDATE_START, 0, 0, self._to_grant)
            self._window += self._to_grant
            self._to_grant = 0
        if update and self.broken is None:
            self._send(update)

    def _wake_writers(self) -> None:
        for stream in list(self.streams.values()):
            stream.wake_writer()

    def forget(self, stream: GrpcStream) -> None:
        """Remove a stream that has ended on both sides."""
        if self._receiving is stream:
            self._receiving = None
        if self.streams.pop(stream.id, None) is not None and self.leaving is not None and not self.streams:
            self.close()

    # The end

    def _keep_alive(self) -> None:
        """Send PING after `KEEPALIVE_S` of silence, and end the connection after twice that: a machine without power
        sends no FIN."""
        if self._transport is None:
            return
        silent_s = self._loop.time() - self._heard_s
        if self.broken is not None or silent_s >= 2 * KEEPALIVE_S:
            self._break(f"the peer was silent for {silent_s:.0f} s (keep-alive)")
            self._transport.abort()
            return
        if silent_s >= KEEPALIVE_S:
            self.h2.ping(bytes(8))
            self.flush()
            silent_s -= KEEPALIVE_S
        self.paid_frames = UNPAID_FRAMES_MAX
        self._timer = self._loop.call_later(KEEPALIVE_S - silent_s, self._keep_alive)

    def _end(self, code: int, reason: str) -> None:
        """Log that the peer violates the protocol, and end the connection with that error."""
        log.warning("an internal connection is ended: its peer breaks the protocol", peer=self.where, reason=reason)
        self._break(f"the peer breaks the protocol: {reason}", code, reason)

    def close(self) -> None:
        """End the connection and every stream on it. Idempotent."""
        self._break("this node has closed the connection")

    def _break(self, reason: str, code: int = ErrorCodes.NO_ERROR, text: str = "") -> None:
        if self.broken is not None:
            return
        self.broken = RpcUnavailable(f"{self.where}: {reason}")
        for stream in list(self.streams.values()):
            stream.lose(self.broken)
        if self._transport is not None and not self._transport.is_closing():
            self.uncork()
            self.flush()  # with the GOAWAY of h2, if it was h2 that found the error
            try:
                self.h2.close_connection(code, text.encode())
            except H2Error:
                pass
            self.flush()
            self._transport.close()
