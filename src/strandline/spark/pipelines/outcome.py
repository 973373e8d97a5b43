"""What a job that checks itself found: the four pipelines', and the demo's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """What a job found."""

    figures: dict[str, str] = field(default_factory=dict)
    checks: dict[str, tuple[bool | None, str]] = field(default_factory=dict)
    """Name -> (held; None: not judged, a sentence)."""
    result: Path | None = None
    """The result in short, as JSON: totals by window, date, kind of weather or day."""

    @property
    def held(self) -> bool:
        """Every check that was judged held, and at least one was."""
        judged = [held for held, _ in self.checks.values() if held is not None]
        return bool(judged) and all(judged)

    def judge(self, name: str, held: bool | None, sentence: str) -> None:
        """Keep a verdict."""
        self.checks[name] = (held, sentence)
