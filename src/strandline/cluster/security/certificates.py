"""The TLS context of a listener or of outgoing connections, made anew when its files change.

Connections that are open keep what they began with; new ones get the new context. A change that cannot be used is
logged, and what was in use stays in use.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import structlog

from strandline.proto.errors import ConfigError
from strandline.proto.tls import TlsSettings

log = structlog.get_logger("strandline.security")

LOOK_S = 2.0
"""How often the files are looked at. Kafka waits for an order of `kafka-configs.sh`; certbot and cert-manager give
none. A look is two calls of stat."""

_Stamp = tuple[int, int, int] | None


Context = TypeVar("Context")


class Certificates(Generic[Context]):
    """One context, or the two of a node between nodes, and the files they are made of.

    Attributes:
        context: what new connections use.
    """

    def __init__(self, owner: str, settings: TlsSettings, make: Callable[[TlsSettings], Context]) -> None:
        """`owner` names the listener in log lines. Raises ConfigError."""
        self._owner = owner
        self._settings = settings
        self._make = make
        self._seen = self._stamps()
        self.context = make(settings)

    def look(self) -> None:
        """Make the context anew if a file has changed since the last look."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self.context = self._make(self._settings)
        except ConfigError as error:
            log.error("changed certificates cannot be used; those before stay in use", of=self._owner, error=str(error))
        else:
            log.info("changed certificates are in use", of=self._owner, files=", ".join(self._settings.files))

    def _stamps(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._settings.files]


def _stamp(path: str) -> _Stamp:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class CertificateWatch:
    """Looks at all certificates of a node now and then."""

    def __init__(self, certificates: Sequence[Certificates[Any]]) -> None:
        self._certificates = certificates
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; nothing to do for a node without TLS."""
        if self._certificates:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """End. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        for certificates in self._certificates:
            certificates.look()
        self.start()
