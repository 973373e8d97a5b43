"""The listener that Kafka clients connect to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.broker import Broker
from strandline.cluster.broker.config import ListenerConfig
from strandline.cluster.broker.connection import KafkaConnection
from strandline.cluster.broker.newcomers import Newcomers
from strandline.cluster.broker.quotas.client_quotas import ClientQuotas
from strandline.cluster.broker.receive import TLS_ON_PLAINTEXT
from strandline.cluster.broker.sasl import SESSION_OVER, ListenerSasl
from strandline.cluster.broker.slow_requests import SlowRequests
from strandline.cluster.broker.stats import ListenerStats
from strandline.cluster.security.tls_door import ListenerTls
from strandline.proto.ids import Endpoint, bound_as
from strandline.proto.notes import Notes

log = structlog.get_logger("strandline.kafka")

SWEEP_MS_MAX = 5000
"""Maximum milliseconds between sweeps for idle and stalled connections; sweeps run only while there are connections."""

WAITING_SWEEP_MS = 500
"""Maximum milliseconds between sweeps while requests wait for memory."""

RECEIVE_BYTES_PER_S_MIN, SLOW_MS_MAX = 64 * 1024, 1500
"""Minimum rate at which a connection that holds memory must send while others wait for memory, and the milliseconds
below that rate after which it is closed, the slowest first."""

CLOSE_GRACE_MS = 2000
"""Milliseconds that a closing listener waits for its last responses to be sent."""


class _Seen:
    """State of a connection as the last sweep saw it."""

    __slots__ = ("bytes_moved", "bytes_per_s", "counted", "since_ms", "slow_since_ms", "unsent_bytes")

    def __init__(self, now_ms: float) -> None:
        self.bytes_moved = -1
        self.unsent_bytes = -1
        self.counted = False
        self.since_ms = now_ms
        self.bytes_per_s = 0.0
        self.slow_since_ms: float | None = None
        """Time in ms since which a request has arrived more slowly than `RECEIVE_BYTES_PER_S_MIN`; None: it has not."""


class KafkaListener:
    """Accepts Kafka clients on one endpoint and serves them by the broker's handlers.

    Args:
        name: the listener's name; responses name brokers by their endpoints on the listener of this name.
        endpoint: address to bind to; port 0: any free port.
        tls: TLS of the listener; None: connections are in plaintext.
        sasl: SASL authentication of the listener; None: no SASL.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str,
        endpoint: Endpoint,
        config: ListenerConfig | None = None,
        tls: ListenerTls | None = None,
        sasl: ListenerSasl | None = None,
    ) -> None:
        self.memory = broker.memory
        self.loop_time = broker.loop_time
        self.clock = broker.clock
        self.name = name
        self.config = config if config is not None else ListenerConfig()
        self.apis: Mapping[int, ServedApi] = broker.apis
        self.stats = ListenerStats(SlowRequests(broker.clock, self.config.slow_request_ms, log.warning))
        self.tls = tls
        self.sasl = sasl
        self.notes = Notes(broker.clock, log)
        self._broker = broker
        self._wanted = endpoint
        self._server: asyncio.Server | None = None
        self._connections: dict[KafkaConnection, _Seen] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None
        self._turn_seen = (0, 0.0)
        self._swept_ms = 0.0
        self._sweeps_often = False

    @property
    def quotas(self) -> ClientQuotas | None:
        """Client quotas of the broker; None while no quota is set."""
        return self._broker.quotas

    @property
    def endpoint(self) -> Endpoint:
        """Address to which the listener is bound; before `start`, the one that it was given."""
        if self._server is None or not self._server.sockets:
            return self._wanted
        return bound_as(self._wanted, self._server.sockets[0].getsockname())

    @property
    def connections(self) -> list[KafkaConnection]:
        """The open connections, oldest first."""
        return list(self._connections)

    async def start(self) -> None:
        """Bind the address and begin to accept connections.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        make: Callable[[], asyncio.BaseProtocol] = self._connection
        if self.tls is not None:
            make = self.tls.door.wrap(make, self.loop_time)

        def arrive() -> asyncio.BaseProtocol:
            return make() if self.quotas is None else self.quotas.arrivals.protocol(self, make)

        newcomers = Newcomers(self.name, arrive, self.loop_time)
        self._server = await loop.create_server(newcomers, self._wanted.host, self._wanted.port)
        if self.sasl is not None:
            self.sasl.start()

    def _connection(self) -> KafkaConnection:
        return KafkaConnection(self)

    async def close(self) -> None:
        """Stop accepting, send the ready responses, close every connection. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        if self.quotas is not None:
            self.quotas.arrivals.close(self)
        if self.tls is not None:
            self.tls.door.close()
        if self.sasl is not None:
            self.sasl.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if not self._connections:
            return
        self._all_gone = asyncio.get_running_loop().create_future()
        for connection in list(self._connections):
            connection.shut()
        try:
            async with asyncio.timeout(CLOSE_GRACE_MS / 1000):
                await self._all_gone
        except TimeoutError:
            log.warning("clients did not take their last answers", connections=len(self._connections))
            for connection in list(self._connections):
                connection.abort()

    # Called by connections

    def opened(self, connection: KafkaConnection) -> None:
        self._connections[connection] = seen = _Seen(self.clock.monotonic_ms())
        self.stats.connections += 1
        connection.peer.number = self._broker.connection_numbers.next()
        refusal = self._broker.connection_limits.admit(connection.peer.host)
        seen.counted = not refusal
        if refusal:
            self.stats.refused += 1
            self.notes.warn("closed a new connection", refusal, reason=refusal, **connection.identity())
        if self._server is None or refusal:
            connection.abort()
        elif self._sweep_timer is None:
            self._schedule_sweep()

    def turned_away(self, where: str, reason: str) -> None:
        """Count and log a connection that was closed before the listener served it. `where`: the client's address."""
        self.stats.refused += 1
        self.notes.warn("closed a new connection", reason, reason=reason, client=where, listener=self.name)

    def waits_for_room(self) -> None:
        """Sweep more often, as a connection waits for memory: connections that hold memory unused are to be closed."""
        if self._sweep_timer is not None and not self._sweeps_often:
            self._sweep_timer.cancel()
            self._schedule_sweep()

    def lost(self, connection: KafkaConnection, reason: str) -> None:
        seen = self._connections.pop(connection, None)
        if seen is not None and seen.counted:
            self._broker.connection_limits.left(connection.peer.host)  # rule A21/closed-connections-count-on
        if self.sasl is not None:
            self.sasl.left(connection)
        self._broker.connection_lost(connection)
        self.stats.connections -= 1
        if reason:
            self.stats.refused += 1
            gate = connection.peer.sasl
            by_anybody = reason in (TLS_ON_PLAINTEXT, SESSION_OVER) or (gate is not None and not gate.is_open)
            kind = "" if by_anybody else reason
            self.notes.warn("closed a client's connection", kind, reason=reason, **connection.identity())
        if not self._connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    # Sweeping

    def _schedule_sweep(self) -> None:
        delay_ms = min(SWEEP_MS_MAX, self.config.idle_ms_max / 2, self.config.stalled_ms_max / 2)
        self._sweeps_often = self.memory.receivers_wait
        if self._sweeps_often:
            delay_ms = min(delay_ms, WAITING_SWEEP_MS)
        self._swept_ms = self.clock.monotonic_ms()
        self._sweep_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now_ms = self.clock.monotonic_ms()
        for connection, seen in list(self._connections.items()):
            unsent = connection.unsent_bytes
            self._note_rate(connection, seen, now_ms)
            if (connection.bytes_moved, unsent) != (seen.bytes_moved, seen.unsent_bytes):
                seen.bytes_moved, seen.unsent_bytes, seen.since_ms = connection.bytes_moved, unsent, now_ms
            elif connection.idle:
                connection.release_buffer()
            if now_ms - seen.since_ms >= self.config.idle_ms_max:
                self.stats.idle_closed += 1
                idle_ms = round(now_ms - seen.since_ms)
                self.notes.info("closed an idle connection", idle_ms=idle_ms, **connection.identity())
                connection.abort()
        memory = self.memory
        if memory.answers_over or memory.receive_scarce:
            self._close_stalled(now_ms)
        if memory.receivers_wait:
            self._close_slow(now_ms)
        if self._connections:
            self._schedule_sweep()

    def _note_rate(self, connection: KafkaConnection, seen: _Seen, now_ms: float) -> None:
        elapsed_s = max(now_ms - self._swept_ms, 1.0) / 1000
        seen.bytes_per_s = (connection.bytes_moved - max(seen.bytes_moved, 0)) / elapsed_s
        if not connection.receives or seen.bytes_per_s >= RECEIVE_BYTES_PER_S_MIN:
            seen.slow_since_ms = None
        elif seen.slow_since_ms is None:
            seen.slow_since_ms = now_ms

    def _close_slow(self, now_ms: float) -> None:
        """Close slow connections while requests wait for memory: of each payer (`Peer.payer`) the slowest one, and of
        equally slow ones the one that holds most."""
        # rule A27/requests-may-drip
        slow = [
            (seen.bytes_per_s, -connection.held_bytes, number, connection)
            for number, (connection, seen) in enumerate(self._connections.items())
            if seen.slow_since_ms is not None and now_ms - seen.slow_since_ms >= SLOW_MS_MAX
        ]
        gone: set[str] = set()
        for bytes_per_s, _, _, connection in sorted(slow):
            if connection.peer.payer not in gone:
                gone.add(connection.peer.payer)
                log.warning(
                    "closed a slow connection to free memory",
                    held_bytes=connection.held_bytes,
                    bytes_per_s=round(bytes_per_s),
                    least_bytes_per_s=RECEIVE_BYTES_PER_S_MIN,
                    **connection.identity(),
                )
                connection.abort()

    def _stalled(self, now_ms: float) -> list[KafkaConnection]:
        """Return the connections that hold memory and make no progress, and the one whose slow request makes others
        wait for the turn to grow. A connection that waits for memory itself is not counted as stalled.
        """
        number, since_ms = self._turn_seen
        if self.memory.turns != number:
            self._turn_seen = (self.memory.turns, now_ms)
        dripping = self.memory.turns == number and now_ms - since_ms >= self.config.stalled_ms_max
        return [
            connection
            for connection, seen in self._connections.items()
            if (connection.to_blame and now_ms - seen.since_ms >= self.config.stalled_ms_max)
            or (dripping and connection.has_turn)
        ]

    def _close_stalled(self, now_ms: float) -> None:
        """Close stalled connections, those that hold most first, until half of the memory budget will be free."""
        memory = self.memory
        surplus = memory.used_bytes - memory.limit_bytes / 2
        stalled = sorted(self._stalled(now_ms), key=lambda connection: connection.held_bytes, reverse=True)
        for number, connection in enumerate(stalled):
            if number > 0 and surplus <= 0:
                return
            surplus -= connection.held_bytes
            self.notes.warn(
                "closed a stalled connection to free memory",
                held_bytes=connection.held_bytes,
                limit_bytes=memory.limit_bytes,
                **connection.identity(),
            )
            connection.abort()
