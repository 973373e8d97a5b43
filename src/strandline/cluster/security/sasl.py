"""SASL of a listener: its mechanisms, and the state of each connection's authentication. No I/O: bytes in, answers out.

State of connection   after SaslHandshake    after SaslAuthenticate           any other request except ApiVersions
new                   chosen or failed       failed                           connection closed
chosen                failed                 chosen, open or failed           connection closed
open                  chosen again           failed; if chosen again          served until the session ends
                      (KIP-368)              (KIP-368): as in "chosen"
failed                the connection closes after the answer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from strandline.cluster.security.plain import PlainError, PlainUsers
from strandline.cluster.security.tokens import TokenError, Tokens
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ports import Rng
from strandline.proto.scram import (
    NONCE_BITS,
    SCRAM_BY_TITLE,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    nonce_of,
)

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"

MECHANISMS = (*SCRAM_BY_TITLE, PLAIN, OAUTHBEARER)
"""Mechanisms that a listener may enable."""


class Refused(Exception):
    """An authentication failed. The reason is only for the node's log, not for the client."""

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class Users(Protocol):
    """Store of SCRAM credentials (`strandline.cluster.broker.scram_users`)."""

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        """Credential of a user. For an unknown user it is a random one that no password matches, which takes the same
        time, so that a client cannot find out which users exist."""

    def knows(self, mechanism: ScramMechanism, name: str) -> bool:
        """True if the user has a credential for this mechanism."""


class Step(NamedTuple):
    """Answer to a client's message. `user` is set once it is proven; `lifetime_ms` is then the maximum milliseconds of
    the session (0: no limit)."""

    answer: bytes
    user: str | None = None
    lifetime_ms: int = 0


class Conversation(Protocol):
    """One attempt of a client to authenticate by one mechanism."""

    def step(self, token: bytes) -> Step:
        """Handle the client's next message. Raises Refused."""


class _Scram:
    def __init__(self, mechanism: ScramMechanism, users: Users, nonce: str) -> None:
        self._mechanism = mechanism
        self._users = users
        self._server = ScramServer(mechanism, nonce)
        self._user = ""

    def step(self, token: bytes) -> Step:
        try:
            if not self._user:
                self._user = self._server.first(token)
                return Step(self._server.challenge(self._users.credential(self._mechanism, self._user)))
            return Step(self._server.final(token), self._user)
        except ScramError as error:
            known = not self._user or self._users.knows(self._mechanism, self._user)
            reason = str(error) if known else f"there is no {self._mechanism.title} credential of this user"
            raise Refused(reason, self._user) from None


class _Plain:
    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def step(self, token: bytes) -> Step:
        try:
            return Step(b"", self._users.check(token))
        except PlainError as error:
            raise Refused(str(error)) from None


class _Bearer:
    def __init__(self, tokens: Tokens, now_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._now_ms = now_ms

    def step(self, token: bytes) -> Step:
        try:
            bearer = self._tokens.check(token)
        except TokenError as error:
            raise Refused(str(error)) from None
        # rule A19/token-outlived-by-its-session
        return Step(b"", bearer.user, max(1, bearer.expires_ms - self._now_ms()))


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """SASL settings of one listener.

    Attributes:
        mechanisms: enabled mechanisms, in the order in which they are listed to clients.
        session_ms_max: milliseconds that an authentication is valid (`connections.max.reauth.ms`); 0: no limit.
        failure_delay_ms: milliseconds before a failure is answered (`connection.failed.authentication.delay.ms`).
        frame_bytes_max: maximum bytes of a request before authentication (`sasl.server.max.receive.size`).
    """

    mechanisms: Sequence[str]
    session_ms_max: int = 0
    failure_delay_ms: int = 100
    frame_bytes_max: int = 64 * 1024


@dataclass(slots=True)
class SaslCounts:
    """Counters of a listener for the metrics, with Kafka's names."""

    successful_authentication: int = 0
    failed_authentication: int = 0
    successful_reauthentication: int = 0
    failed_reauthentication: int = 0
    expired_connections_killed: int = 0


def bearers(tokens: Tokens, now_ms: Callable[[], int]) -> Callable[[], Conversation]:
    """Factory of OAUTHBEARER conversations. `now_ms` returns the wall time, by which tokens expire."""
    return lambda: _Bearer(tokens, now_ms)


class Mechanisms:
    """Mechanisms of one listener; starts the conversations of its clients."""

    def __init__(
        self,
        settings: SaslSettings,
        scram: Users,
        plain: PlainUsers | None,
        rng: Rng,
        *,
        bearers: Callable[[], Conversation] | None = None,
    ) -> None:
        self.settings = settings
        self._rng = rng
        self._bearers = bearers
        self._makers: Mapping[str, Callable[[], Conversation]] = {
            title: self._maker(title, scram, plain) for title in settings.mechanisms
        }

    def _maker(self, title: str, scram: Users, plain: PlainUsers | None) -> Callable[[], Conversation]:
        if title == PLAIN:
            users = plain if plain is not None else PlainUsers({}, self._rng)
            return lambda: _Plain(users)
        if title == OAUTHBEARER:
            if self._bearers is None:
                raise ValueError("OAUTHBEARER without keys")
            return self._bearers
        mechanism = SCRAM_BY_TITLE[title]
        return lambda: _Scram(mechanism, scram, nonce_of(self._rng.getrandbits(NONCE_BITS)))

    def begin(self, title: str) -> Conversation | None:
        """Start a conversation; None if the mechanism is not enabled."""
        maker = self._makers.get(title)
        return None if maker is None else maker()


class Outcome(NamedTuple):
    """Answer to SaslHandshake or SaslAuthenticate.

    Attributes:
        message: error message for the client; the same for every cause.
        reason: cause of a failure, for the log; "" if it did not fail.
        user: user named by the client, proven or not.
        proven: True if this step authenticated the client.
    """

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    token: bytes = b""
    lifetime_ms: int = 0
    reason: str = ""
    user: str = ""
    proven: bool = False


class SaslSession:
    """State of one connection's authentication.

    Invariants:
        * it becomes open only by a successful authentication, and never again after a failure;
        * its user never changes: a re-authentication as another user, or by another mechanism, fails.
    """

    __slots__ = ("_conversation", "_ends_ms", "_mechanisms", "failed", "is_raw", "mechanism", "user")

    def __init__(self, mechanisms: Mechanisms) -> None:
        self._mechanisms = mechanisms
        self._conversation: Conversation | None = None
        self._ends_ms = 0.0
        self.mechanism = ""
        self.user: str | None = None
        """Authenticated user; None before the authentication."""
        self.failed = False
        self.is_raw = False
        """True after SaslHandshake version 0: tokens arrive without a request header until the authentication ends."""

    @property
    def is_open(self) -> bool:
        """True if the client is authenticated."""
        return self.user is not None and not self.failed

    def is_over(self, now_ms: float) -> bool:
        """True if an open session has expired."""
        return 0.0 < self._ends_ms <= now_ms  # rule A19/session-without-end

    def handshake(self, mechanism: str, version: int) -> Outcome:
        """Handle SaslHandshake: the client chooses a mechanism."""
        if self._conversation is not None or self.failed:
            return self._illegal("SaslHandshake in the middle of an authentication")
        conversation = self._mechanisms.begin(mechanism)
        if conversation is None:
            self.failed = True
            reason = f"the client asks for a mechanism that is not enabled: {mechanism[:64]!r}"
            return Outcome(ErrorCode.UNSUPPORTED_SASL_MECHANISM, reason=reason)
        if self.user is not None and mechanism != self.mechanism:
            return self._illegal("another mechanism for a re-authentication")
        self.mechanism = mechanism
        self._conversation = conversation
        self.is_raw = version == 0
        return Outcome()

    def authenticate(self, token: bytes, now_ms: float) -> Outcome:
        """Handle SaslAuthenticate, or a token without header: the client's next message."""
        if self._conversation is None or self.failed:
            return self._illegal("SaslAuthenticate without SaslHandshake")
        try:
            answer, user, lifetime_ms = self._conversation.step(token)
        except Refused as refused:
            return self._refused(str(refused), refused.user)
        if user is None:
            return Outcome(token=answer)
        if self.user not in (None, user):  # rule A19/another-user-in-the-session
            return self._refused(f"a re-authentication as another user than {self.user!r}", user)
        self._conversation = None
        self.is_raw = False
        self.user = user
        lifetime_ms = min(filter(None, (lifetime_ms, self._mechanisms.settings.session_ms_max)), default=0)
        self._ends_ms = now_ms + lifetime_ms if lifetime_ms else 0.0
        return Outcome(token=answer, lifetime_ms=lifetime_ms, user=user, proven=True)

    def _illegal(self, reason: str) -> Outcome:
        self.failed = True
        return Outcome(ErrorCode.ILLEGAL_SASL_STATE, f"{reason} is not expected now", reason=reason)

    def _refused(self, reason: str, user: str) -> Outcome:
        self.failed = True
        words = f"Authentication failed due to invalid credentials with SASL mechanism {self.mechanism}"
        return Outcome(ErrorCode.SASL_AUTHENTICATION_FAILED, words, reason=reason, user=user)
