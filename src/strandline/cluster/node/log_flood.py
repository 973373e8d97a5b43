"""The bound on a node's log (rule A23), as a processor of structlog and a filter of the standard library's logging."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

from strandline.proto.notes import Flood

UNBOUNDED = frozenset({"change", "denied", "login"})
"""The audit's lines: no change goes without its line, and denials and failed logins have bounds of their own."""


class FloodProcessor:
    """Leaves lines out, and says in the next one of the event how many (`left_out`)."""

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
    """The same for libraries, whose lines are told apart by their text without figures."""

    def __init__(self, flood: Flood) -> None:
        super().__init__()
        self._flood = flood

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged."""
        left_out = self._flood.admit(f"{record.name} {record.msg!s:.200}", trace=bool(record.exc_info))
        if left_out is None:
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} lines like this were left out)"
            record.args = None
        return True
