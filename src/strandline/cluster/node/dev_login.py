"""The user of a development cluster whose clients log in: made with it, its password in files of the owner alone."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from strandline.proto.errors import ConfigError

USER = "dev"
MECHANISM = "SCRAM-SHA-512"

PASSWORD_FILE = "password"
KCAT_FILE = "kcat.conf"
"""Beside the certificates: the settings of a client on librdkafka."""


class DevLogin:
    """The user, in the directory of a cluster's certificates."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / PASSWORD_FILE

    def make(self, *, is_new: bool) -> None:
        """Draw the password of a new cluster; one that is there already has it, or has no users.

        Raises:
            ConfigError: the cluster was made without.
        """
        if self._file.exists():
            return
        if not is_new:
            raise ConfigError("--sasl", True, "a cluster that was made with it: --fresh begins anew")
        write_secret(self._file, secrets.token_urlsafe(24) + "\n")

    def as_formatted(self) -> tuple[str, ...]:
        """What the controllers' directories are formatted with."""
        return (f"{MECHANISM}=[name={USER},password={self._reference}]",)

    def properties(self, ca: Path) -> str:
        """The settings of a client: Kafka's own tools read them, too."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return (
            "security.protocol=SASL_SSL\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={ca}\n"
            f"sasl.mechanism={MECHANISM}\n"
            f'sasl.jaas.config={module} required username="{USER}" password="{self._password}";\n'
        )

    def for_librdkafka(self, ca: Path) -> str:
        """The same as librdkafka has it."""
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


def write_secret(path: Path, text: str) -> None:
    """A file that its owner alone reads."""
    with open(path, "w", encoding="utf-8", opener=for_owner) as file:
        file.write(text)


def for_owner(path: str, flags: int) -> int:
    """An opener of files that their owner alone reads."""
    return os.open(path, flags, 0o600)
