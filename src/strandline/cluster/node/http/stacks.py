"""The page /stacks: the current stack of each thread and task of a node, for bug reports.

It shows places in the program but no values, as anybody who reaches the HTTP listener may read it. Equal stacks are
shown once, with their number, so that the page of a node with a thousand connections is short.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

from strandline.cluster.node.http.protocol import Page

DEPTH_MAX = 40
STACKS_MAX = 500

Stack = tuple[str, ...]


def stacks_page() -> Page:
    """Make the page with the stacks of all threads and of the tasks of this event loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():
        lines += [f"thread {names.get(ident, ident)}", *_shown(tuple(_frames(frame))), ""]
    tasks = Counter(tuple(_awaited(task.get_coro())) for task in asyncio.all_tasks())
    for stack, count in tasks.most_common(STACKS_MAX):
        lines += [f"{count} task{'' if count == 1 else 's'}", *_shown(stack), ""]
    if len(tasks) > STACKS_MAX:
        lines.append(f"{len(tasks) - STACKS_MAX} more stacks of tasks are left out")
    return Page("\n".join(lines).encode() + b"\n")


def _shown(stack: Stack) -> list[str]:
    return [f"    {place}" for place in stack[:DEPTH_MAX]]


def _frames(frame: FrameType | None) -> Iterator[str]:
    """Yield the places of a thread's frames, the innermost first."""
    while frame is not None:
        yield _place(frame)
        frame = frame.f_back


def _awaited(coro: Any) -> Iterator[str]:
    """Yield the places of a task's coroutines, from its outermost one down to the one that waits."""
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None:
            yield _place(frame)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


def _place(frame: FrameType) -> str:
    code = frame.f_code
    file = code.co_filename
    return f"{file[file.rfind('strandline/') :] if 'strandline/' in file else file}:{frame.f_lineno} {code.co_qualname}"
