"""One client's connection: frames come in, responses go out in the order of the requests.

Frames are read in place in a growing buffer (`receive.py`). Responses wait in a queue of exchanges until all earlier
ones are ready, and are written to the socket once per turn of the event loop. Reading pauses while the client does not
read its responses, has too many unanswered requests, the node's memory budget is used up, or other clients have their
turn of the loop; it resumes automatically.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import structlog

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.config import ListenerConfig
from strandline.cluster.broker.loop_time import LoopTime
from strandline.cluster.broker.memory import Account, MemoryBudget
from strandline.cluster.broker.quotas.client_quotas import ClientQuotas
from strandline.cluster.broker.receive import ReceiveBuffer, describe_foreign
from strandline.cluster.broker.request import Exchange, Gate, Peer, RequestContext
from strandline.cluster.broker.sasl import ListenerSasl
from strandline.cluster.broker.sending import Sending
from strandline.cluster.broker.stats import ListenerStats
from strandline.cluster.broker.table import in_other_version
from strandline.cluster.security.principal import ANONYMOUS
from strandline.cluster.security.tls_door import ListenerTls
from strandline.cluster.security.tls_transport import HANDSHAKE_MS
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import address_of
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import (
    INT32,
    LENGTH_BYTES,
    REQUEST_HEADER_BYTES_MIN,
    Piece,
    Unencodable,
    read_client_id,
    read_request_header,
)
from strandline.proto.notes import Notes
from strandline.proto.ports import Clock
from strandline.proto.steps import Steps

T = TypeVar("T")
R = TypeVar("R")

log = structlog.get_logger("strandline.kafka")

JOIN_BYTES_MAX = 32 * 1024
"""Maximum bytes of a response's piece that is joined with others for one write; larger pieces are never copied."""


class Listener(Protocol):
    """Listener that accepted a connection, as the connection uses it (`strandline.cluster.broker.listener`).

    Attributes:
        name: the listener's name in the node's configuration.
        apis: the served APIs by API key.
        memory: the memory budget of the node.
        loop_time: accounting of the event loop's time that clients use.
        notes: rate-limited log for events that clients cause.
        tls: TLS of the listener, which maps client certificates to principals; None: no TLS.
        sasl: SASL authentication of the listener; None: no SASL.
    """

    name: str
    config: ListenerConfig
    apis: Mapping[int, ServedApi]
    memory: MemoryBudget
    loop_time: LoopTime
    clock: Clock
    stats: ListenerStats
    notes: Notes
    tls: ListenerTls | None
    sasl: ListenerSasl | None

    @property
    def quotas(self) -> ClientQuotas | None:
        """Quotas of clients; None while none is set."""

    def opened(self, connection: Any) -> None:
        """Register a new connection."""

    def waits_for_room(self) -> None:
        """Note that a connection waits for memory to receive the rest of a request."""

    def lost(self, connection: Any, reason: str) -> None:
        """Unregister a closed connection. `reason`: why this node refused it, or ""."""


class KafkaConnection(asyncio.BufferedProtocol):
    """The server's side of one connection.

    Invariants:
        * responses are sent in the order in which their requests arrived;
        * the connection's share of the memory budget is released when the connection is lost;
        * whatever bytes the peer sends, the worst that happens is that this connection is closed with one log line.
    """

    __slots__ = (
        "_arrived_ms", "_awaits_turn", "_broken", "_charged", "_exchanges", "_flush_scheduled", "_held", "_in",
        "_processing", "_queued_bytes", "_reason", "_sending", "_tasks", "_transport", "_write_paused", "bytes_moved",
        "listener", "peer", "port", "waiting",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.peer = Peer(listener.name, "")
        self._in = ReceiveBuffer(listener.memory, self.peer)
        self._exchanges: deque[Exchange] = deque()
        self._transport: asyncio.Transport | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._held = 0
        """Calls of `hold` not undone yet; no request is taken above 0 (one runs alone, or the client is throttled)."""
        self._broken = False
        """True after a failed write or a shutdown of the connection: remaining requests are not answered."""
        self._charged = 0
        self._queued_bytes = 0
        self._flush_scheduled = False
        self._processing = False
        self._awaits_turn = False
        """True while the connection waits for its turn of the event loop (`LoopTime`)."""
        self._arrived_ms: float | None = None
        """Monotonic time in ms since which the buffered frames wait for the event loop; None: no frames wait."""
        self._sending = Sending(self)
        self.waiting = False
        """True while this node has paused reading from the socket."""
        self._write_paused = False
        self._reason = ""
        self.port = 0
        self.bytes_moved = 0

    # Used by the listener's sweep

    @property
    def held_bytes(self) -> int:
        """Bytes of the node's memory budget that this connection holds."""
        return self._in.charged_bytes + self._charged

    @property
    def has_turn(self) -> bool:
        """True if its request may exceed the memory budget's limit; other connections wait until it is complete."""
        return self.listener.memory.turn is self._in

    @property
    def to_blame(self) -> bool:
        """True if it holds memory that only the peer can free: by sending a request's rest, or by reading responses."""
        return self.unsent_bytes > 0 or (self._in.charged_bytes > 0 and not self.waiting)

    @property
    def receives(self) -> bool:
        """True while a request is being received that holds memory of the budget."""
        return self._in.charged_bytes > 0 and not self.waiting

    @property
    def buffer_bytes(self) -> int:
        """Size of the receive buffer in bytes."""
        return self._in.capacity

    @property
    def idle(self) -> bool:
        """True if nothing is being received, answered or sent."""
        return not self._exchanges and self._in.start == self._in.end and self.unsent_bytes == 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport has not been able to send yet."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def release_buffer(self) -> None:
        """Release the receive buffer of an idle connection."""
        self._in.release()

    # asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = self.peer
        peer.is_stranger = True
        self.listener.loop_time.measured(peer, partial(self._made, cast("asyncio.Transport", transport)))
        peer.is_stranger = peer.sasl is not None

    def _made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.peer.stranger_ms += transport.get_extra_info(HANDSHAKE_MS, 0.0)  # rule A44/handshakes-come-to-nothing
        self._transport.set_write_buffer_limits(high=self.listener.config.write_buffer_bytes)
        peername = transport.get_extra_info("peername")
        if peername:
            self.peer.host, self.port = address_of(str(peername[0])), int(peername[1])
        self.listener.opened(self)
        if self.listener.sasl is not None:
            self.peer.sasl = self.listener.sasl.opened(self)
        elif self.listener.tls is not None:
            principal = self.listener.tls.principal(transport.get_extra_info("peercert"))
            if principal is None:
                self.refuse("no rule of ssl.principal.mapping.rules matches the subject of its certificate")
            else:
                self.peer.principal = principal

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._in.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_moved += nbytes
        self._in.received(nbytes)
        self._process()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._sending.look()
        self._account()
        self._process()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.peer.is_stranger |= self.peer.stranger_ms > 0  # a client that sent no request ends on strangers' time
        if self.listener.loop_time.admits(self.peer):  # rule A44/a-thousand-go-at-once
            self._end()
        else:
            self.listener.loop_time.wait(self.peer, self._end)

    def _end(self) -> None:
        self.listener.loop_time.measured(self.peer, self._lost)  # rule A44/ends-take-nobodys-time

    def _lost(self) -> None:
        """Drop all state of the connection: waits, unanswered exchanges, tasks and charged memory."""
        self.listener.memory.forget(self._process)
        self.listener.memory.forget(self._wake)
        self.listener.loop_time.forget(self._have_turn)
        for exchange in self._exchanges:
            self.listener.stats.slow.lost(exchange)
            if exchange.when_gone is not None:
                exchange.when_gone()
        self._exchanges.clear()
        for task in list(self._tasks):
            task.cancel()
        self._queued_bytes = 0
        self._sending.close()
        self._account()
        self._in.release()
        self.listener.lost(self, self._reason)

    # Requests

    def _frame_bytes(self) -> int:
        """Size in bytes of the frame at the start of the buffer, its length field included; 0 while unknown."""
        received = self._in
        if received.end - received.start < LENGTH_BYTES:
            return 0
        length: int = INT32.unpack_from(received.view, received.start)[0]
        return max(length, 0) + LENGTH_BYTES

    def _process(self) -> None:
        """Handle the complete frames in the buffer, now or when this client has its turn."""
        if self._processing or self._transport is None or self._awaits_turn:
            return
        if self.listener.loop_time.admits(self.peer):
            self._answer_frames()
            return
        if self._has_work():
            self._arrived_ms = self.listener.clock.monotonic_ms()
            self._await_turn()
        self._read_or_pause()

    def _has_work(self) -> bool:
        """True if the buffer begins with a complete frame, or with a frame whose length must be checked at once: any
        frame of an unauthenticated client, and one larger than most APIs accept."""
        size = self._frame_bytes()
        most = 0 if self.peer.is_stranger else self.listener.config.small_request_bytes_max
        return size > 0 and (size <= self._in.end - self._in.start or size > most)

    def _await_turn(self) -> None:
        self._awaits_turn = True
        self.listener.loop_time.wait(self.peer, self._have_turn)

    def _have_turn(self) -> None:
        self._awaits_turn = False
        if self._transport is not None:
            self._answer_frames()

    def _answer_frames(self) -> None:
        """Handle frames within this client's slice of the loop's time, then flush responses and resume reading."""
        loop_time = self.listener.loop_time
        if self.peer.stranger_ms and not self.peer.is_stranger:
            loop_time.proven(self.peer)
        began_ms = loop_time.begin(self.peer)
        if self._arrived_ms is None:  # rule A40/queue-time-is-forgotten
            self._arrived_ms = began_ms
        self._processing = True
        try:
            self._process_frames(began_ms + loop_time.slice_ms(self.peer))
        except ProtocolError as error:
            self.refuse(str(error))
        finally:
            self._processing = False
        if not self._awaits_turn:
            self._arrived_ms = None
        self._flush()
        loop_time.end(self.peer, began_ms)
        self._read_or_pause()

    def _process_frames(self, slice_end_ms: float) -> None:
        """Handle frames until one is incomplete, the client must first read its responses, or its slice has ended.

        Raises ProtocolError for an invalid frame.
        """
        clock = self.listener.clock
        while not self._must_wait():
            if self._reason or self._broken or not self._next_frame():
                return
            if self._must_wait():
                self._flush()
            if clock.monotonic_ms() >= slice_end_ms:  # rule A26/slices-without-end
                if self._has_work():
                    self._await_turn()
                return

    def _go_on_later(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_and_go_on)

    def _next_frame(self) -> bool:
        """Handle one frame. Return False if it is incomplete or must wait. Raises ProtocolError for an invalid one."""
        received = self._in
        start, held = received.start, received.end - received.start
        if held < LENGTH_BYTES:
            return False
        view = received.view
        length: int = INT32.unpack_from(view, start)[0]
        self._check_length(view, start, length, held)
        end = start + LENGTH_BYTES + length
        if end > received.end:
            return False
        received.start = end
        frame = view[start + LENGTH_BYTES : end]
        gate = self.peer.sasl
        if gate is not None and self.peer.is_stranger and gate.counts_too_many():
            self.hold()  # rule A44/who-asks-too-much-may-come-again-at-once
            return False
        if gate is not None and gate.session.is_raw:
            self._take_token(gate, frame)
        else:
            if gate is not None:
                gate.check(frame)
            if not self._handle(frame):
                received.start = start
                return False
        return True

    def _check_length(self, view: memoryview, start: int, length: int, held: int) -> None:
        config, gate = self.listener.config, self.peer.sasl
        least, most, setting = REQUEST_HEADER_BYTES_MIN, config.request_bytes_max, "socket.request.max.bytes"
        if gate is not None and not gate.is_open:  # rule A19/large-frames-of-anybody
            least = 0 if gate.session.is_raw else least
            most, setting = gate.frame_bytes_max, "sasl.server.max.receive.size, before the authentication"
        if not least <= length <= most:
            raise ProtocolError(
                describe_foreign(view[start : start + min(held, 64)])
                or f"a frame of {length} bytes: from {least} to {most} ({setting}) are possible"
            )
        if length > config.small_request_bytes_max and held >= LENGTH_BYTES + 2:
            key = int.from_bytes(view[start + 4 : start + 6], "big", signed=True)
            api = self.listener.apis.get(key)
            if api is None or not api.large:
                name = f"API {key}" if api is None else api.api.title
                raise ProtocolError(
                    f"a request of {length} bytes to {name}, which takes {config.small_request_bytes_max} at most"
                )

    def _handle(self, frame: memoryview) -> bool:
        """Begin to answer a request. Return False if quotas make its client wait first."""
        key, version, correlation_id = read_request_header(frame)
        api = self.listener.apis.get(key)
        if api is None:
            raise ProtocolError(f"API {key} (version {version}) is not served")
        name, answer_api, answer_version = api.api.title, api, version
        if not api.serves(version):
            answer_api, answer_version = in_other_version(api, version)
        client_id, position = "", len(frame)
        if answer_version == version:
            client_id, position = read_client_id(frame, answer_api.api.flexible(version))
        listener = self.listener
        quotas, flexible = listener.quotas, api.api.flexible_answer_header(version)
        if quotas is not None and quotas.must_wait(self, self.peer, name, client_id):
            return False
        now_ms = listener.clock.monotonic_ms()
        context = RequestContext(self.peer, client_id, name, version, correlation_id, now_ms)
        metered = None if quotas is None else quotas.metered(self, context, flexible, len(frame))
        exchange = metered or Exchange(self, context, flexible)
        if self._arrived_ms is not None:
            exchange.arrived_ms = self._arrived_ms
        self._exchanges.append(exchange)
        try:
            answer_api.handle(exchange, frame[position:])
            if metered is not None:
                metered.end_work()
            if not exchange.ready:
                exchange.end_step(listener.clock.monotonic_ms())
        except Exception as error:
            if isinstance(error, ProtocolError) and not isinstance(error, Unencodable):
                raise
            log.exception("internal error: a request failed", api=name, version=version, **self.identity())
            raise ProtocolError(f"{name} v{version} could not be answered") from None
        return True

    def _take_token(self, gate: Gate, token: memoryview) -> None:
        """Handle a SASL token without a request header, as clients send them after SaslHandshake version 0."""
        context = RequestContext(self.peer, "", Api.SASL_AUTHENTICATE.title, 0, 0, self.listener.clock.monotonic_ms())
        exchange = Exchange(self, context, False)
        self._exchanges.append(exchange)
        gate.authenticate(exchange, bytes(token), raw=True)

    def run(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that answers an exchange; it is cancelled when the connection is lost."""
        task = asyncio.ensure_future(self.listener.loop_time.timed(self.peer, exchange, exchange.timed(work)))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._ended(exchange, done))

    def run_alone(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """As `run`, with reading paused until `work` ends, so that the frame stays in place in the buffer."""

        async def alone() -> None:
            try:
                await work
            finally:
                self.let_go()

        self.hold()  # rule C1/later-requests-pass-one-that-is-packed
        self.run(exchange, alone())

    def in_steps(self, exchange: Exchange, steps: Steps[None]) -> None:
        """Answer an exchange by steps: those for which a turn of the loop has time run at once (most requests need no
        more), the rest in later turns, with no later request of this connection meanwhile. Raises ProtocolError."""
        if not self.listener.loop_time.begun(steps):
            # rule A26/long-fetches-hold-the-loop
            self.run_alone(exchange, self._in_turns(exchange, steps))

    async def _in_turns(self, exchange: Exchange, steps: Steps[None]) -> None:
        try:
            await self.listener.loop_time.in_turns(self.peer, steps)
        except Unencodable:
            raise
        except ProtocolError as error:
            exchange.drop_connection(str(error))

    async def stepped(self, steps: Steps[T]) -> T:
        """Run long work of a coroutine: as much as a turn of the loop has time for at once, the rest in later turns."""
        return await self.listener.loop_time.at_once_or_in_turns(self.peer, steps)

    async def each(self, make: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Return the results of `make` for each item, awaited one after the other, in slices of the loop's turns."""
        return await self.listener.loop_time.each(self.peer, make, items)

    def hold(self) -> None:
        """Stop taking requests until `let_go` has been called once for each `hold`."""
        self._held += 1

    def let_go(self) -> None:
        """Undo one `hold`."""
        self._held -= 1
        self._go_on_later()

    def _ended(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            context = exchange.context
            self.listener.notes.error(
                "internal error: a request failed",
                context.api,
                api=context.api,
                version=context.version,
                exc_info=error,
                **self.identity(),
            )
            self.refuse(f"{context.api} v{context.version} could not be answered")

    # Answers

    def answered(self, exchange: Exchange) -> None:
        """Send the response of an exchange, with all others of this turn of the loop."""
        if self._transport is None:
            return
        exchange.answered_ms = now_ms = self.listener.clock.monotonic_ms()
        exchange.end_step(now_ms)
        if self.listener.stats.slow.may_be_slow(now_ms - exchange.arrived_ms, exchange.size):
            exchange.take_detail()
        exchange.forget_explanation()
        self._queued_bytes += exchange.size
        if not self._processing:
            self._go_on_later()

    def _flush_and_go_on(self) -> None:
        self._flush_scheduled = False
        self._flush()
        self._process()

    def _flush(self) -> None:
        """Send the ready responses at the head of the queue, up to the first that is not ready."""
        exchanges = self._exchanges
        flushed: list[Exchange] = []
        parts: list[Piece] = []
        size = 0
        while exchanges and exchanges[0].ready:
            exchange = exchanges.popleft()
            flushed.append(exchange)
            parts += exchange.parts
            exchange.parts = []  # only the transport keeps the bytes; the exchange is kept until they are sent
            size += exchange.size
        if flushed and self._transport is not None:
            now_ms = self.listener.clock.monotonic_ms()
            if parts:
                self._send(self._transport, parts, size)
            self._sending.handed_over(flushed, now_ms)
        self._account()
        if self._reason and self._transport is not None:
            self._transport.close()

    def _send(self, transport: asyncio.Transport, parts: list[Piece], size: int) -> None:
        self._queued_bytes -= size
        self.bytes_moved += size
        self.listener.stats.bytes_out += size
        was_closing = transport.is_closing()
        self._write(transport, parts)
        if transport.is_closing() and not was_closing:
            self._broken = True

    def _write(self, transport: asyncio.Transport, parts: list[Piece]) -> None:
        small: list[Piece] = []
        for part in parts:
            if len(part) <= JOIN_BYTES_MAX:
                small.append(part)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(memoryview(part))  # the transport then copies the unsent rest once, not twice
        if small:
            transport.write(b"".join(small) if len(small) > 1 else small[0])

    def _account(self) -> None:
        """Charge the memory budget for the responses that wait to be sent."""
        held = self._queued_bytes + self.unsent_bytes
        memory = self.listener.memory
        if held > self._charged:
            memory.charge(Account.SEND, held - self._charged)
        elif held < self._charged:
            memory.release(Account.SEND, self._charged - held)
        self._charged = held

    # Back pressure and closing

    def _must_wait(self) -> bool:
        config = self.listener.config
        # rule A21/the-throttled-are-read-on
        return (
            self._awaits_turn
            or self._write_paused
            or self._held > 0
            or len(self._exchanges) >= config.requests_in_flight_max
            or self._queued_bytes >= config.queued_bytes_max
            or self._answers_must_wait()
        )

    def _answers_must_wait(self) -> bool:
        """True if the memory for responses is used up too far for this connection's next request. A connection that
        holds no responses is stopped at higher limits (see `memory`)."""
        memory = self.listener.memory
        return memory.answers_over and (
            self._charged > 0 or memory.answers_full or (memory.answers_far_over and self._next_asks_for_much())
        )

    def _next_asks_for_much(self) -> bool:
        """True if the frame at the start of the buffer, complete or not, is of an API with large responses."""
        received = self._in
        start = received.start + LENGTH_BYTES
        if received.end < start + 2:
            return False
        api = self.listener.apis.get(int.from_bytes(received.view[start : start + 2], "big", signed=True))
        return api is not None and api.large_answer

    def _wake(self) -> None:
        """Go on when there is room for responses again: in a turn, as many connections may wake at the same time."""
        if not self._awaits_turn:
            self._await_turn()

    def _read_or_pause(self) -> None:
        transport = self._transport
        if transport is None or self._reason:
            return
        memory = self.listener.memory
        wait = self._must_wait()
        if wait:
            if self._answers_must_wait():
                memory.when_answers_fit(self._wake)
        elif not self._in.make_room(self._frame_bytes()):
            wait = True
            memory.when_may_grow(self.peer.payer, self._process)
            self.listener.waits_for_room()
        if wait != self.waiting:
            self.waiting = wait
            if wait:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def refuse(self, reason: str) -> None:
        """Close the connection after the ready responses have been sent; the first reason is logged."""
        if not self._reason and self._transport is not None:
            self._reason = reason
            if not self._processing:
                self._flush()

    def count_software(self) -> None:
        """Count the client's software name and version, which it has sent in ApiVersions."""
        self.listener.stats.count_software(self.peer.software_name, self.peer.software_version)

    def shut(self) -> None:
        """Send the ready responses and close, without a log line (the listener closes, or authentication failed)."""
        if self._transport is not None:
            self._broken = True
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; unsent responses are lost."""
        if self._transport is not None:
            self._transport.abort()

    def identity(self) -> dict[str, Any]:
        """Return fields that identify the peer in log lines: address, software, listener, principal."""
        peer = self.peer
        return {
            "client": f"{peer.host}:{self.port}",
            "software": f"{peer.software_name} {peer.software_version}",
            "listener": peer.listener,
            **({} if peer.principal == ANONYMOUS else {"principal": peer.principal}),
        }
