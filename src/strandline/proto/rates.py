"""Rates over sampled windows, as Kafka's `Rate` and `SampledStat` measure them, and its `TokenBucket`. Pure: the time
comes in."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple


class WindowShape(NamedTuple):
    """How rates are measured.

    Attributes:
        windows: windows that are remembered, the one under way among them (`quota.window.num`).
        size_ms: how long each is (`quota.window.size.seconds`).
    """

    windows: int
    size_ms: float

    @property
    def memory_ms(self) -> float:
        """Milliseconds after which a recorded value has no effect any more."""
        return self.windows * self.size_ms


class _Window:
    """What was recorded from its start on, until the next one began.

    Attributes:
        throttled_ms, throttles: what the client was told to wait, together and how often.
    """

    __slots__ = ("last_ms", "start_ms", "throttled_ms", "throttles", "total")

    def __init__(self, now_ms: float) -> None:
        self.start_ms = self.last_ms = now_ms
        self.total = 0.0
        self.throttled_ms = 0.0
        self.throttles = 0


class Rate:
    """The rate of one client.

    A window begins with the first record after the end of the one before, and is forgotten `memory_ms` after the last
    record in it. At most one more than `WindowShape.windows` are remembered. The time that the rate is over is never
    less than all whole windows and the part of the one under way: a first record is no burst.

    Attributes:
        waits_until_ms: the latest end of the waits that somebody was told.
    """

    __slots__ = ("_shape", "_windows", "waits_until_ms")

    def __init__(self, shape: WindowShape) -> None:
        self._shape = shape
        self.waits_until_ms = 0.0
        self._windows: deque[_Window] = deque()

    def record(self, value: float, now_ms: float) -> None:
        """Add `value` to what was taken; a negative one takes back what was recorded at this very time."""
        window = self._current(now_ms)
        window.total += value
        window.last_ms = now_ms

    def record_throttle(self, throttle_ms: float, now_ms: float) -> None:
        """Note that the client must wait `throttle_ms` for the value recorded last."""
        window = self._current(now_ms)
        self.waits_until_ms = max(self.waits_until_ms, now_ms + throttle_ms)
        window.throttled_ms += throttle_ms
        window.throttles += 1

    def total(self, now_ms: float) -> float:
        """Sum of the values in all windows that are kept."""
        self._forget(now_ms)
        return sum(window.total for window in self._windows)

    def span_ms(self, now_ms: float) -> float:
        """Milliseconds over which the rate is computed."""
        self._forget(now_ms)
        elapsed_ms = now_ms - self._windows[0].start_ms if self._windows else 0.0
        missing = self._shape.windows - 1 - int(elapsed_ms / self._shape.size_ms)
        return max(elapsed_ms + max(missing, 0) * self._shape.size_ms, 1.0)  # rule A21/a-first-record-is-a-burst

    def per_second(self, now_ms: float) -> float:
        """The rate."""
        return self.total(now_ms) * 1000 / self.span_ms(now_ms)

    def throttle_ms(self, limit: float, now_ms: float) -> float:
        """How long until the rate is `limit` a second again if nothing is taken meanwhile; 0: it is no higher.

        With the rate O over the span W it is the X of O * W / (W + X) = T (Kafka's `QuotaUtils.throttleTime`).
        """
        rate = self.per_second(now_ms)
        return 0.0 if rate <= limit else (rate - limit) / limit * self.span_ms(now_ms)

    def mean_throttle_ms(self, now_ms: float) -> float:
        """Mean wait in milliseconds over all windows that are remembered."""
        self._forget(now_ms)
        count = sum(window.throttles for window in self._windows)
        return sum(window.throttled_ms for window in self._windows) / count if count else 0.0

    def is_over(self, now_ms: float) -> bool:
        """True if no recorded value has an effect any more."""
        self._forget(now_ms)
        return not self._windows

    def _current(self, now_ms: float) -> _Window:
        windows = self._windows
        if not windows or now_ms - windows[-1].start_ms >= self._shape.size_ms:
            windows.append(_Window(now_ms))
            if len(windows) > self._shape.windows + 1:
                windows.popleft()
        return windows[-1]

    def _forget(self, now_ms: float) -> None:
        windows = self._windows
        while windows and now_ms - windows[0].last_ms >= self._shape.memory_ms:  # rule A21/windows-are-never-forgotten
            windows.popleft()


class TokenBucket:
    """The tokens of one share: `limit` more a second, up to the burst, which is what all windows take.

    It starts full. It may owe: what is larger than the burst is had all the same, and waited for afterwards.
    """

    __slots__ = ("_full_ms", "_last_ms", "_shape", "_tokens")

    def __init__(self, shape: WindowShape) -> None:
        self._shape = shape
        self._tokens = inf
        self._last_ms = self._full_ms = 0.0

    def take(self, count: float, limit: float, now_ms: float) -> None:
        """Take `count` tokens; a negative count gives them back."""
        burst = limit * self._shape.memory_ms / 1000
        self._tokens = min(self.tokens(limit, now_ms) - count, burst)
        self._last_ms = now_ms
        self._full_ms = now_ms + (burst - self._tokens) / limit * 1000

    def tokens(self, limit: float, now_ms: float) -> float:
        """Number of tokens; below 0 if some are owed."""
        burst = limit * self._shape.memory_ms / 1000
        return min(self._tokens + limit * (now_ms - self._last_ms) / 1000, burst)

    def is_full(self, now_ms: float) -> bool:
        """True if the bucket is full, by the limit used last."""
        return now_ms >= self._full_ms
