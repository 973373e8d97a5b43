"""What all clients have taken of one thing lately, within bounded memory. Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from strandline.cluster.broker.quotas.limits import Limits
from strandline.cluster.broker.quotas.windows import Rate, WindowShape
from strandline.proto.quotas import QuotaEntity

SHARES_MAX = 10_000
"""Shares of which a rate is known: of more, those go that were not used for the longest time. A client that has another
client.id at each request, and a quota for each, makes so many and no more."""

THROTTLE_MS_MAX = 600_000.0
"""Nobody waits longer: the default of connections.max.idle.ms, after which a connection that is muted is closed."""


class Measured(NamedTuple):
    """What is known of one share, for the metrics.

    Attributes:
        rate: a second.
        throttle_ms: mean of the waits lately.
    """

    of: QuotaEntity
    rate: float
    throttle_ms: float


class RateQuota:
    """The quotas of one key, and the rates of those that have one.

    Invariants: at most `SHARES_MAX` rates; none that nothing was recorded of for as long as windows are remembered.

    Attributes:
        throttles, throttled_ms: how often somebody was told to wait, and how long altogether.
    """

    def __init__(self, shape: WindowShape, throttle_ms_max: float = THROTTLE_MS_MAX) -> None:
        self._shape = shape
        self._throttle_ms_max = throttle_ms_max
        self._rates: dict[QuotaEntity, tuple[Rate, float]] = {}
        """With the time of the last record; the one that was used last stands last."""
        self.limits = Limits({}, "")
        self.throttles = 0
        self.throttled_ms = 0.0

    def __len__(self) -> int:
        return len(self._rates)

    def record(self, user: str, client_id: str, value: float, now_ms: float) -> float:
        """So much is taken; how long the client must wait for it, in milliseconds, 0: not at all."""
        return self._record(user, client_id, value, now_ms, takes_back=False)[0]

    def record_or_take_back(self, user: str, client_id: str, value: float, now_ms: float) -> tuple[float, bool]:
        """So much would be taken: how long the client must wait, and whether it may take it.

        Where it must wait it takes nothing, and nothing stays recorded. One that has taken nothing lately takes it all
        the same, and waits for it: else what is larger than a quota would never be had at all.
        """
        return self._record(user, client_id, value, now_ms, takes_back=True)

    def note(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """So much was taken; it counts when more is taken."""
        share = self.limits.share(user, client_id)
        if share is not None:
            self._rate(share.of, now_ms).record(value, now_ms, self._shape)

    def most_at_once(self, user: str, client_id: str) -> float:
        """Whoever takes more at once must wait even if it took nothing before (Kafka's `getMaxValueInQuotaWindow`)."""
        share = self.limits.share(user, client_id)
        return inf if share is None else share.limit * (self._shape.windows - 1) * self._shape.size_ms / 1000

    def measured(self, now_ms: float) -> Iterator[Measured]:
        """Each share that was used lately, the latest first."""
        self._forget_idle(now_ms)
        for of, (rate, _) in reversed(self._rates.items()):
            yield Measured(of, rate.per_second(now_ms, self._shape), rate.mean_throttle_ms(now_ms, self._shape))

    def _record(
        self, user: str, client_id: str, value: float, now_ms: float, *, takes_back: bool
    ) -> tuple[float, bool]:
        share = self.limits.share(user, client_id)
        if share is None:
            return 0.0, True
        rate, shape = self._rate(share.of, now_ms), self._shape
        was_idle = rate.total(now_ms, shape) <= 0
        rate.record(value, now_ms, shape)
        throttle_ms = min(rate.throttle_ms(share.limit, now_ms, shape), self._throttle_ms_max)
        if throttle_ms <= 0:
            return 0.0, True
        self.throttles += 1
        self.throttled_ms += throttle_ms
        rate.record_throttle(throttle_ms, now_ms, shape)
        if takes_back and not was_idle:
            rate.record(-value, now_ms, shape)
            return throttle_ms, False
        return throttle_ms, True

    def _rate(self, of: QuotaEntity, now_ms: float) -> Rate:
        self._forget_idle(now_ms)
        known = self._rates.pop(of, None)
        rate = Rate() if known is None else known[0]
        self._rates[of] = rate, now_ms
        if len(self._rates) > SHARES_MAX:
            del self._rates[next(iter(self._rates))]
        return rate

    def _forget_idle(self, now_ms: float) -> None:
        while self._rates:
            of = next(iter(self._rates))
            if now_ms - self._rates[of][1] < self._shape.memory_ms:
                return
            del self._rates[of]
