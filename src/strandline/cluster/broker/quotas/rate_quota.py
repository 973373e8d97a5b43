"""What all clients have taken of one thing lately, within bounded memory. Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Self

from strandline.cluster.broker.quotas.limits import Limits
from strandline.cluster.broker.quotas.recent import Recent
from strandline.proto.quotas import QuotaEntity
from strandline.proto.rates import Rate, WindowShape

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

    @classmethod
    def of_rate(cls, of: QuotaEntity, rate: Rate, now_ms: float) -> Self:
        """What a rate says. What was taken back may outlive the window in which it was taken."""
        return cls(of, max(rate.per_second(now_ms), 0.0), rate.mean_throttle_ms(now_ms))


class RateQuota:
    """The quotas of one key, and the rates of those that have one.

    Attributes:
        throttles, throttled_ms: how often somebody was told to wait, and how long altogether.
    """

    def __init__(self, shape: WindowShape, throttle_ms_max: float = THROTTLE_MS_MAX) -> None:
        self._shape = shape
        self._throttle_ms_max = throttle_ms_max
        self._rates = Recent(lambda: Rate(shape))
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
            self._rates.use(share.of, now_ms).record(value, now_ms)

    def most_at_once(self, user: str, client_id: str) -> float:
        """Whoever takes more at once must wait even if it took nothing before (Kafka's `getMaxValueInQuotaWindow`)."""
        share = self.limits.share(user, client_id)
        return inf if share is None else share.limit * (self._shape.windows - 1) * self._shape.size_ms / 1000

    def measured(self, now_ms: float) -> Iterator[Measured]:
        """Each share that was used lately, the latest first."""
        for of, rate in self._rates.latest_first(now_ms):
            yield Measured.of_rate(of, rate, now_ms)

    def _record(
        self, user: str, client_id: str, value: float, now_ms: float, *, takes_back: bool
    ) -> tuple[float, bool]:
        share = self.limits.share(user, client_id)
        if share is None:
            return 0.0, True
        rate = self._rates.use(share.of, now_ms)
        was_idle = rate.total(now_ms) <= 0
        rate.record(value, now_ms)
        throttle_ms = min(rate.throttle_ms(share.limit, now_ms), self._throttle_ms_max)
        if throttle_ms <= 0:
            return 0.0, True
        self.throttles += 1
        self.throttled_ms += throttle_ms
        rate.record_throttle(throttle_ms, now_ms)
        if takes_back and not was_idle:
            rate.record(-value, now_ms)
            return throttle_ms, False
        return throttle_ms, True
