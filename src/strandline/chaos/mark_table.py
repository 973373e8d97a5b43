"""How often a run of many seeds reached each coverage mark: `strandline sim --marks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strandline.proto.marks import MARKS


class MarkTable:
    """Counts marks over seeds."""

    def __init__(self) -> None:
        self._seeds: dict[str, int] = dict.fromkeys(MARKS, 0)
        self._times: dict[str, int] = dict.fromkeys(MARKS, 0)
        self._runs = 0

    def add(self, marks: Mapping[str, int]) -> None:
        """What one seed reached."""
        self._runs += 1
        for name, times in marks.items():
            self._seeds[name] += 1
            self._times[name] += times

    def rows(self) -> list[dict[str, Any]]:
        """Every mark there is, in the order of its declaration: name, sentence, seeds, times."""
        return [
            {"mark": name, "says": sentence, "seeds": self._seeds[name], "times": self._times[name]}
            for name, sentence in MARKS.items()
        ]

    def lines(self) -> Iterator[str]:
        """The table as text, and those that were never reached."""
        width = max(len(name) for name in MARKS)
        yield f"{'mark'.ljust(width)}  {'seeds':>7} {'times':>9}  says that"
        for row in self.rows():
            yield f"{row['mark'].ljust(width)}  {row['seeds']:>7,} {row['times']:>9,}  {row['says']}"
        never = [name for name, seeds in self._seeds.items() if not seeds]
        yield f"{len(MARKS) - len(never)} of {len(MARKS)} marks reached by {self._runs} seeds"
        if never:
            yield "never: " + " ".join(never)
