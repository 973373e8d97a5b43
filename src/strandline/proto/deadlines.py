"""Deadlines of parked requests: one timer for all of them, however many there are."""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

from strandline.proto.ports import Clock


class Expirable(Protocol):
    """Something that is given up when its time has come."""

    def expire(self) -> None:
        """Called once, at or up to `granularity_ms` after the deadline, unless it was removed before."""


class Ticket:
    """A place in the wheel; `cancel` is cheap, and wanted: most requests end before their deadline."""

    __slots__ = ("_bucket", "_item")

    def __init__(self, bucket: dict[Ticket, None], item: Expirable) -> None:
        self._bucket = bucket
        self._item = item
        bucket[self] = None

    def cancel(self) -> None:
        """Withdraw. Fine after expiry."""
        self._bucket.pop(self, None)

    def expire(self) -> None:
        self._item.expire()


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

    def add(self, delay_ms: float, item: Expirable) -> Ticket:
        """Expire `item` in `delay_ms`, never earlier."""
        tick = int((self._clock.monotonic_ms() + delay_ms) / self._granularity) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heapq.heappush(self._order, tick)
        ticket = Ticket(bucket, item)
        if self._timer is None or tick < self._timer_tick:
            self._arm()
        return ticket

    def close(self) -> None:
        """Forget everything without expiring it."""
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
