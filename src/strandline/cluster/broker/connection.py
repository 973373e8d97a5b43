"""One client's connection: frames in, answers out in the order of the requests.

Frames are read in place in a growing buffer (`receive.py`); answers wait in a queue of exchanges until those before
them are there, and leave the node once a loop turn. Reading stops while the client does not take its answers, has too
many requests open, the node's memory budget is used up, or others have their turn of the loop; it goes on by itself.
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
"""Pieces of an answer up to this size are joined before they are written; larger ones are never copied."""


class Listener(Protocol):
    """Listener that accepted a connection, as the connection uses it (`strandline.cluster.broker.listener`).

    Attributes:
        name: which of the node's listeners it is.
        apis: by API key.
        memory: the budget of the node.
        loop_time: what clients take of the node's loop.
        notes: of what clients cause.
        tls: what it knows of clients by their certificates, where it speaks TLS.
        sasl: how they prove who they are, where it speaks SASL.
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
        """A client has connected."""

    def waits_for_room(self) -> None:
        """A connection has more to send than there is room for."""

    def lost(self, connection: Any, reason: str) -> None:
        """A connection has gone; `reason` "" unless it was refused."""


class KafkaConnection(asyncio.BufferedProtocol):
    """The server's side of one connection.

    Invariants:
        * answers leave in the order in which their requests came;
        * what the connection holds of the memory budget is given back when it is lost;
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
        """No request is taken: others wait for one that is being answered, or the client is throttled."""
        self._broken = False
        """The peer is gone, as a write has shown, or is shown out: what else it asked is not answered."""
        self._charged = 0
        self._queued_bytes = 0
        self._flush_scheduled = False
        self._processing = False
        self._awaits_turn = False
        """Others have the loop's time now (`LoopTime`)."""
        self._arrived_ms: float | None = None
        """Since when the frames in the buffer are there and wait for the loop; None: they do not."""
        self._sending = Sending(self)
        self.waiting = False
        """Reading is paused, by this node."""
        self._write_paused = False
        self._reason = ""
        self.port = 0
        self.bytes_moved = 0

    # What the listener's sweep asks

    @property
    def held_bytes(self) -> int:
        """Memory of the budget that this connection holds."""
        return self._in.charged_bytes + self._charged

    @property
    def has_turn(self) -> bool:
        """True if its request may grow beyond the memory budget's limit, and others wait until it is finished."""
        return self.listener.memory.turn is self._in

    @property
    def to_blame(self) -> bool:
        """True if it holds memory that only its peer frees, by sending the rest of a request or by taking answers."""
        return self.unsent_bytes > 0 or (self._in.charged_bytes > 0 and not self.waiting)

    @property
    def receives(self) -> bool:
        """A request is on its way, for which it holds memory of the budget."""
        return self._in.charged_bytes > 0 and not self.waiting

    @property
    def buffer_bytes(self) -> int:
        """Size of the receive buffer."""
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
        """Give back the receive buffer of an idle connection."""
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
        self.peer.is_stranger |= self.peer.stranger_ms > 0  # who never asked for anything goes as it has come
        if self.listener.loop_time.admits(self.peer):  # rule A44/a-thousand-go-at-once
            self._end()
        else:
            self.listener.loop_time.wait(self.peer, self._end)

    def _end(self) -> None:
        self.listener.loop_time.measured(self.peer, self._lost)  # rule A44/ends-take-nobodys-time

    def _lost(self) -> None:
        """Leave nothing of the connection behind."""
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
        """Size of the frame at the start of the buffer with its length, 0 while that is not known."""
        received = self._in
        if received.end - received.start < LENGTH_BYTES:
            return 0
        length: int = INT32.unpack_from(received.view, received.start)[0]
        return max(length, 0) + LENGTH_BYTES

    def _process(self) -> None:
        """Answer the whole frames that are there, now or when this client has its turn."""
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
        """True if there is a whole frame, or what may be none at all: a stranger's, and what only some APIs take."""
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
        """Take and answer frames as long as nothing speaks against it."""
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
        """Stops at an incomplete frame, when the client must first take its answers, or when its slice of time is over.

        Raises ProtocolError.
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
        """Handle one frame; false when it is not there as a whole. Raises ProtocolError for one that cannot be."""
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
        """Begin to answer a request; false where its client must wait before it is taken."""
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
        """A message of SASL that has no header, after SaslHandshake 0."""
        context = RequestContext(self.peer, "", Api.SASL_AUTHENTICATE.title, 0, 0, self.listener.clock.monotonic_ms())
        exchange = Exchange(self, context, False)
        self._exchanges.append(exchange)
        gate.authenticate(exchange, bytes(token), raw=True)

    def run(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Answer an exchange by a coroutine, which is cancelled when the connection is lost."""
        task = asyncio.ensure_future(self.listener.loop_time.timed(self.peer, exchange, exchange.timed(work)))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._ended(exchange, done))

    def run_alone(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """`run`, with reading paused until it has ended, so that the frame stays where it is in the buffer."""

        async def alone() -> None:
            try:
                await work
            finally:
                self.let_go()

        self.hold()  # rule C1/later-requests-pass-one-that-is-packed
        self.run(exchange, alone())

    def in_steps(self, exchange: Exchange, steps: Steps[None]) -> None:
        """Answer an exchange by steps: at once as far as a turn has time, which is enough for most requests; the rest
        in turns, with nothing behind it on this connection meanwhile. Raises ProtocolError."""
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
        """Long work of a coroutine that answers: at once as far as a turn has time, the rest in turns."""
        return await self.listener.loop_time.at_once_or_in_turns(self.peer, steps)

    async def each(self, make: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """What `make` makes of each item of a request, awaited one after the other, a slice of them in a turn."""
        return await self.listener.loop_time.each(self.peer, make, items)

    def hold(self) -> None:
        """Take no further request until `let_go` was called as often."""
        self._held += 1

    def let_go(self) -> None:
        """See `hold`."""
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
        """An exchange has its answer: send it with all others of this loop turn."""
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
        """Send the answers that are next in order."""
        exchanges = self._exchanges
        flushed: list[Exchange] = []
        parts: list[Piece] = []
        size = 0
        while exchanges and exchanges[0].ready:
            exchange = exchanges.popleft()
            flushed.append(exchange)
            parts += exchange.parts
            exchange.parts = []  # the bytes are the transport's alone; the times of the request may end much later
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
            transport.write(memoryview(part))  # what the socket does not take at once is copied once, not twice
        if small:
            transport.write(b"".join(small) if len(small) > 1 else small[0])

    def _account(self) -> None:
        """Charge the budget for what waits to be sent."""
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
        """The budget for answers is used up, and if this connection has no part in that, by far."""
        memory = self.listener.memory
        return memory.answers_over and (
            self._charged > 0 or memory.answers_full or (memory.answers_far_over and self._next_asks_for_much())
        )

    def _next_asks_for_much(self) -> bool:
        """The frame at the start of the buffer is of an API with large answers, as far as it is there."""
        received = self._in
        start = received.start + LENGTH_BYTES
        if received.end < start + 2:
            return False
        api = self.listener.apis.get(int.from_bytes(received.view[start : start + 2], "big", signed=True))
        return api is not None and api.large_answer

    def _wake(self) -> None:
        """Go on, for there is room for answers again; many may have waited for it, each with requests for much."""
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
        """Close after what is answered has been sent; the first reason is logged."""
        if not self._reason and self._transport is not None:
            self._reason = reason
            if not self._processing:
                self._flush()

    def count_software(self) -> None:
        """The client has said what it is."""
        self.listener.stats.count_software(self.peer.software_name, self.peer.software_version)

    def shut(self) -> None:
        """Send what is ready and go, without a log line: the listener closes, or the client is not who it says."""
        if self._transport is not None:
            self._broken = True
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; unsent answers are lost."""
        if self._transport is not None:
            self._transport.abort()

    def identity(self) -> dict[str, Any]:
        """Peer of the connection, for log lines."""
        peer = self.peer
        return {
            "client": f"{peer.host}:{self.port}",
            "software": f"{peer.software_name} {peer.software_version}",
            "listener": peer.listener,
            **({} if peer.principal == ANONYMOUS else {"principal": peer.principal}),
        }
