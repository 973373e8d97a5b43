"""A thread with an event loop: how the blocking classes run the asynchronous ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """One daemon thread that runs one event loop until `stop`. Belongs to the process that made it."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this very thread (a callback), where blocking would block itself."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop; its result."""

        async def run() -> T:
            return function()

        return self.wait(run())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; its result. An interrupt of the caller (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Run `farewell`, cancel what is left, end the thread. Idempotent."""
        if self.loop.is_closed():
            return

        async def leave() -> None:
            try:
                await farewell()
            finally:
                rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                for task in rest:
                    task.cancel()
                if rest:
                    await asyncio.wait(rest)

        try:
            self.wait(leave())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
