"""Shrinking: to the faults that matter, deterministically, within its bound."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from lab.sim import main as sim_without
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.explain.shrink import Candidate, Shrinker, Shrunk
from strandline.chaos.runner import Outcome, Run

FAULTS = 40


@dataclass
class Fake:
    """A run that fails if, and only if, certain faults are among those injected, and last long enough."""

    changes: dict[str, Any]
    wanted: frozenset[int]
    least_ms: int

    def execute(self) -> dict[str, Any]:
        faults = self.changes["faults"]
        kept = set(range(faults["first"])) - set(faults.get("without", ()))
        if self.wanted <= kept and self.changes.get("duration_ms", 10_000) >= self.least_ms:
            raise InvariantViolated("Broken", "as it was")
        if 5 in kept and len(kept) == 17:
            raise InvariantViolated("Other", "another failure is not the one looked for")
        return {}

    def expanded(self) -> dict[str, Any]:
        return {}

    def timeline(self) -> list[tuple[int, str]]:
        return []


def shrunk(wanted: set[int], *, jobs: int = 1, runs_max: int = 200, least_ms: int = 2_000) -> Shrunk:
    failure = Outcome(3, ok=False, error="Broken", injected=FAULTS, options={"duration_ms": 10_000})

    def make(changes: dict[str, Any]) -> Run:
        return Fake(changes, frozenset(wanted), least_ms)

    return Shrinker(3, make, failure, jobs=jobs, runs_max=runs_max).run()


@pytest.mark.parametrize("wanted", [set(), {0}, {39}, {3, 7}, {0, 20, 39}, {11, 12, 13}])
def test_what_is_left_is_what_matters(wanted: set[int]) -> None:
    """Exactly the faults that the failure needs, and no longer a run than it needs."""
    result = shrunk(wanted)
    assert set(result.best.kept) == wanted
    assert result.best.duration_ms == 2_500
    assert not result.exhausted
    assert result.faults_before == FAULTS


def test_how_many_run_at_a_time_changes_nothing() -> None:
    """The candidates are adopted in their order, whoever ends first."""
    assert {shrunk({3, 7, 30}, jobs=jobs).best for jobs in (1, 2, 3)} == {shrunk({3, 7, 30}).best}


def test_the_bound_holds_and_what_is_left_still_fails() -> None:
    """Shrinking ends after so many runs, with the best until then."""
    result = shrunk({3, 30}, runs_max=7)
    assert result.runs <= 7
    assert result.exhausted
    assert {3, 30} <= set(result.best.kept)
    assert result.outcome.error == "Broken"


def test_a_candidate_is_an_option() -> None:
    """What is left is told as `--options` takes it."""
    candidate = Candidate(5, (1, 2), 700)
    assert candidate.kept == (0, 3, 4)
    assert candidate.changes() == {"faults": {"first": 5, "without": [1, 2]}, "duration_ms": 700}
    assert Candidate(4).changes() == {"faults": {"first": 4}}


def test_a_real_failure_shrinks_to_a_command_that_fails() -> None:
    """Through the program: fewer faults, the same invariant, and the command that it prints fails with it."""
    arguments = ["--scenario", "quorum", "--break", "vote-not-durable", "--output", "json"]
    search = CliRunner().invoke(sim_without, [*arguments, "--seeds", "60", "--jobs", "1"])
    failed = json.loads(search.stdout.splitlines()[-1])
    assert not failed["ok"]
    again = [*arguments, "--seed", str(failed["seed"]), "--shrink", "--shrink-runs", "25"]
    lines = CliRunner().invoke(sim_without, again).stdout.splitlines()
    command = json.loads(lines[-1])["shrunk"]
    assert '"first"' in command
    import shlex

    words = shlex.split(command)[3:]
    replayed = CliRunner().invoke(sim_without, [*words, "--output", "json"])
    outcome = json.loads(replayed.stdout.splitlines()[-1])
    assert (outcome["ok"], outcome["error"]) == (False, failed["error"])
    assert outcome["injected"] <= failed["injected"]
