"""Random runs of three pure replicas: LeaderCompleteness, LogMatching, ConsistentRead, monotone high watermarks, no
committed record lost, and liveness after healing (rules B, invariants of kip_966_properties.tla)."""

from __future__ import annotations

import pytest

from tests.replica.model import Model

STEPS = 6_000


@pytest.mark.parametrize("seed", range(30))
def test_committed_is_for_ever(seed: int) -> None:
    """Crashes that lose unsynced tails, fencing, elections, stale messages, lost answers of the controller."""
    model = Model(seed)
    high_watermarks: dict[tuple[int, int, int], int] = {}
    for _ in range(STEPS):
        model.step()
        for replica in model.replicas.values():
            if replica.leader is not None:
                who = (replica.node, replica.broker_epoch, replica.leader.leader_epoch)
                assert replica.leader.high_watermark >= high_watermarks.get(who, 0), "a leader's high watermark fell"
                high_watermarks[who] = replica.leader.high_watermark
    model.settle()
    assert model.truncated_below_high_watermark == 0
    assert model.elections > 3
    assert model.ledger
