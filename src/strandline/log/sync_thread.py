"""The thread that syncs, with the shortest way there and back.

An acknowledged record waits for one hop to this thread and back on every replica. A `ThreadPoolExecutor` with its
futures of two kinds made the hop 0.1 ms longer, on a sync of 0.25 ms.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple, ParamSpec

P = ParamSpec("P")


class _Work(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    call: Callable[[], None]
    finished: Callable[[], None]


class SyncThread:
    """One thread, started by the first work. `close` lets it finish what it was given."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Work | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._closed = False

    def run(self, work: Callable[[], None], finished: Callable[[], None]) -> asyncio.Future[None]:
        """Call `work` in the thread; the future ends as it does. Raises RuntimeError once closed.

        `finished` is called in the loop when the thread has done with it: also where the future was cancelled before,
        for the work is carried out all the same.
        """
        if self._closed:
            raise RuntimeError("the sync thread has been closed")
        if self._thread.ident is None:
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Work(loop, done, work, finished))
        return done

    def join(self) -> None:
        """Wait, blocking, until it has done what it was given. The loop hears of that later."""
        if self._thread.ident is not None and not self._closed:
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait()

    def close(self) -> None:
        """End the thread, after what it was given. Idempotent."""
        self._closed = True
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            if isinstance(work, threading.Event):
                work.set()
                continue
            try:
                work.call()
            except BaseException as error:
                _tell(work, error)
            else:
                _tell(work, None)


def _tell(work: _Work, error: BaseException | None) -> None:
    def end() -> None:
        work.finished()
        if work.done.done():  # cancelled meanwhile
            return
        if error is None:
            work.done.set_result(None)
        else:
            work.done.set_exception(error)

    try:
        work.loop.call_soon_threadsafe(end)
    except RuntimeError:
        pass  # the loop has been closed: nobody waits any more
