"""Timers of an event loop that many share: deadlines, calls that are put off, pauses whose length is a setting's."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from strandline.proto.ports import Clock

_TIMER_MS_MAX = 86_400_000
"""A rate next to nothing asks for longer than an event loop's timers take."""


class Ticket:
    """Place of one call among the deadlines; `cancel` is cheap, for most requests end before their deadline."""

    __slots__ = ("_bucket", "expire")

    def __init__(self, bucket: dict[Ticket, None], expire: Callable[[], None]) -> None:
        self._bucket = bucket
        self.expire = expire
        bucket[self] = None

    def cancel(self) -> None:
        """Withdraw. Fine after expiry."""
        self._bucket.pop(self, None)


class Deadlines:
    """Buckets of deadlines rounded up to `granularity_ms`; the loop's timer stands at the earliest bucket alone.

    Ending a request before its deadline costs one dict removal and leaves nothing behind but an empty bucket.
    """

    __slots__ = ("_buckets", "_clock", "_granularity", "_order", "_timer", "_timer_tick")

    def __init__(self, clock: Clock, granularity_ms: float) -> None:
        self._clock = clock
        self._granularity = granularity_ms
        self._buckets: dict[int, dict[Ticket, None]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def add(self, delay_ms: float, expire: Callable[[], None]) -> Ticket:
        """Call `expire` once, in `delay_ms` or up to `granularity_ms` later, unless the ticket is cancelled before."""
        tick = int((self._clock.monotonic_ms() + delay_ms) / self._granularity) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heapq.heappush(self._order, tick)
        ticket = Ticket(bucket, expire)
        if self._timer is None or tick < self._timer_tick:
            self._arm()
        return ticket

    def close(self) -> None:
        """Forget every deadline; nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._order.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        if not self._order:
            return
        self._timer_tick = self._order[0]
        delay_ms = self._timer_tick * self._granularity - self._clock.monotonic_ms()
        self._timer = asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_tick = self._clock.monotonic_ms() / self._granularity
        while self._order and self._order[0] <= now_tick:
            bucket = self._buckets.pop(heapq.heappop(self._order))
            for ticket in list(bucket):
                if ticket in bucket:  # else one that expired before it cancelled it
                    ticket.cancel()
                    ticket.expire()
        self._arm()


class Delayed:
    """Calls that are made together, each once, a while after the first of them was asked for. One timer for all."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_ms = delay_ms
        self._calls: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Make this call soon. Cheap."""
        self._calls[call] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_ms / 1000, self.run)

    def run(self) -> None:
        """Make the calls now."""
        self._timer = None
        calls, self._calls = self._calls, {}
        for call in calls:
            call()

    def stop(self) -> None:
        """Make no more calls."""
        if self._timer is not None:
            self._timer.cancel()


class Pauses:
    """Pauses whose length goes by a setting: when the settings change, each asks anew when it ends."""

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
        """The settings changed: each pause that is under way asks anew when it ends."""
        for woken in self._woken:
            if not woken.done():
                woken.set_result(None)
