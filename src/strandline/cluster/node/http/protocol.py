"""HTTP/1.1 for a handful of small pages, on h11 over an asyncio protocol, so that it runs in the simulator as it is.

A stranger may reach the port: connections are bounded, and so is the time that each of them may take for a request and
for its answer, however the bytes drip. Pages are made in turns, within a time of the loop that is bounded like that of
strangers at Kafka's port, and apart from it (rule A45).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

import h11
import structlog

from strandline.cluster.broker.loop_time import LoopTime
from strandline.cluster.broker.newcomers import Newcomers
from strandline.cluster.security.principal import ANONYMOUS
from strandline.cluster.security.tls_door import ListenerTls
from strandline.proto.ids import Endpoint, address_of, bound_as, peer_of
from strandline.proto.notes import Notes
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.http")

IDLE_S = 30.0
"""A connection without a request for so long is closed; and one whose client takes none of its answer."""

REQUEST_S = 10.0
"""Seconds from the first byte of a request to the last of its body."""

CONNECTIONS_MAX = 100
"""Connections of one node at most. Scrapers and probes are few; with one more, the one goes that was served the
longest time ago, so that whoever comes is heard."""

BODY_BYTES_MAX = 64 * 1024
"""The largest body of a request; pages that are only read drop it."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Routes = Mapping[str, Callable[[], Page]]
"""Path -> what makes its page, at once and without waiting."""

Commands = Mapping[str, Callable[[bytes], Page]]
"""Path -> what takes the body of a POST and makes the answer, at once and without waiting."""


class HttpProtocol(asyncio.Protocol):
    """One connection. GET, HEAD, and POST to commands; what is no HTTP gets 400 and a closed connection.

    Invariant: one timer runs as long as the connection does, and at its end the connection ends.
    """

    principal = ANONYMOUS
    is_stranger = True

    def __init__(self, routes: Routes, commands: Commands, connections: Connections, loop_time: LoopTime) -> None:
        self.host = ""
        self.stranger_ms = 0.0
        self._loop_time = loop_time
        self._awaits_turn = False
        """A whole request is here, and others have the loop's time."""
        self._routes = routes
        self._commands = commands
        self._connections = connections
        self._machine = h11.Connection(h11.SERVER)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asking = False
        """A part of a request is here, and the rest is waited for."""
        self._write_paused = False
        self._next: asyncio.Handle | None = None
        self.where = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new client."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peername = transport.get_extra_info("peername")
        self.where = peer_of(peername)
        self.host = address_of(str(peername[0])) if peername else ""
        self._end_after(IDLE_S)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a client that is gone."""
        self._connections.remove(self)
        self._loop_time.forget(self._have_turn)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._next is not None:
            self._next.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        self._machine.receive_data(data)
        if self._next is None and not self._awaits_turn:
            self._advance()

    def pause_writing(self) -> None:
        """The client does not take its answers: nothing more is read and answered until it does."""
        self._write_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client takes them again."""
        self._write_paused = False
        if self._next is None and not self._awaits_turn:
            self._advance()

    def eof_received(self) -> None:
        """The client sends nothing more; the transport closes once what was answered has left."""
        self._machine.receive_data(b"")

    def close(self) -> None:
        """End the connection once what was written has left, but not later than `IDLE_S`."""
        if self._transport is not None and not self._transport.is_closing():
            self._end_after(IDLE_S)
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _end_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._out_of_time)

    def _out_of_time(self) -> None:
        if self._asking and self._machine.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._asking = False
            self._answer(_text(HTTPStatus.REQUEST_TIMEOUT, f"a whole request within {REQUEST_S:g} s"))
            self.close()
        else:
            self.abort()  # rule A21/readers-that-take-nothing-live-on

    def _await_rest(self) -> None:
        """No whole request is here: the time for one runs from its first byte, whatever comes after it."""
        begun = bool(self._machine.trailing_data[0]) or self._machine.their_state is h11.SEND_BODY
        if begun and not self._asking:  # rule A21/half-requests-live-on
            self._end_after(REQUEST_S)
        self._asking = begun

    def _advance(self) -> None:
        """Answer one request; what came behind it waits, unread, until others had their turn."""
        self._next = None
        try:
            while self._transport is not None and not self._write_paused:
                event = self._machine.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    self._await_rest()
                    self._transport.resume_reading()
                    return
                if isinstance(event, h11.Request):
                    self._request, self._body = event, bytearray()
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > BODY_BYTES_MAX:
                        self._answer(_text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {BODY_BYTES_MAX} bytes"))
                        return
                elif isinstance(event, h11.EndOfMessage):
                    self._asking = False
                    self._connections.served(self)
                    self._await_turn()
                    return
                elif isinstance(event, h11.ConnectionClosed):
                    self.close()
                    return
        except h11.RemoteProtocolError as error:
            self._refuse(error)

    def _await_turn(self) -> None:
        """Answer the request, now or when strangers have their time again."""
        if self._loop_time.admits(self):  # rule A45/pages-at-any-time
            self._loop_time.measured(self, self._serve)
            return
        self._awaits_turn = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._loop_time.wait(self, self._have_turn)

    def _have_turn(self) -> None:
        self._awaits_turn = False
        if self._transport is not None and not self._transport.is_closing():
            self._loop_time.measured(self, self._serve)

    def _serve(self) -> None:
        self._answer(self._page())
        self._go_on_later()

    def _go_on_later(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._next = asyncio.get_running_loop().call_soon(self._advance)

    def _page(self) -> Page:
        assert self._request is not None
        try:
            return self._page_of(self._request)
        except Exception:
            log.exception("internal error: a page could not be made", client=self.where, target=self._request.target)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the page could not be made; the node's log says why")

    def _page_of(self, request: h11.Request) -> Page:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        command = self._commands.get(path)
        if request.method == b"POST" and command is not None:
            return command(bytes(self._body))
        route = self._routes.get(path)
        if request.method not in (b"GET", b"HEAD") and route is not None:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "this page is only read: GET and HEAD")
        if route is None:
            return _text(HTTPStatus.NOT_FOUND, "there are: " + " ".join(sorted(self._routes)))
        return route()

    def _answer(self, page: Page) -> None:
        self._end_after(IDLE_S)
        head_only = self._request is not None and self._request.method == b"HEAD"
        self._send(
            h11.Response(
                status_code=int(page.status),
                reason=page.status.phrase,
                headers=[
                    ("Content-Type", page.content_type),
                    ("Content-Length", str(len(page.body))),
                    ("Cache-Control", "no-store"),
                ],
            )
        )
        if page.body and not head_only:
            self._send(h11.Data(data=page.body))
        self._send(h11.EndOfMessage())
        if self._machine.our_state is h11.MUST_CLOSE or self._machine.their_state is not h11.DONE:
            self.close()
        else:
            self._machine.start_next_cycle()

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._machine.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(_text(HTTPStatus(error.error_status_hint), str(error)))
        self.close()

    def _send(self, event: h11.Event) -> None:
        data = self._machine.send(event)
        if data and self._transport is not None:
            self._transport.write(data)


def _text(status: HTTPStatus, text: str) -> Page:
    return Page(text.encode() + b"\n", status=status)


class Connections:
    """The open connections, the one first that was served the longest time ago; `CONNECTIONS_MAX` at most."""

    def __init__(self, clock: Clock) -> None:
        self._open: dict[HttpProtocol, None] = {}
        self._notes = Notes(clock, log)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: HttpProtocol) -> None:
        """One has come."""
        self._open[connection] = None
        if len(self._open) > CONNECTIONS_MAX:  # rule A21/http-connections-without-number
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._notes.warn("closed an HTTP connection: too many at once", limit=CONNECTIONS_MAX, client=oldest.where)
            oldest.abort()

    def served(self, connection: HttpProtocol) -> None:
        """Note that the connection has asked for something."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def remove(self, connection: HttpProtocol) -> None:
        """Remove a connection that has gone."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """End each once its answers have left."""
        for connection in list(self._open):
            connection.close()


class HttpServer:
    """A listener that serves `routes` and takes `commands`."""

    def __init__(
        self,
        endpoint: Endpoint,
        routes: Routes,
        clock: Clock,
        commands: Commands = MappingProxyType({}),
        tls: ListenerTls | None = None,
    ) -> None:
        self._tls = tls
        self._loop_time = LoopTime(clock)
        self._wanted = endpoint
        self._routes = routes
        self._commands = commands
        self._server: asyncio.AbstractServer | None = None
        self.connections = Connections(clock)

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint to which the listener is bound, once it is started."""
        sockets = getattr(self._server, "sockets", None)
        return self._wanted if not sockets else bound_as(self._wanted, sockets[0].getsockname())

    async def start(self) -> None:
        """Bind and accept. Raises OSError where the address cannot be bound."""
        make: Callable[[], asyncio.BaseProtocol] = self._protocol
        if self._tls is not None:
            make = self._tls.door.wrap(make, self._loop_time)
        make = Newcomers("HTTP", make, self._loop_time)
        self._server = await asyncio.get_running_loop().create_server(make, self._wanted.host, self._wanted.port)

    def _protocol(self) -> HttpProtocol:
        return HttpProtocol(self._routes, self._commands, self.connections, self._loop_time)

    async def close(self) -> None:
        """Stop accepting and end every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._tls is not None:
            self._tls.door.close()
        self.connections.close()
