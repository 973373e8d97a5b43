"""asyncio's TLS below a connection that a listener has accepted, with bounds that hold.

`loop.create_server(ssl=...)` builds the same `SSLProtocol` around a connection. It is built here instead, for three
reasons. The context may change (new certificates). A handshake that fails is seen: asyncio tells nobody, and does not
send the alert that says why. And memory is bounded: asyncio encrypts whatever is written at once, an answer of 50 MB
into a buffer of 50 MB that OpenSSL keeps for the life of the connection, and what waits in the socket's transport
counts nowhere. Here what the socket does not take waits unencrypted and uncopied, and counts
(tests/cluster/security/test_tls_door.py holds each of these against the asyncio that runs). Nor may asyncio's transport
be closed twice: it forgets its connection then, and fails whatever it is asked afterwards (`_Transport`).
"""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections.abc import Callable
from ssl import SSLWantReadError, SSLWantWriteError
from typing import Any, Protocol, cast

from strandline.cluster.security.principal import ANONYMOUS
from strandline.proto.ids import address_of, peer_of
from strandline.proto.kafka.fields import Foreign, foreign_protocol

_Asyncios: Any = sslproto.SSLProtocol
_AsynciosTransport: Any = getattr(sslproto, "_SSLProtocolTransport")  # noqa: B009
_State: Any = getattr(sslproto, "SSLProtocolState")  # noqa: B009  # typeshed knows asyncio's TLS of Python 3.10

RECORD_BYTES = 64 * 1024
"""Bytes read from the socket and encrypted at once: four records of TLS."""

_SCRATCH = bytearray(RECORD_BYTES)
"""Buffer of what was just received, of whichever connection: it is decrypted at once, within `buffer_updated`."""
_SCRATCH_VIEW = memoryview(_SCRATCH)

HANDSHAKE_MS = "handshake_ms"
"""Name by which a transport is asked what its handshake took."""

SHUTDOWN_S = 10.0
"""Seconds that a connection that was closed here may take to send what it still holds, and the peer to say goodbye.
"""

_HANDSHAKE = 0x16
_REFUSAL = bytes((0x15, 3, 1, 0, 2, 2, 10))
"""A fatal alert, unexpected_message. A Kafka client without TLS reads a length of 352 MB: ours, and librdkafka's, say
that TLS is spoken there."""

_HTTP_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"this port speaks TLS: ask for https://\n"
)


class Door(Protocol):
    """Listener that a connection in handshake reports to (`strandline.cluster.security.tls_door`)."""

    def began(self, connection: TlsConnection) -> None:
        """Hear that a client has connected."""

    def entered(self, connection: TlsConnection) -> None:
        """Hear that the handshake is over; the connection is the listener's."""

    def failed(self, connection: TlsConnection, reason: BaseException | str | None) -> None:
        """Hear that the handshake failed."""


class LoopTime(Protocol):
    """Budget of handshakes on the node's loop (`strandline.cluster.broker.loop_time`)."""

    def admits(self, peer: Any) -> bool:
        """Whether work for it may be done now; else it has to wait."""

    def begin(self, peer: Any) -> float:
        """Count from now on; returns what `end` needs."""

    def end(self, peer: Any, began_ms: float) -> None:
        """Until now."""

    def wait(self, peer: Any, call: Callable[[], None]) -> None:
        """Call it once in a later turn."""

    def forget(self, call: Callable[[], None]) -> None:
        """Forget a call that waits no more."""


class _Transport(_AsynciosTransport):  # type: ignore[misc]
    """Transport that the listener's protocol writes to. It may be closed as often as a socket's transport."""

    def close(self) -> None:
        if not self.is_closing():  # rule A18/closed-twice-is-forgotten
            super().close()


class TlsConnection(_Asyncios):  # type: ignore[misc]
    """TLS between a socket's transport and the protocol of a listener.

    Invariants:
        * until the handshake is over the listener's protocol sees nothing of the connection, and its steps are a
          stranger's: where those have had their time, what was received waits, and nothing more is read (rule A26);
        * of what the listener writes no more than `RECORD_BYTES` and the socket transport's own limit are held
          encrypted; `get_write_buffer_size` counts everything that has not left.
    """

    max_size = RECORD_BYTES
    principal = ANONYMOUS
    is_stranger = True
    stranger_ms = 0.0

    def __init__(
        self,
        door: Door,
        app: asyncio.BaseProtocol,
        context: object,
        handshake_s: float,
        loop_time: LoopTime | None = None,
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            app,
            context,
            None,
            server_side=True,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        self._door: Door | None = door
        self._below: asyncio.Transport | None = None
        self._looked = False
        self._spoke: str | None = None
        self._loop_time = loop_time
        self._began_ms: float | None = None
        self._kept = b""
        self.where = "?"
        self.host = ""
        self._ssl_buffer, self._ssl_buffer_view = _SCRATCH, _SCRATCH_VIEW  # asyncio gives each connection its own
        self._set_read_buffer_limits(high=RECORD_BYTES)

    def _get_app_transport(self) -> Any:
        state: Any = self  # asyncio's, which typeshed does not know
        if state._app_transport is None and not state._app_transport_created:
            state._app_transport = _Transport(self._loop, self)
            state._app_transport_created = True
        return super()._get_app_transport()

    def _get_extra_info(self, name: str, default: Any = None) -> Any:
        """asyncio's, and what the handshake took of the loop."""
        return self.stranger_ms if name == HANDSHAKE_MS else super()._get_extra_info(name, default)

    # The handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let a new client shake hands."""
        self._below = cast("asyncio.Transport", transport)
        peername = transport.get_extra_info("peername")
        if peername:
            self.host = address_of(str(peername[0]))
        self.where = peer_of(peername)
        if self._door is not None:
            self._door.began(self)
        self._measured(lambda: super(TlsConnection, self).connection_made(transport))

    def _measured(self, work: Callable[[], None]) -> None:
        """Do it now, and count its time, up to the end of the handshake: what comes behind that is the listener's."""
        if self._loop_time is not None:
            self._began_ms = self._loop_time.begin(self)
        try:
            work()
        finally:
            self._end_measure()

    def _end_measure(self) -> None:
        began_ms, self._began_ms = self._began_ms, None
        if self._loop_time is not None and began_ms is not None:
            self._loop_time.end(self, began_ms)

    def get_buffer(self, n: int) -> memoryview:
        return _SCRATCH_VIEW

    def buffer_updated(self, nbytes: int) -> None:
        if not self._looked:
            self._looked = True
            if _SCRATCH[0] != _HANDSHAKE:
                self._refuse_plain(bytes(_SCRATCH[: min(nbytes, 4)]))
                return
        if self._spoke is not None:
            return
        if self._door is None or self._loop_time is None:
            super().buffer_updated(nbytes)
        elif self._loop_time.admits(self):  # rule A26/handshakes-hold-the-loop
            self._measured(lambda: super(TlsConnection, self).buffer_updated(nbytes))
        elif self._below is not None:
            self._kept = bytes(_SCRATCH[:nbytes])
            self._below.pause_reading()
            self._loop_time.wait(self, self._go_on)

    def _go_on(self) -> None:
        """Let strangers have their turn: the handshake goes on with what was kept."""
        kept, self._kept = self._kept, b""
        if self._loop_time is None or self._below is None or self._below.is_closing():
            return
        _SCRATCH[: len(kept)] = kept
        self._measured(lambda: super(TlsConnection, self).buffer_updated(len(kept)))
        if self._below is not None and not self._below.is_closing() and not self._ssl_reading_paused:
            self._below.resume_reading()

    def _refuse_plain(self, start: bytes) -> None:
        """Refuse a client that does not speak TLS, in its own words, as far as they are known."""
        spoken = foreign_protocol(start)
        self._spoke = spoken.value if spoken is not None else "plaintext"
        if self._below is not None:
            self._below.write(_HTTP_REFUSAL if spoken is Foreign.HTTP_REQUEST else _REFUSAL)
            self._below.close()

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        if handshake_exc is not None and self._below is not None and not self._below.is_closing():
            self._process_outgoing()  # the alert: the peer shall know why
        self._end_measure()
        super()._on_handshake_complete(handshake_exc)
        if self._state is not _State.UNWRAPPED and self._door is not None:
            door, self._door = self._door, None
            door.entered(self)

    def give_up(self) -> None:
        """End the handshake now."""
        if self._below is not None:
            self._below.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._door is None:
            super().connection_lost(exc)
        else:
            self._measured(lambda: super(TlsConnection, self).connection_lost(exc))
        if self._loop_time is not None:
            self._loop_time.forget(self._go_on)
        self._below = None
        if self._door is not None:
            door, self._door = self._door, None
            door.failed(self, self._spoke or exc)

    # What leaves

    def _get_write_buffer_size(self) -> int:
        # rule A18/socket-buffer-counts-nowhere
        below = 0 if self._below is None else self._below.get_write_buffer_size()
        return int(super()._get_write_buffer_size()) + below

    def _do_write(self) -> None:
        """Encrypt what the socket takes; the rest waits as it is."""
        backlog = self._write_backlog
        try:
            while backlog and not self._ssl_writing_paused:  # rule A18/encrypted-at-once
                data = memoryview(backlog[0])
                count = self._sslobj.write(data[:RECORD_BYTES])
                self._write_buffer_size -= count
                if count < len(data):
                    backlog[0] = data[count:]
                else:
                    backlog.popleft()
                self._process_outgoing()
        except (SSLWantReadError, SSLWantWriteError):
            pass
        self._process_outgoing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._state is _State.WRAPPED:
            self._do_write()
        elif self._state is _State.FLUSHING:
            self._do_flush()

    def _do_flush(self) -> None:
        """Flush the goodbye of TLS, behind all that was written."""
        self._do_write()
        if not self._write_backlog:
            super()._do_flush()
