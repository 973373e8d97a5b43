"""Tasks that nobody awaits: an end that nobody foresaw is told, and told at once. And waking a task, and ending it.

A task that ends by an error and is not awaited ends in silence: what it was to do is not done any more, and everything
around it goes on (schedule 59). asyncio prints a line when such a task is collected, if it ever is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from strandline.proto.errors import FatalError
from strandline.proto.steps import Steps

T = TypeVar("T")
Report = Callable[[BaseException], None]
"""Told of an end that nobody foresaw; in a node mostly the one that stops it."""


def spawn(work: Coroutine[Any, Any, None], report: Report, *, endless: bool = False) -> asyncio.Task[None]:
    """Run `work` as a task that its caller keeps and does not await.

    `report` is told, once, of an exception out of it, of a cancellation that nobody asked for by `Task.cancel`, and, if
    it is to be `endless`, of its return.
    """
    task = asyncio.get_running_loop().create_task(work)

    def ended(task: asyncio.Task[None]) -> None:
        error = _unforeseen(task, endless)
        if error is not None:  # rule A9/task-ends-unseen
            report(error)

    task.add_done_callback(ended)
    return task


def _unforeseen(task: asyncio.Task[None], endless: bool) -> BaseException | None:
    name = getattr(task.get_coro(), "__qualname__", task.get_name())
    if task.cancelled():
        # rule A9/task-cancelled-by-nobody
        return None if task.cancelling() else FatalError(f"{name} was cancelled, and nobody had asked for it")
    error = task.exception()
    if error is None and endless and not task.cancelling():
        return FatalError(f"{name} has ended by itself")
    return error


async def in_turns(steps: Steps[T]) -> T:
    """Do all of it, a step in a turn of the loop: whatever else is ready comes between (rule A26)."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)


class Signal:
    """A flag that one coroutine waits for. Setting it twice before the waiter runs wakes once: this is what makes all
    that is said within one turn of the loop travel in one frame."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter, now or when it comes to wait."""
        if not self._set:
            self._set = True
            waiter = self._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return once it is set, and clear it."""
        if not self._set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._set = False


async def shared(work: asyncio.Future[T]) -> T:
    """The result of work that others may wait for, too: a caller that is cancelled does not end it for them.

    `asyncio.shield` says the same, but from Python 3.14 on reports a failure of the work as an unhandled error when one
    of its callers was cancelled before, although the others hear of it.
    """
    if not work.done():
        await asyncio.wait([work])
    return work.result()


class Together:
    """Work that serves all who ask for it before it begins. One run at a time: who asks meanwhile has the next one."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._running = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Return when a run that began after this call has ended. Raises what it raises."""
        if self._next is None:
            self._next = spawn(self._run(), lambda error: None)  # those who wait hear of it
        await shared(self._next)

    async def _run(self) -> None:
        async with self._running:
            self._next = None
            await self._work()


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end.

    Raises whatever it had failed with.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
