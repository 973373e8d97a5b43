"""Where the texts of settings come from: a file (properties or TOML), the environment, `-X key=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from strandline.proto.errors import ConfigError

ENVIRONMENT_PREFIX = "STRANDLINE_"


def environment_name(name: str) -> str:
    """The environment variable of a setting: STRANDLINE_NODE_ID for node.id."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def read_file(path: str) -> dict[str, str]:
    """The settings in a file: TOML when its name ends in .toml, else Java properties as Kafka has them.

    Raises:
        ConfigError: it cannot be read, or is not what its name says.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--config", path, f"a readable file ({error})") from None
    return parse_toml(text, path) if path.endswith(".toml") else parse_properties(text, path)


def parse_properties(text: str, path: str = "properties") -> dict[str, str]:
    """Java's properties format: key=value or key: value, # and ! begin comments, a final backslash joins lines."""
    values: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        cut = min((line.find(mark) for mark in "=:" if mark in line), default=-1)
        if cut <= 0:
            raise ConfigError(f"{path}, line {number}", line, "key=value")
        key = line[:cut].strip()
        if key in values:
            raise ConfigError(key, line[cut + 1 :].strip(), f"one value; {path} names it again in line {number}")
        values[key] = line[cut + 1 :].strip()
    return values


def parse_toml(text: str, path: str = "TOML") -> dict[str, str]:
    """TOML, tables joined to dotted names: ``[controller.quorum]`` ``voters = [...]``."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--config", path, f"valid TOML ({error})") from None
    values: dict[str, str] = {}
    _flatten("", tree, values)
    return values


def _flatten(prefix: str, tree: Mapping[str, object], values: dict[str, str]) -> None:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            _flatten(name + ".", value, values)
        elif isinstance(value, bool):
            values[name] = "true" if value else "false"
        elif isinstance(value, list):
            values[name] = ",".join(str(part) for part in value)
        else:
            values[name] = str(value)


def parse_overrides(pairs: Iterable[str]) -> dict[str, str]:
    """The values of `-X key=value` options. Raises ConfigError."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError("-X", pair, "key=value")
        values[key.strip()] = value.strip()
    return values
