"""The log lines of a simulated run, nodes' and clients': kept with virtual times, shown only when a run fails."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from strandline.chaos.sim.handles import OWNER

CLIENTS = "strandline.client"
"""The logger of our clients, which log as libraries do."""


class LogCapture(logging.Handler):
    """Takes structlog over for this process, and listens to the clients; keeps the last lines."""

    def __init__(self, now_ms: Callable[[], float], *, lines_max: int = 2000) -> None:
        super().__init__()
        self.lines: deque[tuple[int, str]] = deque(maxlen=lines_max)
        self._now_ms = now_ms
        structlog.configure(
            processors=[self._keep],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=False,
        )
        logging.getLogger(CLIENTS).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of a client."""
        self._line(record.levelname.lower(), record.getMessage())

    def end(self) -> None:
        """Listen to the clients no more."""
        logging.getLogger(CLIENTS).removeHandler(self)

    def _line(self, level: str, what: str) -> None:
        self.lines.append((round(self._now_ms()), f"[{OWNER.get()}] {level}: {what}"))

    def _keep(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        what = event.pop("event", "")
        facts = " ".join(f"{key}={value}" for key, value in event.items())
        self._line(method, f"{what} {facts}".rstrip())
        raise structlog.DropEvent
