"""What clients have taken of one thing lately, as rates (all of them together) and as tokens of shares, for what comes
in bursts (KIP-599, KIP-612). Within bounded memory, and pure: the time comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from strandline.cluster.broker.quotas.limits import Limits, Share
from strandline.proto.quotas import QuotaEntity
from strandline.proto.rates import Rate, TokenBucket, WindowShape

SHARES_MAX = 10_000
"""Shares of one key that are known: of more, those go that were not used for the longest time. A client that has
another client.id at each request, and a quota for each, makes so many and no more."""


class Remembered(Protocol):
    """What is known of one share."""

    def is_over(self, now_ms: float) -> bool:
        """Nothing that was taken counts any more: a new one would be as good."""


T = TypeVar("T", bound=Remembered)


class Recent(Generic[T]):
    """The shares of one key.

    Invariants: at most `SHARES_MAX`; the one that was used last stands last; none that is over stands first.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._known: dict[QuotaEntity, T] = {}

    def __len__(self) -> int:
        return len(self._known)

    def use(self, of: QuotaEntity, now_ms: float) -> T:
        """What is known of a share, which is used now."""
        self._forget(now_ms)
        known = self._known.pop(of, None)
        if known is None:
            known = self._make()
        self._known[of] = known
        if len(self._known) > SHARES_MAX:  # rule A21/rates-without-number
            del self._known[next(iter(self._known))]
        return known

    def look(self, of: QuotaEntity) -> T | None:
        """The same without using it; None: there is nothing to know."""
        return self._known.get(of)

    def all(self) -> Iterator[T]:
        """What is known of each."""
        yield from self._known.values()

    def latest_first(self, now_ms: float) -> Iterator[tuple[QuotaEntity, T]]:
        """All of them."""
        self._forget(now_ms)
        yield from reversed(self._known.items())

    def _forget(self, now_ms: float) -> None:
        while self._known:
            of = next(iter(self._known))
            if not self._known[of].is_over(now_ms):  # rule A21/idle-shares-stay
                return
            del self._known[of]


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
        """Record that `value` is taken. Returns the milliseconds that the client must wait, or 0."""
        return self._record(user, client_id, value, now_ms, takes_back=False)[0]

    def record_or_take_back(self, user: str, client_id: str, value: float, now_ms: float) -> tuple[float, bool]:
        """So much would be taken: how long the client must wait, and whether it may take it.

        Where it must wait it takes nothing, and nothing stays recorded. One that has taken nothing lately takes it all
        the same, and waits for it: else what is larger than a quota would never be had at all.
        """
        return self._record(user, client_id, value, now_ms, takes_back=True)

    def note(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """Record that `value` was taken; it counts when the same share takes more."""
        share = self.limits.share(user, client_id)
        if share is not None:
            self._rates.use(share.of, now_ms).record(value, now_ms)

    def wait_ms(self, user: str, client_id: str, now_ms: float) -> float:
        """How long anybody of its share was told to wait yet; 0: nobody."""
        share = self.limits.share(user, client_id)
        rate = None if share is None else self._rates.look(share.of)
        return 0.0 if rate is None else max(rate.waits_until_ms - now_ms, 0.0)

    def let_go(self) -> None:
        """Nobody waits any more: the quotas have changed."""
        for rate in self._rates.all():
            rate.waits_until_ms = 0.0

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
        # rule A21/fetches-above-the-quota-are-sent, rule A21/large-batches-are-never-had
        if takes_back and not was_idle:
            rate.record(-value, now_ms)
            return throttle_ms, False
        return throttle_ms, True


class _Taken:
    """What is known of one share: its tokens, and its rate for the metrics."""

    __slots__ = ("bucket", "rate")

    def __init__(self, shape: WindowShape) -> None:
        self.bucket = TokenBucket(shape)
        self.rate = Rate(shape)

    def is_over(self, now_ms: float) -> bool:
        """Nothing is owed: who owes is remembered until it owes no more, however long that takes."""
        return self.bucket.is_full(now_ms) and self.rate.is_over(now_ms)  # rule A21/debts-are-forgotten


class TokenQuota:
    """The tokens of all shares of one key.

    Attributes:
        throttles, throttled_ms: how often somebody was told to wait, and how long altogether.
    """

    def __init__(self, shape: WindowShape) -> None:
        self._shares = Recent(lambda: _Taken(shape))
        self.throttles = 0
        self.throttled_ms = 0.0

    def __len__(self) -> int:
        return len(self._shares)

    def take(self, share: Share, count: float, now_ms: float) -> None:
        """Take `count`; a negative count gives back what was not taken after all."""
        known = self._shares.use(share.of, now_ms)
        known.bucket.take(count, share.limit, now_ms)
        known.rate.record(count, now_ms)

    def wait_ms(self, share: Share, now_ms: float) -> float:
        """How long until the share owes nothing; 0: more may be taken now."""
        known = self._shares.look(share.of)
        return 0.0 if known is None else max(-known.bucket.tokens(share.limit, now_ms) / share.limit * 1000, 0.0)

    def note_wait(self, share: Share, throttle_ms: float, now_ms: float) -> None:
        """Note that a client was told to wait `throttle_ms`."""
        self.throttles += 1
        self.throttled_ms += throttle_ms
        self._shares.use(share.of, now_ms).rate.record_throttle(throttle_ms, now_ms)

    def measured(self, now_ms: float) -> Iterator[Measured]:
        """Each share that was used lately, the latest first."""
        for of, known in self._shares.latest_first(now_ms):
            yield Measured.of_rate(of, known.rate, now_ms)
