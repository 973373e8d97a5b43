"""Small groups of files, synced by a thread that never takes the interpreter's lock (`_sync.c`).

The thread of `sync_thread.py` waits for that lock on its way in and on its way out, and wakes the event loop through a
socket. This one is given descriptors and answers through a descriptor that the loop selects on. Like that one it keeps
the loop free while a disk is slow or hangs. (io_uring does the same at the same price, where a container allows it:
docs/benchmarks.md.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NamedTuple

from strandline.log.disk import DiskError

try:
    from strandline.log import _sync

    FILES_MAX = _sync.FILES_MAX
except ImportError:  # there was no compiler at the installation
    FILES_MAX = 0
"""Descriptors that the thread takes at a time; 0 where there is no such thread."""


Ended = Callable[[int, int], DiskError | None]
"""How many files were synced, and the errno of the one that was not; returns the error of the group."""


class _Group(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    ended: Ended


class CompiledSync:
    """One group at a time. Everything here runs on the event loop's thread.

    Invariant: `ended` of each group is called once, also where the future was cancelled before.
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
