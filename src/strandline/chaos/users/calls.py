"""Calls of a user, as coroutines that may be cancelled at any await; `chaos.sim.threads` has the other way.

A user's acts are written once, as coroutines. What differs between our two kinds of clients is in here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from inspect import isawaitable, iscoroutine
from typing import Any, Protocol, TypeVar

from strandline.chaos.sim.threads import Threads
from strandline.chaos.workload import Ports
from strandline.client import Consumer as BlockingConsumer
from strandline.client import Producer as BlockingProducer
from strandline.client.aio import Consumer, Producer

T = TypeVar("T")

_STEPS_MAX = 12
"""Maximum steps of other tasks after which a call is cancelled within a turn of the loop."""
_AFTER_S = 0.3


class CallInterrupted(Exception):
    """The call was cancelled or interrupted: its work may or may not be done."""


class Exited(Exception):
    """The called function has called `sys.exit`."""


class CallMaker(Protocol):
    """Makes clients of one kind, and their calls."""

    rng: random.Random
    unsure: bool
    """True for a `send` that was interrupted: the record may or may not be queued."""

    def producer(self, settings: Mapping[str, Any]) -> Any:
        """A producer."""

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        """A consumer."""

    async def call(self, function: Callable[..., Any], *arguments: Any, cut: bool = True, **named: Any) -> Any:
        """Return what the client's method returns, in the end. `cut`: it may be cut short.

        Raises:
            CallInterrupted, Exited; whatever the method raises.
        """

    async def sleep(self, duration_s: float) -> None:
        """Let time pass."""


class Coroutines:
    """Calls of the clients of `strandline.client.aio`."""

    unsure = False

    def __init__(self, ports: Ports, bootstrap: str, share: Callable[[], float], cut: Counter[str]) -> None:
        """`share` of the calls is cut short; `cut` counts them, by the names of the methods."""
        self.rng: random.Random = ports.rng
        self._ports = ports
        self._bootstrap = bootstrap
        self._share = share
        self._cut = cut

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        """Implement `CallMaker.producer`."""
        return Producer(self._bootstrap, clock=self._ports.clock, rng=self._ports.rng, **settings)

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """Implement `CallMaker.consumer`."""
        return Consumer(self._bootstrap, clock=self._ports.clock, rng=self._ports.rng, **settings)

    async def sleep(self, duration_s: float) -> None:
        """Implement `CallMaker.sleep`."""
        await asyncio.sleep(duration_s)

    async def call(self, function: Callable[..., Any], *arguments: Any, cut: bool = True, **named: Any) -> Any:
        """Implement `CallMaker.call`."""
        try:
            begun = function(*arguments, **named)
            if not isawaitable(begun):
                return begun
            if not cut or self.rng.random() >= self._share():
                return await begun
        except SystemExit as exit_:
            raise Exited from exit_
        return await self._cut_short(function.__name__, begun)

    async def _cut_short(self, name: str, begun: Awaitable[Any]) -> Any:
        """Cancel it after a few steps, or after a while, unless it ends before."""
        task = asyncio.ensure_future(_guarded(begun))
        if self.rng.random() < 0.5:
            for _ in range(self.rng.randint(0, _STEPS_MAX)):
                await asyncio.sleep(0)
        else:
            await asyncio.wait([task], timeout=self.rng.uniform(0, _AFTER_S))
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            if iscoroutine(begun):
                begun.close()  # it may never have begun
            self._cut[name] += 1
            raise CallInterrupted(name)
        return task.result()


class Callers:
    """Calls of the blocking clients, made by a thread (`chaos.sim.threads`), which may be interrupted."""

    unsure = True

    def __init__(self, threads: Threads, bootstrap: str, share: Callable[[], float], cut: Counter[str]) -> None:
        """Take the arguments of Coroutines."""
        self.rng = threads.rng
        self._threads = threads
        self._bootstrap = bootstrap
        self._share = share
        self._cut = cut

    def producer(self, settings: Mapping[str, Any]) -> BlockingProducer:
        """Implement `CallMaker.producer`."""
        return BlockingProducer(self._bootstrap, **settings)

    def consumer(self, settings: Mapping[str, Any]) -> BlockingConsumer:
        """Implement `CallMaker.consumer`."""
        return BlockingConsumer(self._bootstrap, clock=self._threads.clock, rng=self.rng, **settings)  # type: ignore[call-arg]

    async def sleep(self, duration_s: float) -> None:
        """Implement `CallMaker.sleep`."""
        assert self._threads.current is not None
        self._threads.current.sleep(duration_s)

    async def call(self, function: Callable[..., Any], *arguments: Any, cut: bool = True, **named: Any) -> Any:
        """Implement `CallMaker.call`."""
        caller = self._threads.current
        assert caller is not None
        if cut and self.rng.random() < self._share():
            points = self.rng.choice((None, self.rng.randint(1, 40), self.rng.randint(1, 400)))
            caller.arm(points, self.rng.uniform(0, _AFTER_S))
        try:
            return function(*arguments, **named)
        except KeyboardInterrupt:
            self._cut[f"{function.__name__} by a thread"] += 1
            raise CallInterrupted(function.__name__) from None
        except SystemExit as exit_:
            raise Exited from exit_
        finally:
            caller.disarm()


def by_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a user's acts, none of which waits by the loop: those of `Callers`."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError(f"{work} waits by the loop")


async def _guarded(begun: Awaitable[Any]) -> Any:
    """An exit would end the loop, from a task."""
    try:
        return await begun
    except SystemExit as exit_:
        raise Exited from exit_
