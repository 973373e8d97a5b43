"""The threads that sync, with the shortest ways there and back.

An acknowledged record waits for one hop to a thread and back on every replica. A `ThreadPoolExecutor` with its futures
of two kinds made the hop 0.1 ms longer, on a sync of 0.25 ms.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple, ParamSpec

from strandline.log.disk import DiskError

try:
    from strandline.log import _sync

    FILES_MAX = _sync.FILES_MAX
except ImportError:  # there was no compiler at the installation
    FILES_MAX = 0
"""Descriptors that `CompiledSync` takes at a time; 0 where there is no such thread."""

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


Ended = Callable[[int, int], DiskError | None]
"""How many files were synced, and the errno of the one that was not; returns the error of the group."""


class _Group(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    ended: Ended


class CompiledSync:
    """One group at a time. Everything here runs on the event loop's thread.

    Invariant: `ended` of each group is called once, also where the future was cancelled before.

    For small groups of files: its thread never takes the interpreter's lock (`_sync.c`), for which `SyncThread` waits
    on its way in and on its way out, and which wakes the event loop through a socket. This one is given descriptors and
    answers through a descriptor that the loop selects on. Like the other it keeps the loop free while a disk is slow or
    hangs. (io_uring does the same at the same price, where a container allows it: docs/benchmarks.md.)
    """

    def __init__(self) -> None:
        self._thread = _sync.SyncThread()
        self._selecting: asyncio.AbstractEventLoop | None = None
        self._group: _Group | None = None
        self._over: threading.Event | None = None

    @classmethod
    def load(cls) -> CompiledSync | None:
        """None where there was no compiler at the installation."""
        return cls() if FILES_MAX else None

    @property
    def idle(self) -> bool:
        """It can be given a group: there is none, or its end could be seen to now."""
        self.take_end()
        return self._group is None

    def begin(self, files: list[int], wait_ms: float, ended: Ended) -> asyncio.Future[None]:
        """Sync these descriptors, at most FILES_MAX, in their order; the first that fails is the last. They must stay
        open until `ended` is called. The loop waits up to `wait_ms` for the end; the future is done where that came.

        Raises:
            RuntimeError: it has been closed.
            OSError: there is no thread to be had.
        """
        loop = asyncio.get_running_loop()
        if self._selecting is not loop:
            self._select_on(loop)
        done: asyncio.Future[None] = loop.create_future()
        self._thread.begin(files, round(wait_ms * 1000))
        self._group = _Group(loop, done, ended)
        if wait_ms:
            self.take_end()
        return done

    def take_end(self) -> None:
        """See to the group that has ended, where the loop has not come to it yet."""
        group = self._group
        if group is None:
            return
        result = self._thread.end()
        if result is None:
            return
        self._group = None
        error = group.ended(*result)
        over, self._over = self._over, None
        if over is not None:
            over.set()
        if group.done.done() or group.loop.is_closed():  # cancelled meanwhile
            return
        if error is None:
            group.done.set_result(None)
        else:
            group.done.set_exception(error)

    def over(self) -> threading.Event | None:
        """Set once `ended` of the group under way has been called; None where there is none."""
        if self._group is not None and self._over is None:
            self._over = threading.Event()
        return self._over

    def finish(self) -> None:
        """Wait, blocking, for the group under way, and see to its end."""
        if self._group is not None:
            self._thread.join()
            self.take_end()

    def close(self) -> None:
        """End the thread, after what it was given. Idempotent."""
        self._thread.close()
        self.take_end()
        self._select_on(None)

    def _select_on(self, loop: asyncio.AbstractEventLoop | None) -> None:
        before, self._selecting = self._selecting, loop
        if before is not None and not before.is_closed():
            before.remove_reader(self._thread.fileno())
        if loop is not None:
            loop.add_reader(self._thread.fileno(), self.take_end)
