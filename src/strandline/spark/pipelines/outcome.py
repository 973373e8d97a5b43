"""Outcome of a job that checks its own result: one of the four pipelines, or the demo."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """Figures, checks and result of a finished job."""

    figures: dict[str, str] = field(default_factory=dict)
    checks: dict[str, tuple[bool | None, str]] = field(default_factory=dict)
    """Name of a check -> (True if it held, None if it could not be judged; a sentence for the report)."""
    result: Path | None = None
    """JSON file with the job's totals, grouped by window, date, weather or kind of day; None if there is none."""

    @property
    def held(self) -> bool:
        """True if at least one check was judged, and all that were judged held."""
        judged = [held for held, _ in self.checks.values() if held is not None]
        return bool(judged) and all(judged)

    def judge(self, name: str, held: bool | None, sentence: str) -> None:
        """Store the verdict of the check `name`; `held` is None if it could not be judged."""
        self.checks[name] = (held, sentence)
