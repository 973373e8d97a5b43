"""Parsers of setting values (endpoints, listeners, voters), and readers of the sources of settings: a file (properties
or TOML), the environment, and `-X key=value`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from strandline.controller.quorum.api import Voter
from strandline.log.checkpoints import decode_id, encode_id
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.settings import split_list


class Listener(NamedTuple):
    """A named listener and the endpoint to bind it to; port 0 means any free port."""

    name: str
    endpoint: Endpoint


HTTP = "HTTP"
"""Name of the HTTP listener, which serves metrics and health."""

LISTENERS = "a list of NAME://host:port"
ENDPOINTS = "a list of host:port"
VOTERS = "a list of id@host:port, each optionally followed by :directory-id"


def parse_endpoint(name: str, text: str) -> Endpoint:
    """Parse ``host:port``, with IPv6 addresses in brackets. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(name, text, "host:port, the port from 0 (any free one) to 65535")
    return Endpoint(host, int(port))


def parse_endpoints(name: str, text: str) -> tuple[Endpoint, ...]:
    """Parse ``host:port,...``; duplicates are dropped. Raises ConfigError."""
    return tuple(dict.fromkeys(parse_endpoint(name, part) for part in split_list(text)))


def parse_listeners(name: str, text: str) -> tuple[Listener, ...]:
    """Parse ``NAME://host:port,...``. Raises ConfigError, also for a repeated name."""
    listeners: dict[str, Listener] = {}
    for part in split_list(text):
        listener, separator, address = part.partition("://")
        if not separator or not listener:
            raise ConfigError(name, text, LISTENERS)
        listener = listener.upper()
        if listener in listeners:
            raise ConfigError(name, text, f"each name once; {listener} stands there twice")
        listeners[listener] = Listener(listener, parse_endpoint(name, address))
    return tuple(listeners.values())


def parse_voters(name: str, text: str) -> tuple[Voter, ...]:
    """Parse ``id@host:port[:directory-id],...``; returns voters sorted by id. Raises ConfigError."""
    voters: dict[int, Voter] = {}
    for part in split_list(text):
        number, at, address = part.partition("@")
        if not at or not number.isdigit():
            raise ConfigError(name, part, VOTERS)
        directory: UUID | None = None
        host_and_port, _, last = address.rpartition(":")
        if not last.isdigit() or len(last) > 5:
            try:
                directory = decode_id(last)
            except ValueError:
                raise ConfigError(name, part, VOTERS) from None
            address = host_and_port
        if int(number) in voters:
            raise ConfigError(name, text, f"each node once; {number} stands there twice")
        voters[int(number)] = Voter(NodeId(int(number)), directory, parse_endpoint(name, address))
    return tuple(voters[number] for number in sorted(voters))


def write_voters(voters: tuple[Voter, ...]) -> str:
    """Return the text that `parse_voters` reads."""
    return ",".join(
        f"{voter.node_id}@{voter.endpoint}"
        + ("" if voter.directory_id is None else f":{encode_id(voter.directory_id)}")
        for voter in voters
    )


ENVIRONMENT_PREFIX = "STRANDLINE_"


def environment_name(name: str) -> str:
    """Return the environment variable of a setting: STRANDLINE_NODE_ID for node.id."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def read_file(path: str) -> dict[str, str]:
    """Read the settings in a file: TOML if its name ends in .toml, else Java properties, as Kafka's files are.

    Raises:
        ConfigError: the file cannot be read, or is not in that format.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--config", path, f"a readable file ({error})") from None
    return parse_toml(text, path) if path.endswith(".toml") else parse_properties(text, path)


def parse_properties(text: str, path: str = "properties") -> dict[str, str]:
    """Parse Java properties: key=value or key: value; # and ! begin comments; a final backslash joins lines. Raises
    ConfigError."""
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
    """Parse TOML, with the names of tables joined by dots: ``[controller.quorum]`` ``voters = [...]``. Raises
    ConfigError."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
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
    """Parse `-X key=value` options. Raises ConfigError."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError("-X", pair, "key=value")
        values[key.strip()] = value.strip()
    return values
