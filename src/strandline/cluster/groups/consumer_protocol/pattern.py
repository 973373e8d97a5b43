"""Regular expressions over topic names: RE2's, as Kafka has them (KIP-848), bounded in memory and time.

A member's expression is a stranger's program that the coordinator runs. Python's `re` backtracks: `(a*)*b` would stop
the node for minutes. RE2 takes time linear in the name, but up to the size of the expression for each character of it,
and there may be many topics: what an expression may cost is bounded before it is held against any. It has to match
the whole name, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import re2

PATTERN_CHARS_MAX = 1024
INSTRUCTIONS_MAX = 10_000
"""Of the compiled expression: `a{1000}` is a thousand, a `.` is eight."""

WORK_MAX = 100_000_000
"""Instructions times characters of all topics, when an expression is first held against them: below 1 s at the worst
seen, 6 ns each, and a hundredth of that as a rule."""

MEMORY_BYTES_MAX = 1 << 20
"""Of one expression, and of what RE2 keeps of its matching."""

RESULTS_MAX = 100_000


class PatternError(ValueError):
    """The expression cannot be used; the text says why."""


class TopicPattern:
    """A compiled expression. Raises PatternError for one that cannot be used."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"longer than {PATTERN_CHARS_MAX} characters")
        self.text = text
        self._compiled = _compiled(text)
        size = self._compiled.programsize
        if size > INSTRUCTIONS_MAX:
            raise PatternError(f"the expression has {size} instructions, more than {INSTRUCTIONS_MAX}")
        self._known: dict[str, bool] = {}

    def check(self, names: Iterable[str]) -> None:
        """Raises PatternError where it would cost too much to hold it against all topics."""
        work = self._compiled.programsize * sum(map(len, names))
        if work > WORK_MAX:
            raise PatternError("it costs too much to hold it against the topics; make it simpler")

    def matches(self, name: str) -> bool:
        """The whole name is of the pattern."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= RESULTS_MAX:
                self._known.clear()
            known = self._known[name] = self._compiled.fullmatch(name) is not None
        return known


def _compiled(text: str) -> Any:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False  # not to standard error: the member gets them
    try:
        return re2.compile(text, options=options)
    except re2.error as error:
        [reason] = error.args
        raise PatternError(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    except UnicodeEncodeError:
        raise PatternError("half of a surrogate pair is no character") from None
