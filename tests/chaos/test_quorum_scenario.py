"""The quorum under faults: a few seeds hold every invariant of rules A, and broken rules are caught."""

from __future__ import annotations

import pytest

from lab.mutants import without
from strandline.chaos.quorum_scenario import QuorumRun
from strandline.chaos.runner import run_seeds


def test_seeds_hold_the_invariants_of_the_quorum() -> None:
    """Kills, power cuts, partitions, pauses: one leader an epoch, one vote, committed data equal, no ack lost."""
    outcomes = list(run_seeds(range(12), QuorumRun, jobs=2))
    assert [outcome for outcome in outcomes if not outcome.ok] == []
    assert sum(outcome.figures["acked"] for outcome in outcomes) > 1000
    assert max(outcome.figures["epochs"] for outcome in outcomes) > 3


def test_a_seed_replays() -> None:
    """The same seed again, in another child: the same trace."""
    traces = [outcome.figures["trace"] for outcome in run_seeds([3, 3], QuorumRun)]
    assert traces[0] == traces[1]


@pytest.mark.parametrize("name", ["count-before-sync", "vote-not-durable"])
def test_a_broken_rule_of_the_quorum_is_caught(name: str) -> None:
    """The mutation check of rule E6: rules A1 and A9 removed, some of the first seeds break what is promised; a
    seed that only comes to a standstill is not enough."""
    with without(name):
        for outcome in run_seeds(range(60), QuorumRun, jobs=2):
            if not outcome.ok and outcome.error != "Progress":
                assert outcome.error in {
                    "AckedRecordsSurvive",
                    "ConsistentCommittedData",
                    "LeaderHasAllCommittedValues",
                    "MajorityReachedHighWatermark",
                    "MetadataLogMatching",
                    "MonotonicEpoch",
                    "NoLogDivergence",
                    "SingleLeader",
                    "VotedOnce",
                }, outcome.message
                return
    pytest.fail(f"no seed catches {name}")
