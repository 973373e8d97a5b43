"""Blocking clients that nobody closed: dropped by the program while it runs, or left open at its end.

What such a producer has queued is sent all the same, for a moment; a consumer leaves its group. The program gets a
ResourceWarning (`python -X dev` and pytest show it), and a RuntimeWarning where records are lost.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize

from strandline.client.logs import log
from strandline.client.loop_thread import LoopThread
from strandline.proto.errors import StrandlineError

FLUSH_S = 10.0
"""Time that a producer that was not closed goes on sending. The program's end waits for it."""

End = Callable[[], None]
"""Ends a client in the calling thread. It must not refer to the client itself, which would never be dropped."""

_open: dict[weakref.finalize[..., object], None] = {}
_watching_process: list[bool] = []


def watch(client: object, what: str, thread: LoopThread, end: End) -> Callable[[], None]:
    """End the client, with a warning, when it is dropped or the program ends; returns what its `close` calls instead.

    Args:
        what: names it: "a Producer".
    """
    finalizer = weakref.finalize(client, _dropped, what, thread, end)
    finalizer.atexit = False  # `_at_exit` does it, in this thread
    _open[finalizer] = None
    if not _watching_process and multiprocessing.parent_process() is not None:
        _watching_process.append(True)
        Finalize(None, _at_exit, exitpriority=0)  # a child of multiprocessing ends without `atexit`

    def closed() -> None:
        _open.pop(finalizer, None)
        finalizer.detach()

    return closed


def nothing() -> None:
    """Do nothing: there is nothing to watch over yet."""


def _dropped(what: str, thread: LoopThread, end: End) -> None:
    """The collector calls this on any thread, the client's own among them: it must not wait here."""
    if not thread.closed:
        threading.Thread(target=_end, args=(f"{what} was dropped without close()", end), name="strandline-end").start()


def _end(message: str, end: End) -> None:
    advice = "use `with`, or call close() when it is done"
    log.warning("%s: %s", message, advice)
    warnings.warn(f"{message}: {advice}", ResourceWarning, stacklevel=2)
    try:
        end()
    except StrandlineError as error:
        log.warning("%s, and did not end well: %s", message, error)


def _at_exit() -> None:
    for finalizer in list(_open):
        _open.pop(finalizer, None)
        found = finalizer.detach()
        if found is not None:
            _, _, (what, thread, end), _ = found
            if not thread.closed:
                _end(f"{what} was still open when the program ended", end)


def _after_fork() -> None:
    for finalizer in list(_open):
        finalizer.detach()
    _open.clear()
    _watching_process.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
