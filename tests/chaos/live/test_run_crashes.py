"""`strandline chaos run` with machines and disks that are lost, in both layouts: nothing acknowledged is."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.chaos.live.cluster import can_mount
from tests.chaos.live.crashes import logged, run_each

CRASHES = ["crash-all-one-rots", "one-stays-dead", "directory-lost", "full-leader"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("controllers", [0, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_each_of_them_holds(tmp_path: Path, controllers: int, seed: int) -> None:
    """Schedules 45, 48, 53 and 57, for a minute; and each met the nodes: they told what they found."""
    outcome = run_each(CRASHES, tmp_path, seed=seed, minutes=1, controllers=controllers)
    assert outcome.figures["acked_all"] > 500
    told = logged(tmp_path)
    if any("rots, in the batch of offset" in what for _, what in outcome.struck):
        assert "the end of a partition's log is cut" in told
    assert "lacks what was durable here" in told
    if can_mount():
        assert "No space left on device" in told
