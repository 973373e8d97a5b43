"""The quorum under faults: a few seeds hold every invariant of rules A, and broken rules are caught."""

from __future__ import annotations

import pytest

from lab.mutants import without
from strandline.chaos.options import override
from strandline.chaos.quorum_scenario import QuorumOptions, QuorumRun
from strandline.chaos.runner import run_seeds

BROKEN_VOTERS = {
    "two-voter-changes-at-once": "VoterSetsMeet",
    "a-removed-leader-counts-itself": "MajorityReachedHighWatermark",
    "a-removed-leader-stays": "Progress",
    "who-is-removed-votes-for-itself": "SingleLeader",
    "who-is-removed-leaves-at-once": "Progress",
}
"""Rules of voters that come and go, and the invariant that one of the first seeds breaks without each."""


def of_comers(seed: int) -> QuorumRun:
    """One seed whose voters come and go."""
    return QuorumRun(seed, override(QuorumOptions.draw(seed), {"kraft_version": 1}))


def test_seeds_hold_the_invariants_of_the_quorum() -> None:
    """Kills, power cuts, partitions, pauses: one leader an epoch, one vote, committed data equal, no ack lost. In half
    of the seeds controllers are added, removed and replaced all the while."""
    outcomes = list(run_seeds(range(12), QuorumRun, jobs=2))
    assert [outcome for outcome in outcomes if not outcome.ok] == []
    assert sum(outcome.figures["acked"] for outcome in outcomes) > 1000
    assert max(outcome.figures["epochs"] for outcome in outcomes) > 3
    assert sum(outcome.figures["voter_changes"] for outcome in outcomes) > 20


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


@pytest.mark.parametrize("name", sorted(BROKEN_VOTERS))
def test_a_broken_rule_of_voters_that_come_and_go_is_caught(name: str) -> None:
    """The mutation check of rules A11 and A36: two changes at once, a leader that counts itself or votes for itself
    though it was removed, one that leaves before its removal is committed."""
    with without(name):
        errors = []
        for outcome in run_seeds(range(40), of_comers, jobs=2):
            if not outcome.ok:
                errors.append(outcome.error)
                if outcome.error == BROKEN_VOTERS[name]:
                    return
    pytest.fail(f"no seed catches {name}: {errors}")
