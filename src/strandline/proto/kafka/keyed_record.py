"""A record of an internal topic, as the coordinators keep their state."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """A key and its newest value; a value of None takes back what the key said (a tombstone)."""

    key: bytes
    value: bytes | None
