"""One finding of the checks over histories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strandline.chaos.checkers.history import Partition


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
