"""How changes become lines of the audit: none is left out or cut, and what is no change is bounded.

A request may hold many changes, and a change many characters: the first have a line each, the others share lines, and
what is too long for a line goes on in the next. Lines of logins and of attempts that failed come at a bounded rate, of
each principal and of all: whoever may connect could push the changes out of the audit with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

CHANGES_MAX = 100
"""Changes of one request that have a line of their own; others share lines, those of one result at a time."""

CHARS_MAX = 8_000
"""Of what one line says was changed."""

BETWEEN = "; "
"""Between changes that share a line."""

WINDOW_MS = 10_000.0
"""Rates are counted in windows of this length; at the end of one a line tells how many lines were left out."""

KEY_CHARS_MAX = 256
"""By so much of a name a principal is told from another."""


class Line(NamedTuple):
    """What one line says.

    Attributes:
        what: was changed.
        result: what became of it.
        more: figures that only some lines have: ``changes``, how many share it; ``part``, as ``2/3``, of one that is
            too long.
    """

    what: str
    result: str
    more: Mapping[str, object]


def lines_of(changes: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """All changes of one request, (what, result), in their order."""
    alone = 0
    shared: list[str] = []
    size, of_shared = 0, ""
    for what, result in changes:
        fits = result == of_shared and size + len(what) + len(BETWEEN) <= CHARS_MAX
        if shared and not fits:
            yield _share(shared, of_shared)
            shared, size = [], 0
        if len(what) > CHARS_MAX:
            yield from _parts(what, result)
        elif alone < CHANGES_MAX:
            alone += 1
            yield Line(what, result, {})
        else:
            shared.append(what)  # rule A28/the-hundredth-change-is-the-last
            size, of_shared = size + len(what) + len(BETWEEN), result
    if shared:
        yield _share(shared, of_shared)


def _share(changes: list[str], result: str) -> Line:
    return Line(BETWEEN.join(changes), result, {"changes": len(changes)})


def _parts(what: str, result: str) -> Iterator[Line]:
    count = -(-len(what) // CHARS_MAX)
    for number in range(count):  # rule A28/long-changes-are-cut
        piece = what[number * CHARS_MAX : (number + 1) * CHARS_MAX]
        yield Line(piece, result, {"part": f"{number + 1}/{count}"})


class LineRate:
    """Which lines of one kind are written: in a window so many of one principal, and so many altogether.

    Args:
        of_one, of_all: lines in a window.
        tell: is called with the number of those left out, at the end of a window that has some, and by `close`.
    """

    def __init__(self, of_one: int, of_all: int, tell: Callable[[int], None]) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._tell = tell
        self._since_ms = -WINDOW_MS
        self._written: dict[str, int] = {}
        self._total = 0
        self._left_out = 0
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, whose: str, now_ms: float) -> bool:
        """Whether a line is written; else it is counted."""
        if now_ms - self._since_ms >= WINDOW_MS:
            self._since_ms = now_ms
            self._written.clear()
            self._total = 0
        key = whose[:KEY_CHARS_MAX]
        count = self._written.get(key, 0)
        if self._total >= self._of_all or count >= self._of_one:
            self._left_out += 1
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(WINDOW_MS / 1000, self.close)
            return False
        self._written[key] = count + 1
        self._total += 1
        return True

    def close(self) -> None:
        """Tell what was left out so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        count, self._left_out = self._left_out, 0
        if count:
            self._tell(count)
