"""Background tasks of a client. One that ends unexpectedly is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from strandline.client.errors import ClientError
from strandline.client.logs import log


class Tasks:
    """Tasks of one client, on one event loop.

    Args:
        on_end: called once for each task that ended on an exception; tasks handle what can be foreseen themselves.
    """

    def __init__(self, on_end: Callable[[ClientError], None]) -> None:
        self._on_end = on_end
        self._running: dict[asyncio.Task[None], None] = {}

    def spawn(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin `work`; `what` names it where it fails: "the heartbeats of group g"."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(partial(self._ended, what))
        return task

    def __iter__(self) -> Any:
        """The tasks that run."""
        return iter(list(self._running))

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("internal error: %s ended", what, exc_info=error)
            failure = ClientError(f"internal error: {what} ended on {error!r}; close this client and make another one")
            failure.__cause__ = error
            self._on_end(failure)

    async def close(self) -> None:
        """Cancel them all, and wait until they have ended."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
