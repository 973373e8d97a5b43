"""Tokens of shares, for what comes in bursts (KIP-599, KIP-612). Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.cluster.broker.quotas.limits import Share
from strandline.cluster.broker.quotas.rate_quota import Measured
from strandline.cluster.broker.quotas.recent import Recent
from strandline.proto.rates import Rate, TokenBucket, WindowShape


class _Taken:
    """What is known of one share: its tokens, and its rate for the metrics."""

    __slots__ = ("bucket", "rate")

    def __init__(self, shape: WindowShape) -> None:
        self.bucket = TokenBucket(shape)
        self.rate = Rate(shape)

    def is_over(self, now_ms: float) -> bool:
        """Nothing is owed: who owes is remembered until it owes no more, however long that takes."""
        return self.bucket.is_full(now_ms) and self.rate.is_over(now_ms)


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
        """So much is taken; less than 0: was not taken after all."""
        known = self._shares.use(share.of, now_ms)
        known.bucket.take(count, share.limit, now_ms)
        known.rate.record(count, now_ms)

    def wait_ms(self, share: Share, now_ms: float) -> float:
        """How long until the share owes nothing; 0: more may be taken now."""
        known = self._shares.look(share.of)
        return 0.0 if known is None else max(-known.bucket.tokens(share.limit, now_ms) / share.limit * 1000, 0.0)

    def note_wait(self, share: Share, throttle_ms: float, now_ms: float) -> None:
        """Somebody was told to wait so long."""
        self.throttles += 1
        self.throttled_ms += throttle_ms
        self._shares.use(share.of, now_ms).rate.record_throttle(throttle_ms, now_ms)

    def measured(self, now_ms: float) -> Iterator[Measured]:
        """Each share that was used lately, the latest first."""
        for of, known in self._shares.latest_first(now_ms):
            yield Measured.of_rate(of, known.rate, now_ms)
