"""The explorer's golden scenarios: paths that it found, walked on the code as it is (`--update` rewrites them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.explore_stage import ExploreStage
from tests.golden.script import hold

SCENARIOS = sorted((Path(__file__).parent / "explore").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    """What the file says is what happens."""
    hold(path, ExploreStage(), request)


def test_there_are_scenarios() -> None:
    """An empty glob would pass everything."""
    assert len(SCENARIOS) >= 2
