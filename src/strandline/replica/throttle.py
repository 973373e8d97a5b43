"""Replication quotas (KIP-73): what replicas that are behind may take of a broker's network and disk, as leader and as
follower.

Each broker has one quota of each kind. A replica is throttled while its topic lists it
(`leader.replication.throttled.replicas`, `follower.replication.throttled.replicas`) and it is not in the ISR; what goes
to other replicas is not counted, so that those in sync leave the quota to those that catch up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.proto.ports import Clock
from strandline.proto.rates import Rate, TokenBucket, WindowShape

UNLIMITED = 2**63 - 1
"""Bytes a second; Kafka's default of both rates."""

BURST = WindowShape(windows=1, size_ms=1_000)
"""What may go at once after a pause: the bytes of one second. Kafka begins with about as much, and allows up to what
ten seconds left over."""

MEASURED = WindowShape(windows=11, size_ms=1_000)
"""What the metrics show: Kafka's replication.quota.window.num and replication.quota.window.size.seconds."""

PAUSE_MS = 10.0
"""Nobody is woken more often: rather a few batches at once than each one at its own time."""


class ReplicationQuota:
    """One quota of a broker, in tokens. Pure: the time comes in.

    What is taken may be more than there is, for nobody knows the size of a batch before it is read, or of what is on
    its way before it comes: it is owed then, and nothing may be taken until it is paid for. So the rate holds over
    time, and any rate at all moves one batch after the other.
    """

    def __init__(self) -> None:
        self._bucket = TokenBucket(BURST)
        self._rate = Rate(MEASURED)
        self.limit = UNLIMITED
        """Bytes a second, 1 at least."""

    def set_limit(self, limit: int, now_ms: float) -> None:
        """Another limit counts from now on, also for what is owed."""
        self._bucket.take(0, self.limit, now_ms)
        self.limit = limit

    def take(self, size: int, now_ms: float) -> None:
        """Count `size` bytes that went."""
        self._bucket.take(size, self.limit, now_ms)
        self._rate.record(size, now_ms)

    def wait_ms(self, now_ms: float) -> float:
        """Milliseconds until nothing is owed; 0: more may be taken now."""
        return max(-self._bucket.tokens(self.limit, now_ms) / self.limit * 1000, 0.0)

    def byte_rate(self, now_ms: float) -> float:
        """Bytes a second that throttled replicas took lately."""
        return self._rate.per_second(now_ms)


class Throttle:
    """A quota on the event loop, with who waits for room in it.

    Who waits is called once, all in the order in which they came: who then takes of it comes again behind those that
    found nothing left, so that nobody starves.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quota = ReplicationQuota()
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """Bytes a second."""
        return self._quota.limit

    def set_limit(self, limit: int) -> None:
        """Another limit counts from now on, and who waits looks again."""
        if limit != self._quota.limit:
            self._quota.set_limit(limit, self._clock.monotonic_ms())
            self.wake()  # rule A21/a-raised-rate-wakes-nobody

    @property
    def has_room(self) -> bool:
        """True if something may be taken."""
        return self._quota.wait_ms(self._clock.monotonic_ms()) <= 0

    @property
    def byte_rate(self) -> float:
        """Bytes a second that throttled replicas took lately."""
        return self._quota.byte_rate(self._clock.monotonic_ms())

    def take(self, size: int) -> None:
        """Count `size` bytes of a throttled replica that went."""
        self._quota.take(size, self._clock.monotonic_ms())

    def when_room(self, call: Callable[[], None]) -> None:
        """Make the call once, when there may be room: others may have taken it again by then."""
        self._waiting[call] = None
        if self._timer is None:
            wait_ms = max(self._quota.wait_ms(self._clock.monotonic_ms()), PAUSE_MS)
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.wake)

    def forget(self, call: Callable[[], None]) -> None:
        """Do not make it any more."""
        self._waiting.pop(call, None)

    def wake(self) -> None:
        """Make all calls now: there is room, or another limit, or who is throttled may have changed."""
        self.stop()
        calls, self._waiting = self._waiting, {}
        for call in calls:
            call()

    def stop(self) -> None:
        """Call nobody by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
