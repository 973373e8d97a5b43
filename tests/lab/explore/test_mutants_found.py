"""Rules taken out of the code: the search meets what each forbids, within bounds that take seconds."""

from __future__ import annotations

import pytest
from tests.lab.explore.finding import Bounds, finds

from lab.explore.bounds import PartitionBounds, QuorumBounds

ONE_EPOCH = QuorumBounds(epochs=1, timeouts=2)
ELECTION = QuorumBounds(epochs=1, records=0, crashes=0)
TWO_EPOCHS = QuorumBounds()
ZEROED = QuorumBounds(records=0, crashes=0, timeouts=2, zeros=1)
SNAPSHOT = QuorumBounds(crashes=0, timeouts=2, snapshots=1)

SLOW = PartitionBounds()
LATE = PartitionBounds(network=1, fences=1, crashes=0, lags=0, records=0)
RUINED = PartitionBounds(records=1, crashes=2, delays=0, rots=1, lags=0, leader_epochs=3, changes=7)


@pytest.mark.parametrize(
    ("mutant", "bounds", "invariant"),
    [
        ("vote-not-persisted", ONE_EPOCH, "MonotonicEpoch"),
        ("leader-not-persisted", ONE_EPOCH, "MonotonicEpoch"),
        ("restarted-leader-forgets-that-it-led", ONE_EPOCH, "VotedOnce"),
        ("restart-forgets-the-vote", ONE_EPOCH, "VotedOnce"),
        ("two-votes-an-epoch", ELECTION, "VotedOnce"),
        # The table of roles has no vote of these three: the node stops before it gives one.
        ("candidate-votes-for-another", ONE_EPOCH, "FatalError"),
        ("follower-votes-in-its-leaders-epoch", ONE_EPOCH, "FatalError"),
        ("resigned-votes-in-the-epoch-it-led", ONE_EPOCH, "FatalError"),
        ("prospective-forgets-its-vote", TWO_EPOCHS, "VotedOnce"),
        ("prospective-forgets-the-leader", QuorumBounds(epochs=1, crashes=0, timeouts=2, network=1), "VotedOnce"),
        ("vote-for-any-log", SNAPSHOT, "LeaderHasAllCommittedValues"),
        ("a-minority-elects", ONE_EPOCH, "SingleLeader"),
        ("no-leader-change-record", ONE_EPOCH, "FatalError"),
        ("one-replica-is-enough", ONE_EPOCH, "MajorityReachedHighWatermark"),
        ("fetch-before-flush", QuorumBounds(epochs=1, crashes=0, timeouts=1), "MajorityReachedHighWatermark"),
        ("count-before-sync", ONE_EPOCH, "MajorityReachedHighWatermark"),
        ("a-flush-covers-what-came-later", ONE_EPOCH, "MajorityReachedHighWatermark"),
        ("unproven-votes-count-in-full", ZEROED, "LeaderHasAllCommittedValues"),
    ],
)
def test_a_rule_of_the_quorum(mutant: str, bounds: Bounds, invariant: str) -> None:
    finds(mutant, bounds, invariant)


@pytest.mark.parametrize(
    ("mutant", "bounds", "invariant"),
    [
        ("counts-what-the-leader-has-not-synced", SLOW, "FatalError"),
        ("counts-what-a-follower-has-not-synced", SLOW, "CommittedIsDurable"),
        ("truncate-to-high-watermark", SLOW, "LeaderCandidateCompleteness"),
        ("longer-log-is-valid", SLOW, "LeaderCandidateCompleteness"),
        ("watermark-falls", SLOW, "MonotonicHighWatermark"),
        ("new-leader-serves-everything", PartitionBounds(lags=0, records=1), "LeaderCandidateCompleteness"),
        ("isr-instead-of-maximal", LATE, "MaximalIsr"),
        ("eligible-are-never-cleared", RUINED, "LeaderCandidateCompleteness"),
        ("no-strict-high-watermark", RUINED, "FatalError"),
        ("leader-out-of-sync", RUINED, "MetadataCanBeReplayed"),
        ("broker-in-doubt-stays-in-the-isr", RUINED, "LeaderCandidateCompleteness"),
        ("log-in-doubt-stays-eligible", RUINED, "LeaderCandidateCompleteness"),
        ("lost-log-stays-eligible", RUINED, "LeaderCandidateCompleteness"),
        ("cut-log-is-taken-for-whole", RUINED, "LeaderCandidateCompleteness"),
        ("lacking-log-counts", RUINED, "LeaderCandidateCompleteness"),
        ("unproven-end-leads-at-once", RUINED, "LeaderCandidateCompleteness"),
    ],
)
def test_a_rule_of_a_partition(mutant: str, bounds: Bounds, invariant: str) -> None:
    finds(mutant, bounds, invariant)
