"""Sleeps whose length goes by a setting that may change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.proto.ports import Clock

_TIMER_MS_MAX = 86_400_000
"""A rate next to nothing asks for longer than an event loop's timers take."""


class Naps:
    """A change of the settings wakes each, and it asks anew when it ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken: dict[asyncio.Future[None], None] = {}  # in order: runs of the simulator repeat

    async def until(self, end_ms: Callable[[], float]) -> None:
        """Return at a time of the monotonic clock, as it is by the settings that hold then."""
        while (left_ms := end_ms() - self._clock.monotonic_ms()) > 0:
            woken = asyncio.get_running_loop().create_future()
            self._woken[woken] = None
            try:
                await asyncio.wait([woken], timeout=min(left_ms, _TIMER_MS_MAX) / 1_000)
            finally:
                del self._woken[woken]
            if not woken.done() and left_ms <= _TIMER_MS_MAX:
                return  # the time is over, whatever the fraction of a millisecond that the timer was early

    def wake(self) -> None:
        """The settings changed."""
        for woken in self._woken:
            if not woken.done():
                woken.set_result(None)
