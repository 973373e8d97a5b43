"""Words that one part writes and another reads."""

from __future__ import annotations

import re

_NO_EFFECT = re.compile(r" No effect yet(?: \(but for (?P<met>[^)]*)\))?: (?P<reason>.*)\.$")


def no_effect(reason: str, met: str) -> str:
    """The last part of a setting's documentation (DescribeConfigs) where its values do nothing here yet.

    Kafka's protocol has no other place for it, and other people's tools show documentation to people.

    Args:
        met: the value that asks for no more than what is done anyway; empty where that is the empty value.
    """
    return f" No effect yet{f' (but for {met})' if met else ''}: {reason}."


def without_effect(documentation: str | None, value: str | None) -> str:
    """Reason a setting's value has no effect, by its documentation, or ""."""
    found = _NO_EFFECT.search(documentation or "")
    return "" if found is None or (value or "") == (found["met"] or "") else found["reason"]
