"""Measured use of one quota key, per share: as rates over windows (`RateQuota`), and as token buckets for use in bursts
(`TokenQuota`, KIP-599, KIP-612). Memory is bounded, and the time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from strandline.cluster.broker.quotas.limits import Limits, Share
from strandline.proto.quotas import QuotaEntity
from strandline.proto.rates import Rate, TokenBucket, WindowShape

SHARES_MAX = 10_000
"""Maximum remembered shares of one key; beyond it the least recently used one is forgotten. It bounds the memory of a
client that uses a new client.id, with a default quota, for each request."""


class Remembered(Protocol):
    """Measured use of one share."""

    def is_over(self, now_ms: float) -> bool:
        """Return whether no past use counts any more, so that the share can be forgotten."""


T = TypeVar("T", bound=Remembered)


class Recent(Generic[T]):
    """Measured use of the shares of one key, least recently used first.

    Invariants: at most `SHARES_MAX` shares; after a use the first one is not over.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._known: dict[QuotaEntity, T] = {}

    def __len__(self) -> int:
        return len(self._known)

    def use(self, of: QuotaEntity, now_ms: float) -> T:
        """Return the use of a share, new if unknown, and make it the most recently used."""
        self._forget(now_ms)
        known = self._known.pop(of, None)
        if known is None:
            known = self._make()
        self._known[of] = known
        if len(self._known) > SHARES_MAX:  # rule A21/rates-without-number
            del self._known[next(iter(self._known))]
        return known

    def look(self, of: QuotaEntity) -> T | None:
        """Return the use of a share, or None if unknown, without changing the order."""
        return self._known.get(of)

    def all(self) -> Iterator[T]:
        """Yield the use of each share."""
        yield from self._known.values()

    def latest_first(self, now_ms: float) -> Iterator[tuple[QuotaEntity, T]]:
        """Yield all shares with their use, the most recently used first."""
        self._forget(now_ms)
        yield from reversed(self._known.items())

    def _forget(self, now_ms: float) -> None:
        while self._known:
            of = next(iter(self._known))
            if not self._known[of].is_over(now_ms):  # rule A21/idle-shares-stay
                return
            del self._known[of]


THROTTLE_MS_MAX = 600_000.0
"""Maximum throttle time: the default of connections.max.idle.ms, after which a muted connection is closed."""


class Measured(NamedTuple):
    """Measured use of one share, for the metrics.

    Attributes:
        rate: use per second.
        throttle_ms: mean throttle time in the measured windows.
    """

    of: QuotaEntity
    rate: float
    throttle_ms: float

    @classmethod
    def of_rate(cls, of: QuotaEntity, rate: Rate, now_ms: float) -> Self:
        """Make it from a rate, at least 0: an amount taken back may count longer than its use, in another window."""
        return cls(of, max(rate.per_second(now_ms), 0.0), rate.mean_throttle_ms(now_ms))


class RateQuota:
    """The quotas of one key, and the rates of the shares that have one.

    Attributes:
        throttles, throttled_ms: number of throttled requests, and sum of their throttle times.
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
        """Record a use of `value`. Returns the milliseconds that the client must wait, or 0."""
        return self._record(user, client_id, value, now_ms, takes_back=False)[0]

    def record_or_take_back(self, user: str, client_id: str, value: float, now_ms: float) -> tuple[float, bool]:
        """Record a use of `value`, and take it back if the client must wait first. Returns (milliseconds to wait,
        whether the use stays recorded and is allowed).

        A client without recent use may use more than its quota, and waits afterwards: otherwise it could never get
        anything larger than its quota.
        """
        return self._record(user, client_id, value, now_ms, takes_back=True)

    def note(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """Record a use of `value` that throttles only later uses of the same share."""
        share = self.limits.share(user, client_id)
        if share is not None:
            self._rates.use(share.of, now_ms).record(value, now_ms)

    def wait_ms(self, user: str, client_id: str, now_ms: float) -> float:
        """Milliseconds for which the client's share is still throttled; 0: it is not."""
        share = self.limits.share(user, client_id)
        rate = None if share is None else self._rates.look(share.of)
        return 0.0 if rate is None else max(rate.waits_until_ms - now_ms, 0.0)

    def let_go(self) -> None:
        """End the throttle times of all shares: the quotas have changed."""
        for rate in self._rates.all():
            rate.waits_until_ms = 0.0

    def most_at_once(self, user: str, client_id: str) -> float:
        """Largest use at once that a client without recent use may have without a wait; inf: it has no quota. Kafka's
        `getMaxValueInQuotaWindow`."""
        share = self.limits.share(user, client_id)
        return inf if share is None else share.limit * (self._shape.windows - 1) * self._shape.size_ms / 1000

    def measured(self, now_ms: float) -> Iterator[Measured]:
        """Yield each share with recent use, the most recently used first."""
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
        # rule A21/fetches-above-the-quota-are-sent, rule A21/large-batches-are-never-had
        if takes_back and not was_idle:
            rate.record(-value, now_ms)
            return throttle_ms, False
        return throttle_ms, True


class _Taken:
    """Use of one share: its token bucket, and its rate for the metrics."""

    __slots__ = ("bucket", "rate")

    def __init__(self, shape: WindowShape) -> None:
        self.bucket = TokenBucket(shape)
        self.rate = Rate(shape)

    def is_over(self, now_ms: float) -> bool:
        """Return whether the bucket is full and no use counts; until the bucket is full again the share is kept."""
        return self.bucket.is_full(now_ms) and self.rate.is_over(now_ms)  # rule A21/debts-are-forgotten


class TokenQuota:
    """The token buckets of all shares of one key.

    Attributes:
        throttles, throttled_ms: number of throttled requests, and sum of their throttle times.
    """

    def __init__(self, shape: WindowShape) -> None:
        self._shares = Recent(lambda: _Taken(shape))
        self.throttles = 0
        self.throttled_ms = 0.0

    def __len__(self) -> int:
        return len(self._shares)

    def take(self, share: Share, count: float, now_ms: float) -> None:
        """Take `count` tokens of a share; a negative count gives tokens back."""
        known = self._shares.use(share.of, now_ms)
        known.bucket.take(count, share.limit, now_ms)
        known.rate.record(count, now_ms)

    def wait_ms(self, share: Share, now_ms: float) -> float:
        """Milliseconds until the share's tokens are no longer below 0; 0: more may be taken now."""
        known = self._shares.look(share.of)
        return 0.0 if known is None else max(-known.bucket.tokens(share.limit, now_ms) / share.limit * 1000, 0.0)

    def note_wait(self, share: Share, throttle_ms: float, now_ms: float) -> None:
        """Count a request that is throttled for `throttle_ms`."""
        self.throttles += 1
        self.throttled_ms += throttle_ms
        self._shares.use(share.of, now_ms).rate.record_throttle(throttle_ms, now_ms)

    def measured(self, now_ms: float) -> Iterator[Measured]:
        """Yield each share with recent use, the most recently used first."""
        for of, known in self._shares.latest_first(now_ms):
            yield Measured.of_rate(of, known.rate, now_ms)
