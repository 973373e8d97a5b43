"""A client's end of SASL: who it is, and how it proves that on a new connection (KIP-43, KIP-84, KIP-152)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strandline.client import logs
from strandline.client.config import CommonConfig
from strandline.client.config_security import given, jaas_options, resolved_setting
from strandline.client.errors import AuthenticationFailed
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint
from strandline.proto.kafka.apis import Api
from strandline.proto.ports import Clock, Rng
from strandline.proto.scram import (
    NONCE_BITS,
    SCRAM_BY_TITLE,
    SaltedPasswords,
    ScramClient,
    ScramError,
    nonce_of,
)

if TYPE_CHECKING:
    from strandline.client.tokens import Tokens

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"

_MODULES = {
    **dict.fromkeys(SCRAM_BY_TITLE, "ScramLoginModule"),
    PLAIN: "PlainLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}


class Connection(Protocol):
    """A new connection (`strandline.client.connection`)."""

    @property
    def endpoint(self) -> Endpoint: ...

    def call(self, api: Api, values: Mapping[str, Any], timeout_ms: float) -> Awaitable[Any]:
        """The answer to a request."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who a client is, and by which mechanism it says so."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    salted: SaltedPasswords = field(repr=False, compare=False)
    rng: Rng = field(repr=False, compare=False)
    """Draws the nonces of SCRAM."""
    tokens: Tokens | None = field(default=None, compare=False)
    """Of OAUTHBEARER, which has no user and no password here."""


def login_of(config: CommonConfig, clock: Clock, rng: Rng) -> Login | None:
    """The login of a client; None without SASL.

    Raises:
        ConfigError: no mechanism, no user, no password, or a reference to what is not there.
    """
    protocol = config.security_protocol
    if not protocol.startswith("SASL_"):
        if given(config, "sasl_"):
            logs.network.warning("sasl.* settings have no effect with security.protocol=%s", protocol)
        return None
    mechanism = config.sasl_mechanism
    if not mechanism:
        raise ConfigError("sasl.mechanism", "", f"one of {', '.join(_MODULES)}: security.protocol={protocol} needs it")
    if mechanism == OAUTHBEARER:
        return _bearer(config, clock, rng)
    if of_tokens := given(config, "sasl_oauthbearer_", "sasl_login_"):
        logs.network.warning("no effect with sasl.mechanism=%s: %s", mechanism, ", ".join(of_tokens))
    user, password = _credentials(config)
    if "\0" in user + password:
        raise ConfigError("sasl.username", user, "a name and a password without NUL")
    if mechanism == PLAIN and protocol == "SASL_PLAINTEXT":
        logs.network.warning("sasl.mechanism=PLAIN without TLS: everybody on the way to the brokers reads the password")
    return Login(mechanism, user, password, SaltedPasswords(password), rng)


def _bearer(config: CommonConfig, clock: Clock, rng: Rng) -> Login:
    from strandline.client.token_settings import tokens_of

    if config.sasl_username or config.sasl_password:
        raise ConfigError("sasl.mechanism", OAUTHBEARER, "no sasl.username and sasl.password: the token says who it is")
    tokens = tokens_of(config, clock, rng)
    if config.security_protocol == "SASL_PLAINTEXT":
        logs.network.warning("sasl.mechanism=OAUTHBEARER without TLS: everybody on the way reads the token")
    return Login(OAUTHBEARER, "", "", SaltedPasswords(""), rng, tokens)


def _credentials(config: CommonConfig) -> tuple[str, str]:
    if not config.sasl_jaas_config:
        user, password = resolved_setting(config, "sasl_username"), resolved_setting(config, "sasl_password")
        if not user:
            raise ConfigError("sasl.username", "", "the user's name, here or in sasl.jaas.config")
        if not password:
            raise ConfigError("sasl.password", "", f"the password of {user}: best ${{env:NAME}} or ${{file:PATH:KEY}}")
        return user, password
    if config.sasl_username or config.sasl_password:
        raise ConfigError("sasl.username", config.sasl_username, "nothing beside sasl.jaas.config: one or the other")
    options = jaas_options(config, _MODULES[config.sasl_mechanism], ("username", "password"))
    if not options.get("username") or not options.get("password"):
        raise ConfigError("sasl.jaas.config", config.sasl_jaas_config, 'username="..." and password="..."')
    return options["username"], options["password"]


def user_of(config: CommonConfig) -> str:
    """The name that a client logs in by, to be told; "" where a token has it, or it stands nowhere any more."""
    try:
        return "" if config.sasl_mechanism == OAUTHBEARER else _credentials(config)[0]
    except ConfigError:
        return ""


async def authenticate(connection: Connection, login: Login, timeout_ms: float, token: str = "") -> int:
    """Prove to the broker who this client is, and with SCRAM that the broker knows it.

    Args:
        token: of OAUTHBEARER.

    Returns:
        For how many milliseconds that holds (KIP-368); 0: as long as the connection.

    Raises:
        AuthenticationFailed: the broker refuses, or is none that knows this user. Asking again does not help.
        Disconnected, ClientTimeout, ProtocolError, KafkaError (UNSUPPORTED_VERSION).
    """
    answer = await connection.call(Api.SASL_HANDSHAKE, {"mechanism": login.mechanism}, timeout_ms)
    if answer.error_code is not ErrorCode.NONE:
        raise _refusal(connection, login, answer.error_code, tuple(answer.mechanisms))
    if login.mechanism == OAUTHBEARER:
        return await _show(connection, login, token, timeout_ms)
    if login.mechanism == PLAIN:
        message = f"\0{login.user}\0{login.password}".encode()
        return (await _step(connection, login, message, timeout_ms)).lifetime_ms
    nonce = nonce_of(login.rng.getrandbits(NONCE_BITS))
    scram = ScramClient(SCRAM_BY_TITLE[login.mechanism], login.user, login.salted, nonce)
    try:
        challenge = await _step(connection, login, scram.first(), timeout_ms)
        last = await _step(connection, login, scram.final(challenge.token), timeout_ms)
        scram.verify(last.token)
        return last.lifetime_ms
    except ScramError as error:
        connection.close()
        why = f"{connection.endpoint} is not to be trusted: {error}"
        raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, why) from None


async def _show(connection: Connection, login: Login, token: str, timeout_ms: float) -> int:
    """RFC 7628. A broker of Kafka refuses a token by an answer that looks like success and holds the reason."""
    try:
        answer = await _step(connection, login, f"n,,\x01auth=Bearer {token}\x01\x01".encode(), timeout_ms)
        if answer.token:
            await _step(connection, login, b"\x01", timeout_ms)
            words = f"{connection.endpoint} refuses {_who(login)} by {login.mechanism}"
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, words)
    except AuthenticationFailed:
        assert login.tokens is not None
        login.tokens.refused(token)
        raise
    return answer.lifetime_ms


def _who(login: Login) -> str:
    return f"user {login.user!r}" if login.tokens is None else f"the token of {login.tokens.where}"


class _Answer(NamedTuple):
    token: bytes
    lifetime_ms: int


async def _step(connection: Connection, login: Login, token: bytes, timeout_ms: float) -> _Answer:
    answer: Any = await connection.call(Api.SASL_AUTHENTICATE, {"auth_bytes": token}, timeout_ms)
    if answer.error_code is not ErrorCode.NONE:
        words = f"{connection.endpoint} refuses {_who(login)} by {login.mechanism}"
        raise AuthenticationFailed(answer.error_code, f"{words}: {answer.error_message or 'without a reason'}")
    return _Answer(bytes(answer.auth_bytes), getattr(answer, "session_lifetime", 0))


def _refusal(
    connection: Connection, login: Login, code: ErrorCode, mechanisms: tuple[str, ...]
) -> AuthenticationFailed:
    where = connection.endpoint
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        words = f"{where} does not serve sasl.mechanism={login.mechanism}, only {', '.join(mechanisms) or 'others'}"
    elif code is ErrorCode.ILLEGAL_SASL_STATE:
        words = f"{where} is a listener without SASL: security.protocol is PLAINTEXT there, or SSL where it speaks TLS"
    else:
        words = f"{where} refuses SaslHandshake"
    return AuthenticationFailed(code, words)
