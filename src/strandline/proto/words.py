"""Phrases that brokers put into a setting's documentation, and that tools find there again."""

from __future__ import annotations

import re

_NO_EFFECT = re.compile(r" No effect yet(?: \(but for (?P<met>[^)]*)\))?: (?P<reason>.*)\.$")


def no_effect(reason: str, met: str) -> str:
    """Last sentence of a setting's documentation (DescribeConfigs) if the setting has no effect.

    Kafka's protocol has no other field for it, and Kafka's tools show the documentation to users.

    Args:
        reason: why the setting has no effect.
        met: the value that is satisfied anyway, for which no warning is needed; may be "".
    """
    return f" No effect yet{f' (but for {met})' if met else ''}: {reason}."


def without_effect(documentation: str | None, value: str | None) -> str:
    """Reason why `value` of a setting has no effect, read from its documentation; "" if it has one."""
    found = _NO_EFFECT.search(documentation or "")
    return "" if found is None or (value or "") == (found["met"] or "") else found["reason"]
