"""Deadlines: never early, late by its granularity at most, one timer for all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from strandline.chaos.sim.loop import SimLoop
from strandline.proto.timers import Deadlines


class LoopClock:
    """A clock that shows the loop's time."""

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    def wall_ms(self) -> int:
        return round(self.monotonic_ms())


class Item:
    def __init__(self, log: list[tuple[str, float]], name: str) -> None:
        self.log = log
        self.name = name

    def expire(self) -> None:
        self.log.append((self.name, LoopClock().monotonic_ms()))


def run_virtual(main: Coroutine[Any, Any, None]) -> SimLoop:
    loop = SimLoop(random.Random(0))
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
    return loop


def test_each_expires_at_its_time_and_not_before() -> None:
    """Never early, at most one granule late, in order."""

    async def main() -> None:
        log: list[tuple[str, float]] = []
        deadlines = Deadlines(LoopClock(), 10.0)
        for name, delay_ms in (("c", 75.0), ("a", 5.0), ("b", 30.0), ("a2", 6.0)):
            deadlines.add(delay_ms, Item(log, name).expire)
        await asyncio.sleep(1)
        assert [name for name, _ in log] == ["a", "a2", "b", "c"]
        for (_, at_ms), due_ms in zip(log, (5, 6, 30, 75), strict=True):
            assert due_ms <= at_ms <= due_ms + 11

    run_virtual(main())


def test_a_cancelled_ticket_never_expires() -> None:
    """Most requests end before their deadline; one that is cancelled while its bucket fires is left alone too."""

    async def main() -> None:
        log: list[tuple[str, float]] = []
        deadlines = Deadlines(LoopClock(), 10.0)

        class Canceller:
            def expire(self) -> None:
                second.cancel()

        deadlines.add(5, Canceller().expire)
        second = deadlines.add(5, Item(log, "second").expire)
        first = deadlines.add(50, Item(log, "first").expire)
        first.cancel()
        first.cancel()
        await asyncio.sleep(1)
        assert log == []

    run_virtual(main())


def test_thousands_of_ended_requests_cost_no_wakeups() -> None:
    """One timer stands for all; what was cancelled leaves only empty buckets."""

    async def main() -> None:
        deadlines = Deadlines(LoopClock(), 100.0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        log: list[tuple[str, float]] = []
        for _ in range(5000):
            deadlines.add(30_000, Item(log, "late").expire).cancel()
        before = loop.events
        await asyncio.sleep(60)
        assert loop.events - before < 20
        assert log == []

    run_virtual(main())


def test_close_forgets_everything() -> None:
    """A stopped node answers nobody."""

    async def main() -> None:
        log: list[tuple[str, float]] = []
        deadlines = Deadlines(LoopClock(), 10.0)
        deadlines.add(5, Item(log, "late").expire)
        deadlines.close()
        await asyncio.sleep(1)
        assert log == []

    run_virtual(main())
