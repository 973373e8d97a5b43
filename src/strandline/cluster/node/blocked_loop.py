"""Measures the lag of the event loop, and ends a process whose event loop hangs in a disk call.

One core does all work of a node, so lag of the event loop is the first sign of overload.

Votes and checkpoints are synced on the event loop, and a write may wait for pages that are being written back. If the
disk hangs, the whole node hangs with it and cannot even stop itself (schedule 58); other nodes see silence, and the
node keeps its leaderships until its session ends. So a watching thread ends the process, and leaderships move as after
a crash.

A thread that waits for the disk inside the kernel cannot be ended before the disk answers, and keeps the process's
sockets open until then. So the sockets are shut down first, and other nodes learn of the end at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from strandline.proto.ports import Clock

LOOK_S = 0.1
"""Seconds between two checks of a call. The checks are counted instead of reading a clock, because the process may have
been stopped (SIGSTOP) meanwhile."""

_DESCRIPTORS = "/proc/self/fd"


class BlockingDisk(Protocol):
    """A disk that tells in which call the event loop is."""

    waits_for: str
    """File of the running call; "" if no call is running."""
    calls: int
    """Number of the running call."""


class BlockedLoop:
    """Thread that watches the event loop's disk calls."""

    def __init__(self, disk: BlockingDisk, bound_ms: Callable[[], float], end: Callable[[str], None]) -> None:
        """`end` is called in the thread, with the file, when one call has taken `bound_ms()` milliseconds or longer."""
        self._disk = disk
        self._bound_ms = bound_ms
        self._end = end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="strandline-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _look_on(self) -> None:
        watched = looks = 0
        while not self._stopped.wait(LOOK_S):
            path, call = self._disk.waits_for, self._disk.calls
            looks = looks + 1 if path and call == watched else 0
            watched = call
            if looks and looks * LOOK_S * 1000 >= self._bound_ms():
                self._end(path)
                return


def end_process(message: str) -> NoReturn:
    """Print the reason, shut down all sockets, and end the process, whatever its threads are doing."""
    print(f"strandline: {message}", file=sys.stderr, flush=True)  # noqa: T201 - what the operator reads
    hang_up()
    os._exit(1)


def hang_up() -> None:
    """Shut down every socket of this process, so that peers learn of its end now, even if it ends later."""
    try:
        descriptors = os.listdir(_DESCRIPTORS)
    except OSError:
        return
    for number in descriptors:
        try:
            if not os.readlink(f"{_DESCRIPTORS}/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as each:
                each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


INTERVAL_S = 0.5


class LoopLag:
    """Measures how late timers of the event loop run.

    Attributes:
        last_ms: lag of the last timer, in ms.
        max_ms: largest lag since the last call of `take_max`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self.last_ms = 0.0
        self.max_ms = 0.0

    def start(self) -> None:
        """Begin to measure."""
        due_ms = self._clock.monotonic_ms() + INTERVAL_S * 1000.0
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._ran, due_ms)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def take_max(self) -> float:
        """Return and reset the largest lag since the last call, in ms."""
        largest, self.max_ms = self.max_ms, self.last_ms
        return largest

    def _ran(self, due_ms: float) -> None:
        self.last_ms = max(0.0, self._clock.monotonic_ms() - due_ms)
        self.max_ms = max(self.max_ms, self.last_ms)
        self.start()
