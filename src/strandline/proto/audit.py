"""A line of the audit: one JSON object, the same in a node's file and in the topic `__audit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from strandline.proto.json_text import read_json

AUDIT_TOPIC = "__audit"

BROKER_HEADER = "broker"
"""The header of a record of the topic that has the node id of the broker whose line it is."""


ATTEMPTS_SUFFIX = ".attempts"
"""Suffix of the file beside `audit.log.path` that holds every line except those of changes."""

LEFT_OUT = "left_out"
"""The event of a line that tells how many lines (`lines`) of which kind (`what`) came too fast and were left out."""

UNKNOWN = "UNKNOWN"
"""The result of a change whose client left before the answer: it may have been made."""

_MAY_BE_MADE = frozenset({"NONE", UNKNOWN, "REQUEST_TIMED_OUT", "UNKNOWN_SERVER_ERROR"})


def may_be_made(result: str) -> bool:
    """Whether a change with this result was made, or may have been: its line is never left out."""
    return result in _MAY_BE_MADE


def audit_line(wall_ms: int, event: str, figures: Mapping[str, Any]) -> str:
    """The line, in ASCII and without its end; `wall_ms` in milliseconds since the Unix epoch."""
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"timestamp": moment, "event": event, **figures}, default=str)


def read_audit_line(text: bytes) -> dict[str, Any]:
    """Parse a line of the audit log. Raises ValueError if it is not one."""
    line = read_json(text)
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")
    for name in ("timestamp", "event"):
        if not isinstance(line.get(name), str):
            raise ValueError(f"it has no {name}")
    return line
