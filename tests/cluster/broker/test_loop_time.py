"""The loop's time, by a clock that a test moves: who has a turn, in which order, and for how long (rule A26)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from strandline.cluster.broker import loop_time as loop_times
from strandline.cluster.broker.loop_time import (
    KEYS_MAX,
    PAUSES,
    SLICE_MS,
    STRANGERS_MS,
    TURN_MS,
    TURNS_BETWEEN,
    LoopTime,
)
from strandline.cluster.broker.request import Peer
from strandline.proto.steps import Steps


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ms = 1000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)


class Request:
    """A request that notes how long the loop was at it."""

    def __init__(self) -> None:
        self._began_ms = 0.0
        self.took_ms: list[float] = []

    def begin_step(self, now_ms: float) -> None:
        self._began_ms = now_ms

    def end_step(self, now_ms: float) -> None:
        self.took_ms.append(now_ms - self._began_ms)


class Site:
    """A loop's time, and what was done in it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.loop_time = LoopTime(self.clock)
        self.done: list[str] = []

    def work(self, peer: Peer, name: str, took_ms: float) -> None:
        """Do it, as a connection does its requests."""

        def take() -> None:
            self.clock.now_ms += took_ms
            self.done.append(name)

        self.loop_time.measured(peer, take)

    def ask(self, peer: Peer, name: str, took_ms: float) -> None:
        """Do it now, or in a later turn."""
        if self.loop_time.admits(peer):
            self.work(peer, name, took_ms)
        else:
            self.loop_time.wait(peer, partial(self.work, peer, name, took_ms))


def client(principal: str, host: str = "10.0.0.1") -> Peer:
    return Peer("L", host, f"User:{principal}")


def stranger(host: str = "10.0.0.9") -> Peer:
    peer = Peer("L", host)
    peer.is_stranger = True
    return peer


def run(body: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        await body(Site())

    asyncio.run(main())


async def drained(site: Site, count: int) -> None:
    async with asyncio.timeout(20):
        while len(site.done) < count:
            await asyncio.sleep(0)


def test_a_turn_has_so_much_for_clients_and_then_everything_else_runs() -> None:
    """What is ready beside them runs between two turns, whatever waits, and has some turns for itself."""

    async def body(site: Site) -> None:
        for number in range(20):
            site.ask(client("a"), f"{number}", TURN_MS / 4)
        assert len(site.done) == 4
        seen: list[int] = []
        while len(site.done) < 20:
            await asyncio.sleep(0)  # whatever else is on the loop
            seen.append(len(site.done))
        assert sorted(set(seen)) == [8, 12, 16, 20]
        assert all(seen.count(served) > TURNS_BETWEEN for served in (8, 12, 16))

    run(body)


def test_time_that_was_not_used_begins_anew_without_waiting() -> None:
    """As long as the loop is not busy, nobody waits."""

    async def body(site: Site) -> None:
        for number in range(50):
            site.ask(client("a"), f"{number}", TURN_MS / 3)
            site.clock.now_ms += TURN_MS
        assert len(site.done) == 50
        assert site.loop_time.waits == 0

    run(body)


def test_principals_have_their_turns_fairly_then_addresses_then_connections() -> None:
    """A hundred connections of one are one; of two addresses of one, neither waits for all of the other's."""

    async def body(site: Site) -> None:
        site.ask(client("x"), "full", TURN_MS)
        for number in range(100):
            site.ask(client("mallory"), f"m{number}", TURN_MS / 2)
        for number in range(3):
            site.ask(client("mallory", "10.0.0.2"), f"other{number}", TURN_MS / 2)
        for number in range(3):
            site.ask(client("alice"), f"a{number}", TURN_MS / 2)
        await drained(site, 107)
        assert site.done[1:13] == [
            *("m0", "a0", "other0", "a1", "m1", "a2"),
            *("other1", "m2", "other2", "m3", "m4", "m5"),
        ]

    run(body)


def test_who_took_much_at_once_waits_until_others_had_as_much() -> None:
    """Fairness is of time and not of requests; and nobody saves time up."""

    async def body(site: Site) -> None:
        site.ask(client("x"), "full", TURN_MS)
        for number in range(4):
            site.ask(client("slow"), f"s{number}", 10.0)
        for number in range(40):
            site.ask(client("quick"), f"q{number}", 1.0)
        await drained(site, 30)
        assert site.done[1] == "s0"
        assert [name for name in site.done[2:13] if name.startswith("s")] in (["s1"], [])
        site.ask(client("late"), "late0", 1.0)
        site.ask(client("late"), "late1", 1.0)
        await drained(site, 47)
        late = [site.done.index(f"late{number}") for number in range(2)]
        assert late[1] > late[0] + 1

    run(body)


def test_strangers_share_a_small_time_of_their_own() -> None:
    """They do not keep those waiting who are known, nor are they kept waiting for ever."""

    async def body(site: Site) -> None:
        for number in range(10):
            site.ask(stranger(f"10.0.1.{number}"), f"s{number}", STRANGERS_MS)
        assert site.done == ["s0"]
        site.ask(client("alice"), "a", 0.1)
        assert site.done == ["s0", "a"]
        for number in range(40):
            site.ask(client("alice"), f"{number}", TURN_MS)
        await drained(site, 51)
        assert site.done.index("s1") < len(site.done) - 1

    run(body)


def pauses_of(site: Site) -> list[float]:
    """The pauses from now on, in milliseconds: each is over at once, by the test's clock too."""
    pauses: list[float] = []
    loop: Any = asyncio.get_running_loop()

    def call_later(delay_s: float, call: Callable[..., None], *given: Any) -> asyncio.Handle:
        pauses.append(delay_s * 1000)
        site.clock.now_ms += delay_s * 1000
        handle: asyncio.Handle = loop.call_soon(call, *given)
        return handle

    loop.call_later = call_later
    return pauses


def test_strangers_of_whom_nobody_becomes_known_have_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A44. First they have turns as all others, so that many may log in at once. What comes to nothing is forgiven
    with time, and forgotten of whoever is known in the end."""
    monkeypatch.setattr(loop_times, "UNPROVEN_MS", 100 * STRANGERS_MS)

    async def body(site: Site) -> None:
        pauses = pauses_of(site)
        alice = stranger("10.0.0.1")

        async def ask(count: int) -> float:
            """How long they paused for so many."""
            before, done = sum(pauses), len(site.done)
            for number in range(count):
                site.ask(alice if number < 30 else stranger(), "", STRANGERS_MS)
            await drained(site, done + count)
            for _ in range(3):
                await asyncio.sleep(0)
            return sum(pauses) - before

        assert await ask(99) == 0
        assert await ask(101) == pytest.approx(101 * STRANGERS_MS * PAUSES, rel=0.05)
        site.loop_time.proven(alice)
        assert alice.stranger_ms == 0
        assert await ask(50) <= 25 * STRANGERS_MS * PAUSES
        site.clock.now_ms += 100 * STRANGERS_MS / loop_times.UNPROVEN_FORGIVEN
        assert await ask(99) == 0

    run(body)


def test_strangers_pause_for_what_goes_beyond_their_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake of TLS takes as long as ten turns."""
    monkeypatch.setattr(loop_times, "UNPROVEN_MS", 0.0)

    async def body(site: Site) -> None:
        pauses = pauses_of(site)
        site.ask(stranger(), "half of it", STRANGERS_MS / 2)
        site.ask(stranger(), "a handshake", 10 * STRANGERS_MS)
        site.ask(stranger(), "waits", STRANGERS_MS)
        await drained(site, 3)
        assert pauses == [pytest.approx(10.5 * STRANGERS_MS * PAUSES)]

    run(body)


def test_what_is_gone_waits_no_more() -> None:
    """A connection that is lost while it waits is not served."""

    async def body(site: Site) -> None:
        site.ask(client("x"), "full", TURN_MS)
        gone, stays = partial(site.work, client("a"), "gone", 1.0), partial(site.work, client("b"), "stays", 1.0)
        for call, who in ((gone, "a"), (gone, "a"), (stays, "b")):
            site.loop_time.wait(client(who), call)
        site.loop_time.forget(gone)
        site.loop_time.forget(gone)
        await drained(site, 2)
        await asyncio.sleep(0)
        assert site.done == ["full", "stays"]

    run(body)


def test_steps_of_coroutines_count() -> None:
    """A step is not held up; what comes behind it is."""

    async def body(site: Site) -> None:
        async def work() -> None:
            site.clock.now_ms += TURN_MS

        with suppress(StopIteration):
            site.loop_time.timed(client("a"), request := Request(), work()).send(None)
        assert not site.loop_time.admits(client("b"))
        assert request.took_ms == [TURN_MS]

    run(body)


def test_an_error_in_one_turn_keeps_nobody_waiting() -> None:
    async def body(site: Site) -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))

        def fail() -> None:
            raise ValueError("in a test")

        site.ask(client("x"), "full", TURN_MS)
        site.loop_time.wait(client("a"), fail)
        site.ask(client("b"), "b", 1.0)
        await drained(site, 2)
        assert [str(error) for error in told] == ["in a test"]

    run(body)


def test_whoever_has_many_names_takes_bounded_memory() -> None:
    """Addresses that had a turn are forgotten, also where somebody always waits."""

    async def body(site: Site) -> None:
        site.ask(client("x"), "full", TURN_MS)
        for number in range(5 * KEYS_MAX):
            site.ask(client("a", f"10.{number // 256}.{number % 256}.1"), "", SLICE_MS)
        site.ask(client("b"), "last", SLICE_MS)
        await drained(site, 4 * KEYS_MAX)
        waiting = site.loop_time._known.waiting
        assert len(waiting._addresses["User:a"]._used_ms) <= 3 * KEYS_MAX
        await drained(site, 5 * KEYS_MAX + 2)
        assert len(waiting) == 0
        assert not waiting._addresses

    run(body)


def test_items_that_are_awaited_have_a_slice_at_a_time() -> None:
    """As many as a turn has time for at once, as of most requests; the rest in turns, and others come between."""

    async def body(site: Site) -> None:
        async def make(number: int) -> int:
            site.clock.now_ms += SLICE_MS
            return number

        few = int(TURN_MS / SLICE_MS) - 1
        assert await site.loop_time.each(client("a"), make, range(few)) == list(range(few))
        assert site.loop_time.waits == 0
        assert await site.loop_time.each(client("a"), make, range(20)) == list(range(20))
        assert site.loop_time.waits == 20 - few

    run(body)


def test_short_work_is_done_at_once() -> None:
    """Work in steps waits for no turn before it has had the time of one."""

    async def body(site: Site) -> None:
        def steps(count: int) -> Steps[int]:
            for _ in range(count):
                site.clock.now_ms += SLICE_MS
                yield
            return count

        few = int(TURN_MS / SLICE_MS) - 1
        assert await site.loop_time.at_once_or_in_turns(client("a"), steps(few)) == few
        assert site.loop_time.waits == 0
        assert await site.loop_time.at_once_or_in_turns(client("a"), steps(20)) == 20
        assert site.loop_time.waits > 10

    run(body)


def test_long_work_of_many_has_a_slice_each() -> None:
    """Twenty that work long have their slices in turns; in none is more done than clients have time for, and whoever
    goes leaves nothing behind."""

    async def body(site: Site) -> None:
        began: list[list[str]] = [[]]

        def steps(name: str) -> Steps[None]:
            for _ in range(5):
                site.clock.now_ms += SLICE_MS
                site.done.append(name)
                began[-1].append(name)
                yield

        works = []
        for number in range(20):
            peer = client(f"u{number}")
            works.append(site.loop_time.timed(peer, Request(), site.loop_time.in_turns(peer, steps(str(number)))))
        tasks = [asyncio.ensure_future(work) for work in works]
        tasks[0].cancel()
        async with asyncio.timeout(20):
            while len(site.done) < 19 * 5:
                await asyncio.sleep(0)
                began.append([])
        assert max(map(len, began)) <= TURN_MS / SLICE_MS
        assert "0" not in site.done
        assert sorted(site.done[:19]) == sorted(map(str, range(1, 20)))

    run(body)
