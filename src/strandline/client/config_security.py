"""Settings of a client for TLS, and for its login by SASL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from strandline.client.config import SecurityConfig
from strandline.proto.errors import ConfigError
from strandline.proto.jaas import parse_jaas
from strandline.proto.secrets import resolved
from strandline.proto.tls import TlsSettings


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
        if name in SecurityConfig.attributes:
            texts[item.name] = resolved_setting(config, name)
    return TlsSettings(**texts)


def resolved_setting(config: SecurityConfig, name: str) -> str:
    """Value of a setting, after resolving a reference to a secret (`strandline.proto.secrets`). Raises ConfigError."""
    try:
        return resolved(getattr(config, name))
    except ValueError as error:
        raise ConfigError(config.attributes[name].name, getattr(config, name), str(error)) from None


def given(config: SecurityConfig, *prefixes: str) -> list[str]:
    """Kafka's names of the settings below these prefixes (`sasl_login_`) that are not at their defaults."""
    chosen = [(name, row) for name, row in SecurityConfig.attributes.items() if name.startswith(prefixes)]
    return [row.name for name, row in chosen if getattr(config, name) != row.default_value()]


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
