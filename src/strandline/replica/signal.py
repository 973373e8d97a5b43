"""Wake one waiting coroutine; end a task without losing its error."""

from __future__ import annotations

import asyncio


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


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end.

    Raises whatever it had failed with.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
