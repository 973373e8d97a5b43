"""A client's settings of OAUTHBEARER -> where its tokens come from."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import url2pathname

from strandline.client import logs
from strandline.client.config import SecurityConfig
from strandline.client.config_security import given, jaas_options, resolved_setting, tls_of
from strandline.client.tokens import Endpoint, EndpointTokens, FileTokens, Refresh, Tokens
from strandline.proto.errors import ConfigError
from strandline.proto.http_fetch import Address, parse_address
from strandline.proto.ids import is_loopback
from strandline.proto.ports import Clock, Rng
from strandline.proto.secrets import HIDDEN
from strandline.proto.tls import client_context

URL = "sasl.oauthbearer.token.endpoint.url"
MODULE = "OAuthBearerLoginModule"

_OPTIONS = {
    "clientId": "sasl_oauthbearer_client_credentials_client_id",
    "clientSecret": "sasl_oauthbearer_client_credentials_client_secret",
    "scope": "sasl_oauthbearer_scope",
}
"""Of the login module -> the setting that has it since Kafka 4.1 (KIP-1139)."""


def tokens_of(config: SecurityConfig, clock: Clock, rng: Rng) -> Tokens:
    """Where the tokens of this client come from.

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
