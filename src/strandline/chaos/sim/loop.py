"""The deterministic event loop: virtual time, FIFO timers, seeded interleaving of task steps, executors inline.

Ordinary asyncio code runs on it unmodified. What it fixes (rule E7, "What breaks determinism in Python"):
timers of one instant run in the order they were made; tasks and futures hash by number; time passes only when nothing
is ready; "threads" are callbacks at a later virtual instant. What it varies, by its seed: which of the ready *task
steps* runs first. Plain callbacks keep their places, because protocol code may rely on their order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from strandline.chaos.sim.handles import OWNER, THREAD, ProcessKilled, SimFuture, SimHandle, SimTask

T = TypeVar("T")

_TRACE_MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads small numbers over all bits
_TRACE_MASK = (1 << 64) - 1
_STEPS_AT_ONE_INSTANT_MAX = 400_000
"""Callbacks at one instant at most: more of them without time moving are a busy loop of the code under test, not
work."""


class Transports(Protocol):
    """Factory of servers and connections (`strandline.chaos.sim.transport.NetworkTransports`)."""

    def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | list[str] | None, port: int | None
    ) -> asyncio.AbstractServer: ...
    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...


class Deadlock(RuntimeError):
    """No callback is ready and no timer is set: all processes wait for each other."""


class BusyLoop(RuntimeError):
    """Callbacks follow each other without end while virtual time stands still."""


class SimLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time.

    `now_us` is the world's time in whole microseconds from 0. `time()` answers on the clock of the process that asks,
    so that timers and `Clock.monotonic_ms` of one machine agree, however skewed it is.
    """

    def __init__(self, rng: random.Random, *, permute: bool = True) -> None:
        super().__init__()
        self.set_debug(False)
        self.now_us = 0
        self.events = 0
        self.trace = 0
        self.trace_sink: Callable[[str], None] | None = None
        self.transports: Transports | None = None
        self.unhandled: list[dict[str, Any]] = []
        self.effects: Counter[str] = Counter()
        """Counts of what faults did, by the names of `sim.effects`."""
        self.observe: Callable[[], None] | None = None
        self.observe_every = 64
        self._observed = 0
        self._rng = rng
        self._permute = permute
        self._numbers = itertools.count(1)
        self._queue: list[SimHandle] = []
        self._timers: list[tuple[int, int, SimHandle]] = []
        self._steps_at_instant = 0
        self.set_task_factory(_make_task)  # type: ignore[arg-type]
        self.set_exception_handler(_record_unhandled)

    # --- numbers, trace ---

    def next_number(self) -> int:
        """The next number in the order of creation of handles, tasks and futures."""
        return next(self._numbers)

    def mix(self, value: int) -> None:
        """Fold a fact about the run (a checksum of bytes sent, a size written) into the trace hash."""
        self.trace = ((self.trace ^ value) * _TRACE_MULTIPLIER) & _TRACE_MASK
        if self.trace_sink is not None:
            self.trace_sink(f"{self.now_us} mix {value}")

    # --- time ---

    def time(self) -> float:
        owner = OWNER.get()
        return self.now_us / 1e6 if owner is None else owner.clock.loop_time_s(self.now_us)

    # --- scheduling ---

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(0.0, callback, args, loop=self, context=context, number=next(self._numbers))
        self._queue.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """A function of asyncio's in Python, in which a thread that calls it may be interrupted, before and behind."""
        owner = OWNER.get()
        threads = None if owner is None else owner.threads
        if threads is not None:
            threads.within_a_call()
        handle = self.call_soon(callback, *args, context=context)
        if threads is not None:
            threads.within_a_call()
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        number = next(self._numbers)
        handle = SimHandle(when, callback, args, loop=self, context=context, number=number)
        owner = handle.owner
        due_us = int(when * 1e6) + 1 if owner is None else owner.clock.due_us(when)
        heapq.heappush(self._timers, (max(due_us, self.now_us), number, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at_us(
        self, due_us: int, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """Call at a world instant, whatever clock the owner of `context` has: for the network and the disks."""
        number = next(self._numbers)
        handle = SimHandle(due_us / 1e6, callback, args, loop=self, context=context, number=number)
        heapq.heappush(self._timers, (max(due_us, self.now_us), number, handle))
        return handle

    def requeue(self, handles: list[SimHandle]) -> None:
        """Put deferred handles of a resumed process back, in their order."""
        self._queue.extend(handles)

    def create_future(self) -> SimFuture:
        return SimFuture(loop=self, number=next(self._numbers))

    # --- the turn ---

    def _run_once(self) -> None:
        self._advance()
        batch, self._queue = self._queue, []
        if self._permute and len(batch) > 1:
            self._permute_steps(batch)
        self._steps_at_instant += len(batch)
        if self._steps_at_instant > _STEPS_AT_ONE_INSTANT_MAX:
            raise BusyLoop(f"{self._steps_at_instant} callbacks at {self.now_us} us; the last: {batch[-1]!r}")
        for handle in batch:
            if not handle._cancelled:
                self._run(handle)
        if self.observe is not None and self.events - self._observed >= self.observe_every:
            self._observed = self.events
            self.observe()

    def _advance(self) -> None:
        """Move time to the next timer if nothing is ready, and queue every timer that is due."""
        timers = self._timers
        if not self._queue:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock(f"nothing ready and no timer at {self.now_us} us")
            if timers[0][0] > self.now_us:
                self.now_us = timers[0][0]
                self._steps_at_instant = 0
        while timers and timers[0][0] <= self.now_us:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                self._queue.append(handle)

    def _permute_steps(self, batch: list[SimHandle]) -> None:
        places = [index for index, handle in enumerate(batch) if handle.is_step]
        if len(places) > 1:
            steps = [batch[index] for index in places]
            self._rng.shuffle(steps)
            for index, step in zip(places, steps, strict=True):
                batch[index] = step

    def _run(self, handle: SimHandle) -> None:
        owner = handle.owner
        if owner is not None:
            if owner.holds(handle):
                return
            owner.wakeups += 1
        self.events += 1
        self.trace = ((self.trace ^ handle.number) * _TRACE_MULTIPLIER + self.now_us) & _TRACE_MASK
        if self.trace_sink is not None:
            self.trace_sink(f"{self.now_us} run {handle.number} {owner} {_name(handle)}")
        try:
            if owner is None or owner.threads is None:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[arg-type]
            else:
                run = partial(handle._context.run, handle._callback, *handle._args)  # type: ignore[arg-type]
                owner.threads.run_callback(run, handle._context.get(THREAD))
        except (SystemExit, KeyboardInterrupt):
            raise
        except ProcessKilled:
            pass  # the process died in this callback, as it was told to
        except BaseException as error:
            self.call_exception_handler({"message": "in a callback", "exception": error, "owner": owner})

    # --- the rest of a loop's duties ---

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there is no selector."""

    def _write_to_self(self) -> None:
        """Do nothing: there is no other thread to be woken from."""

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` inline at a later virtual instant: a thread without its races."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_at_us(self.now_us + self._rng.randint(50, 2000), work)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **keywords: Any) -> list[Any]:
        """Names are addresses here."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **keywords: Any
    ) -> asyncio.AbstractServer:
        return self._transports().listen(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **keywords: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if keywords.get("ssl") is not None:
            raise ValueError("the simulator draws no TLS: OpenSSL draws chance of its own, and no seed would replay")
        return await self._transports().connect(protocol_factory, host, port)

    def _transports(self) -> Transports:
        if self.transports is None:
            raise RuntimeError("this loop has no network")
        return self.transports

    def close(self) -> None:
        super().close()
        self._queue.clear()
        self._timers.clear()


def _make_task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **keywords: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, SimLoop)
    return SimTask(coro, loop=loop, number=loop.next_number(), **keywords)


def _record_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    if isinstance(context.get("exception"), ProcessKilled):
        return  # a process that was killed in mid-callback: its task ends so
    owner = context.get("owner")
    for name in ("task", "future"):
        owner = owner or getattr(context.get(name), "owner", None)
    context["owner"] = str(owner or OWNER.get())
    context["at_us"] = loop.now_us
    loop.unhandled.append(context)


def _name(handle: SimHandle) -> str:
    """Name of the handle's callback, without addresses: equal in every process."""
    bound = getattr(handle._callback, "__self__", None)
    if isinstance(bound, asyncio.Task):
        return f"task {getattr(bound.get_coro(), '__qualname__', '?')}"
    return str(getattr(handle._callback, "__qualname__", type(handle._callback).__name__))
