"""The file of the audit: lines of JSON, as many bytes of them as the settings say, the oldest file going first."""

from __future__ import annotations

import fcntl
import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import cast

import structlog

from strandline.proto.errors import ConfigError
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.audit")

TELL_MS = 10_000.0
"""Lines that cannot be written are told once in this time, with their number."""


class AuditFile(RotatingFileHandler):
    """A line is written before the answer that it tells of is sent.

    Attributes:
        dropped: lines that could not be written.
    """

    def __init__(self, path: str, *, max_bytes: int, files: int, clock: Clock) -> None:
        """Open it, to append. Raises ConfigError."""
        self._clock = clock
        self._untold = 0
        self._told_ms = -TELL_MS
        self.dropped = 0
        try:
            super().__init__(path, maxBytes=max_bytes, backupCount=files - 1, encoding="utf-8")
        except BlockingIOError as error:
            raise ConfigError("audit.log.path", path, "a file of this node alone; another process writes it") from error
        except OSError as error:
            raise ConfigError("audit.log.path", path, f"a file that can be written ({error.strerror})") from error

    def _open(self) -> TextIOWrapper:
        """Only the node's user may read it: it names topics, groups and principals. And only one node may write it: the
        rotation of one would take the lines of others. Raises OSError."""
        file = open(self.baseFilename, self.mode, encoding=self.encoding, opener=_for_the_user)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return cast("TextIOWrapper", file)

    def add(self, line: str) -> None:
        """Write one line. Raises nothing: what cannot be written is counted and told by the log."""
        self.emit(logging.LogRecord("strandline.audit", logging.INFO, "", 0, line, None, None))

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by `emit` where a line could not be written."""
        self.dropped += 1
        self._untold += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= TELL_MS:
            self._told_ms = now_ms
            log.exception("audit lines could not be written", path=self.baseFilename, lines=self._untold)
            self._untold = 0


def _for_the_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
