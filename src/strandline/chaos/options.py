"""Changes to what a seed drew: `strandline sim --options '{"duration_ms": 60000, "faults": {"kinds": ["kill"]}}'`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


def override(options: T, changes: Mapping[str, Any], *, at: str = "") -> T:
    """`options` (nested dataclasses and dicts) with some values replaced; lists become tuples where those stood.

    Raises:
        ValueError: there is no such option.
    """
    if not is_dataclass(options) or isinstance(options, type):
        raise ValueError(f"{at} is a plain value")
    known = {field.name for field in fields(options)}
    new: dict[str, Any] = {}
    for name, value in changes.items():
        where = f"{at}.{name}" if at else name
        if name not in known:
            raise ValueError(f"there is no option {where}; known here: {', '.join(sorted(known))}")
        old = getattr(options, name)
        if is_dataclass(old) and isinstance(value, Mapping):
            new[name] = override(old, value, at=where)
        elif isinstance(old, dict) and isinstance(value, Mapping):
            new[name] = old | dict(value)
        else:
            new[name] = tuple(value) if isinstance(old, tuple) else value
    return replace(options, **new)
