"""Rules whose lack shows only after many steps, or after a crash of all: minutes in all."""

from __future__ import annotations

import pytest

from strandline.chaos.explore.bounds import QuorumBounds
from tests.chaos.explore.finding import Bounds, finds


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
        ("leaders-high-watermark-taken-whole", QuorumBounds(epochs=1, timeouts=2), "CoreAssertion"),
        (
            "snapshot-fetch-counts-for-the-high-watermark",
            QuorumBounds(crashes=0, timeouts=2, snapshots=1),
            "MajorityReachedHighWatermark",
        ),
        ("member-in-doubt-does-not-wait", "all-crash", "LeaderCandidateCompleteness"),
        ("smallest-log-in-doubt", "all-crash", "LeaderCandidateCompleteness"),
    ],
)
def test_a_rule(mutant: str, bounds: Bounds, invariant: str) -> None:
    finds(mutant, bounds, invariant)
