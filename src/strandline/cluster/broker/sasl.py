"""Authentication on a listener with SASL, and the limits on what a connection may send before it is authenticated.

Before the authentication only ApiVersions, SaslHandshake and SaslAuthenticate are served, in small frames and for a few
seconds; any other request closes the connection without a response. The response to a failed attempt is delayed, and
the connection is closed after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from strandline.cluster.broker.request import Exchange, RequestContext
from strandline.cluster.security.sasl import Mechanisms, Outcome, SaslCounts, SaslSession
from strandline.cluster.security.token_keys import Keys
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT32
from strandline.proto.notes import Notes
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.security")

AUTHENTICATION_S = 10.0
"""Seconds after which a connection that has not authenticated is closed, as for a TLS handshake. Clients give up by
then too."""

UNAUTHENTICATED_MAX = 1000
"""Maximum connections of one listener that are not authenticated; one more drops the oldest of them."""

REQUESTS_BEFORE_MAX = 20
"""Maximum requests of one connection before it is authenticated. An honest client sends three to six."""

TOO_MANY_BEFORE = (
    f"more than {REQUESTS_BEFORE_MAX} requests before the authentication: the client should use SaslHandshake and "
    "SaslAuthenticate, and ask for anything else behind them"
)

SESSION_OVER = "its session is over (connections.max.reauth.ms), and it did not authenticate anew"

_BEFORE = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})

USER_CHARS_SHOWN = 64
"""Maximum characters of a user name that log lines show: a client may claim any."""


NotesLogin = Callable[[RequestContext, str, str, ErrorCode], None]
"""Callback for a login: (request, mechanism, claimed user name, result)."""


class Connection(Protocol):
    """Connection, as its gate uses it (`strandline.cluster.broker.connection`)."""

    def refuse(self, reason: str) -> None:
        """Close the connection; the reason is logged."""

    def abort(self) -> None:
        """Close at once."""

    def identity(self) -> dict[str, Any]:
        """Return fields that identify the peer in log lines."""


class ListenerSasl:
    """SASL authentication of one listener: its mechanisms, and its connections that are not authenticated yet.

    Attributes:
        counts: numbers of successful and failed authentications, for the metrics.
    """

    def __init__(self, listener: str, mechanisms: Mechanisms, clock: Clock, keys: Keys | None = None) -> None:
        self.listener = listener
        self.mechanisms = mechanisms
        self.settings = mechanisms.settings
        self.clock = clock
        self.counts = SaslCounts()
        self.notes = Notes(clock, log)
        self._keys = keys
        self.audit: NotesLogin = lambda _context, _mechanism, _user, _result: None
        """Called for each authentication, successful or failed."""
        self._waiting: dict[Connection, SaslGate] = {}
        """Connections that are not authenticated, oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of connections that are not authenticated yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to load the keys that verify tokens, if any are needed: the listener opens."""
        if self._keys is not None:
            self._keys.start()

    def opened(self, connection: Connection) -> SaslGate:
        """Return the gate of a new connection, and begin its time to authenticate."""
        gate = SaslGate(self, self.clock.monotonic_ms() + AUTHENTICATION_S * 1000)
        self._waiting[connection] = gate
        if len(self._waiting) > UNAUTHENTICATED_MAX:  # rule A19/unauthenticated-without-number
            oldest = next(iter(self._waiting))
            self.left(oldest)
            self.notes.warn(
                "dropped a connection that had not authenticated: too many at once",
                limit=UNAUTHENTICATED_MAX,
                **oldest.identity(),
            )
            oldest.abort()
        self._schedule()  # rule A19/all-the-time-in-the-world
        return gate

    def left(self, connection: Connection) -> None:
        """Stop counting a connection as unauthenticated: it has authenticated or is closed."""
        self._waiting.pop(connection, None)

    def close(self) -> None:
        """Stop the timer and loading keys: the listener closes. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keys is not None:
            self._keys.stop()
        self._waiting.clear()

    def _schedule(self) -> None:
        if self._timer is None and self._waiting:
            due_ms = next(iter(self._waiting.values())).due_ms
            delay_s = max(0.0, due_ms - self.clock.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._drop_late)

    def _drop_late(self) -> None:
        self._timer = None
        now_ms = self.clock.monotonic_ms()
        for connection, gate in [one for one in self._waiting.items() if one[1].due_ms <= now_ms]:
            self.left(connection)
            late = f"it did not authenticate within {AUTHENTICATION_S:g} s"
            connection.refuse(TOO_MANY_BEFORE if gate.asked_too_much else late)
        self._schedule()


class SaslGate:
    """State of the authentication of one connection.

    Attributes:
        due_ms: monotonic time at which the connection is closed if it is not authenticated.
        session: state of the SASL exchange.
    """

    __slots__ = ("_requests", "_sasl", "due_ms", "session")

    def __init__(self, sasl: ListenerSasl, due_ms: float) -> None:
        self._sasl = sasl
        self.due_ms = due_ms
        self._requests = 0
        self.session = SaslSession(sasl.mechanisms)

    @property
    def is_open(self) -> bool:
        """True once the client is authenticated."""
        return self.session.is_open

    @property
    def frame_bytes_max(self) -> int:
        """Maximum bytes of a frame until the connection is authenticated."""
        return self._sasl.settings.frame_bytes_max

    @property
    def asked_too_much(self) -> bool:
        """True if more than `REQUESTS_BEFORE_MAX` frames have arrived before the authentication."""
        return self._requests > REQUESTS_BEFORE_MAX  # rule A26/any-number-of-requests-before-the-login

    def counts_too_many(self) -> bool:
        """Count a frame before the authentication. Return True above the maximum: then nothing more is read or
        answered, and the connection is closed only when its time to authenticate is over, so that the client cannot
        send as much again on a new connection at once."""
        self._requests += 1
        return self.asked_too_much

    def check(self, frame: memoryview) -> None:
        """Check that a request may be handled now.

        Raises:
            ProtocolError: the request needs an authentication, or the session has expired; the connection is closed.
        """
        session = self.session
        key = int.from_bytes(frame[:2], "big", signed=True)
        if not session.is_open:
            if key not in _BEFORE:  # rule A19/served-before-the-authentication
                name = next((api.title for api in Api if api == key), f"API {key}")
                raise ProtocolError(
                    f"{name} before the authentication: this listener speaks SASL; the client should use "
                    "security.protocol=SASL_PLAINTEXT, or SASL_SSL where it speaks TLS"
                )
        elif key not in _BEFORE and session.is_over(self._sasl.clock.monotonic_ms()):
            self._sasl.counts.expired_connections_killed += 1
            raise ProtocolError(SESSION_OVER)

    def handshake(self, exchange: Exchange, mechanism: str) -> None:
        """Answer SaslHandshake."""
        outcome = self.session.handshake(mechanism, exchange.context.version)
        self._answer(exchange, outcome)

    def authenticate(self, exchange: Exchange, token: bytes, *, raw: bool = False) -> None:
        """Answer SaslAuthenticate, or a token without a header (`raw`)."""
        again = self.session.user is not None
        outcome = self.session.authenticate(token, self._sasl.clock.monotonic_ms())
        if outcome.proven:
            self._proven(exchange, outcome, again=again)
        self._answer(exchange, outcome, raw=raw)

    def _proven(self, exchange: Exchange, outcome: Outcome, *, again: bool) -> None:
        peer, sasl = exchange.context.peer, self._sasl
        peer.principal = f"User:{outcome.user}"
        peer.is_stranger = False
        if again:
            sasl.counts.successful_reauthentication += 1
        else:
            sasl.counts.successful_authentication += 1
            sasl.left(exchange.connection)
        sasl.audit(exchange.context, self.session.mechanism, outcome.user, outcome.code)
        sasl.notes.info(
            "a client authenticated anew" if again else "a client authenticated",
            self.session.mechanism,
            mechanism=self.session.mechanism,
            **exchange.connection.identity(),
        )

    def _answer(self, exchange: Exchange, outcome: Outcome, *, raw: bool = False) -> None:
        pieces = self._written(exchange, outcome, raw=raw)
        if outcome.code is ErrorCode.NONE:
            exchange.respond_as_is(pieces) if raw else exchange.respond(pieces)
            return
        sasl, connection = self._sasl, exchange.connection
        if self.session.user is None:
            sasl.counts.failed_authentication += 1
        else:
            sasl.counts.failed_reauthentication += 1
        shown = outcome.user[:USER_CHARS_SHOWN]
        sasl.audit(exchange.context, self.session.mechanism, shown, outcome.code)
        sasl.notes.warn(
            "a client failed to authenticate",
            self.session.mechanism,
            mechanism=self.session.mechanism,
            user=shown,
            reason=outcome.reason,
            **connection.identity(),
        )

        async def later() -> None:
            await asyncio.sleep(sasl.settings.failure_delay_ms / 1000)  # rule A19/failure-is-answered-at-once
            if raw:
                exchange.respond_nothing()  # raw tokens have no error format: the connection is just closed
            else:
                exchange.respond(pieces)
            connection.shut()  # rule A19/another-attempt-on-the-connection

        connection.run_alone(exchange, later())

    def _written(self, exchange: Exchange, outcome: Outcome, *, raw: bool) -> list[bytes | bytearray]:
        if raw:
            return [INT32.pack(len(outcome.token)), outcome.token]
        if exchange.context.api == Api.SASL_HANDSHAKE.title:
            return [handshake_answer(exchange.context.version, outcome.code, self._sasl.settings.mechanisms)]
        return [authenticate_answer(exchange.context.version, outcome)]


def handshake_answer(version: int, code: ErrorCode, mechanisms: Any) -> bytearray:
    """Encode the response to SaslHandshake."""
    values = {"error_code": code, "mechanisms": tuple(mechanisms)}
    return schema.response(Api.SASL_HANDSHAKE, version).encode(values)


def authenticate_answer(version: int, outcome: Outcome) -> bytearray:
    """Encode the response to SaslAuthenticate."""
    values = {
        "error_code": outcome.code,
        "error_message": outcome.message,
        "auth_bytes": outcome.token,
        "session_lifetime": outcome.lifetime_ms,
    }
    return schema.response(Api.SASL_AUTHENTICATE, version).encode(values)
