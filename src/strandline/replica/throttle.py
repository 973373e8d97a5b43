"""Replication quotas (KIP-73): limits on the network and disk that replicas which are behind may use of a broker, as
leader and as follower.

Each broker has one quota of each kind. A replica is throttled while its topic lists it
(`leader.replication.throttled.replicas`, `follower.replication.throttled.replicas`) and it is not in the ISR. Bytes of
other replicas are not counted, so that in-sync replicas leave the whole quota to those that catch up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.proto.ports import Clock
from strandline.proto.rates import Rate, TokenBucket, WindowShape

UNLIMITED = 2**63 - 1
"""No limit, in bytes a second; Kafka's default of both rates."""

BURST = WindowShape(windows=1, size_ms=1_000)
"""Burst after a pause: the bytes of one second. Kafka begins with about as much, and allows up to the unused bytes of
ten seconds."""

MEASURED = WindowShape(windows=11, size_ms=1_000)
"""Window of the measured rates: Kafka's replication.quota.window.num and replication.quota.window.size.seconds."""

PAUSE_MS = 10.0
"""Shortest pause before waiting calls are made: a few batches at once are cheaper than each at its own time."""


class ReplicationQuota:
    """One quota of a broker, as a token bucket. It is pure: callers pass the time.

    More may be taken than the bucket holds, as the size of a batch is unknown before it is read or arrives. The excess
    is owed, and nothing may be taken until it is paid. So the rate holds over time, and at any rate, however low,
    batches pass one by one.
    """

    def __init__(self) -> None:
        self._bucket = TokenBucket(BURST)
        self._rate = Rate(MEASURED)
        self.limit = UNLIMITED
        """Limit in bytes a second; at least 1."""

    def set_limit(self, limit: int, now_ms: float) -> None:
        """Set a new limit, which also holds for what is owed."""
        self._bucket.take(0, self.limit, now_ms)
        self.limit = limit

    def take(self, size: int, now_ms: float) -> None:
        """Count `size` bytes as taken."""
        self._bucket.take(size, self.limit, now_ms)
        self._rate.record(size, now_ms)

    def wait_ms(self, now_ms: float) -> float:
        """Return the milliseconds until nothing is owed; 0 if more may be taken now."""
        return max(-self._bucket.tokens(self.limit, now_ms) / self.limit * 1000, 0.0)

    def byte_rate(self, now_ms: float) -> float:
        """Return the bytes a second that throttled replicas took lately."""
        return self._rate.per_second(now_ms)


class Throttle:
    """A quota on the event loop, with the calls that wait for room in it.

    Each waiting call is made once, in the order in which they came. A caller that takes bytes then waits again behind
    those that found nothing left, so that none starves.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quota = ReplicationQuota()
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """Limit in bytes a second."""
        return self._quota.limit

    def set_limit(self, limit: int) -> None:
        """Set a new limit, and make the waiting calls, which look for room again."""
        if limit != self._quota.limit:
            self._quota.set_limit(limit, self._clock.monotonic_ms())
            self.wake()  # rule A21/a-raised-rate-wakes-nobody

    @property
    def has_room(self) -> bool:
        """True if bytes may be taken now."""
        return self._quota.wait_ms(self._clock.monotonic_ms()) <= 0

    @property
    def byte_rate(self) -> float:
        """Bytes a second that throttled replicas took lately."""
        return self._quota.byte_rate(self._clock.monotonic_ms())

    def take(self, size: int) -> None:
        """Count `size` bytes of a throttled replica as taken."""
        self._quota.take(size, self._clock.monotonic_ms())

    def when_room(self, call: Callable[[], None]) -> None:
        """Make the call once, when there may be room. Calls made earlier may have taken it again by then."""
        self._waiting[call] = None
        if self._timer is None:
            wait_ms = max(self._quota.wait_ms(self._clock.monotonic_ms()), PAUSE_MS)
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.wake)

    def forget(self, call: Callable[[], None]) -> None:
        """Withdraw a waiting call."""
        self._waiting.pop(call, None)

    def wake(self) -> None:
        """Make all waiting calls now: there is room, the limit changed, or the set of throttled replicas may have."""
        self.stop()
        calls, self._waiting = self._waiting, {}
        for call in calls:
            call()

    def stop(self) -> None:
        """Stop the timer; calls are made by `wake` alone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
