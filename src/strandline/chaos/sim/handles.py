"""Handles that the simulator's loop schedules and that know their process, and tasks and futures with a stable hash."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from strandline.chaos.sim.clock import SimClock


class Preempted(Protocol):
    """Threads beside the loop of a process (`strandline.chaos.sim.threads.Threads`), as the loop uses them."""

    def run_callback(self, run: Callable[[], object], thread: object | None) -> None: ...
    def within_a_call(self) -> None: ...


class Owner(Protocol):
    """A process incarnation (`strandline.chaos.sim.process.Process`), as the loop uses it."""

    wakeups: int

    @property
    def threads(self) -> Preempted | None: ...

    @property
    def clock(self) -> SimClock: ...
    def holds(self, handle: SimHandle) -> bool: ...


OWNER: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("simulated process", default=None)
"""The process incarnation in whose name the current callback runs; None is the world itself (network, scenario)."""


THREAD: contextvars.ContextVar[object | None] = contextvars.ContextVar("simulated thread", default=None)
"""The blocking client on whose thread the current callback would run (`strandline.chaos.sim.threads`)."""


class ProcessKilled(BaseException):
    """Raised out of a port of a process that has just been killed in the middle of a callback.

    A BaseException, so that no `except Exception` of the code under test survives its own death. `finally` blocks on
    the way up may run, and reach nothing: every port of the incarnation refuses already.
    """


class SimHandle(asyncio.TimerHandle):
    """A scheduled callback, its owner, and its number in the order of creation (it breaks ties of equal deadlines)."""

    __slots__ = ("is_step", "number", "owner")

    _callback: Callable[..., Any] | None
    _context: contextvars.Context

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
        number: int,
    ) -> None:
        # Not super().__init__(): it takes stack traces and copies the context again, half a microsecond a handle.
        if context is None:
            context = contextvars.copy_context()
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._scheduled = False
        self._repr = None
        self._source_traceback = None
        self.owner: Owner | None = context.get(OWNER)
        self.is_step = isinstance(getattr(callback, "__self__", None), asyncio.Task)
        self.number = number

    def cancel(self) -> None:
        """The callback will not run."""
        self._cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        """The deadline on the owner's own loop clock, seconds."""
        return self._when

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number: `TaskGroup` and `asyncio.wait` keep tasks in sets, ordered by hash.

    Attributes:
        owner: the process incarnation that it belongs to. Its error may be reported in the name of another: when the
            garbage collector finds the task.
        thread: the blocking client that it belongs to.
    """

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        loop: asyncio.AbstractEventLoop,
        number: int,
        context: contextvars.Context | None = None,
        **keywords: Any,
    ) -> None:
        self._number = number
        self.owner: Owner | None = OWNER.get() if context is None else context.get(OWNER)
        self.thread: object | None = THREAD.get() if context is None else context.get(THREAD)
        super().__init__(coro, loop=loop, context=context, **keywords)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is its number."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other
