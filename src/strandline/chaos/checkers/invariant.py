"""The error that a broken invariant raises, and one finding of the checks over histories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strandline.chaos.checkers.history import Partition


class InvariantViolated(AssertionError):
    """A named invariant does not hold. `facts` are the figures of the violation."""

    def __init__(self, name: str, message: str, **facts: Any) -> None:
        self.name = name
        self.facts = facts
        figures = ", ".join(f"{key}={value}" for key, value in facts.items())
        super().__init__(f"{name}: {message} [{figures}]")


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding. `legal` says why it is allowed nevertheless ("" for one that must not be)."""

    name: str
    partition: Partition | None
    facts: dict[str, Any]
    legal: str = ""

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.facts.items())
        return f"{self.name} in {self.partition}: {facts}" if self.partition is not None else f"{self.name}: {facts}"
