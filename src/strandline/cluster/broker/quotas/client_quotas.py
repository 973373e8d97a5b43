"""A broker's quotas: requests are measured, answers say how long to wait, connections are muted for so long.

A produce request counts when it has come, and mutes at once: more of them may be on their way behind it. A fetch counts
by the records in its answer, and the time of any request when it is answered, as Kafka counts both.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping
from math import ceil, inf
from typing import Any

from strandline.cluster.broker.exchange import FREE, STRICT_SINCE, Charge, Connection, Exchange
from strandline.cluster.broker.quotas.arrivals import Arrivals
from strandline.cluster.broker.quotas.limits import Limits
from strandline.cluster.broker.quotas.mutations import MutationCharge
from strandline.cluster.broker.quotas.muting import Mutes
from strandline.cluster.broker.quotas.rate_quota import RateQuota
from strandline.cluster.broker.quotas.token_quota import TokenQuota
from strandline.cluster.broker.request import RequestContext
from strandline.controller.metadata.quotas import QuotasImage
from strandline.proto.kafka.apis import Api
from strandline.proto.ports import Clock
from strandline.proto.quotas import NAME_CHARS_MAX, QuotaKey
from strandline.proto.rates import WindowShape

EXEMPT = frozenset({Api.SASL_HANDSHAKE.title, Api.SASL_AUTHENTICATE.title})
"""A client proves who it is for nothing, at the start and again (KIP-368): it is nobody's request."""

_MS_TO_PERCENT = 100.0 / 1000


class ClientQuotas:
    """What clients have taken of this broker, and who is muted.

    Attributes:
        rates: of what is measured over windows, by key.
        mutations: the tokens of controller_mutation_rate, and `mutation_limits` what they are by.
        mutes: the connections that wait.
        arrivals: those that wait before they are let in (connection_creation_rate).
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
            # One window at most, as Kafka has it: what a request costs is not the client's choice alone.
            QuotaKey.REQUEST_PERCENTAGE: RateQuota(shape, throttle_ms_max=shape.size_ms),
        }

    def set(self, quotas: QuotasImage) -> None:
        """Go by these from now on. Rates stay; whoever is muted goes on, and is judged anew at its next request."""
        for key, rate in self.rates.items():
            rate.limits = Limits(quotas, key)
        self.mutation_limits = Limits(quotas, QuotaKey.CONTROLLER_MUTATION_RATE)
        self.arrivals.set(quotas)
        self.mutes.end_all()

    def measures(self) -> Mapping[QuotaKey, RateQuota | TokenQuota]:
        """All that is measured, by key, for the metrics."""
        tokens = {
            QuotaKey.CONTROLLER_MUTATION_RATE: self.mutations,
            QuotaKey.CONNECTION_CREATION_RATE: self.arrivals.quota,
        }
        return {**self.rates, **tokens}

    def metered(
        self, connection: Connection, context: RequestContext, flexible_header: bool, frame_bytes: int
    ) -> MeteredExchange | None:
        """The exchange of a request that has come; None for one that no quota is for."""
        gate = context.peer.sasl
        if context.api in EXEMPT or (gate is not None and not gate.is_open):
            return None
        return MeteredExchange(self, connection, context, flexible_header, frame_bytes)


class MeteredExchange(Exchange):
    """A request that is measured."""

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
        user = context.principal.partition(":")[2]
        # A client.id may fill a frame; it is remembered for a while.
        self._client = user[:NAME_CHARS_MAX], context.client_id[:NAME_CHARS_MAX]
        now_ms = quotas.clock.monotonic_ms()
        self._began_ms: float | None = now_ms
        self._busy_ms = 0.0
        self._until_ms = now_ms
        if context.api == Api.PRODUCE.title:
            produced = quotas.rates[QuotaKey.PRODUCER_BYTE_RATE]
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
        if self.context.api not in STRICT_SINCE or self._is_strict:
            return False
        return self._quotas.mutation_limits.share(*self._client) is not None

    @property
    def _is_strict(self) -> bool:
        return self.context.version >= STRICT_SINCE.get(self.context.api, inf)

    def mute(self, throttle_ms: float) -> None:
        """Say in the answer how long to wait, and read nothing of the connection for so long."""
        self._mute(throttle_ms, self._quotas.clock.monotonic_ms())

    def timed(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        return _Timed(work, self)

    def begin_work(self) -> None:
        """The event loop is at it from now on."""
        self._began_ms = self._quotas.clock.monotonic_ms()

    def end_work(self) -> None:
        """Until now. What was done after the answer counts at the client's next request."""
        now_ms = self._quotas.clock.monotonic_ms()
        if self.ready:
            rest = self._percent_seconds(now_ms)
            self._quotas.rates[QuotaKey.REQUEST_PERCENTAGE].note(*self._client, rest, now_ms)
        elif self._began_ms is not None:
            self._busy_ms += now_ms - self._began_ms
        self._began_ms = None

    def _percent_seconds(self, now_ms: float) -> float:
        """What the request took of the loop and is not recorded yet: a rate of 100 of it is all of the loop's time."""
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
        return max(ceil(self._until_ms - now_ms), 0)


class _Timed(Coroutine[Any, Any, None]):
    """A coroutine whose steps are counted."""

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
