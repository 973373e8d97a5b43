"""The replica's golden scenarios: rules B, one behaviour a file (`--update` rewrites them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.replica_stage import ReplicaStage
from tests.golden.script import hold

SCENARIOS = sorted((Path(__file__).parent / "replica").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    """What the file says is what happens."""
    hold(path, ReplicaStage(), request)


def test_there_are_scenarios() -> None:
    """An empty glob would pass everything."""
    assert len(SCENARIOS) >= 8
