"""Log lines at a bounded rate (rule A23): whoever reaches a port could fill the disk with them.

`Notes` is for what strangers and users cause: a line of each kind once in a while. `Flood` bounds what a process logs
whatever the cause, an internal error that a request meets again and again among it. Both say how many lines they left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from strandline.proto.ports import Clock

LOG_MS = 10_000.0
"""A line of one kind is logged once in this time, with the number of those that were not."""

KINDS_MAX = 10
"""Kinds of one event that are told apart, and so its lines in `LOG_MS`: a stranger can make up kinds."""

LINES_MAX = 50
"""Lines of one event in `LOG_MS`, whatever their kinds: 5 a second, some 100 MB a day."""

TRACES_MAX = 5
"""Maximum lines with a traceback, of those in `LINES_MAX`."""

EVENTS_MAX = 1_000
"""Events that `Flood` counts apart. Ours are some hundred; libraries' are told apart by their text without figures."""


class Writes(Protocol):
    """A logger of structlog, as far as notes need it."""

    def info(self, event: str, **figures: Any) -> Any: ...

    def warning(self, event: str, **figures: Any) -> Any: ...

    def error(self, event: str, **figures: Any) -> Any: ...


class _Event:
    """Lines of one event."""

    __slots__ = ("left_out", "said_ms", "unsaid")

    def __init__(self) -> None:
        self.said_ms: dict[str, float] = {}
        self.unsaid: dict[str, int] = {}
        self.left_out = 0
        """Lines left out of kinds that are not told apart any more."""

    def is_due(self, kind: str, now_ms: float) -> bool:
        """Whether a line of this kind may be logged now; else it is counted."""
        if kind in self.said_ms:
            if now_ms - self.said_ms[kind] < LOG_MS:  # rule A23/bad-frames-fill-the-log
                self.unsaid[kind] = self.unsaid.get(kind, 0) + 1
                return False
        elif len(self.said_ms) >= KINDS_MAX:  # rule A23/kinds-are-made-up-without-end
            self._forget(now_ms)
            if len(self.said_ms) >= KINDS_MAX:
                self.left_out += 1
                return False
        self.said_ms[kind] = now_ms
        return True

    def _forget(self, now_ms: float) -> None:
        for kind in [kind for kind, said_ms in self.said_ms.items() if now_ms - said_ms >= LOG_MS]:
            del self.said_ms[kind]
            self.left_out += self.unsaid.pop(kind, 0)

    def take_left_out(self, kind: str) -> int:
        """Number of lines left out since the last report; sets it to 0."""
        left_out, self.left_out = self.left_out, 0
        return left_out + self.unsaid.pop(kind, 0)


class Notes:
    """Lines that strangers and users cause: of an event each kind once in `LOG_MS`, and `KINDS_MAX` of them at most."""

    def __init__(self, clock: Clock, log: Writes) -> None:
        self._clock = clock
        self._log = log
        self._events: dict[str, _Event] = {}

    def warn(self, event: str, kind: str = "", **figures: object) -> None:
        """Log it, or count it where the same event of this kind was logged a moment ago."""
        self._note(self._log.warning, event, kind, figures)

    def info(self, event: str, kind: str = "", **figures: object) -> None:
        """Log at level INFO, at a bounded rate."""
        self._note(self._log.info, event, kind, figures)

    def error(self, event: str, kind: str = "", **figures: object) -> None:
        """Log at level ERROR, at a bounded rate: for errors of the node itself."""
        self._note(self._log.error, event, kind, figures)

    def _note(self, write: Callable[..., object], event: str, kind: str, figures: Mapping[str, object]) -> None:
        known = self._events.setdefault(event, _Event())
        if known.is_due(kind, self._clock.monotonic_ms()):
            write(event, suppressed=known.take_left_out(kind), **figures)


class _Window:
    __slots__ = ("left_out", "lines", "since_ms", "traces")

    def __init__(self, since_ms: float) -> None:
        self.since_ms = since_ms
        self.lines = self.traces = self.left_out = 0


class Flood:
    """Bounds the lines of each event of a whole process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def admit(self, event: str, *, trace: bool) -> int | None:
        """Number of lines of the event that were left out before this one; None if this one must be left out too."""
        now_ms = self._clock.monotonic_ms()
        window = self._windows.get(event)
        if window is None or now_ms - window.since_ms >= LOG_MS:
            left_out = 0 if window is None else window.left_out
            if window is None and len(self._windows) >= EVENTS_MAX:
                del self._windows[next(iter(self._windows))]
            window = self._windows[event] = _Window(now_ms)
            window.left_out = left_out
        if window.lines >= LINES_MAX or (trace and window.traces >= TRACES_MAX):  # rule A23/tracebacks-without-end
            window.left_out += 1
            return None
        window.lines += 1
        window.traces += trace
        left_out, window.left_out = window.left_out, 0
        return left_out
