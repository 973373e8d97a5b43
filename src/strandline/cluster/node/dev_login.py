"""The user of a development cluster: created with the cluster, its password in files that only their owner may read;
and its rights."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.settings import ENABLED, SSL
from strandline.cluster.security.principal import ANONYMOUS, PrincipalRules
from strandline.proto.errors import ConfigError
from strandline.proto.settings import split_list

USER = "dev"
"""Name of the user in SCRAM (with SASL), and common name of the client certificate."""
MECHANISM = "SCRAM-SHA-512"
"""SASL mechanism of the user, where a development cluster has SASL."""

PASSWORD_FILE = "password"
KCAT_FILE = "kcat.conf"
"""Name of the file, beside the certificates, with the settings of a client on librdkafka."""


class DevLogin:
    """The development user, whose password is in the directory of a cluster's certificates."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / PASSWORD_FILE

    def make(self, *, is_new: bool) -> None:
        """Create a random password for a new cluster; an existing password is kept.

        Raises:
            ConfigError: the cluster exists (not `is_new`) and was created without logins.
        """
        if self._file.exists():
            return
        if not is_new:
            raise ConfigError("--sasl", True, "these data are of a cluster without logins: --fresh begins anew")
        write_secret(self._file, secrets.token_urlsafe(24) + "\n")

    def as_formatted(self) -> tuple[str, ...]:
        """Return the `add_scram` options with which the controllers' directories are formatted."""
        return (f"{MECHANISM}=[name={USER},password={self._reference}]",)

    def properties(self, ca: Path) -> str:
        """Return the settings of a client in Kafka's format, which Kafka's own tools read too."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return (
            "security.protocol=SASL_SSL\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={ca}\n"
            f"sasl.mechanism={MECHANISM}\n"
            f'sasl.jaas.config={module} required username="{USER}" password="{self._password}";\n'
        )

    def for_librdkafka(self, ca: Path) -> str:
        """Return the settings of a client in librdkafka's format."""
        return (
            "security.protocol=SASL_SSL\n"
            f"ssl.ca.location={ca}\n"
            f"sasl.mechanism={MECHANISM}\n"
            f"sasl.username={USER}\n"
            f"sasl.password={self._password}\n"
        )

    @property
    def _password(self) -> str:
        return self._file.read_text().strip()

    @property
    def _reference(self) -> str:
        return f"${{dir:{self._file.parent}:{self._file.name}}}"


def with_rights(settings: Mapping[str, str], *, logs_in: bool) -> dict[str, str]:
    """Return the settings of a node, with the development user added to super.users if there is an authorizer.

    Args:
        logs_in: the development user logs in by SASL.

    Raises:
        ConfigError: with these settings that user could not log in, or no client could do anything.
    """
    config = NodeConfig(settings)
    if not config.client_listeners:
        return dict(settings)
    user = _principal(config, config.client_listeners[0].name, logs_in)
    if not config.authorizer or user in config.super_users:
        return dict(settings)
    if user is not None and user != ANONYMOUS:
        return {**settings, "super.users": ";".join((*config.super_users, user))}
    has_others = any(config.speaks_sasl(listener.name) for listener in config.client_listeners)
    if config.allow_everyone_if_no_acl or has_others:
        return dict(settings)
    raise ConfigError(
        "authorizer.class.name",
        config.authorizer,
        f"where clients show who they are: add --secure, or --secure --sasl. Here each is {ANONYMOUS}, and may do "
        f"nothing; super.users={ANONYMOUS} would let everybody do everything",
    )


def _principal(config: NodeConfig, listener: str, logs_in: bool) -> str | None:
    """Return the development user's principal at this listener; None: no mapping rule matches its certificate."""
    texts = config.of_listener(listener)
    if logs_in:
        if MECHANISM not in split_list(texts[ENABLED]):
            raise ConfigError(ENABLED, texts[ENABLED], f"{MECHANISM} among them: the user {USER} logs in by it")
        return f"User:{USER}"
    if config.protocol(listener) != SSL or texts["ssl.client.auth"] == "none":
        return ANONYMOUS
    rules = PrincipalRules("ssl.principal.mapping.rules", texts["ssl.principal.mapping.rules"])
    return rules.principal({"subject": ((("commonName", USER),),)})


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read and write."""
    with open(path, "w", encoding="utf-8", opener=for_owner) as file:
        file.write(text)


def for_owner(path: str, flags: int) -> int:
    """Open a file; a new one gets a mode by which only its owner may read and write it. For `open(opener=...)`."""
    return os.open(path, flags, 0o600)
