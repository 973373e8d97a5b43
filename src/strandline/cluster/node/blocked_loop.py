"""Measurement of how late the event loop is, and the end of a process whose loop hangs in a call of the disk.

One core does everything in a node, so lateness is its first sign of overload.

Votes and checkpoints are synced on the event loop, and a write may wait for pages that are being written back: on a
disk that hangs the whole node hangs with them, and cannot even stop itself (schedule 58). To the others it is silent,
and keeps what it leads until its session ends. So a thread looks on, and ends the process: leaderships move as they do
when a process dies.

A thread that waits for the disk inside of the kernel ends with nothing but the disk, and keeps the process's sockets
open until then. They are shut down first, so that the others learn of it at once.
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
"""Seconds between two looks at a call. Looks are counted instead of reading a clock, because the process may have been
stopped (SIGSTOP) meanwhile."""

_DESCRIPTORS = "/proc/self/fd"


class BlockingDisk(Protocol):
    """A disk that says what the event loop waits for."""

    waits_for: str
    """The file in a call of which it is; empty when in none."""
    calls: int
    """Number of that call."""


class BlockedLoop:
    """The thread that looks on."""

    def __init__(self, disk: BlockingDisk, bound_ms: Callable[[], float], end: Callable[[str], None]) -> None:
        """`end` is called in the thread, with the file, when one call has taken longer than `bound_ms` says by then."""
        self._disk = disk
        self._bound_ms = bound_ms
        self._end = end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="strandline-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
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
    """Say why, hang up on everybody, and end, whatever threads are doing."""
    print(f"strandline: {message}", file=sys.stderr, flush=True)  # noqa: T201 - what the operator reads
    hang_up()
    os._exit(1)


def hang_up() -> None:
    """Shut down every socket of this process: their peers are told now, whenever the process ends."""
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
    """Measures how much later than asked a timer runs.

    Attributes:
        last_ms: of the last timer.
        max_ms: the largest since `take_max` was last called.
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
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def take_max(self) -> float:
        """The largest lag since the last call."""
        largest, self.max_ms = self.max_ms, self.last_ms
        return largest

    def _ran(self, due_ms: float) -> None:
        self.last_ms = max(0.0, self._clock.monotonic_ms() - due_ms)
        self.max_ms = max(self.max_ms, self.last_ms)
        self.start()
