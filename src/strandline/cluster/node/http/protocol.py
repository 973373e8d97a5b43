"""HTTP/1.1 server for a few small pages: h11 over an asyncio protocol, which also runs in the simulator.

Untrusted clients may reach the port, so the number of connections is bounded, and so is the time for each request and
its answer, however slowly the bytes arrive. Pages are made in turns, within a bounded share of the event loop's time,
as for untrusted clients at Kafka's port, but counted apart from it (rule A45).
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
"""Seconds after which a connection without a request, or with a client that does not read its answer, is closed."""

REQUEST_S = 10.0
"""Seconds from the first byte of a request to the last of its body."""

CONNECTIONS_MAX = 100
"""Maximum connections of one node. Scrapers and probes are few. One more connection closes the one that has been idle
longest, so that a new client is always served."""

BODY_BYTES_MAX = 64 * 1024
"""Maximum bytes of a request body. GET and HEAD ignore the body."""


@dataclass(frozen=True, slots=True)
class Page:
    """HTTP response."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Routes = Mapping[str, Callable[[], Page]]
"""Path -> function that makes the page. It must not block."""

Commands = Mapping[str, Callable[[bytes], Page]]
"""Path -> function that takes the body of a POST and makes the response. It must not block."""


class HttpProtocol(asyncio.Protocol):
    """One connection. It serves GET and HEAD for pages, and POST for commands. Invalid HTTP gets status 400, and the
    connection is closed.

    Invariant: while the connection is open, one timer runs, which closes the connection when it expires.
    """

    principal = ANONYMOUS
    is_stranger = True

    def __init__(self, routes: Routes, commands: Commands, connections: Connections, loop_time: LoopTime) -> None:
        self.host = ""
        self.stranger_ms = 0.0
        self._loop_time = loop_time
        self._awaits_turn = False
        """True while a complete request waits for its turn of the event loop."""
        self._routes = routes
        self._commands = commands
        self._connections = connections
        self._machine = h11.Connection(h11.SERVER)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asking = False
        """True if a part of a request has arrived, and the rest is awaited."""
        self._write_paused = False
        self._next: asyncio.Handle | None = None
        self.where = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection and start its timer."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peername = transport.get_extra_info("peername")
        self.where = peer_of(peername)
        self.host = address_of(str(peername[0])) if peername else ""
        self._end_after(IDLE_S)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister a closed connection and stop its timer."""
        self._connections.remove(self)
        self._loop_time.forget(self._have_turn)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._next is not None:
            self._next.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and answer a request that is complete."""
        self._machine.receive_data(data)
        if self._next is None and not self._awaits_turn:
            self._advance()

    def pause_writing(self) -> None:
        """Stop reading requests: the client does not read its answers."""
        self._write_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read requests again: the client has read its answers."""
        self._write_paused = False
        if self._next is None and not self._awaits_turn:
            self._advance()

    def eof_received(self) -> None:
        """Handle the end of the client's stream. The transport closes once all answers have been sent."""
        self._machine.receive_data(b"")

    def close(self) -> None:
        """Close the connection once all written bytes have been sent, at most `IDLE_S` later."""
        if self._transport is not None and not self._transport.is_closing():
            self._end_after(IDLE_S)
            self._transport.close()

    def abort(self) -> None:
        """Close the connection now; unsent bytes are lost."""
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
        """Wait for the rest of a request. Its time limit runs from its first byte; later bytes do not extend it."""
        begun = bool(self._machine.trailing_data[0]) or self._machine.their_state is h11.SEND_BODY
        if begun and not self._asking:  # rule A21/half-requests-live-on
            self._end_after(REQUEST_S)
        self._asking = begun

    def _advance(self) -> None:
        """Answer one request. Bytes after it stay unparsed until other connections have had their turn."""
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
        """Answer the request, now or in a later turn of the event loop (`LoopTime`)."""
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
    """Open connections, at most `CONNECTIONS_MAX`, ordered by their last request, the oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._open: dict[HttpProtocol, None] = {}
        self._notes = Notes(clock, log)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: HttpProtocol) -> None:
        """Add a new connection. If there are too many, close the one whose last request is oldest."""
        self._open[connection] = None
        if len(self._open) > CONNECTIONS_MAX:  # rule A21/http-connections-without-number
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._notes.warn("closed an HTTP connection: too many at once", limit=CONNECTIONS_MAX, client=oldest.where)
            oldest.abort()

    def served(self, connection: HttpProtocol) -> None:
        """Note that the connection has just sent a request."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def remove(self, connection: HttpProtocol) -> None:
        """Remove a closed connection."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """Close each connection once its answers have been sent."""
        for connection in list(self._open):
            connection.close()


class HttpServer:
    """HTTP listener that serves the pages `routes` and the commands `commands`."""

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
        """Bind and accept connections. Raises OSError if the address cannot be bound."""
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
