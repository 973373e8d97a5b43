"""A client's end of SASL: who it is, and how it proves that on a new connection (KIP-43, KIP-84, KIP-152)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from strandline.client import logs
from strandline.client.config import CommonConfig, kafka_name
from strandline.client.errors import AuthenticationFailed
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint
from strandline.proto.jaas import parse_jaas
from strandline.proto.kafka.apis import Api
from strandline.proto.scram import (
    NONCE_BITS,
    SCRAM_BY_TITLE,
    SaltedPasswords,
    ScramClient,
    ScramError,
    nonce_of,
)
from strandline.proto.secrets import resolved
from strandline.proto.system import unguessable_rng

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"

_MODULES = {**dict.fromkeys(SCRAM_BY_TITLE, "ScramLoginModule"), PLAIN: "PlainLoginModule", OAUTHBEARER: ""}


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
    token_file: str = ""
    """Of OAUTHBEARER, which has no user and no password here."""


def login_of(config: CommonConfig) -> Login | None:
    """The login of a client; None without SASL.

    Raises:
        ConfigError: no mechanism, no user, no password, or a reference to what is not there.
    """
    protocol = config.security_protocol
    if not protocol.startswith("SASL_"):
        if config.sasl_mechanism or config.sasl_jaas_config or config.sasl_username or config.sasl_password:
            logs.network.warning("sasl.* settings have no effect with security.protocol=%s", protocol)
        return None
    mechanism = config.sasl_mechanism
    if not mechanism:
        raise ConfigError("sasl.mechanism", "", f"one of {', '.join(_MODULES)}: security.protocol={protocol} needs it")
    if mechanism == OAUTHBEARER:
        return _bearer(config)
    user, password = _credentials(config)
    if "\0" in user + password:
        raise ConfigError("sasl.username", user, "a name and a password without NUL")
    if mechanism == PLAIN and protocol == "SASL_PLAINTEXT":
        logs.network.warning("sasl.mechanism=PLAIN without TLS: everybody on the way to the brokers reads the password")
    return Login(mechanism, user, password, SaltedPasswords(password))


def _bearer(config: CommonConfig) -> Login:
    url = config.sasl_oauthbearer_token_endpoint_url
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc or not parts.path:
        allowed = "file:///path of a token that is kept fresh there; this client asks no address for one"
        raise ConfigError("sasl.oauthbearer.token.endpoint.url", url, allowed)
    if config.sasl_username or config.sasl_password or config.sasl_jaas_config:
        raise ConfigError(
            "sasl.mechanism", OAUTHBEARER, "no user, password or sasl.jaas.config: the token says who it is"
        )
    if config.security_protocol == "SASL_PLAINTEXT":
        logs.network.warning("sasl.mechanism=OAUTHBEARER without TLS: everybody on the way reads the token")
    return Login(OAUTHBEARER, "", "", SaltedPasswords(""), url2pathname(parts.path))


def _token(login: Login) -> str:
    try:
        token = Path(login.token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        token, why = "", f"the token's file {login.token_file} cannot be read ({reason})"
    else:
        why = f"the token's file {login.token_file} is empty"
    if not token:
        raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
    return token


def _credentials(config: CommonConfig) -> tuple[str, str]:
    if not config.sasl_jaas_config:
        user, password = _resolved(config, "sasl_username"), _resolved(config, "sasl_password")
        if not user:
            raise ConfigError("sasl.username", "", "the user's name, here or in sasl.jaas.config")
        if not password:
            raise ConfigError("sasl.password", "", f"the password of {user}: best ${{env:NAME}} or ${{file:PATH:KEY}}")
        return user, password
    if config.sasl_username or config.sasl_password:
        raise ConfigError("sasl.username", config.sasl_username, "nothing beside sasl.jaas.config: one or the other")
    name, text = "sasl.jaas.config", config.sasl_jaas_config
    try:
        module, options = parse_jaas(text)
    except ValueError as error:
        raise ConfigError(name, text, str(error)) from None
    if module != _MODULES[config.sasl_mechanism]:
        wanted = f"{_MODULES[config.sasl_mechanism]}, with sasl.mechanism={config.sasl_mechanism}, and not {module}"
        raise ConfigError(name, text, wanted)
    for option in options:
        if option not in ("username", "password"):
            raise ConfigError(name, text, f"username and password; {option} has no effect here")
    if not options.get("username") or not options.get("password"):
        raise ConfigError(name, text, 'username="..." and password="..."')
    return options["username"], options["password"]


def _resolved(config: CommonConfig, name: str) -> str:
    try:
        return resolved(getattr(config, name))
    except ValueError as error:
        raise ConfigError(kafka_name(name), getattr(config, name), str(error)) from None


async def authenticate(connection: Connection, login: Login, timeout_ms: float) -> int:
    """Prove to the broker who this client is, and with SCRAM that the broker knows it.

    Returns for how many milliseconds that holds (KIP-368); 0: as long as the connection.

    Raises:
        AuthenticationFailed: the broker refuses, or is none that knows this user. Asking again does not help.
        Disconnected, ClientTimeout, ProtocolError, KafkaError (UNSUPPORTED_VERSION).
    """
    answer = await connection.call(Api.SASL_HANDSHAKE, {"mechanism": login.mechanism}, timeout_ms)
    if answer.error_code is not ErrorCode.NONE:
        raise _refusal(connection, login, answer.error_code, tuple(answer.mechanisms))
    if login.mechanism == OAUTHBEARER:
        bearer = f"n,,\x01auth=Bearer {_token(login)}\x01\x01".encode()
        return (await _step(connection, login, bearer, timeout_ms)).lifetime_ms
    if login.mechanism == PLAIN:
        message = f"\0{login.user}\0{login.password}".encode()
        return (await _step(connection, login, message, timeout_ms)).lifetime_ms
    nonce = nonce_of(unguessable_rng().getrandbits(NONCE_BITS))
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


class _Answer(NamedTuple):
    token: bytes
    lifetime_ms: int


async def _step(connection: Connection, login: Login, token: bytes, timeout_ms: float) -> _Answer:
    answer: Any = await connection.call(Api.SASL_AUTHENTICATE, {"auth_bytes": token}, timeout_ms)
    if answer.error_code is not ErrorCode.NONE:
        who = f"user {login.user!r}" if login.user else f"the token of {login.token_file}"
        words = f"{connection.endpoint} refuses {who} by {login.mechanism}"
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
