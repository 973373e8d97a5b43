"""Fewer faults, and a shorter run, that fail the same way: what is left is what matters.

Three passes: the shortest prefix of the faults that still fails, by halving; then without chunks of the faults that are
left, then without single ones; then a run that ends sooner. Each candidate is a whole run in a process of its own.
Deterministic: which candidates are tried, and in which order they are adopted, does not depend on how many run at a
time, nor on the clock; the number of runs is the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.chaos.runner import Outcome, Run, run_seeds

RUNS_MAX = 120

Make = Callable[[dict[str, Any]], Run]
"""A run of the seed with these options changed."""


@dataclass(frozen=True)
class Candidate:
    """Faults that are left, and how long they last."""

    first: int
    without: tuple[int, ...] = ()
    duration_ms: int | None = None

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of the faults that are injected."""
        return tuple(number for number in range(self.first) if number not in self.without)

    def changes(self) -> dict[str, Any]:
        """Changes in the form of `--options`."""
        faults: dict[str, Any] = {"first": self.first}
        if self.without:
            faults["without"] = list(self.without)
        return {"faults": faults} | ({} if self.duration_ms is None else {"duration_ms": self.duration_ms})


@dataclass
class Shrunk:
    """The smallest failing run that was found, and the cost of the search."""

    best: Candidate
    outcome: Outcome
    runs: int
    faults_before: int
    exhausted: bool
    """The bound on runs came before the end."""


class Shrinker:
    """Shrinks one failure. `on_progress` gets a line for each step."""

    def __init__(
        self,
        seed: int,
        make: Make,
        failure: Outcome,
        *,
        jobs: int = 1,
        runs_max: int = RUNS_MAX,
        on_progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.runs = 0
        self._seed = seed
        self._make = make
        self._failure = failure
        self._jobs = jobs
        self._runs_max = runs_max
        self._on_progress = on_progress
        self._outcomes: dict[Candidate, Outcome] = {}

    def run(self) -> Shrunk:
        """All passes."""
        before = self._failure.injected
        best = self._prefix(Candidate(before))
        size = max(1, len(best.kept) // 2)
        while True:
            best = self._drop(best, size)
            if size == 1:
                break
            size = max(1, size // 2)
        best = self._shorten(best)
        exhausted = self.runs >= self._runs_max
        return Shrunk(best, self._outcomes.get(best, self._failure), self.runs, before, exhausted)

    # --- passes ---

    def _prefix(self, whole: Candidate) -> Candidate:
        """The shortest failing prefix, by halving: failing need not be monotone, so what is kept was seen to fail."""
        best, passing = whole, -1
        while best.first - passing > 1:
            middle = (best.first + passing) // 2
            candidate = Candidate(middle)
            if self._first_failing([candidate]) is None:
                passing = middle
            else:
                best = candidate
                self._on_progress(f"the first {middle} faults suffice")
            if self.runs >= self._runs_max:
                break
        return best

    def _drop(self, best: Candidate, size: int) -> Candidate:
        """Leave out chunks of `size` faults, the last first; from the beginning again after each success behind it."""
        start = len(best.kept)
        while start > 0 and self.runs < self._runs_max:
            kept = best.kept
            starts = [place for place in range(start - size, start - size - self._jobs * size, -size) if place > -size]
            candidates = [self._lacking(best, kept[max(0, place) : place + size]) for place in starts]
            found = self._first_failing(candidates)
            if found is None:
                start = starts[-1]
                continue
            place, best = starts[found], candidates[found]
            start = max(0, place)
            self._on_progress(f"{len(best.kept)} faults suffice")
        return best

    @staticmethod
    def _lacking(base: Candidate, gone: Sequence[int]) -> Candidate:
        """Faults at the end are cut off, others are named."""
        kept = [number for number in base.kept if number not in gone]
        first = kept[-1] + 1 if kept else 0
        return Candidate(first, tuple(number for number in range(first) if number not in kept), base.duration_ms)

    def _shorten(self, best: Candidate) -> Candidate:
        """End the phase of faults sooner: at half, a quarter... of its time, as long as it still fails."""
        duration_ms = self._failure.options.get("duration_ms")
        if not isinstance(duration_ms, int):
            return best
        for divisor in (16, 8, 4, 2):
            candidate = Candidate(best.first, best.without, max(1, duration_ms // divisor))
            if self._first_failing([candidate]) is not None:
                self._on_progress(f"{candidate.duration_ms} ms of faults suffice")
                return candidate
        return best

    # --- trying ---

    def _first_failing(self, candidates: Sequence[Candidate]) -> int | None:
        """The first of the candidates that fails as the failure did; they run `jobs` at a time."""
        fresh = [one for one in candidates if one not in self._outcomes][: max(0, self._runs_max - self.runs)]
        self.runs += len(fresh)
        for number, outcome in self._run(fresh):
            self._outcomes[fresh[number]] = outcome
        for place, candidate in enumerate(candidates):
            known = self._outcomes.get(candidate)
            if known is not None and not known.ok and known.error == self._failure.error:
                return place
        return None

    def _run(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Outcome]]:
        """`run_seeds` numbers its runs; here the numbers are those of the candidates."""

        def make(number: int) -> Run:
            return self._make(candidates[number].changes())

        for outcome in run_seeds(range(len(candidates)), make, jobs=self._jobs):
            number, outcome.seed = outcome.seed, self._seed
            yield number, outcome
