"""The listener that Kafka clients connect to."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter

import structlog

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.apis.metadata import PartitionChunks
from strandline.cluster.broker.config import ListenerConfig
from strandline.cluster.broker.connection import KafkaConnection
from strandline.cluster.broker.fetch_sessions import FetchSessions
from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.table import APIS, api_of_other_version
from strandline.proto.ids import Endpoint
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.kafka")

SWEEP_MS_MAX = 5000
"""Idle and stalled connections are looked for this often; only while there are connections."""

CLOSE_GRACE_MS = 2000
"""How long a closing listener waits for its last answers to leave."""


TIME_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of the histogram of answer times; a last bucket takes what is above."""


SOFTWARE_KINDS_MAX = 1000
"""So many names and versions of clients are counted: they say what they like."""

OTHER_VERSION = -1
"""Stands in the metrics for all versions that are not served: ApiVersions is answered in any of 65,536."""

_SERVED = frozenset((api.api.title, version) for api in APIS.values() for version in range(api.first, api.last + 1))


class ApiTimes:
    """How often an API was answered and how long that took, from the whole frame to the answer.

    Attributes:
        counts: answers in each bucket of `TIME_BOUNDS_MS`, and above.
    """

    __slots__ = ("answers", "counts", "ms_max", "ms_total")

    def __init__(self) -> None:
        self.answers = 0
        self.counts = [0] * (len(TIME_BOUNDS_MS) + 1)
        self.ms_total = 0.0
        self.ms_max = 0.0


class ListenerStats:
    """Counters for the metrics; plain numbers that only rise, save `connections`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.connections = 0
        self.bytes_out = 0
        self.refused = 0
        self.idle_closed = 0
        self.apis: dict[tuple[str, int], ApiTimes] = {}
        self.software: Counter[tuple[str, str]] = Counter()

    def software_told(self, name: str, version: str) -> None:
        """A client has said what it is; beyond `SOFTWARE_KINDS_MAX` kinds nothing new is counted."""
        if (name, version) in self.software or len(self.software) < SOFTWARE_KINDS_MAX:
            self.software[name, version] += 1

    def answered(self, context: RequestContext) -> None:
        key = (context.api, context.version)
        if key not in _SERVED:
            key = (context.api, OTHER_VERSION)
        times = self.apis.get(key)
        if times is None:
            times = self.apis[key] = ApiTimes()
        took_ms = self._clock.monotonic_ms() - context.received_ms
        times.answers += 1
        times.counts[bisect_left(TIME_BOUNDS_MS, took_ms)] += 1
        times.ms_total += took_ms
        times.ms_max = max(times.ms_max, took_ms)


class _Seen:
    """What the last sweep saw of a connection."""

    __slots__ = ("bytes_moved", "since_ms", "unsent_bytes")

    def __init__(self, now_ms: float) -> None:
        self.bytes_moved = -1
        self.unsent_bytes = -1
        self.since_ms = now_ms


class KafkaListener:
    """Accepts Kafka clients on one endpoint and serves them from the service.

    Args:
        name: the listener's name; answers name brokers by their endpoints of that name.
        endpoint: where to bind; port 0: any free one.
    """

    def __init__(
        self, service: BrokerService, *, name: str, endpoint: Endpoint, config: ListenerConfig | None = None
    ) -> None:
        self.service = service
        self.name = name
        self.config = config if config is not None else ListenerConfig()
        self.apis: dict[int, ServedApi] = APIS
        self.stats = ListenerStats(service.clock)
        self.fetch_sessions = FetchSessions(service.clock, service.config.fetch_session_slots)
        self.partition_chunks = PartitionChunks()
        self._wanted = endpoint
        self._server: asyncio.Server | None = None
        self._connections: dict[KafkaConnection, _Seen] = {}
        self._going_on: dict[KafkaConnection, None] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None
        self._turn_seen = (0, 0.0)

    @property
    def endpoint(self) -> Endpoint:
        """Where it is bound, once it is started."""
        if self._server is None or not self._server.sockets:
            return self._wanted
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(host, port)

    @property
    def connections(self) -> list[KafkaConnection]:
        """The open connections, oldest first."""
        return list(self._connections)

    async def start(self) -> None:
        """Bind and accept.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: KafkaConnection(self), self._wanted.host, self._wanted.port)

    async def close(self) -> None:
        """Stop accepting, let ready answers leave, close every connection. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
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

    def other_version(self, api: ServedApi, version: int) -> tuple[ServedApi, int]:
        """How to answer a version that is not served. Raises ProtocolError where there is no way."""
        return api_of_other_version(api, version)

    # Connections tell

    def opened(self, connection: KafkaConnection) -> None:
        self._connections[connection] = _Seen(self.service.clock.monotonic_ms())
        self.stats.connections += 1
        if self._server is None:
            connection.abort()
        elif self._sweep_timer is None:
            self._schedule_sweep()

    def goes_on(self, connection: KafkaConnection) -> None:
        """Let a connection that waited go on: one a turn of the loop, so that others are served between them."""
        if not self._going_on:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._going_on[connection] = None

    def _go_on(self) -> None:
        connection = next(iter(self._going_on))
        del self._going_on[connection]
        if self._going_on:
            asyncio.get_running_loop().call_soon(self._go_on)
        connection.go_on()

    def lost(self, connection: KafkaConnection, reason: str) -> None:
        self._connections.pop(connection, None)
        self.fetch_sessions.drop_all_of(connection)
        self.stats.connections -= 1
        if reason:
            self.stats.refused += 1
            log.warning("closed a client's connection", reason=reason, **connection.identity())
        if not self._connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    # Sweeping

    def _schedule_sweep(self) -> None:
        delay_ms = min(SWEEP_MS_MAX, self.config.idle_ms_max / 2, self.config.stalled_ms_max / 2)
        self._sweep_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now_ms = self.service.clock.monotonic_ms()
        for connection, seen in list(self._connections.items()):
            unsent = connection.unsent_bytes
            if (connection.bytes_moved, unsent) != (seen.bytes_moved, seen.unsent_bytes):
                seen.bytes_moved, seen.unsent_bytes, seen.since_ms = connection.bytes_moved, unsent, now_ms
            elif connection.idle:
                connection.release_buffer()
            if now_ms - seen.since_ms >= self.config.idle_ms_max:
                self.stats.idle_closed += 1
                log.info("closed an idle connection", idle_ms=round(now_ms - seen.since_ms), **connection.identity())
                connection.abort()
        memory = self.service.memory
        if memory.answers_over or memory.receive_scarce:
            self._close_stalled(now_ms)
        if self._connections:
            self._schedule_sweep()

    def _stalled(self, now_ms: float) -> list[KafkaConnection]:
        """Who holds memory and does not move, and who makes others wait for their turn with a request that drips in.

        Who waits for memory itself is not to blame.
        """
        number, since_ms = self._turn_seen
        if self.service.memory.turns != number:
            self._turn_seen = (self.service.memory.turns, now_ms)
        dripping = self.service.memory.turns == number and now_ms - since_ms >= self.config.stalled_ms_max
        return [
            connection
            for connection, seen in self._connections.items()
            if (connection.to_blame and now_ms - seen.since_ms >= self.config.stalled_ms_max)
            or (dripping and connection.has_turn)
        ]

    def _close_stalled(self, now_ms: float) -> None:
        """Memory is short, and peers sit on much of it without moving: the largest go, until half will be free."""
        memory = self.service.memory
        surplus = memory.used_bytes - memory.limit_bytes / 2
        stalled = sorted(self._stalled(now_ms), key=lambda connection: connection.held_bytes, reverse=True)
        for number, connection in enumerate(stalled):
            if number > 0 and surplus <= 0:
                return
            surplus -= connection.held_bytes
            log.warning(
                "closed a stalled connection to free memory",
                held_bytes=connection.held_bytes,
                limit_bytes=memory.limit_bytes,
                **connection.identity(),
            )
            connection.abort()
