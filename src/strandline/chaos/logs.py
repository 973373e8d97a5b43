"""The nodes' log lines of a simulated run: kept with virtual times, shown only when a run fails."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from strandline.chaos.sim.handles import OWNER


class LogCapture:
    """Takes structlog over for this process; keeps the last lines."""

    def __init__(self, now_ms: Callable[[], float], *, lines_max: int = 2000) -> None:
        self.lines: deque[tuple[int, str]] = deque(maxlen=lines_max)
        self._now_ms = now_ms
        structlog.configure(
            processors=[self._keep],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=False,
        )

    def _keep(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        what = event.pop("event", "")
        facts = " ".join(f"{key}={value}" for key, value in event.items())
        self.lines.append((round(self._now_ms()), f"[{OWNER.get()}] {method}: {what} {facts}".rstrip()))
        raise structlog.DropEvent
