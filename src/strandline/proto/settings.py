"""Settings as rows: the columns of a row, the kinds of values, and typed views of tables of rows.

A setting of a node, broker, topic or client is told once, as a row of a subclass of `Settings`:

    linger_ms = number("linger.ms", "5", "How long a batch waits for company.", low=0, unit="ms")

All else follows from the row: reading and refusing values, DescribeConfigs, the page of the documentation, the typed
attribute (`config.linger_ms` is a float to a type checker), and for clients the generated TypedDict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar, Unpack, overload

from strandline.proto.errors import ConfigError
from strandline.proto.secrets import is_secret, shown
from strandline.proto.words import no_effect

T = TypeVar("T")
S = TypeVar("S", bound="Settings")

Reader = Callable[[str, Any], T]
"""(name, value) -> what it means, or ConfigError. A value is text, or what a program gave to a client as it is."""

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

NUMBER_CHARS_MAX = 64
"""Maximum characters of a number: Kafka's longest default has 22, and an endless fraction is not worth keeping."""

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")


class ConfigType(IntEnum):
    """The type of a value, with the numbers of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Scope(StrEnum):
    """Owner of a setting. Settings of brokers and topics may change at any time; all others are fixed until the node,
    the client or the query ends."""

    NODE = "node"
    BROKER = "broker"
    TOPIC = "topic"
    CLIENT_METRICS = "client metrics"
    CLIENT = "client"
    SPARK_SOURCE = "spark source"
    SPARK_SINK = "spark sink"


@dataclass(frozen=True, eq=False)
class Setting(Generic[T]):
    """One setting. An attribute of a table's class is the row itself, that of a view its value.

    Attributes:
        name: Kafka's name where Kafka has the setting.
        default: as it would stand in a file; None: unset, which DescribeConfigs tells as null.
        sentence: one or two sentences for people.
        read: gives a value's meaning.
        allowed: the values, in words.
        type: of the text, as DescribeConfigs tells it.
        takes: what a program may give a client, as Python's annotation.
        unit: "ms", "bytes", "" where it has none.
        required: there is no sensible default, so that the file must give a value.
        broker: name of the broker's setting that a topic falls back on; "" for none.
        cluster_wide: set for all brokers at once alone, not for one of them.
        agreed: all nodes must see one value, so that only the metadata log counts and no node's own file.
        idle: why no value but the default has an effect; "" for a setting that has one.
        nearest: for numbers: the meaning of one that is out of bounds, which is the bound.
        scope: what it belongs to, which its table says.
    """

    name: str
    default: str | None
    sentence: str
    read: Reader[T]
    allowed: str
    type: ConfigType = ConfigType.STRING
    takes: str = "str"
    unit: str = ""
    required: bool = False
    broker: str = ""
    cluster_wide: bool = False
    agreed: bool = False
    idle: str = ""
    nearest: Reader[T] | None = None
    scope: Scope = Scope.NODE

    @overload
    def __get__(self, instance: None, owner: Any) -> Setting[T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> T: ...

    def __get__(self, instance: object | None, owner: Any) -> Setting[T] | T:
        """The row: the values of a view stand in its `__dict__`, which Python asks first."""
        return self

    @property
    def live(self) -> bool:
        """True if it can change while the node or the topic to which it belongs is in use."""
        return self.scope in (Scope.BROKER, Scope.TOPIC, Scope.CLIENT_METRICS)

    @property
    def secret(self) -> bool:
        """True if its value is never shown."""
        return is_secret(self.name)

    @property
    def documentation(self) -> str:
        """The sentence, followed by the reason why values have no effect, if there is one."""
        return self.sentence + (no_effect(self.idle, self.default or "") if self.idle else "")

    def without_effect(self, value: str) -> str:
        """Reason why this value has no effect; "" if it has one."""
        return "" if value == self.default else self.idle

    def default_value(self) -> T:
        """Value of a setting that is not given. Raises ConfigError if it must be given."""
        if self.required:
            raise ConfigError(self.name, "", f"it must be given. {self.sentence}")
        return self._default if self.live else self.read(self.name, self.default)

    @cached_property
    def _default(self) -> T:
        """Read once, for a broker asks for it of each partition that it has; what a node's file means may depend on
        where it is read (log.dirs)."""
        return self.read(self.name, self.default)

    def stored(self, value: str) -> T:
        """The meaning of a value that was set once: an earlier version may have allowed what is out of bounds now."""
        try:
            return self.read(self.name, value)
        except ConfigError:
            if self.nearest is None:
                raise
            return self.nearest(self.name, value)

    def of_brokers(self) -> Setting[T]:
        """The broker's setting that is the default of this one of topics."""
        return replace(self, name=self.broker, broker="", scope=Scope.BROKER)


class Part(Generic[S]):
    """A table within another one, for a part that may not see the whole: the outer one has its rows, and a view of it
    is an attribute of the outer view."""

    def __init__(self, table: type[S]) -> None:
        self.table = table

    @overload
    def __get__(self, instance: None, owner: Any) -> Part[S]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> S: ...

    def __get__(self, instance: object | None, owner: Any) -> Part[S] | S:
        """The part: views stand in the `__dict__` of the outer one, which Python asks first."""
        return self


class Settings:
    """A table of settings, and what an instance has read for each: subclasses name the rows. Beside its rows a table
    may have constants that tests vary; they are no settings.

    Attributes:
        scope: of the rows that the class itself has.
        attributes: the rows, inherited ones first, by the name of the attribute.
        parts: tables within this one, by the name of the attribute.
        rows: its own and those of its parts, by Kafka's name.
    """

    scope: ClassVar[Scope] = Scope.NODE
    attributes: ClassVar[Mapping[str, Setting[Any]]] = {}
    parts: ClassVar[Mapping[str, type[Settings]]] = {}
    rows: ClassVar[dict[str, Setting[Any]]] = {}

    def __init_subclass__(cls, scope: Scope | None = None) -> None:
        super().__init_subclass__()
        cls.scope = cls.scope if scope is None else scope
        for attribute, row in list(vars(cls).items()):
            if isinstance(row, Setting):
                setattr(cls, attribute, replace(row, scope=cls.scope))
        members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
        cls.attributes = {name: member for name, member in members.items() if isinstance(member, Setting)}
        cls.parts = {name: member.table for name, member in members.items() if isinstance(member, Part)}
        cls.rows = {row.name: row for row in cls.attributes.values()}
        for part in cls.parts.values():
            cls.rows |= part.rows

    def __init__(self, given: Mapping[str, object] = MappingProxyType({}), **values: Any) -> None:
        """Read what is given, by Kafka's names, and the defaults of all else.

        Args:
            values: attributes that are known otherwise than from texts, as they are: no bounds of a row count.

        Raises:
            ConfigError: a value that is not allowed.
            TypeError: no attribute has one of the names.
        """
        self._check_names(values)
        told = {
            attribute: row.read(row.name, given[row.name]) if row.name in given else row.default_value()
            for attribute, row in self.attributes.items()
            if attribute not in values
        }
        self.__dict__.update(told, **{name: part(given) for name, part in self.parts.items()} | values)

    def replaced(self, **values: Any) -> Self:
        """A copy with other values of these attributes. Raises TypeError if there is no attribute of that name."""
        self._check_names(values)
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, **values)
        return view

    def _check_names(self, values: Mapping[str, Any]) -> None:
        for name in values:
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no {name}")

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.attributes:
            raise AttributeError(f"{self.attributes[name].name} was read once and for all")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        values = ((attribute, shown(row.name, self.__dict__[attribute])) for attribute, row in self.attributes.items())
        return f"{type(self).__name__}({', '.join(f'{attribute}={value!r}' for attribute, value in values)})"


class Columns(TypedDict, total=False):
    """Columns of a row that most rows leave as their kind has them."""

    type: ConfigType
    takes: str
    unit: str
    required: bool
    broker: str
    cluster_wide: bool
    agreed: bool
    idle: str


def whole(
    name: str,
    default: int | None,
    sentence: str,
    *,
    low: int = 0,
    high: int | None = None,
    others: tuple[int, ...] = (),
    because: str = "",
    **columns: Unpack[Columns],
) -> Setting[int]:
    """A whole number from `low` to `high`, or one of `others`."""
    bounds = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    allowed = " or ".join([bounds, *map(str, others)]) + because

    def read(key: str, value: object) -> int:
        number = value
        if isinstance(value, str):
            number = int(value) if _WHOLE_NUMBER.fullmatch(value) else None
        elif isinstance(value, float):
            number = int(value) if value.is_integer() else None
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(key, value, allowed)
        if (number < low or (high is not None and number > high)) and number not in others:
            raise ConfigError(key, value, allowed)
        return number

    def nearest(_key: str, value: str) -> int:
        return max(low, int(value) if high is None else min(int(value), high))

    columns.setdefault("type", ConfigType.INT if high is not None and high <= INT32_MAX else ConfigType.LONG)
    columns.setdefault("takes", "int")
    return Setting(name, None if default is None else str(default), sentence, read, allowed, nearest=nearest, **columns)


def milliseconds(
    name: str, default: int, sentence: str, *, low: int = 1, high: int = INT32_MAX, **columns: Unpack[Columns]
) -> Setting[int]:
    """A duration."""
    columns.setdefault("unit", "ms")
    return whole(name, default, sentence, low=low, high=high, **columns)


def size(
    name: str, default: int | None, sentence: str, *, low: int = 1, high: int = INT64_MAX, **columns: Unpack[Columns]
) -> Setting[int]:
    """A size."""
    columns.setdefault("unit", "bytes")
    return whole(name, default, sentence, low=low, high=high, **columns)


def number(
    name: str,
    default: str,
    sentence: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    **columns: Unpack[Columns],
) -> Setting[float]:
    """A number from `low` to `high`, or above `above`, as Kafka writes those of type double."""
    allowed = "a number"
    if low is not None:
        allowed += f" from {low:g}" + ("" if high is None else f" to {high:g}")
    if above is not None:
        allowed += f" above {above:g}"

    def read(key: str, value: object) -> float:
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError
            if isinstance(value, str) and len(value) > NUMBER_CHARS_MAX:
                raise ValueError
            found = float(value)
        except (ValueError, OverflowError):
            raise ConfigError(key, value, allowed) from None
        beyond = (low is not None and found < low) or (high is not None and found > high)
        if math.isnan(found) or beyond or (above is not None and found <= above):
            raise ConfigError(key, value, allowed)
        return found

    columns.setdefault("type", ConfigType.DOUBLE)
    columns.setdefault("takes", "float")
    return Setting(name, default, sentence, read, allowed, **columns)


def boolean(
    name: str, default: bool, sentence: str, *, exact: bool = False, **columns: Unpack[Columns]
) -> Setting[bool]:
    """true or false; `exact`: in these letters, where other nodes read the text too, and older ones."""

    def read(key: str, value: object) -> bool:
        if isinstance(value, bool):
            return value
        given = value if exact or not isinstance(value, str) else value.lower()
        if given not in ("true", "false"):
            raise ConfigError(key, value, "true or false")
        return given == "true"

    columns.setdefault("type", ConfigType.BOOLEAN)
    columns.setdefault("takes", "bool")
    return Setting(name, "true" if default else "false", sentence, read, "true or false", **columns)


def word(
    name: str, default: str, sentence: str, *choices: str, because: str = "", **columns: Unpack[Columns]
) -> Setting[str]:
    """One of a few words."""
    allowed = "one of " + ", ".join(choice or "nothing" for choice in choices) + because

    def read(key: str, value: object) -> str:
        given = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(given, str) or given not in choices:
            raise ConfigError(key, value, allowed)
        return given

    return Setting(name, default, sentence, read, allowed, **columns)


def words(
    name: str, default: str, sentence: str, *choices: str, **columns: Unpack[Columns]
) -> Setting[tuple[str, ...]]:
    """Row of a setting whose value is a list of the words in `choices`, each at most once."""
    allowed = "a list of " + ", ".join(choices) + ", each once at most"

    def read(key: str, value: str) -> tuple[str, ...]:
        parts = tuple(split_list(value))
        if not parts or any(part not in choices for part in parts) or len(parts) > len(set(parts)):
            raise ConfigError(key, value, allowed)
        return parts

    columns.setdefault("type", ConfigType.LIST)
    return Setting(name, default, sentence, read, allowed, **columns)


def string(name: str, default: str | None, sentence: str, **columns: Unpack[Columns]) -> Setting[str]:
    """Any text; unset, it reads as the empty one."""

    def read(key: str, value: object) -> str:
        if value is None and default is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(key, value, "text")
        return str(value)

    columns.setdefault("type", ConfigType.PASSWORD if is_secret(name) else ConfigType.STRING)
    return Setting(name, default, sentence, read, "any text", **columns)


def parsed(
    name: str,
    parse: Callable[[str, str], T],
    default: str | None,
    sentence: str,
    allowed: str,
    **columns: Unpack[Columns],
) -> Setting[T]:
    """Setting with its own parser, which also parses "" for an unset value."""

    def read(key: str, value: str | None) -> T:
        return parse(key, "" if value is None else value)

    return Setting(name, default, sentence, read, allowed, **columns)


def optional(row: Setting[T]) -> Setting[T | None]:
    """The same setting without a default: it is None if unset."""

    def read(key: str, value: object) -> T | None:
        return None if value is None else row.read(key, value)

    return Setting(
        row.name, None, row.sentence, read, row.allowed, row.type, f"{row.takes} | None", row.unit, idle=row.idle
    )


def split_list(value: str) -> list[str]:
    """The parts of a LIST value."""
    return [part.strip() for part in value.split(",") if part.strip()]
