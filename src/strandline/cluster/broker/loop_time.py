"""Bounds the time of a node's event loop that clients may use (rule A26).

One loop runs everything in a node: votes, heartbeats and replication beside clients' requests. So clients get a bounded
time in each turn of the loop, and all other ready work runs between two such turns. Strangers, the clients that have
not authenticated yet, share a small time of their own, followed by pauses once much of it led to no authentication
(rule A44). Work for which a turn has no time left waits for a later turn. Waiting work is served fairly: first among
principals, then among the addresses of a principal, then among the connections of an address.

A turn is ended only after much of its time was used: while the loop is not busy, no request waits, and each costs two
readings of the clock.
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
"""Milliseconds per turn for all authenticated clients. An ack takes several turns of the loop on two or three nodes."""

STRANGERS_MS = 0.25
"""Milliseconds per turn for all strangers: accepting them, their TLS handshakes, requests, and disconnections."""

UNPROVEN_MS = 1000.0
"""Milliseconds that strangers may use without authenticating before pauses begin. A thousand clients that log in by TLS
at the same time use one second, and the time of each is taken off again once it has authenticated."""

UNPROVEN_FORGIVEN = 0.01
"""Fraction of elapsed time by which that sum falls: small, so that an attack that stops and resumes is still seen."""

PAUSES = 3
"""Pause after a turn of strangers once `UNPROVEN_MS` is used up, as a multiple of the turn's duration: 3 leaves them a
quarter of the loop's time, even if the loop is otherwise idle."""

TURNS_BETWEEN = 3
"""Turns of the loop without client work between two turns that serve waiting clients. Votes, heartbeats and replication
need several turns from one socket to the other, and come first. An empty turn takes a few microseconds."""

SLICE_MS = 0.25
"""Milliseconds that one connection may use without interruption while others wait."""

KEYS_MAX = 1000
"""Approximate maximum of principals or addresses whose used time is remembered after they stop waiting."""

_LEAST_MS = 0.001
"""Minimum milliseconds charged for a turn, so that the next turn goes to another even if the clock stands still."""

T = TypeVar("T")
R = TypeVar("R")
Call = Callable[[], None]


class Peer(Protocol):
    """Client whose time is counted: `strandline.cluster.broker.request.Peer`, or a connection in its TLS handshake.

    Attributes:
        is_stranger: it has not authenticated yet.
        stranger_ms: milliseconds of the loop that it used until then.
    """

    stranger_ms: float

    @property
    def principal(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def is_stranger(self) -> bool: ...


class Work(Protocol):
    """A request whose time on the loop is counted (`strandline.cluster.broker.request.Exchange`)."""

    def begin_step(self, now_ms: float) -> None:
        """Note that the loop begins to work on it at `now_ms`."""

    def end_step(self, now_ms: float) -> None:
        """Note that this work ends at `now_ms`."""


class _Order:
    """Waiting keys (principals or addresses), ordered by the time that each has used: the least first.

    Invariants: a key that begins to wait counts at least as much used time as the key served last had, so that no key
    saves time up and then keeps all others waiting.
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
        """Add a key to those that wait. Idempotent."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._used_ms[key] = max(self._used_ms.get(key, 0.0), self._floor_ms)
            self._push(key)

    def end(self, key: str) -> None:
        """Remove a key from those that wait. Idempotent."""
        self._waiting.discard(key)
        if len(self._used_ms) > KEYS_MAX + 2 * len(self._waiting):
            self._used_ms = {key: self._used_ms[key] for key in sorted(self._waiting)}

    def least(self) -> str:
        """Return the waiting key that has used the least time."""
        while True:
            used_ms, _, key = self._heap[0]
            if key in self._waiting and used_ms == self._used_ms[key]:
                self._floor_ms = used_ms
                return key
            heappop(self._heap)

    def charge(self, key: str, took_ms: float) -> None:
        """Add `took_ms` to the time that a key has used."""
        # rule A26/turns-by-number
        self._used_ms[key] = self._used_ms.get(key, self._floor_ms) + max(took_ms, _LEAST_MS)
        if key in self._waiting:
            self._push(key)

    def _push(self, key: str) -> None:
        heappush(self._heap, (self._used_ms[key], next(self._numbers), key))


class _Waiting:
    """Callbacks that wait for a turn, by principal and by address."""

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
        """Remove and return the callback to run next, with its principal and address."""
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
        if not self._places:  # nobody waits: the times used so far do not matter any more
            self._addresses.clear()
            self._principals = _Order()
            return
        self._principals.charge(principal, took_ms)
        if self._addresses[principal]:
            self._addresses[principal].charge(address, took_ms)
        else:
            del self._addresses[principal]


class _Share:
    """Time of one turn for authenticated clients or for strangers.

    Attributes:
        pauses: the pause after a turn, as a multiple of the turn's duration.
        spent_ms: milliseconds used in this turn so far.
        last_ms: monotonic time at which a client was served last.
        is_due: the end of the turn is scheduled (`LoopTime._next_turn`).
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
    """Time that clients have used in this turn of the loop, and the callbacks that wait for a later turn.

    Invariants:
        * in one turn clients are served for `TURN_MS`, strangers for `STRANGERS_MS`; at most one request, or one step
          of a request, exceeds each;
        * a waiting callback runs in a later turn, once for each `wait` (repeated ones before it runs count once).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known = _Share(TURN_MS)
        self._strangers = _Share(STRANGERS_MS)
        self._unproven_ms = 0.0
        self._forgiven_at_ms = 0.0
        self.waits = 0
        """Number of calls of `wait`."""

    def now_ms(self) -> float:
        """Monotonic time in milliseconds, by the clock that all times here are measured with."""
        return self._clock.monotonic_ms()

    def admits(self, peer: Peer) -> bool:
        """Return whether work for the peer may be done now; if not, it has to `wait`."""
        share = self._share(peer)
        return share.spent_ms < share.budget_ms and not share.waiting  # rule A26/clients-have-all-of-the-loop

    def slice_ms(self, peer: Peer) -> float:
        """Milliseconds that the peer may use now that it has its turn."""
        share = self._share(peer)
        left_ms = share.budget_ms - share.spent_ms
        return min(SLICE_MS, left_ms) if share.waiting else left_ms

    def begin(self, peer: Peer) -> float:
        """Note that work for the peer begins now; returns the time in ms to pass to `end`.

        If no client was served for the duration of a turn, all other work has had its time: a new turn begins.
        """
        share, now_ms = self._share(peer), self._clock.monotonic_ms()
        if not share.is_due and now_ms - share.last_ms >= share.budget_ms:
            share.spent_ms = 0.0
        return now_ms

    def end(self, peer: Peer, began_ms: float) -> None:
        """Count the time since `began_ms` for the peer, and schedule the end of the turn once half of it is used."""
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
        """Note that a peer has authenticated: the time that it used as a stranger does not lead to pauses."""
        self._count_unproven(self._clock.monotonic_ms(), -peer.stranger_ms)  # rule A44/logins-come-to-nothing
        peer.stranger_ms = 0.0

    def wait(self, peer: Peer, call: Call) -> None:
        """Run `call` once in a later turn. Repeated requests before that count once."""
        self.waits += 1
        share = self._share(peer)
        share.waiting.add(peer.principal, peer.host, call)  # rule A26/turns-by-connection
        if not share.is_due:
            self._end_turn(share)

    def forget(self, call: Call) -> None:
        """Remove a waiting callback. Idempotent."""
        self._known.waiting.forget(call)
        self._strangers.waiting.forget(call)

    def timed(self, peer: Peer, request: Work, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Wrap `work` so that the time of each of its steps counts for the peer and for the request. The work itself
        is never delayed; later work of clients is."""
        return _Timed(self, peer, request, work)

    def measured(self, peer: Peer, work: Callable[[], T]) -> T:
        """Run `work` now, count its time for the peer, and return its result."""
        began_ms = self.begin(peer)
        try:
            return work()
        finally:
            self.end(peer, began_ms)

    def begun(self, steps: Steps[None]) -> bool:
        """Run as many steps as a turn has time for. Return True if those were all; else run the rest by `in_turns`.
        So a request of a few hundred items is answered at once."""
        end_ms = self._clock.monotonic_ms() + TURN_MS
        return all(self._clock.monotonic_ms() < end_ms for _ in steps)

    async def in_turns(self, peer: Peer, steps: Steps[T]) -> T:
        """Run steps in slices, one slice per turn, so that waiting clients are served between them. Return the result
        of the steps. Their time is counted only if the calling coroutine is `timed`."""
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
        """Run as many steps as a turn has time for at once and the rest by `in_turns`; return their result. For callers
        that are coroutines anyway; others use `begun` first."""
        end_ms = self._clock.monotonic_ms() + TURN_MS
        while self._clock.monotonic_ms() < end_ms:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
        return await self.in_turns(peer, steps)

    async def each(self, peer: Peer, make: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Return the results of `make` for each item, awaited one after the other: as many as a turn has time for at
        once, the rest in later turns."""
        slice_end_ms = self._clock.monotonic_ms() + TURN_MS
        made: list[R] = []
        for item in items:
            made.append(await make(item))
            if self._clock.monotonic_ms() >= slice_end_ms:  # rule A48/awaited-items-hold-the-loop
                slice_end_ms = await self._turn(peer)
        return made

    async def _turn(self, peer: Peer) -> float:
        """Wait for a turn; return the monotonic time in ms at which the caller's slice of it ends.

        The slice is charged when it is given, because the coroutine goes on a little later: otherwise all waiting
        coroutines would be given their slices in the same turn.
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
        """Add `took_ms` (below 0: subtract) to the time of strangers that led to no authentication."""
        forgiven_ms = (now_ms - self._forgiven_at_ms) * UNPROVEN_FORGIVEN
        self._forgiven_at_ms = now_ms
        self._unproven_ms = min(max(self._unproven_ms - forgiven_ms + took_ms, 0.0), UNPROVEN_MS)
        self._strangers.pauses = PAUSES if self._unproven_ms >= UNPROVEN_MS else 0  # rule A44/strangers-never-pause

    def _end_turn(self, share: _Share) -> None:
        share.is_due = True
        between = TURNS_BETWEEN if share.waiting else 0
        asyncio.get_running_loop().call_soon(self._next_turn, share, between)

    def _next_turn(self, share: _Share, between: int) -> None:
        """Begin a new turn after `between` turns of other work and the share's pause, and serve waiting clients."""
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
    """A coroutine that counts the time of each of its steps."""

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
