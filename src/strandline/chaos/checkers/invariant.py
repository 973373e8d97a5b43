"""What a broken invariant raises."""

from __future__ import annotations

from typing import Any


class InvariantViolated(AssertionError):
    """A named invariant does not hold. `facts` are the figures of the violation."""

    def __init__(self, name: str, message: str, **facts: Any) -> None:
        self.name = name
        self.facts = facts
        figures = ", ".join(f"{key}={value}" for key, value in facts.items())
        super().__init__(f"{name}: {message} [{figures}]")
