"""Golden scripts of voter sets (KIP-853, rule A36): one behaviour a file (`--update` rewrites them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.script import hold
from tests.golden.voters_stage import VotersStage

SCENARIOS = sorted((Path(__file__).parent / "voters").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    """What the file says is what happens."""
    hold(path, VotersStage(), request)


def test_there_are_scripts() -> None:
    """An empty glob would pass everything."""
    assert len(SCENARIOS) >= 6
