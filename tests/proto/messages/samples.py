"""Values of messages, drawn from their annotations."""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any
from uuid import UUID

from strandline.proto.ids import Endpoint

PLAIN: dict[type, Callable[[random.Random], Any]] = {
    UUID: lambda rng: UUID(int=rng.getrandbits(128)),
    bool: lambda rng: rng.random() < 0.5,
    int: lambda rng: rng.choice([0, 1, 1000]),
    str: lambda rng: rng.choice(["", "text", "ж"]),
    bytes: lambda rng: rng.randbytes(rng.randrange(4)),
}


def sample(hint: Any, rng: random.Random) -> Any:
    """Some value of an annotation; empty, absent and zero among them."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if rng.random() < 0.4 else sample(arguments[0], rng)
    if origin is tuple:
        return tuple(sample(arguments[0], rng) for _ in range(rng.randrange(3)))
    if origin is not None and issubclass(origin, Mapping):
        return {f"key-{number}": sample(arguments[1], rng) for number in range(rng.randrange(3))}
    if hint is Endpoint:
        return Endpoint("host", rng.randrange(65536))
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return hint(*[sample(part, rng) for part in typing.get_type_hints(hint).values()])
    if issubclass(hint, IntEnum):
        return rng.choice(list(hint))
    return PLAIN[hint](rng)
