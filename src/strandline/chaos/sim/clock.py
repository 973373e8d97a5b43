"""A machine's clocks: a monotonic one that runs at its own rate, and a wall clock that may jump."""

from __future__ import annotations

import math
from collections.abc import Callable

EPOCH_MS = 1_760_000_000_000
"""Wall time at world time 0 (October 2025): any fixed instant will do, as long as no run reads the real one."""


class SimClock:
    """The `Clock` port of one machine.

    `rate` is how fast its monotonic clock runs against world time (1.0 is true), `origin_ms` where it started.
    `busy_until_us` is the world instant up to which the callback that runs has worked (`Process.spend`).
    """

    def __init__(
        self, now_us: Callable[[], int], *, rate: float = 1.0, origin_ms: float = 0.0, wall_offset_ms: float = 0.0
    ) -> None:
        self._now_us = now_us
        self.rate = rate
        self._origin_us = origin_ms * 1000
        self.wall_offset_ms = wall_offset_ms
        self.busy_until_us = 0

    def monotonic_ms(self) -> float:
        return (self._origin_us + max(self._now_us(), self.busy_until_us) * self.rate) / 1000

    def wall_ms(self) -> int:
        return EPOCH_MS + int(max(self._now_us(), self.busy_until_us) * self.rate / 1000 + self.wall_offset_ms)

    def jump_wall(self, by_ms: float) -> None:
        """Step the wall clock, as an administrator or a bad time server would."""
        self.wall_offset_ms += by_ms

    def loop_time_s(self, now_us: int) -> float:
        """`loop.time()` for processes on this machine: the same clock as `monotonic_ms`."""
        return (self._origin_us + max(now_us, self.busy_until_us) * self.rate) / 1e6

    def due_us(self, when_s: float) -> int:
        """The world instant at which `loop_time_s` has surely reached `when_s` (timers fire late, never early)."""
        return math.ceil((when_s * 1e6 - self._origin_us) / self.rate) + 1
