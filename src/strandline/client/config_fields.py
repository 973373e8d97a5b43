"""How a client's settings are declared and read: the field of each with its sentence, and text -> value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import Field, field
from typing import Any, TypeVar

from strandline.proto.errors import ConfigError


def setting(
    default: object,
    sentence: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    secret: bool = False,
) -> Any:
    """A field: its default, its sentence in docs/client-settings.md, and what it may be."""
    metadata = {"sentence": sentence, "low": low, "high": high, "choices": tuple(choices)}
    return field(default=default, metadata=metadata, repr=not secret)


def kafka_name(python_name: str) -> str:
    """`linger_ms` -> `linger.ms`."""
    return python_name.replace("_", ".")


_FUNCTIONS = {
    "Partitioner": "a function (topic, key, value, number of partitions) -> partition",
    "Deserializer": "a function (bytes) -> what they mean",
}


def parse(item: Field[Any], value: object) -> Any:
    """The value of a field, from text or as it is. Raises ConfigError."""
    name = kafka_name(item.name)
    kind = str(item.type)
    if value is None and "None" in kind:
        return None
    kind = kind.removesuffix(" | None")
    parsed: Any
    if kind == "bool":
        parsed = _parse_bool(name, value)
    elif kind in ("int", "float"):
        parsed = _parse_number(name, value, int if kind == "int" else float)
        low, high = item.metadata["low"], item.metadata["high"]
        if (low is not None and parsed < low) or (high is not None and parsed > high):
            allowed = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
            raise ConfigError(name, value, allowed)
    elif kind in _FUNCTIONS:
        if not callable(value):
            raise ConfigError(name, value, _FUNCTIONS[kind])
        parsed = value
    else:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(name, value, "text")
        parsed = str(value)
        choices = item.metadata["choices"]
        if choices and parsed not in choices:
            raise ConfigError(name, value, "one of " + ", ".join(choice or "nothing" for choice in choices))
    return parsed


def _parse_bool(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigError(name, value, "true or false")


_Number = TypeVar("_Number", int, float)


def _parse_number(name: str, value: object, kind: type[_Number]) -> _Number:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(name, value, "a number")
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        raise ConfigError(name, value, "a whole number" if kind is int else "a number") from None
    if math.isnan(number) or (not isinstance(value, str) and number != value):
        raise ConfigError(name, value, "a whole number" if kind is int else "a number")
    return number
