"""Counts of how often a run of many seeds reached each coverage mark, and what its faults did: `strandline sim
--marks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strandline.proto.marks import MARKS


class CountTable:
    """Table of counts over several seeds. `meanings`: name of everything that is counted -> its meaning."""

    def __init__(self, noun: str, meanings: Mapping[str, str]) -> None:
        self._noun = noun
        self._meanings = meanings
        self._seeds: dict[str, int] = dict.fromkeys(meanings, 0)
        self._times: dict[str, int] = dict.fromkeys(meanings, 0)
        self._runs = 0

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of one seed."""
        self._runs += 1
        for name, times in counts.items():
            self._seeds[name] += 1
            self._times[name] += times

    def rows(self) -> list[dict[str, Any]]:
        """Everything there is, in the order of its declaration: name, sentence, seeds, times."""
        return [
            {self._noun: name, "says": sentence, "seeds": self._seeds[name], "times": self._times[name]}
            for name, sentence in self._meanings.items()
        ]

    def lines(self) -> Iterator[str]:
        """Lines of the table, and the names that were never counted."""
        noun = self._noun
        width = max(len(name) for name in self._meanings)
        yield f"{noun.ljust(width)}  {'seeds':>7} {'times':>9}  says that"
        for row in self.rows():
            yield f"{row[noun].ljust(width)}  {row['seeds']:>7,} {row['times']:>9,}  {row['says']}"
        never = [name for name, seeds in self._seeds.items() if not seeds]
        yield f"{len(self._meanings) - len(never)} of {len(self._meanings)} {noun}s reached by {self._runs} seeds"
        if never:
            yield "never: " + " ".join(never)


def tables() -> dict[str, CountTable]:
    """Tables by the key of a seed's figures: the marks, the faults that struck, and what they did."""
    from strandline.chaos.nemesis.kinds import FAULTS
    from strandline.chaos.sim.effects import EFFECTS

    kinds = {name: " ".join((fault.__doc__ or "").split()) for name, fault in FAULTS.items()}
    return {
        "marks": CountTable("mark", MARKS),
        "struck": CountTable("fault", kinds),
        "effects": CountTable("effect", EFFECTS),
    }
