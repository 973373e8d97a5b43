"""What a config is: name, type, default, what it means, which values it takes, and whether it has an effect yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from strandline.proto.errors import ConfigError
from strandline.proto.words import no_effect

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_FRACTION = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?([eE]-?[0-9]{1,2})?")

_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """The type of a value, with the numbers of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


Validator = Callable[[str, str], None]
"""(name, value) -> nothing, or ConfigError."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One config.

    Attributes:
        broker_name: the broker config a topic falls back on, "" for none; the same as `name` for configs of brokers
            alone.
        default: the value that holds where none is set, as text.
        doc: one sentence for people, with unit.
        topic: may be set on a topic; broker: on one broker; cluster: as the default of all brokers.
        idle: why values have no effect yet (but for the default); empty for a config that has one.
    """

    name: str
    type: ConfigType
    default: str
    doc: str
    validate: Validator
    broker_name: str
    topic: bool = True
    broker: bool = True
    cluster: bool = True
    idle: str = ""

    def without_effect(self, value: str) -> str:
        """Why this value does nothing yet; empty where it does what it says."""
        return "" if value == self.default else self.idle

    @property
    def documentation(self) -> str:
        """`doc`, and behind it why values have no effect yet, where that is so."""
        return self.doc + (no_effect(self.idle, self.default) if self.idle else "")


def integer(low: int, high: int, because: str = "") -> Validator:
    """A whole number from `low` to `high`."""

    def validate(name: str, value: str) -> None:
        if not _WHOLE_NUMBER.fullmatch(value) or not low <= int(value) <= high:
            raise ConfigError(name, value, f"a whole number from {low} to {high}{because}")

    return validate


def level(low: int, high: int, *others: int) -> Validator:
    """A compression level."""

    def validate(name: str, value: str) -> None:
        if not _WHOLE_NUMBER.fullmatch(value) or not (low <= int(value) <= high or int(value) in others):
            raise ConfigError(name, value, " or ".join([f"a whole number from {low} to {high}", *map(str, others)]))

    return validate


def ratio(name: str, value: str) -> None:
    """A number from 0 to 1."""
    if not _FRACTION.fullmatch(value) or not 0.0 <= float(value) <= 1.0:
        raise ConfigError(name, value, "a number from 0 to 1")


def above_zero(name: str, value: str) -> None:
    """A number above 0, as Kafka writes those of type double."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not number > 0:  # NaN too
        raise ConfigError(name, value, "a number above 0")


def one_of(*allowed: str, because: str = "") -> Validator:
    """One of a few words."""

    def validate(name: str, value: str) -> None:
        if value not in allowed:
            raise ConfigError(name, value, "one of " + ", ".join(allowed) + because)

    return validate


def list_of(*allowed: str) -> Validator:
    """Some of a few words, each once at most."""

    def validate(name: str, value: str) -> None:
        parts = split_list(value)
        if not parts or any(part not in allowed for part in parts) or len(parts) > len(set(parts)):
            raise ConfigError(name, value, "a list of " + ", ".join(allowed) + ", each once at most")

    return validate


def throttled_replicas(name: str, value: str) -> None:
    """Kafka's list of replicas: nothing, `*`, or partition:broker for each."""
    parts = split_list(value)
    if parts != ["*"] and not all(_REPLICA.fullmatch(part) for part in parts):
        raise ConfigError(name, value, "nothing, *, or a list of partition:broker")


boolean = one_of("true", "false")


def split_list(value: str) -> list[str]:
    """The parts of a LIST value."""
    return [part.strip() for part in value.split(",") if part.strip()]
