"""The page /trace: times of the stages of produce requests. POST begins a trace, GET shows the last one."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import structlog

from strandline.cluster.node.http.protocol import Page
from strandline.cluster.node.observed import ObservedNode
from strandline.log.request_trace import REQUESTS_MAX, RequestTrace, summary
from strandline.proto.json_text import read_json

log = structlog.get_logger("strandline.http")

TRACE_PATH = "/trace"

SECONDS_MAX = 600
"""Maximum seconds of one trace."""

_WANTED = f'a JSON object with "seconds" (above 0, at most {SECONDS_MAX}) and "requests" (1 to {REQUESTS_MAX})'


class TracePage:
    """Begins traces, and shows the last one. Without a running trace, each stage of a request costs the read of one
    attribute."""

    def __init__(self, node: ObservedNode) -> None:
        self._node = node
        self._trace: RequestTrace | None = None

    def command(self, body: bytes) -> Page:
        """Answer POST: begin a new trace, and drop the previous one."""
        broker = self._node.broker
        if broker is None:
            return _json({"error": "a controller takes no records: ask a broker"}, HTTPStatus.CONFLICT)
        try:
            seconds, requests = _asked(read_json(body))
        except ValueError as error:
            return _json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        replicas = broker.replicas

        def ended() -> None:
            if replicas.trace is trace:
                replicas.trace = None

        trace = RequestTrace(self._node.clock, requests, seconds * 1000, ended)
        replicas.trace = self._trace = trace
        log.info("the stages of produce requests are noted", seconds=seconds, requests=requests)
        return _json({"seconds": seconds, "requests": requests})

    def page(self) -> Page:
        """Answer GET: show the last trace; a running trace ends."""
        trace = self._trace
        if trace is None:
            return _json({"error": f"nothing was noted yet: POST {TRACE_PATH} {_WANTED}"}, HTTPStatus.NOT_FOUND)
        trace.end()
        return _json(
            {
                **self._node.describe(),
                "leader": {"requests": len(trace.led), "stages_ms": summary(trace.led)},
                "follower": {"requests": len(trace.followed), "stages_ms": summary(trace.followed)},
            }
        )


def _asked(asked: Any) -> tuple[float, int]:
    if not isinstance(asked, dict) or not asked.keys() <= {"seconds", "requests"}:
        raise ValueError(_WANTED)
    seconds, requests = asked.get("seconds", 10), asked.get("requests", REQUESTS_MAX)
    for value, kinds, most in ((seconds, (int, float), SECONDS_MAX), (requests, (int,), REQUESTS_MAX)):
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value <= most:
            raise ValueError(_WANTED)
    return seconds, requests


def _json(document: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Page:
    return Page(json.dumps(document).encode() + b"\n", "application/json", status)
