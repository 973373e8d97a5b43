"""Tokens of OAUTHBEARER: of a file, or of an OAuth server that is asked with this client's id and secret (KIP-768).

No log line and no error here holds a secret or a token, nor any text that the other end sent: it may echo them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import ssl
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import url2pathname

from strandline.client import logs
from strandline.client.backoff import backoff_ms
from strandline.client.config import SecurityConfig
from strandline.client.config_security import given, jaas_options, resolved_setting, tls_of
from strandline.client.errors import AuthenticationFailed, TokenUnavailable
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.http_fetch import Address, FetchFailed, fetch, parse_address
from strandline.proto.ids import is_loopback
from strandline.proto.json_text import read_json
from strandline.proto.ports import Clock, Rng
from strandline.proto.secrets import HIDDEN
from strandline.proto.tasks import shared
from strandline.proto.tls import client_context

REFUSALS = frozenset((400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505))
"""Statuses after which asking again does not help: those of Kafka's clients."""

OAUTH_ERRORS = frozenset(
    (
        "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
        "invalid_scope", "access_denied", "server_error", "temporarily_unavailable",
    )
)  # fmt: skip
"""RFC 6749's names of errors. An answer's other words are not shown."""

LIFETIME_S_MAX = 10 * 365 * 86_400.0

REFUSED_AFTER_MS = 10_000.0
"""Shortest time between two requests for a token after a broker refused one: the fault may lie elsewhere."""

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750's. Anything else could say more in a message of SASL than who it is."""


class Tokens(Protocol):
    """Source of a client's tokens."""

    where: str
    """Words for the source in an error: `the token of ...`."""

    over_tls: bool
    """Whether they come by HTTPS."""

    async def current(self) -> str:
        """The token for a new connection.

        Raises:
            AuthenticationFailed: there is none, and asking again does not help.
            TokenUnavailable: there is none now.
        """

    def refused(self, token: str) -> None:
        """A broker did not take it."""

    async def close(self) -> None:
        """The client ends."""


class FileTokens:
    """A file that something else keeps fresh, read anew for each connection."""

    over_tls = False

    def __init__(self, path: str) -> None:
        self.where = path

    async def current(self) -> str:
        """The token in the file. Raises AuthenticationFailed if the file cannot be read, or is empty."""
        return self._read()

    def refused(self, token: str) -> None:
        """The next connection reads it again."""

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def _read(self) -> str:
        try:
            token = Path(self.where).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "no text"
            token, why = "", f"the token's file {self.where} cannot be read ({reason})"
        else:
            why = f"the token's file {self.where} is empty"
        if not token:
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
        return token


@dataclass(frozen=True, slots=True)
class Refresh:
    """Rules for the renewal of a token, with Kafka's names (`sasl.login.refresh.`)."""

    factor: float = 0.8
    jitter: float = 0.05
    min_period_s: int = 60
    buffer_s: int = 300

    def after_ms(self, lifetime_ms: float, chance: float) -> float:
        """How long after a token came the next one is asked for: the rule of Kafka's ExpiringCredentialRefreshingLogin.

        Args:
            lifetime_ms: from when it came to its end.
            chance: from 0 to 1.
        """
        wanted_ms = lifetime_ms * (self.factor + self.jitter * chance)
        if (self.min_period_s + self.buffer_s) * 1000 > lifetime_ms:
            return wanted_ms
        return max(min(wanted_ms, lifetime_ms - self.buffer_s * 1000), self.min_period_s * 1000)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OAuth server's token endpoint, who asks it, and how.

    Attributes:
        url: as it was given, for errors.
        scope: what the token is to allow; empty: as the server has it for this client.
        urlencode: id and secret are URL-encoded before they are joined (RFC 6749, 2.3.1; `header.urlencode`).
        tls: None for http.
    """

    url: str
    address: Address
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    urlencode: bool = False
    connect_timeout_ms: float = 10_000
    read_timeout_ms: float = 10_000
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 10_000
    refresh: Refresh = Refresh()
    tls: ssl.SSLContext | None = None

    @property
    def authorization(self) -> str:
        """The header that says who asks."""
        pair = (self.client_id, self.client_secret)
        joined = ":".join(map(quote_plus, pair) if self.urlencode else pair)
        return "Basic " + b64encode(joined.encode()).decode()

    @property
    def form(self) -> bytes:
        """The question: a token by client credentials (RFC 6749, 4.4)."""
        scope = {"scope": self.scope} if self.scope else {}
        return urlencode({"grant_type": "client_credentials", **scope}).encode()


class _Token(NamedTuple):
    text: str
    came_ms: float
    ends_ms: float
    """Both by the monotonic clock."""


class EndpointTokens:
    """Tokens of an OAuth server: asked for when the first connection needs one, kept, renewed before they end.

    Invariants:
    - One question is out at most; every connection that needs its answer waits for that one.
    - A token is given out only before its end.
    - While a token holds, no connection waits, and a server that does not answer is only logged.
    - After a failure the server is not asked before `sasl.login.retry.backoff.ms` has passed, doubled each time.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, rng: Rng) -> None:
        self.where = endpoint.url
        self.over_tls = endpoint.address.tls
        self.endpoint = endpoint
        self._clock = clock
        self._rng = rng
        self._token: _Token | None = None
        self._asking: asyncio.Task[_Token] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._failure: StrandlineError | None = None
        self._quiet_until_ms = 0.0

    async def current(self) -> str:
        """The token for a new connection. Raises AuthenticationFailed, TokenUnavailable."""
        now_ms = self._clock.monotonic_ms()
        if self._token is not None and now_ms < self._token.ends_ms:
            return self._token.text
        if self._asking is None and self._failure is not None and now_ms < self._quiet_until_ms:
            raise self._failure.with_traceback(None)
        # Many connections wait for one answer: one that is cancelled must not end it for the others.
        return (await shared(self._ask_once())).text

    def refused(self, token: str) -> None:
        """Ask for another one at the next connection: keys are withdrawn, and clocks differ."""
        held = self._token
        if held is not None and held.text == token and self._clock.monotonic_ms() - held.came_ms >= REFUSED_AFTER_MS:
            self._token = None

    async def close(self) -> None:
        """Ask no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _ask_once(self) -> asyncio.Task[_Token]:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._renew())
            self._asking.add_done_callback(_looked_at)
        return self._asking

    async def _renew(self) -> _Token:
        try:
            self._token = token = await _ask(self.endpoint, self._clock)
        except StrandlineError as error:
            self._failed(error)
            raise
        finally:
            self._asking = None
        if self._failures:
            logs.network.info("%s gives tokens again", self.where)
        self._failures, self._failure = 0, None
        wait_ms = self.endpoint.refresh.after_ms(token.ends_ms - token.came_ms, self._rng.random())
        self._renew_in(max(wait_ms, self.endpoint.retry_backoff_ms))  # a token of a microsecond is no reason to hurry
        return token

    def _failed(self, error: StrandlineError) -> None:
        self._failures += 1
        endpoint = self.endpoint
        wait_ms = backoff_ms(self._failures, endpoint.retry_backoff_ms, endpoint.retry_backoff_max_ms, self._rng)
        now_ms = self._clock.monotonic_ms()
        self._failure, self._quiet_until_ms = error, now_ms + wait_ms
        left_ms = 0.0 if self._token is None else self._token.ends_ms - now_ms
        if left_ms > 0:
            level = logging.WARNING if self._failures == 1 else logging.DEBUG  # once for each time that it is gone
            logs.network.log(level, "no new token: %s; the last one holds for %.0f s more", error, left_ms / 1000)
            self._renew_in(wait_ms)

    def _renew_in(self, wait_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._ask_once)


def _looked_at(task: asyncio.Task[_Token]) -> None:
    """Whoever waits has the error; a renewal has no waiter, and has logged it."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, StrandlineError):
        logs.network.error("internal error: a token was not asked for", exc_info=error)


async def _ask(endpoint: Endpoint, clock: Clock) -> _Token:
    """A new token. Raises AuthenticationFailed, TokenUnavailable."""
    try:
        answer = await fetch(
            endpoint.address,
            endpoint.tls,
            connect_timeout_s=endpoint.connect_timeout_ms / 1000,
            read_timeout_s=endpoint.read_timeout_ms / 1000,
            headers={"Authorization": endpoint.authorization, "Cache-Control": "no-cache"},
            form=endpoint.form,
        )
    except FetchFailed as error:
        raise TokenUnavailable(f"no token from {endpoint.url}: {error}") from None
    document = _document(answer.body)
    if answer.status not in (200, 201):
        error_code = document.get("error")
        named = f", {error_code}" if isinstance(error_code, str) and error_code in OAUTH_ERRORS else ""
        why = f"status {answer.status}{named}"
        if answer.status in REFUSALS:
            words = f"{endpoint.url} gives client {endpoint.client_id!r} no token: {why}"
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, words)
        raise TokenUnavailable(f"no token from {endpoint.url}: {why}")
    try:
        return _token(document, clock)
    except ValueError as error:
        raise TokenUnavailable(f"no token from {endpoint.url}: status {answer.status}, but {error}") from None


def _document(body: bytes | str) -> Mapping[str, Any]:
    """Parse a JSON object; {} if the text is not one."""
    try:
        document = read_json(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _token(document: Mapping[str, Any], clock: Clock) -> _Token:
    """Parse the token endpoint's response. Raises ValueError if it has no token, or one that has expired."""
    text = document.get("access_token")
    if not isinstance(text, str) or not _TOKEN.fullmatch(text):
        raise ValueError("the answer is no JSON object with an access_token")
    lifetime_s = _seconds(document.get("expires_in"))
    if lifetime_s is None:
        end_s = _seconds(_claims(text).get("exp"))
        if end_s is None:
            raise ValueError("nothing says when the token ends: neither expires_in nor, in a JWT, exp")
        lifetime_s = end_s - clock.wall_ms() / 1000
    if lifetime_s <= 0:
        raise ValueError("the token has ended already: do the clocks differ?")
    now_ms = clock.monotonic_ms()
    return _Token(text, now_ms, now_ms + min(lifetime_s, LIFETIME_S_MAX) * 1000)


def _claims(token: str) -> Mapping[str, Any]:
    """Claims of a JWT, unchecked: brokers check it."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        return _document(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except ValueError:
        return {}


def _seconds(value: object) -> float | None:
    """A number, or one as text, as some servers have it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


URL = "sasl.oauthbearer.token.endpoint.url"
MODULE = "OAuthBearerLoginModule"

_OPTIONS = {
    "clientId": "sasl_oauthbearer_client_credentials_client_id",
    "clientSecret": "sasl_oauthbearer_client_credentials_client_secret",
    "scope": "sasl_oauthbearer_scope",
}
"""Settings that replace the options of the login module since Kafka 4.1 (KIP-1139), by option."""


def tokens_of(config: SecurityConfig, clock: Clock, rng: Rng) -> Tokens:
    """Source of the tokens of a client, from its settings.

    Raises:
        ConfigError: no such address, no client, or a reference to what is not there.
    """
    url = config.sasl_oauthbearer_token_endpoint_url
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _no_address(url) from None
    if parts.scheme == "file":
        if parts.netloc or not parts.path:
            raise _no_address(url)
        jaas_options(config, MODULE, ())
        useless = [name for name in given(config, "sasl_oauthbearer_", "sasl_login_") if name != URL]
        if useless:
            logs.network.warning("no effect with the token of a file: %s", ", ".join(useless))
        return FileTokens(url2pathname(parts.path))
    return EndpointTokens(_endpoint(config, _address(url)), clock, rng)


def _address(url: str) -> Address:
    try:
        address = parse_address(url)
    except ValueError:
        raise _no_address(url) from None
    if not (address.tls or is_loopback(address.host)):
        allowed = (
            "https://...: over http everybody on the way reads the client's secret, so it goes to localhost, 127.0.0.1 "
            "or [::1] alone"
        )
        raise ConfigError(URL, url, allowed)
    return address


def _no_address(url: str) -> ConfigError:
    allowed = (
        "https://host:port/path of a token endpoint, without a user in it, or file:///path of a token that is kept "
        "fresh there"
    )
    return ConfigError(URL, HIDDEN if "@" in url else url, allowed)


def _endpoint(config: SecurityConfig, address: Address) -> Endpoint:
    client_id, secret, scope = _credentials(config)
    urlencode = config.sasl_oauthbearer_header_urlencode
    if ":" in client_id and not urlencode:
        allowed = "an id without a colon, which ends it in the request; or sasl.oauthbearer.header.urlencode=true"
        raise ConfigError(config.attributes[_OPTIONS["clientId"]].name, client_id, allowed)
    return Endpoint(
        config.sasl_oauthbearer_token_endpoint_url,
        address,
        client_id,
        secret,
        scope,
        urlencode,
        connect_timeout_ms=config.sasl_login_connect_timeout_ms,
        read_timeout_ms=config.sasl_login_read_timeout_ms,
        retry_backoff_ms=config.sasl_login_retry_backoff_ms,
        retry_backoff_max_ms=config.sasl_login_retry_backoff_max_ms,
        refresh=Refresh(
            config.sasl_login_refresh_window_factor,
            config.sasl_login_refresh_window_jitter,
            config.sasl_login_refresh_min_period_seconds,
            config.sasl_login_refresh_buffer_seconds,
        ),
        tls=client_context(tls_of(config)) if address.tls else None,
    )


def _credentials(config: SecurityConfig) -> tuple[str, str, str]:
    """The client's id, its secret and the scope, of the login module or of the settings that replace it."""
    options = jaas_options(config, MODULE, tuple(_OPTIONS))
    found: list[str] = []
    for option, name in _OPTIONS.items():
        setting = resolved_setting(config, name)
        if setting and option in options:
            allowed = f"nothing beside {option} of sasl.jaas.config: one or the other"
            raise ConfigError(config.attributes[name].name, getattr(config, name), allowed)
        value = setting or options.get(option, "")
        if not value and option != "scope":
            allowed = f"what the token endpoint knows this client by, here or as {option} of sasl.jaas.config"
            raise ConfigError(config.attributes[name].name, "", allowed)
        found.append(value)
    return found[0], found[1], found[2]
