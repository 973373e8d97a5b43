"""How late the event loop is: one core does everything in a node, so this is its first sign of overload."""

from __future__ import annotations

import asyncio

from strandline.proto.ports import Clock

INTERVAL_S = 0.5


class LoopLag:
    """Measures how much later than asked a timer runs.

    Attributes:
        last_ms: of the last timer.
        max_ms: the largest since `take_max` was last called.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self.last_ms = 0.0
        self.max_ms = 0.0

    def start(self) -> None:
        """Begin to measure."""
        due_ms = self._clock.monotonic_ms() + INTERVAL_S * 1000.0
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._ran, due_ms)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def take_max(self) -> float:
        """The largest lag since the last call."""
        largest, self.max_ms = self.max_ms, self.last_ms
        return largest

    def _ran(self, due_ms: float) -> None:
        self.last_ms = max(0.0, self._clock.monotonic_ms() - due_ms)
        self.max_ms = max(self.max_ms, self.last_ms)
        self.start()
