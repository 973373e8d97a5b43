"""The TLS of a listener: which clients shake hands, for how long, and what is said of those that cannot."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from strandline.cluster.security.principal import ANONYMOUS, PrincipalRules
from strandline.cluster.security.tls_transport import LoopTime, TlsConnection
from strandline.proto.notes import Notes
from strandline.proto.ports import Clock
from strandline.proto.tls import explain, is_tls_error

log = structlog.get_logger("strandline.security")

HANDSHAKE_S = 10.0
"""Seconds after which a handshake ends: as librdkafka, and as our own clients, give one up."""

HANDSHAKES_MAX = 1000
"""Connections of one listener in handshake at once; with one more the oldest is dropped. One costs about 50 KB, and an
honest one takes a few milliseconds."""

MakeProtocol = Callable[[], asyncio.BaseProtocol]


class TlsDoor:
    """Wraps the protocols of one listener into TLS.

    Args:
        context: the one for the next connection.

    Attributes:
        failures: handshakes that came to nothing since the start.
    """

    def __init__(
        self,
        listener: str,
        context: Callable[[], ssl.SSLContext],
        clock: Clock,
        *,
        handshake_s: float = HANDSHAKE_S,
        handshakes_max: int = HANDSHAKES_MAX,
    ) -> None:
        self._listener = listener
        self._context = context
        self._handshake_s = handshake_s
        self._handshakes_max = handshakes_max
        self._handshakes: dict[TlsConnection, None] = {}
        self._notes = Notes(clock, log)
        self.failures = 0

    def wrap(self, make: MakeProtocol, loop_time: LoopTime | None = None) -> MakeProtocol:
        """Factory to give to `create_server` in the place of `make`. `loop_time`: what handshakes may take of the
        loop."""
        return lambda: TlsConnection(self, make(), self._context(), self._handshake_s, loop_time)

    @property
    def handshakes(self) -> int:
        """Connections in handshake."""
        return len(self._handshakes)

    def close(self) -> None:
        """End every handshake."""
        for connection in list(self._handshakes):
            connection.give_up()

    # What connections report

    def began(self, connection: TlsConnection) -> None:
        self._handshakes[connection] = None
        if len(self._handshakes) > self._handshakes_max:  # rule A18/handshakes-without-number
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.give_up()
            self._note("dropped a TLS handshake: too many at once", oldest, limit=self._handshakes_max)

    def entered(self, connection: TlsConnection) -> None:
        self._handshakes.pop(connection, None)

    def failed(self, connection: TlsConnection, reason: BaseException | str | None) -> None:
        self.failures += 1
        if connection not in self._handshakes:
            return  # it was dropped, and that was logged
        del self._handshakes[connection]
        if isinstance(reason, str):
            advice = "the client should use TLS (security.protocol=SSL or SASL_SSL)"
            self._note("a client does not speak TLS on a TLS port", connection, spoken=reason, advice=advice)
        elif reason is not None and is_tls_error(reason):
            words = explain(reason)
            self._note("a TLS handshake failed", connection, kind=words, reason=words)
        elif isinstance(reason, ConnectionAbortedError):
            self._note("a TLS handshake took too long", connection, limit_s=self._handshake_s)
        else:
            log.debug("a client left during its TLS handshake", listener=self._listener, client=connection.where)

    def _note(self, event: str, connection: TlsConnection, *, kind: str = "", **figures: object) -> None:
        self._notes.warn(event, kind, client=connection.where, listener=self._listener, **figures)


class ListenerTls:
    """The TLS of one listener: its door, and who a client is that came through it."""

    def __init__(self, door: TlsDoor, rules: PrincipalRules) -> None:
        self.door = door
        self._rules = rules

    def principal(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Principal of the client's certificate; anonymous without one, None where no rule matches."""
        return self._rules.principal(certificate) if certificate else ANONYMOUS
