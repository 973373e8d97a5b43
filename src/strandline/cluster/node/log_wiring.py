"""A node's log, by structlog and the standard library's logging: the levels of its loggers, and the bound on its lines
(rule A23).

structlog's own loggers have one level for the whole process, in their class. Here each logger has a threshold of its
own, so that a line below it costs one comparison.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from types import MappingProxyType
from typing import Any, cast

import structlog

from strandline.cluster.broker.log_levels import OUR, ROOT, LogLevels
from strandline.proto.notes import Flood

KAFKAS_WORDS = MappingProxyType({"warning": "WARN"})
"""Name of a level in `logging.level` -> Kafka's name, where they differ."""

_NUMBERS = MappingProxyType(
    {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
        "exception": logging.ERROR,
        "critical": logging.CRITICAL,
    }
)
_EVERYTHING = structlog.make_filtering_bound_logger(logging.NOTSET)


class _Printer(structlog.PrintLogger):
    """Printer of one structlog logger, with the threshold of its level."""

    def __init__(self, threshold: int) -> None:
        super().__init__(sys.stderr)
        self.threshold = threshold

    def lets_through(self, number: int) -> bool:
        """True if a line of this level is printed."""
        return number >= self.threshold  # rule A41/levels-are-only-told


class LevelledLogger(_EVERYTHING):  # type: ignore[misc, valid-type]
    """Logger whose level may change at any time."""


def _levelled(method: str, number: int) -> Callable[..., Any]:
    write = cast("Callable[..., Any]", getattr(_EVERYTHING, method))

    def log(self: Any, event: str, *arguments: Any, **figures: Any) -> Any:
        return write(self, event, *arguments, **figures) if self._logger.lets_through(number) else None

    return log


for _method, _number in _NUMBERS.items():
    setattr(LevelledLogger, _method, _levelled(_method, _number))


class LevelledLoggers:
    """Makes the printers of structlog's loggers, by name, and keeps their thresholds."""

    def __init__(self, levels: LogLevels) -> None:
        self._levels = levels
        self._printers: dict[str, list[_Printer]] = {}

    def __call__(self, *names: str) -> _Printer:
        """Make the printer of a logger; modules that use the same name have separate printers."""
        name = names[0] if names else ROOT
        printer = _Printer(self._levels.number(name))
        self._printers.setdefault(name, []).append(printer)
        return printer

    def apply(self, name: str, number: int) -> None:
        """Set the level of a logger, by Python's number."""
        for printer in self._printers.get(name, ()):
            printer.threshold = number
        if name == ROOT:
            logging.getLogger().setLevel(number)
        elif name != OUR and not name.startswith(OUR + "."):
            logging.getLogger(name).setLevel(number)


# The bound on lines: a processor of structlog, and a filter of logging

UNBOUNDED = frozenset({"change", "denied", "login"})
"""Events of the audit, never left out here: every change has a line, and the other kinds have bounds of their own."""


class FloodProcessor:
    """structlog processor that drops lines above the bound; the next line of the same event has their number
    (`left_out`)."""

    def __init__(self, flood: Flood) -> None:
        self._flood = flood

    def __call__(self, _: Any, __: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event = str(event_dict.get("event"))
        if event in UNBOUNDED:
            return event_dict
        left_out = self._flood.admit(event, trace=bool(event_dict.get("exc_info")))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event_dict["left_out"] = left_out
        return event_dict


class FloodFilter(logging.Filter):
    """The same as a filter of logging, for libraries. Their lines are told apart by logger and unformatted text."""

    def __init__(self, flood: Flood) -> None:
        super().__init__()
        self._flood = flood

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is logged."""
        left_out = self._flood.admit(f"{record.name} {record.msg!s:.200}", trace=bool(record.exc_info))
        if left_out is None:
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} lines like this were left out)"
            record.args = None
        return True
