"""Production nodes and clients under faults: a few seeds hold everything, and a removed rule is caught."""

from __future__ import annotations

from itertools import chain

import pytest

from strandline.chaos.runner import run_seeds
from strandline.chaos.scenario import ScenarioRun

CATCHERS = {
    "count-before-sync": (13, 144, 239),
    "isr-instead-of-maximal": (0, 2, 3),
    "vote-not-durable": (0, 2, 3),
}
"""Seeds that caught each break when this was written; tried first. As the code changes others do: they follow."""


def test_seeds_hold() -> None:
    """Invariants of A and B as events run, no anomaly in the history, equal replicas, progress after healing."""
    outcomes = list(run_seeds(range(6), ScenarioRun, jobs=2))
    assert [(outcome.seed, outcome.message, outcome.details) for outcome in outcomes if not outcome.ok] == []
    for mark in ("acked", "polled", "faults", "isr_expands"):
        assert sum(outcome.figures[mark] for outcome in outcomes) > 0, mark
    assert max(outcome.figures["leader_epochs"] for outcome in outcomes) > 1


@pytest.mark.parametrize("name", sorted(CATCHERS))
def test_a_broken_rule_is_caught(name: str) -> None:
    """The mutation check (correctness E): one rule removed, some seed fails, by an invariant and not by an accident."""
    seeds = chain(CATCHERS[name], range(100, 160))
    for outcome in run_seeds(seeds, ScenarioRun, jobs=2, break_name=name):
        if not outcome.ok:
            assert outcome.details == "", outcome.details
            return
    pytest.fail(f"no seed catches {name}")
