"""Rules whose lack shows only after many steps, or after a crash of all: minutes in all."""

from __future__ import annotations

import pytest
from tests.lab.explore.finding import Bounds, finds

from lab.explore.bounds import PartitionBounds, QuorumBounds


@pytest.mark.parametrize(
    ("mutant", "bounds", "invariant"),
    [
        ("diverging-fetch-counts", QuorumBounds(), "MajorityReachedHighWatermark"),
        ("divergence-not-judged", QuorumBounds(), "NoLogDivergence"),
        (
            "divergence-judged-by-epoch-alone",
            QuorumBounds(crashes=0, timeouts=2, snapshots=1),
            "MajorityReachedHighWatermark",
        ),
        ("leaders-high-watermark-taken-whole", QuorumBounds(epochs=1, timeouts=2), "FatalError"),
        (
            "snapshot-fetch-counts-for-the-high-watermark",
            QuorumBounds(crashes=0, timeouts=2, snapshots=1),
            "MajorityReachedHighWatermark",
        ),
        ("joins-below-the-high-watermark", PartitionBounds(), "LeaderCandidateCompleteness"),
        ("member-in-doubt-does-not-wait", "all-crash", "LeaderCandidateCompleteness"),
        ("smallest-log-in-doubt", "all-crash", "LeaderCandidateCompleteness"),
    ],
)
def test_a_rule(mutant: str, bounds: Bounds, invariant: str) -> None:
    finds(mutant, bounds, invariant)


def test_who_is_in_doubt_is_not_forgotten_beside_a_leader() -> None:
    """Behind a prelude: one member of the ISR has a torn log and is in doubt, the other one leads, and falls too."""
    bounds = PartitionBounds(crashes=1, delays=0, rots=1, lags=0, leader_epochs=4, changes=9)
    after = "append 1; crash 3 0; fence 3; append 1 (slow sync 1); crash 1 0 torn; register 1"
    finds("in-doubt-is-forgotten-beside-a-leader", bounds, "InDoubtCompleteness", after=after)
