"""Profiles of clusters: where they are, and the client settings with which to reach them; one is in use.

Each is a file of key=value lines under Kafka's names, for its owner's eyes alone, which Kafka's own tools take as
--command-config too. A password in it best stands elsewhere: ${env:NAME}, ${file:PATH:KEY}, ${keyring:SERVICE:USER}.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from strandline.proto.errors import ConfigError

BOOTSTRAP = "bootstrap.servers"

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
"""Address of `strandline dev`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIX = ".properties"
_FILES = ("ssl.truststore.location", "ssl.keystore.location")


def _anchored(key: str, value: str) -> str:
    return os.path.abspath(value) if key in _FILES and value and not value.startswith("${") else value


class Profiles:
    """The profiles of one user of this machine."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Open the profiles in $XDG_CONFIG_HOME/strandline, or ~/.config/strandline."""
        config = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME") or Path.home()) / ".config")
        self._home = Path(config) / "strandline"

    def path(self, name: str) -> Path:
        """The file of a profile. Raises ConfigError for a name that cannot be."""
        if not _NAME.fullmatch(name):
            raise ConfigError("--profile", name, "up to 64 letters, digits, dots, dashes and underscores")
        return self._home / "profiles" / f"{name}{_SUFFIX}"

    def names(self) -> list[str]:
        """Names of all profiles, sorted."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in (self._home / "profiles").glob(f"*{_SUFFIX}"))

    @property
    def current(self) -> str | None:
        """Name of the profile in use, or None."""
        try:
            return (self._home / "profile").read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def use(self, name: str | None) -> None:
        """Make commands go by this profile from now on, or by none (None). Raises ConfigError."""
        if name is not None:
            self.load(name)
        self._write(self._home / "profile", f"{name or ''}\n")

    def load(self, name: str) -> dict[str, str]:
        """Settings of a profile. Raises ConfigError."""
        from strandline.cluster.node.config_values import parse_properties

        path = self.path(name)
        try:
            return parse_properties(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            there = ", ".join(self.names()) or "none yet: strandline profile create NAME -b HOST:PORT"
            raise ConfigError("--profile", name, f"one of those there are ({there})") from None
        except UnicodeDecodeError as error:
            raise ConfigError("--profile", name, f"a file of text at {path} ({error.reason})") from None

    def save(self, name: str, settings: Mapping[str, str]) -> None:
        """Write a profile; relative paths of files are made absolute, so that they hold in any directory. Raises
        ConfigError for a value that a line cannot hold."""
        settings = {key: _anchored(key, value) for key, value in settings.items()}
        for key, value in settings.items():
            if "\n" in value or "\r" in value or value.endswith("\\") or value != value.strip():
                raise ConfigError(
                    key, value, "one line that neither begins nor ends with a space, nor with a backslash"
                )
        self._write(self.path(name), "".join(f"{key}={value}\n" for key, value in settings.items()))

    def delete(self, name: str) -> None:
        """Delete a profile. Raises ConfigError if it does not exist."""
        self.load(name)
        self.path(name).unlink()
        if self.current == name:
            self.use(None)

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
