"""Production nodes and clients under faults: a few seeds hold everything, and a removed rule is caught."""

from __future__ import annotations

from itertools import chain

import pytest

from lab.mutants import without
from strandline.chaos.options import override
from strandline.chaos.runner import run_seeds
from strandline.chaos.scenario import ScenarioRun
from strandline.chaos.scenario_options import SEESAW_SHARE, ScenarioOptions
from strandline.proto.marks import counts

CATCHERS = {
    "count-before-sync": (0, 2, 3),
    "isr-instead-of-maximal": (0, 2, 4),
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


def test_levels_change_under_faults() -> None:
    """Nodes of two builds, then the newer one everywhere, and the level up and down: everything holds."""
    options = ScenarioOptions.draw(34100055)
    options = override(options, {"older": 0.5, "rolled_after_ms": 1_000.0, "duration_ms": 6_000})
    ScenarioRun(34100055, options).execute()
    assert counts()["level-changed-under-faults"] > 0


def test_partitions_move_under_faults() -> None:
    """Rules B40 to B46: moved, reordered, with fewer replicas and more, cancelled; each move ends once all is whole."""
    ScenarioRun(36000032).execute()
    reached = counts()
    for mark in ("begun", "replaced", "cancelled", "over", "over-under-another-leader"):
        assert reached[f"reassignment-{mark}"] > 0, mark


def test_voters_come_and_go_under_faults() -> None:
    """Rules A36 to A38 with brokers and clients: kraft.version is raised in the middle of faults, controllers are made
    voters and removed, and every one of them votes once all is whole."""
    figures = ScenarioRun(37000013).execute()
    assert figures["voter_changes"] > 0
    for mark in ("kraft-version-raised", "voter-added", "voter-removed"):
        assert figures["marks"].get(mark, 0) > 0, mark


def test_brokers_are_drained_under_faults() -> None:
    """Rules B47 and B49: by the planner and the blocking admin client, as the commands do; the last one when all is
    whole, until nothing of a partition lies on the broker's disks."""
    figures = ScenarioRun(37000017).execute()
    assert figures["drains"]["drained"] > 1
    assert figures["drains"]["uncordoned"] > 1


def test_a_cordon_that_does_not_hold_is_caught() -> None:
    """Rule B49 removed for moves, and an operator who moves partitions beside the one who drains."""

    def run(seed: int, options: ScenarioOptions | None = None) -> ScenarioRun:
        drawn = options or ScenarioOptions.draw(seed)
        return ScenarioRun(seed, override(drawn, {"drains": True, "fewest_replicas": 2, "duration_ms": 10_000}))

    with without("the-cordoned-get-what-moves"):
        outcomes = run_seeds((38000045, 38000027, 38000025), run)
        assert "CordonedGetsNothing" in [outcome.error for outcome in outcomes]


@pytest.mark.parametrize("name", sorted(CATCHERS))
def test_a_broken_rule_is_caught(name: str) -> None:
    """The mutation check (rule E6): one rule removed, some seed fails, by an invariant and not by an accident."""
    seeds = chain(CATCHERS[name], range(100, 160))
    with without(name):
        for outcome in run_seeds(seeds, ScenarioRun, jobs=2):
            if not outcome.ok:
                assert outcome.details == "", outcome.details
                return
    pytest.fail(f"no seed catches {name}")


@pytest.mark.parametrize(
    ("name", "seen_by"),
    [
        ("acknowledges-what-is-not-synced", "CommittedIsDurable"),
        ("counts-what-a-follower-has-not-synced", "CommittedIsDurable"),
        ("counts-what-the-leader-has-not-synced", "NoNodeFalls"),  # the leader's core notices first, and stops the node
    ],
)
def test_an_ack_before_the_sync_is_seen_before_any_power_is_cut(name: str, seen_by: str) -> None:
    """B: the durable images of the ISR's members are looked at as high watermarks rise; chance need not take anything
    from a disk first."""
    with without(name):
        [outcome] = run_seeds([0], ScenarioRun)
    assert outcome.error == seen_by, (outcome.message, outcome.details)


REACHES_OVER_EPOCHS = (576, 843)
"""Seeds that draw the seesaw and reached the mark when this was written: three of the first twelve of them."""


def test_a_seesaw_makes_logs_that_diverge_over_epochs() -> None:
    """Schedule 2 by seeds: two brokers lead in turn and never hear each other; who comes back last has to ask more than
    once where its log leaves the leader's (mark `diverged-over-epochs`), and nothing acknowledged is lost."""
    drawn = [seed for seed in range(1_000) if ScenarioOptions.draw(seed).faults.kinds == ("seesaw",)]
    assert 0.5 * SEESAW_SHARE < len(drawn) / 1_000 < 2 * SEESAW_SHARE
    for outcome in run_seeds(chain(REACHES_OVER_EPOCHS, drawn), ScenarioRun, jobs=2):
        assert outcome.ok, (outcome.seed, outcome.message, outcome.details)
        if outcome.figures["marks"].get("diverged-over-epochs"):
            return
    pytest.fail("no seed reaches it")
