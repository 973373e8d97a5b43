"""Settings of a single listener, and its TLS settings.

Each setting of `LISTENER_SETTINGS` may be given for one listener, as ``listener.name.<name>.ssl...`` with the name in
lower case. It has priority over the setting for all listeners.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.node.config_values import HTTP, Listener
from strandline.cluster.node.settings import (
    ENABLED,
    INTERNAL,
    PLAIN_JAAS,
    PLAIN_USERS,
    PROTOCOLS,
    Sasl,
    Security,
)
from strandline.proto.errors import ConfigError
from strandline.proto.secrets import resolved
from strandline.proto.settings import Setting
from strandline.proto.tls import TlsSettings

PER_LISTENER = "listener.name."

LISTENER_SETTINGS: Mapping[str, Setting[str]] = {
    **{name: row for name, row in Security.rows.items() if name.startswith("ssl.")},
    ENABLED: Sasl.sasl_enabled_mechanisms,
    PLAIN_JAAS: PLAIN_USERS,
}
"""Name without the prefix -> setting that may be given for one listener."""


def listener_setting(name: str) -> tuple[str, Setting[str]] | None:
    """Split ``listener.name.<name>.<setting>`` into the listener's name and the setting; None for any other name."""
    if not name.startswith(PER_LISTENER):
        return None
    listener, _, rest = name[len(PER_LISTENER) :].partition(".")
    setting = LISTENER_SETTINGS.get(rest)
    return None if not listener or setting is None else (listener, setting)


def check_listeners(given: Mapping[str, str], protocols: Mapping[str, str], listeners: tuple[Listener, ...]) -> None:
    """Check that no settings are given for listeners or protocols that do not exist. Raises ConfigError."""
    names = [listener.name for listener in listeners]
    for name in protocols:
        if name not in names and name not in (*PROTOCOLS, INTERNAL, HTTP):
            raise ConfigError("listener.security.protocol.map", name, "a name of `listeners`: " + ", ".join(names))
    for name, text in given.items():
        of = listener_setting(name)
        if of is not None and of[0].upper() not in names:
            raise ConfigError(name, text, "for a name of `listeners`, in lower case: " + ", ".join(names).lower())


def tls_settings(texts: Mapping[str, str], listener: str) -> TlsSettings:
    """Return the TLS settings of one listener, its own or those for all listeners. Raises ConfigError, e.g. for a
    file that does not exist."""

    def text(name: str) -> str:
        try:
            return resolved(texts[name])
        except ValueError as error:
            raise ConfigError(f"{PER_LISTENER}{listener.lower()}.{name}", texts[name], str(error)) from None

    return TlsSettings(
        keystore_type=text("ssl.keystore.type"),
        keystore_location=text("ssl.keystore.location"),
        keystore_certificate_chain=text("ssl.keystore.certificate.chain"),
        keystore_key=text("ssl.keystore.key"),
        key_password=text("ssl.key.password"),
        truststore_type=text("ssl.truststore.type"),
        truststore_location=text("ssl.truststore.location"),
        truststore_certificates=text("ssl.truststore.certificates"),
        enabled_protocols=text("ssl.enabled.protocols"),
        cipher_suites=text("ssl.cipher.suites"),
    )
