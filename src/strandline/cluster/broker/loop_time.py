"""The time of a node's loop, as far as clients take it (rule A26).

One loop does everything in a node: votes, heartbeats and replication run on it beside clients' requests. So clients get
a bounded time of each turn, and whatever else is ready runs between two turns of theirs. Those who have not proven who
they are get a small time of their own, all of them together, and pauses behind it once much of it came to nothing (rule
A44). What a turn has no room for waits, and is taken fairly: first among principals, then among the addresses of one,
then among the connections of one address.

The end of a turn is looked for only once much of its time was used: as long as the loop is not busy, nobody waits, and
a request costs two readings of the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeVar

from strandline.proto.ports import Clock
from strandline.proto.steps import Steps

TURN_MS = 1.0
"""For all clients that are known, in one turn. An ack takes some turns of the loop, on two or three nodes."""

STRANGERS_MS = 0.25
"""The same for all that are not authenticated: for accepting them, for handshakes of TLS, requests, and their end."""

UNPROVEN_MS = 1000.0
"""Time of strangers that may come to nothing. A thousand clients that log in anew, by TLS, take a second, and each
gives back what it took once it is known."""

UNPROVEN_FORGIVEN = 0.01
"""So much of the time that passes is forgiven of that: an attack that comes and goes is an attack."""

PAUSES = 3
"""Pause behind a turn of strangers when that is used up, as a multiple of what the turn took: a quarter of the loop's
time is theirs then, though nobody else wants it."""

TURNS_BETWEEN = 3
"""Turns of the loop without clients, between two in which some were served that had waited. Votes, heartbeats and
replication take several turns from the socket to the socket: these come first. An empty one takes some microseconds."""

SLICE_MS = 0.25
"""At a stretch for one connection while others wait."""

KEYS_MAX = 1000
"""Principals or addresses that had a turn and wait no more are remembered in about this number."""

_LEAST_MS = 0.001
"""What a turn costs at least, so that the next one is another's, also by a clock that stands still."""

T = TypeVar("T")
R = TypeVar("R")
Call = Callable[[], None]


class Peer(Protocol):
    """Taker of time: `strandline.cluster.broker.request.Peer`, or a connection in a handshake of TLS.

    Attributes:
        is_stranger: it has not proven yet who it is.
        stranger_ms: what it took of the loop until then.
    """

    stranger_ms: float

    @property
    def principal(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def is_stranger(self) -> bool: ...


class Work(Protocol):
    """A request that has its steps (`strandline.cluster.broker.request.Exchange`)."""

    def begin_step(self, now_ms: float) -> None:
        """The loop is at it from now on."""

    def end_step(self, now_ms: float) -> None:
        """Until now."""


class _Order:
    """Order of those that wait, by the time that they had: the least first.

    Invariants: whoever begins to wait has had at least as much as the one that was served last, so that nobody saves
    time up and then keeps all others waiting.
    """

    def __init__(self) -> None:
        self._used_ms: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._heap: list[tuple[float, int, str]] = []
        self._numbers = count()
        self._floor_ms = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, key: str) -> None:
        """Let a key wait; fine if it does already."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._used_ms[key] = max(self._used_ms.get(key, 0.0), self._floor_ms)
            self._push(key)

    def end(self, key: str) -> None:
        """Let a key wait no more."""
        self._waiting.discard(key)
        if len(self._used_ms) > KEYS_MAX + 2 * len(self._waiting):
            self._used_ms = {key: self._used_ms[key] for key in sorted(self._waiting)}

    def least(self) -> str:
        """The one to be served now."""
        while True:
            used_ms, _, key = self._heap[0]
            if key in self._waiting and used_ms == self._used_ms[key]:
                self._floor_ms = used_ms
                return key
            heappop(self._heap)

    def charge(self, key: str, took_ms: float) -> None:
        """Count that a key was served for `took_ms`."""
        # rule A26/turns-by-number
        self._used_ms[key] = self._used_ms.get(key, self._floor_ms) + max(took_ms, _LEAST_MS)
        if key in self._waiting:
            self._push(key)

    def _push(self, key: str) -> None:
        heappush(self._heap, (self._used_ms[key], next(self._numbers), key))


class _Waiting:
    """Calls that wait for a turn, by principal and by address."""

    def __init__(self) -> None:
        self._principals = _Order()
        self._addresses: dict[str, _Order] = {}
        self._calls: dict[tuple[str, str], dict[Call, None]] = {}
        self._places: dict[Call, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, principal: str, address: str, call: Call) -> None:
        if call in self._places:
            return
        place = principal, address
        self._places[call] = place
        self._calls.setdefault(place, {})[call] = None
        self._addresses.setdefault(principal, _Order()).begin(address)
        self._principals.begin(principal)

    def take(self) -> tuple[str, str, Call]:
        """Take the key whose turn it is; it waits no more."""
        principal = self._principals.least()
        address = self._addresses[principal].least()
        call = next(iter(self._calls[principal, address]))
        self.forget(call)
        return principal, address, call

    def forget(self, call: Call) -> None:
        place = self._places.pop(call, None)
        if place is None:
            return
        principal, address = place
        calls = self._calls[place]
        del calls[call]
        if not calls:
            del self._calls[place]
            self._addresses[principal].end(address)
            if not self._addresses[principal]:
                self._principals.end(principal)

    def charge(self, principal: str, address: str, took_ms: float) -> None:
        if not self._places:  # nobody is kept waiting: what was before does not matter any more
            self._addresses.clear()
            self._principals = _Order()
            return
        self._principals.charge(principal, took_ms)
        if self._addresses[principal]:
            self._addresses[principal].charge(address, took_ms)
        else:
            del self._addresses[principal]


class _Share:
    """Share of one turn, for the known or for strangers.

    Attributes:
        pauses: the pause behind a turn, as a multiple of what it took.
        spent_ms: what this turn took so far.
        last_ms: when somebody was served last.
        is_due: the turn's end is on its way (`LoopTime._next_turn`).
    """

    __slots__ = ("budget_ms", "is_due", "last_ms", "pauses", "spent_ms", "waiting")

    def __init__(self, budget_ms: float) -> None:
        self.budget_ms = budget_ms
        self.pauses = 0
        self.last_ms = 0.0
        self.spent_ms = 0.0
        self.waiting = _Waiting()
        self.is_due = False


class LoopTime:
    """Time that clients have taken of this turn of the loop, and those that wait for a next one.

    Invariants:
        * in one turn clients are served until `TURN_MS` are over, strangers until `STRANGERS_MS` are: at most one
          request, or one step of one, goes beyond each;
        * whoever waits is served in a later turn, once for each time it asked.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known = _Share(TURN_MS)
        self._strangers = _Share(STRANGERS_MS)
        self._unproven_ms = 0.0
        self._forgiven_at_ms = 0.0
        self.waits = 0
        """How often somebody had to wait for a turn."""

    def now_ms(self) -> float:
        """The time that all of this is measured by."""
        return self._clock.monotonic_ms()

    def admits(self, peer: Peer) -> bool:
        """True if work for the peer may be done now; else it has to wait."""
        share = self._share(peer)
        return share.spent_ms < share.budget_ms and not share.waiting  # rule A26/clients-have-all-of-the-loop

    def slice_ms(self, peer: Peer) -> float:
        """Milliseconds for which the peer may go on, now that it has its turn."""
        share = self._share(peer)
        left_ms = share.budget_ms - share.spent_ms
        return min(SLICE_MS, left_ms) if share.waiting else left_ms

    def begin(self, peer: Peer) -> float:
        """Note that the peer is served from now on; returns what `end` needs.

        Where nobody was served for as long as a turn takes, everything else had its time: a new turn has begun.
        """
        share, now_ms = self._share(peer), self._clock.monotonic_ms()
        if not share.is_due and now_ms - share.last_ms >= share.budget_ms:
            share.spent_ms = 0.0
        return now_ms

    def end(self, peer: Peer, began_ms: float) -> None:
        """Until now."""
        share = self._share(peer)
        share.last_ms = now_ms = self._clock.monotonic_ms()
        took_ms = now_ms - began_ms
        share.spent_ms += took_ms
        if share is self._strangers:
            peer.stranger_ms += took_ms
            self._count_unproven(now_ms, took_ms)
        if share.spent_ms * 2 >= share.budget_ms and not share.is_due:
            self._end_turn(share)

    def proven(self, peer: Peer) -> None:
        """Note that a peer is known by now: what it took as a stranger came to something."""
        self._count_unproven(self._clock.monotonic_ms(), -peer.stranger_ms)  # rule A44/logins-come-to-nothing
        peer.stranger_ms = 0.0

    def wait(self, peer: Peer, call: Call) -> None:
        """Call it once in a later turn. Asking twice counts once."""
        self.waits += 1
        share = self._share(peer)
        share.waiting.add(peer.principal, peer.host, call)  # rule A26/turns-by-connection
        if not share.is_due:
            self._end_turn(share)

    def forget(self, call: Call) -> None:
        """Let a call wait no more; fine if it does not."""
        self._known.waiting.forget(call)
        self._strangers.waiting.forget(call)

    def timed(self, peer: Peer, request: Work, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """The work, each step of which counts, for the peer and for the request: it is not held up, but what comes
        behind it is."""
        return _Timed(self, peer, request, work)

    def measured(self, peer: Peer, work: Callable[[], T]) -> T:
        """Do it now, and count it. Returns what the work does."""
        began_ms = self.begin(peer)
        try:
            return work()
        finally:
            self.end(peer, began_ms)

    def begun(self, steps: Steps[None]) -> bool:
        """Work that may be long: do as much of it as a turn has time for. True if that was all; else the rest goes by
        `in_turns`. So a request of some hundred items is answered at once."""
        end_ms = self._clock.monotonic_ms() + TURN_MS
        return all(self._clock.monotonic_ms() < end_ms for _ in steps)

    async def in_turns(self, peer: Peer, steps: Steps[T]) -> T:
        """Long work, a slice of it in a turn; who waits meanwhile has turns between. What it takes counts where this is
        part of something `timed`. Returns what the steps made."""
        slice_end_ms = await self._turn(peer)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            if self._clock.monotonic_ms() >= slice_end_ms:
                slice_end_ms = await self._turn(peer)

    async def at_once_or_in_turns(self, peer: Peer, steps: Steps[T]) -> T:
        """`begun`, and if that was not all `in_turns`: for what is a coroutine in any case."""
        end_ms = self._clock.monotonic_ms() + TURN_MS
        while self._clock.monotonic_ms() < end_ms:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
        return await self.in_turns(peer, steps)

    async def each(self, peer: Peer, make: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """What `make` makes of each item, awaited one after the other: as far as a turn has time at once, the rest in
        turns."""
        slice_end_ms = self._clock.monotonic_ms() + TURN_MS
        made: list[R] = []
        for item in items:
            made.append(await make(item))
            if self._clock.monotonic_ms() >= slice_end_ms:  # rule A48/awaited-items-hold-the-loop
                slice_end_ms = await self._turn(peer)
        return made

    async def _turn(self, peer: Peer) -> float:
        """Wait for one; returns when its slice ends.

        The slice is charged when it is given, as the coroutine goes on a little later: else all that wait would be
        given theirs in the same turn.
        """
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give() -> None:
            if not given.done():
                self._share(peer).spent_ms += SLICE_MS  # rule A26/slices-given-all-at-once
                given.set_result(None)

        self.wait(peer, give)
        try:
            await given
        finally:
            self.forget(give)
        return self._clock.monotonic_ms() + SLICE_MS

    def _share(self, peer: Peer) -> _Share:
        return self._strangers if peer.is_stranger else self._known  # rule A26/strangers-have-the-time-of-all

    def _count_unproven(self, now_ms: float, took_ms: float) -> None:
        """Strangers took so much more, or less, of the loop for nothing."""
        forgiven_ms = (now_ms - self._forgiven_at_ms) * UNPROVEN_FORGIVEN
        self._forgiven_at_ms = now_ms
        self._unproven_ms = min(max(self._unproven_ms - forgiven_ms + took_ms, 0.0), UNPROVEN_MS)
        self._strangers.pauses = PAUSES if self._unproven_ms >= UNPROVEN_MS else 0  # rule A44/strangers-never-pause

    def _end_turn(self, share: _Share) -> None:
        share.is_due = True
        between = TURNS_BETWEEN if share.waiting else 0
        asyncio.get_running_loop().call_soon(self._next_turn, share, between)

    def _next_turn(self, share: _Share, between: int) -> None:
        """Everything else that was ready had its time: serve who waits."""
        if between > 0:  # rule A26/clients-have-every-turn
            asyncio.get_running_loop().call_soon(self._next_turn, share, between - 1)
            return
        pause_ms = share.spent_ms * share.pauses  # rule A44/what-goes-beyond-a-turn-has-no-pause
        rest_ms = share.last_ms + pause_ms - self._clock.monotonic_ms()
        if rest_ms > 0:
            asyncio.get_running_loop().call_later(rest_ms / 1000, self._next_turn, share, 0)
            return
        share.is_due = False
        share.spent_ms = 0.0
        waiting = share.waiting
        try:
            while waiting and share.spent_ms < share.budget_ms:
                self._serve(share)
        finally:
            if waiting and not share.is_due:
                self._end_turn(share)

    def _serve(self, share: _Share) -> None:
        principal, address, call = share.waiting.take()
        before_ms = share.spent_ms
        try:
            call()
        finally:
            share.waiting.charge(principal, address, share.spent_ms - before_ms)


class _Timed(Coroutine[Any, Any, None]):
    """A coroutine whose steps are counted."""

    def __init__(self, loop_time: LoopTime, peer: Peer, request: Work, work: Coroutine[Any, Any, None]) -> None:
        self._loop_time = loop_time
        self._peer = peer
        self._request = request
        self._work = work

    def send(self, value: Any) -> Any:
        began_ms = self._loop_time.begin(self._peer)
        self._request.begin_step(began_ms)
        try:
            return self._work.send(value)
        finally:
            self._loop_time.end(self._peer, began_ms)  # rule A26/coroutines-take-nobodys-time
            self._request.end_step(self._loop_time.now_ms())

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, None, None]:
        return self._work.__await__()
