"""Settings as texts and as values: what one setting is, how its text is read, and where texts come from.

Texts come from a file (properties or TOML), the environment, and `-X key=value`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload
from uuid import UUID

from strandline.controller.metadata.config_key import ConfigType, above_zero, split_list
from strandline.controller.quorum.api import Voter
from strandline.log.checkpoints import decode_id, encode_id
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.secrets import is_secret

T = TypeVar("T")

Parser = Callable[[str, str], T]
"""(name, text) -> value, or ConfigError."""


class HasValues(Protocol):
    """Where a setting finds its value."""

    @property
    def values(self) -> Mapping[str, Any]: ...


class Setting(Generic[T]):
    """A descriptor: on the class it is the setting itself, on a `NodeConfig` its value.

    Attributes:
        name: Kafka's name where Kafka has the setting.
        default: text as it would stand in a file; None where there is no sensible one and the file must say.
        doc: one or two sentences for people; every setting has them (a test holds that).
        unit: "ms", "bytes", "" where it has none.
    """

    def __init__(
        self,
        name: str,
        parse: Parser[T],
        default: str | None,
        doc: str,
        *,
        unit: str = "",
        type: ConfigType = ConfigType.STRING,
    ) -> None:
        self.name = name
        self.parse = parse
        self.default = default
        self.doc = doc
        self.unit = unit
        self.type = type

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: HasValues, owner: type) -> T: ...

    def __get__(self, instance: HasValues | None, owner: type) -> Setting[T] | T:
        if instance is None:
            return self
        value: T = instance.values[self.name]
        return value


class Listener(NamedTuple):
    """A named listener and where it is bound; port 0 means any free one."""

    name: str
    endpoint: Endpoint


def _number(name: str, text: str, low: int, high: int | None) -> int:
    allowed = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(name, text, allowed) from None
    if number < low or (high is not None and number > high):
        raise ConfigError(name, text, allowed)
    return number


def integer(
    name: str, default: int | None, doc: str, *, low: int = 0, high: int | None = None, unit: str = ""
) -> Setting[int]:
    """A whole number within bounds."""
    text = None if default is None else str(default)
    kind = ConfigType.INT if high is not None and high < 2**31 else ConfigType.LONG
    return Setting(name, lambda key, value: _number(key, value, low, high), text, doc, unit=unit, type=kind)


def milliseconds(name: str, default: int, doc: str, *, low: int = 1) -> Setting[int]:
    """A duration."""
    return integer(name, default, doc, low=low, high=2**31 - 1, unit="ms")


def size(name: str, default: int, doc: str, *, low: int = 1) -> Setting[int]:
    """A size."""
    return integer(name, default, doc, low=low, unit="bytes")


def rate(name: str, default: str, doc: str) -> Setting[float]:
    """So many in a second, as Kafka writes its numbers of type double."""

    def parse(key: str, text: str) -> float:
        above_zero(key, text)
        return float(text)

    return Setting(name, parse, default, doc, type=ConfigType.DOUBLE)


def boolean(name: str, default: bool, doc: str) -> Setting[bool]:
    """true or false."""

    def parse(key: str, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(key, text, "true or false")
        return text.lower() == "true"

    return Setting(name, parse, "true" if default else "false", doc, type=ConfigType.BOOLEAN)


def one_of(name: str, default: str, doc: str, *allowed: str) -> Setting[str]:
    """One of a few words."""

    def parse(key: str, text: str) -> str:
        if text not in allowed:
            raise ConfigError(key, text, "one of " + ", ".join(allowed))
        return text

    return Setting(name, parse, default, doc)


def string(name: str, default: str | None, doc: str) -> Setting[str]:
    """Any text."""
    kind = ConfigType.PASSWORD if is_secret(name) else ConfigType.STRING
    return Setting(name, lambda _key, text: text, default, doc, type=kind)


def parse_endpoint(name: str, text: str) -> Endpoint:
    """``host:port``; IPv6 addresses in brackets. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(name, text, "host:port, the port from 0 (any free one) to 65535")
    return Endpoint(host, int(port))


def parse_listeners(name: str, text: str) -> tuple[Listener, ...]:
    """``NAME://host:port,...`` with every name once. Raises ConfigError."""
    listeners: dict[str, Listener] = {}
    for part in split_list(text):
        listener, separator, address = part.partition("://")
        if not separator or not listener:
            raise ConfigError(name, text, "a list of NAME://host:port")
        listener = listener.upper()
        if listener in listeners:
            raise ConfigError(name, text, f"each name once; {listener} stands there twice")
        listeners[listener] = Listener(listener, parse_endpoint(name, address))
    return tuple(listeners.values())


def parse_voters(name: str, text: str) -> tuple[Voter, ...]:
    """``id@host:port[:directory-id],...``, sorted by id. Raises ConfigError."""
    allowed = "a list of id@host:port, each optionally followed by :directory-id"
    voters: dict[int, Voter] = {}
    for part in split_list(text):
        number, at, address = part.partition("@")
        if not at or not number.isdigit():
            raise ConfigError(name, part, allowed)
        directory: UUID | None = None
        host_and_port, _, last = address.rpartition(":")
        if not last.isdigit() or len(last) > 5:
            try:
                directory = decode_id(last)
            except ValueError:
                raise ConfigError(name, part, allowed) from None
            address = host_and_port
        if int(number) in voters:
            raise ConfigError(name, text, f"each node once; {number} stands there twice")
        voters[int(number)] = Voter(NodeId(int(number)), directory, parse_endpoint(name, address))
    return tuple(voters[number] for number in sorted(voters))


def write_voters(voters: tuple[Voter, ...]) -> str:
    """The text that `parse_voters` reads."""
    return ",".join(
        f"{voter.node_id}@{voter.endpoint}"
        + ("" if voter.directory_id is None else f":{encode_id(voter.directory_id)}")
        for voter in voters
    )


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
    """The values of `-X key=value` options. Raises ConfigError."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError("-X", pair, "key=value")
        values[key.strip()] = value.strip()
    return values
