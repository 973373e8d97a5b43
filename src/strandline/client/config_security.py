"""The settings by which a client connects safely: TLS, and the login by SASL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from strandline.client.config_fields import kafka_name, setting
from strandline.proto.errors import ConfigError
from strandline.proto.jaas import parse_jaas
from strandline.proto.secrets import resolved
from strandline.proto.tls import TlsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Settings of every client: how it speaks to brokers, and who it is."""

    security_protocol: str = setting(
        "PLAINTEXT", "How to talk to the brokers: PLAINTEXT, SSL for TLS, SASL_PLAINTEXT or SASL_SSL with a login too.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    sasl_mechanism: str = setting(
        "", "With SASL: how to log in. PLAIN sends the password itself, so only over TLS.",
        choices=("", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"),
    )  # fmt: skip
    sasl_username: str = setting("", "With SASL: the user's name, where no sasl.jaas.config has it.")
    sasl_password: str = setting(
        "",
        "The user's password: best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}.",
        secret=True,
    )
    sasl_jaas_config: str = setting(
        "",
        'The login as Kafka\'s clients have it: ...ScramLoginModule required username="..." password="..."; '
        '(PlainLoginModule for PLAIN), or ...OAuthBearerLoginModule required clientId="..." clientSecret="..." '
        'scope="...";.',
        secret=True,
    )
    sasl_oauthbearer_token_endpoint_url: str = setting(
        "",
        "With OAUTHBEARER: where tokens come from. https://...: the token endpoint of an OAuth server, asked by client "
        "credentials (http:// on this machine alone). file:///path of a token, read anew for each connection, that "
        "something else renews there.",
    )
    sasl_oauthbearer_client_credentials_client_id: str = setting(
        "", "The client's id at the token endpoint, where no sasl.jaas.config has it (clientId)."
    )
    sasl_oauthbearer_client_credentials_client_secret: str = setting(
        "", "Its secret (clientSecret): best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}.",
        secret=True,
    )  # fmt: skip
    sasl_oauthbearer_scope: str = setting("", "What the token is to allow, in words of the token endpoint (scope).")
    sasl_oauthbearer_header_urlencode: bool = setting(
        False,
        "Write the client's id and secret URL-encoded into the request, as RFC 6749 has it and some servers want.",
    )
    sasl_login_connect_timeout_ms: int = setting(
        10_000, "How long the connection to the token endpoint may take to come up.", low=1
    )
    sasl_login_read_timeout_ms: int = setting(
        10_000, "How long the token endpoint may take for its whole answer.", low=1
    )
    sasl_login_retry_backoff_ms: int = setting(
        100, "Wait before the token endpoint is asked again after it gave no token; doubles each time.", low=0
    )
    sasl_login_retry_backoff_max_ms: int = setting(10_000, "Longest wait between such attempts.", low=0)
    sasl_login_refresh_window_factor: float = setting(
        0.8, "A token is renewed after this part of its time.", low=0.5, high=1.0
    )
    sasl_login_refresh_window_jitter: float = setting(
        0.05, "Up to this part of its time later: not all clients at once.", low=0.0, high=0.25
    )
    sasl_login_refresh_min_period_seconds: int = setting(
        60,
        "Not sooner than this after it came; without effect, as the buffer, on a token that holds for less than both.",
        low=0, high=900,
    )  # fmt: skip
    sasl_login_refresh_buffer_seconds: int = setting(300, "And so long before it ends at the latest.", low=0, high=3600)
    ssl_truststore_location: str = setting(
        "", "With TLS: a PEM file of the CAs whose brokers are trusted; without one those of the system are."
    )
    ssl_truststore_certificates: str = setting("", "The same as PEM text, where no file is named.")
    ssl_truststore_type: str = setting("PEM", "The format of the truststore: PEM alone.")
    ssl_endpoint_identification_algorithm: str = setting(
        "https", "https: the broker's certificate must name the host that is connected to. Empty: no such check.",
        choices=("https", ""),
    )  # fmt: skip
    ssl_keystore_location: str = setting(
        "", "A PEM file with this client's private key and certificate chain, where brokers ask for one."
    )
    ssl_keystore_certificate_chain: str = setting(
        "", "The client's certificate chain as PEM text, where no file is named."
    )
    ssl_keystore_key: str = setting("", "The private key of that chain as PEM text.", secret=True)
    ssl_keystore_type: str = setting("PEM", "The format of the keystore: PEM alone.")
    ssl_key_password: str = setting(
        "",
        "The password of the private key: best ${env:NAME}, ${file:/path/file.properties:key} or ${dir:/path:file}, so "
        "that it stands in no program and on no command line.",
        secret=True,
    )
    ssl_enabled_protocols: str = setting("TLSv1.2,TLSv1.3", "The versions of TLS: TLSv1.2, TLSv1.3 or both.")
    ssl_cipher_suites: str = setting(
        "", "Cipher suites of TLS 1.2 by their names in Java or OpenSSL; without: those with forward secrecy."
    )


def tls_settings(config: SecurityConfig) -> TlsSettings | None:
    """The client's end of TLS to brokers; None for a client in plaintext. Raises ConfigError, as `tls_of`."""
    return tls_of(config) if config.security_protocol.endswith("SSL") else None


def tls_of(config: SecurityConfig) -> TlsSettings:
    """The `ssl.` settings, whatever they are for.

    Raises:
        ConfigError: a setting refers to what is not there.
    """
    texts: dict[str, str] = {}
    for item in fields(TlsSettings):
        name = f"ssl_{item.name}"
        if name in SecurityConfig.__dataclass_fields__:
            texts[item.name] = resolved_setting(config, name)
    return TlsSettings(**texts)


def resolved_setting(config: SecurityConfig, name: str) -> str:
    """The text of a setting, or of what it refers to (`strandline.proto.secrets`). Raises ConfigError."""
    try:
        return resolved(getattr(config, name))
    except ValueError as error:
        raise ConfigError(kafka_name(name), getattr(config, name), str(error)) from None


def given(config: SecurityConfig, *prefixes: str) -> list[str]:
    """Kafka's names of the settings below these prefixes (`sasl_login_`) that are not at their defaults."""
    chosen = [item for item in fields(SecurityConfig) if item.name.startswith(prefixes)]
    return [kafka_name(item.name) for item in chosen if getattr(config, item.name) != item.default]


def jaas_options(config: SecurityConfig, module: str, names: Sequence[str]) -> Mapping[str, str]:
    """The options of `sasl.jaas.config`, references in their values looked up; none where it is empty.

    Raises:
        ConfigError: it is of another module, or has other options than `names`.
    """
    name, text = "sasl.jaas.config", config.sasl_jaas_config
    if not text:
        return {}
    try:
        found, options = parse_jaas(text)
    except ValueError as error:
        raise ConfigError(name, text, str(error)) from None
    if found != module:
        raise ConfigError(name, text, f"{module}, with sasl.mechanism={config.sasl_mechanism}, and not {found}")
    for option in options:
        if option not in names:
            raise ConfigError(name, text, f"{' and '.join(names) or 'no options'}; {option} has no effect here")
    return options
