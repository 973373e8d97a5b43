"""Between the compiled sync thread and the kernel: what a test puts in place of `os.fdatasync` holds there too."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.log.real_sync import FILES_MAX


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
def _through_python(fd: int) -> int:
    try:
        os.fdatasync(fd)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def route() -> None:
    """From now on the thread calls `os.fdatasync` as it then is, for 0 or an errno."""
    _call_instead(ctypes.cast(_through_python, ctypes.c_void_p).value or 0)


def straight() -> None:
    """From now on it calls the kernel."""
    _call_instead(0)


@contextmanager
def through_python() -> Iterator[None]:
    """`route` for a while."""
    route()
    try:
        yield
    finally:
        straight()


def _call_instead(address: int) -> None:
    if FILES_MAX:
        from strandline.log._sync import call_instead

        call_instead(address)
