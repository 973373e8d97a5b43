"""A broker's client quotas: requests are measured, responses tell the throttle time, and the connection is muted for
that time, which means that nothing is read from it (KIP-219).

A produce request is counted when it arrives, and mutes at once, as further ones may follow. As in Kafka, a fetch is
counted by the records in its response, and the time of any request when it is answered. Changes of the metadata are
limited by `controller_mutation_rate` (KIP-599, Kafka's ControllerMutationQuota).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Mapping
from math import ceil
from typing import Any, NamedTuple, Protocol

from strandline.cluster.broker.quotas.arrivals import Arrivals
from strandline.cluster.broker.quotas.limits import Limits, Share
from strandline.cluster.broker.quotas.rate_quota import THROTTLE_MS_MAX, RateQuota, TokenQuota
from strandline.cluster.broker.request import FREE, Charge, Connection, Exchange, Peer, RequestContext
from strandline.cluster.broker.table import BY_TITLE
from strandline.controller.metadata.quotas import QuotasImage
from strandline.proto.kafka.apis import Api
from strandline.proto.ports import Clock
from strandline.proto.quotas import NAME_CHARS_MAX, QuotaKey
from strandline.proto.rates import WindowShape

EXEMPT = frozenset({Api.SASL_HANDSHAKE.title, Api.SASL_AUTHENTICATE.title})
"""APIs that no quota counts: authentication at the start and re-authentication (KIP-368)."""

_MS_TO_PERCENT = 100.0 / 1000


class ClientQuotas:
    """Quotas of clients on this broker, what clients use of them, and the muted connections.

    Attributes:
        rates: quotas measured as rates over windows, by key.
        mutations, mutation_limits: tokens and quotas of controller_mutation_rate.
        mutes: the muted connections.
        arrivals: new connections that wait to be served (connection_creation_rate).
    """

    def __init__(self, shape: WindowShape, clock: Clock) -> None:
        self.clock = clock
        self.mutes = Mutes()
        self.mutations = TokenQuota(shape)
        self.mutation_limits = Limits({}, "")
        self.arrivals = Arrivals(shape, clock)
        self.rates: Mapping[QuotaKey, RateQuota] = {
            QuotaKey.PRODUCER_BYTE_RATE: RateQuota(shape),
            QuotaKey.CONSUMER_BYTE_RATE: RateQuota(shape),
            # One window at most, as in Kafka: the cost of a request is not the client's choice alone.
            QuotaKey.REQUEST_PERCENTAGE: RateQuota(shape, throttle_ms_max=shape.size_ms),
        }

    def set(self, quotas: QuotasImage) -> None:
        """Use these quotas from now on. Measured rates stay; muted connections are unmuted, and their next requests are
        judged by the new quotas."""
        for key, rate in self.rates.items():
            rate.limits = Limits(quotas, key)
            rate.let_go()
        self.mutation_limits = Limits(quotas, QuotaKey.CONTROLLER_MUTATION_RATE)
        self.arrivals.set(quotas)
        self.mutes.end_all()

    def measures(self) -> Mapping[QuotaKey, RateQuota | TokenQuota]:
        """Return all measured quotas by key, for the metrics."""
        tokens = {
            QuotaKey.CONTROLLER_MUTATION_RATE: self.mutations,
            QuotaKey.CONNECTION_CREATION_RATE: self.arrivals.quota,
        }
        return {**self.rates, **tokens}

    def must_wait(self, connection: Connection, peer: Peer, api: str, client_id: str) -> bool:
        """Return whether a request must wait because its share is above request_percentage, on any connection; then
        this connection is muted for the same time. Otherwise a client with many connections would get one more request
        on each in every window."""
        if peer.is_stranger or api in EXEMPT:
            return False
        now_ms = self.clock.monotonic_ms()
        requests = self.rates[QuotaKey.REQUEST_PERCENTAGE]
        wait_ms = requests.wait_ms(*_names(peer.principal, client_id), now_ms)
        if wait_ms <= 0:  # rule A21/each-connection-has-one-more-request
            return False
        self.mutes.mute(connection, wait_ms, now_ms)
        return True

    def metered(
        self, connection: Connection, context: RequestContext, flexible_header: bool, frame_bytes: int
    ) -> MeteredExchange | None:
        """Return the exchange of a new request, or None if no quota applies to it."""
        gate = context.peer.sasl
        if context.api in EXEMPT or (gate is not None and not gate.is_open):
            return None
        return MeteredExchange(self, connection, context, flexible_header, frame_bytes)


def _names(principal: str, client_id: str) -> tuple[str, str]:
    """Return (user, client.id), cut to the length that quotas remember: a client.id may be as long as a frame."""
    # rule A21/names-of-any-length-are-remembered
    return principal.partition(":")[2][:NAME_CHARS_MAX], client_id[:NAME_CHARS_MAX]


class MeteredExchange(Exchange):
    """A request that is measured for quotas."""

    __slots__ = ("_began_ms", "_busy_ms", "_client", "_quotas", "_until_ms")

    def __init__(
        self,
        quotas: ClientQuotas,
        connection: Connection,
        context: RequestContext,
        flexible_header: bool,
        frame_bytes: int,
    ) -> None:
        super().__init__(connection, context, flexible_header)
        self._quotas = quotas
        self._client = _names(context.principal, context.client_id)
        now_ms = quotas.clock.monotonic_ms()
        self._began_ms: float | None = now_ms
        self._busy_ms = 0.0
        self._until_ms = now_ms
        if context.api == Api.PRODUCE.title:
            produced = quotas.rates[QuotaKey.PRODUCER_BYTE_RATE]
            # rule A21/what-is-on-its-way-is-free
            self._mute(produced.record(*self._client, frame_bytes, now_ms), now_ms)

    def throttle_ms(self) -> int:
        now_ms = self._quotas.clock.monotonic_ms()
        requests = self._quotas.rates[QuotaKey.REQUEST_PERCENTAGE]
        self._mute(requests.record(*self._client, self._percent_seconds(now_ms), now_ms), now_ms)
        return self._left_ms(now_ms)

    def throttle_fetch(self, records_bytes: int) -> tuple[int, bool]:
        self.throttle_ms()
        now_ms = self._quotas.clock.monotonic_ms()
        fetched = self._quotas.rates[QuotaKey.CONSUMER_BYTE_RATE]
        throttle_ms, sent = 0.0, True
        if records_bytes:
            throttle_ms, sent = fetched.record_or_take_back(*self._client, records_bytes, now_ms)
        self._mute(throttle_ms, now_ms)
        return self._left_ms(now_ms), sent

    @property
    def fetch_bytes_max(self) -> float:
        return self._quotas.rates[QuotaKey.CONSUMER_BYTE_RATE].most_at_once(*self._client)

    def charge(self) -> Charge:
        share = self._quotas.mutation_limits.share(*self._client)
        if share is None:
            return FREE
        return MutationCharge(self._quotas.mutations, share, self, self._quotas.clock, strict=self._is_strict)

    @property
    def runs_alone(self) -> bool:
        if BY_TITLE[self.context.api].strict_since is None or self._is_strict:
            return False
        return self._quotas.mutation_limits.share(*self._client) is not None  # rule A21/older-versions-slip-through

    @property
    def _is_strict(self) -> bool:
        since = BY_TITLE[self.context.api].strict_since
        return since is not None and self.context.version >= since  # rule A21/older-versions-are-refused

    def mute(self, throttle_ms: float) -> None:
        """Mute the connection for `throttle_ms`, which the response tells the client."""
        self._mute(throttle_ms, self._quotas.clock.monotonic_ms())

    def timed(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        return _Timed(work, self)  # rule A21/coroutines-take-no-time

    def begin_work(self) -> None:
        """Note that the event loop begins to work on the request now."""
        self._began_ms = self._quotas.clock.monotonic_ms()

    def end_work(self) -> None:
        """Note that this work ends now. Work after the response counts for the client's next request."""
        now_ms = self._quotas.clock.monotonic_ms()
        if self.ready:
            rest = self._percent_seconds(now_ms)
            self._quotas.rates[QuotaKey.REQUEST_PERCENTAGE].note(*self._client, rest, now_ms)
        elif self._began_ms is not None:
            self._busy_ms += now_ms - self._began_ms
        self._began_ms = None

    def _percent_seconds(self, now_ms: float) -> float:
        """Return the request's loop time not recorded yet, in percent of a second: 100 per second is the whole loop."""
        busy_ms, self._busy_ms = self._busy_ms, 0.0
        if self._began_ms is not None:
            busy_ms += now_ms - self._began_ms
            self._began_ms = now_ms
        return busy_ms * _MS_TO_PERCENT

    def _mute(self, throttle_ms: float, now_ms: float) -> None:
        if throttle_ms > 0:
            self._until_ms = max(self._until_ms, now_ms + throttle_ms)
            self._quotas.mutes.mute(self.connection, throttle_ms, now_ms)

    def _left_ms(self, now_ms: float) -> int:
        self.throttled_ms = max(ceil(self._until_ms - now_ms), 0)
        return self.throttled_ms


class _Timed(Coroutine[Any, Any, None]):
    """A coroutine that counts the time of each of its steps for an exchange."""

    def __init__(self, work: Coroutine[Any, Any, None], exchange: MeteredExchange) -> None:
        self._work = work
        self._exchange = exchange

    def send(self, value: Any) -> Any:
        self._exchange.begin_work()
        try:
            return self._work.send(value)
        finally:
            self._exchange.end_work()

    def throw(self, *error: Any) -> Any:
        self._exchange.begin_work()
        try:
            return self._work.throw(*error)
        finally:
            self._exchange.end_work()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, None, None]:
        return self._work.__await__()


class _Mute(NamedTuple):
    until_ms: float
    timer: asyncio.TimerHandle


class Mutes:
    """Muted connections: each is held once, until the longest of its throttle times is over."""

    def __init__(self) -> None:
        self._muted: dict[Connection, _Mute] = {}

    def __len__(self) -> int:
        return len(self._muted)

    def mute(self, connection: Connection, throttle_ms: float, now_ms: float) -> None:
        """Take no request of a connection for `throttle_ms`; its responses are still sent."""
        known = self._muted.get(connection)
        until_ms = now_ms + throttle_ms
        if known is not None:
            if known.until_ms >= until_ms:
                return
            known.timer.cancel()
        else:
            connection.hold()
        timer = asyncio.get_running_loop().call_later(throttle_ms / 1000, self._end, connection)
        self._muted[connection] = _Mute(until_ms, timer)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        known = self._muted.pop(connection, None)
        if known is not None:
            known.timer.cancel()

    def end_all(self) -> None:
        """Unmute all connections: the quotas have changed."""
        for connection, mute in list(self._muted.items()):
            mute.timer.cancel()
            self._end(connection)  # rule A21/a-mute-is-for-ever

    def _end(self, connection: Connection) -> None:
        del self._muted[connection]
        connection.let_go()


class Request(Protocol):
    """The charged request (`MeteredExchange`)."""

    def mute(self, throttle_ms: float) -> None:
        """Mute the connection for `throttle_ms`, which the response tells the client."""


class MutationCharge(Charge):
    """Charge of one request of a client with a controller_mutation_rate.

    A strict charge admits nothing while the client's tokens are below 0. Any other charge, for a client that would not
    understand the error, admits all, and the client then waits until its tokens are no longer below 0. Both admit a
    change that is larger than the remaining tokens.
    """

    def __init__(self, quota: TokenQuota, share: Share, request: Request, clock: Clock, *, strict: bool) -> None:
        self._quota = quota
        self._share = share
        self._request = request
        self._clock = clock
        self._strict = strict
        self._refused = False

    def admits(self, partitions: int) -> bool:
        if partitions <= 0:
            return True
        now_ms = self._clock.monotonic_ms()
        if self._strict and self._quota.wait_ms(self._share, now_ms) > 0:  # rule A21/topics-above-the-quota-are-made
            self._refused = True
            return False
        self._quota.take(self._share, partitions, now_ms)
        return True

    def correct(self, partitions: int) -> None:
        if partitions:
            self._quota.take(self._share, partitions, self._clock.monotonic_ms())

    def settle(self) -> None:
        if self._strict and not self._refused:
            return
        now_ms = self._clock.monotonic_ms()
        throttle_ms = min(self._quota.wait_ms(self._share, now_ms), THROTTLE_MS_MAX)
        if throttle_ms > 0:
            self._quota.note_wait(self._share, throttle_ms, now_ms)
            self._request.mute(throttle_ms)
