"""What each thread and each task of a node does now: the page /stacks, for reports.

Places in the program alone, no values: whoever reaches the HTTP listener may read it. Equal stacks are told once, with
their number, so that the page of a node with a thousand connections is short.
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
    """Every thread's stack, and those of the tasks of this loop."""
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
    """The innermost first."""
    while frame is not None:
        yield _place(frame)
        frame = frame.f_back


def _awaited(coro: Any) -> Iterator[str]:
    """Coroutines from the task's own down to where it waits."""
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None:
            yield _place(frame)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


def _place(frame: FrameType) -> str:
    code = frame.f_code
    file = code.co_filename
    return f"{file[file.rfind('strandline/') :] if 'strandline/' in file else file}:{frame.f_lineno} {code.co_qualname}"
