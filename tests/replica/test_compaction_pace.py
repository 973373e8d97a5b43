"""How compaction shares the event loop: it rests as long as it has worked, and waits count as rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strandline.proto.timers import Pauses
from strandline.replica import compaction
from strandline.replica.compaction import REST_MS, Pace
from tests.log.helpers import ManualClock


class Loop(Pauses):
    """Time that passes when a test says so, and in sleeps, each of which ends so much late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_ms: int = 0) -> None:
        self.clock = ManualClock(1_000)
        super().__init__(self.clock)
        self.slept: list[float] = []

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds * 1_000)
            if seconds:
                self.clock.now_ms += round(seconds * 1_000) + late_ms

        monkeypatch.setattr(compaction.asyncio, "sleep", sleep)

    async def until(self, end_ms: Callable[[], float]) -> None:
        """As `Pauses` do."""
        await asyncio.sleep(max(0.0, end_ms() - self.clock.now_ms) / 1_000)

    async def wait(self, ms: int) -> str:
        """For a disk, say."""
        self.clock.now_ms += ms
        return "read"


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On a loop, which is not slept on."""
    asyncio.run(scenario())


def test_it_rests_as_long_as_it_has_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the steps that were too short for a rest of their own, each of which gives others a turn."""
    loop = Loop(monkeypatch)
    pace = Pace(loop.clock, loop, lambda: float("inf"))

    async def scenario() -> None:
        for work_ms in (1, 1, 7, 0, 1):
            loop.clock.now_ms += work_ms
            await pace(100)

    run(scenario)
    assert loop.slept == [0, REST_MS, 7, 0, 0]


def test_a_wait_is_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have the loop meanwhile. Of a long one no more than a little is kept for later."""
    loop = Loop(monkeypatch)
    pace = Pace(loop.clock, loop, lambda: float("inf"))

    async def scenario() -> None:
        loop.clock.now_ms += 10
        assert await pace.during(loop.wait(4)) == "read"
        await pace(100)
        await pace.during(loop.wait(1_000))
        loop.clock.now_ms += 10
        await pace(100)

    run(scenario)
    assert loop.slept == [6, 10 - REST_MS]


def test_timers_that_are_late_cost_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred steps of a millisecond take a hundred more, though each rest is a millisecond late."""
    loop = Loop(monkeypatch, late_ms=1)
    pace = Pace(loop.clock, loop, lambda: float("inf"))

    async def scenario() -> None:
        for _ in range(100):
            loop.clock.now_ms += 1
            await pace(100)

    run(scenario)
    assert loop.clock.now_ms - 1_000 == pytest.approx(200, abs=3)


def test_it_keeps_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """`log.cleaner.io.max.bytes.per.second`, whatever it has rested."""
    loop = Loop(monkeypatch)
    pace = Pace(loop.clock, loop, lambda: 1_000_000.0)

    async def scenario() -> None:
        for _ in range(10):
            await pace(100_000)
            await pace.during(loop.wait(5))

    run(scenario)
    assert loop.clock.now_ms - 1_000 == pytest.approx(1_000, abs=6)
