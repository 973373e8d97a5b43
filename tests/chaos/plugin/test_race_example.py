"""The worked example of docs/testing-your-code.md that takes a hundred seeds."""

from __future__ import annotations

import re
import shutil

import pytest
from tests.chaos.plugin.test_examples import EXAMPLES, take

pytest_plugins = ["pytester"]

SEEDS_OF_THE_RACE = 100


def test_a_race_that_only_a_seed_finds(pytester: pytest.Pytester) -> None:
    """Some seed of a hundred fails and its replay fails too; with the fix that seed and others hold."""
    take(pytester, "test_prices.py")
    shutil.copy(EXAMPLES / "prices_with_race.py", pytester.path / "prices.py")
    result = pytester.runpytest_subprocess("--strandline-seeds", str(SEEDS_OF_THE_RACE), "-x")
    assert result.parseoutcomes()["failed"] == 1, result.stdout.str()
    replay = re.search(r"replay: pytest '?([^' ]+)'? --strandline-seed (\d+)", result.stdout.str())
    assert replay is not None
    node, seed = replay[1], int(replay[2])
    again = pytester.runpytest_subprocess(node, "--strandline-seed", str(seed))
    assert again.parseoutcomes() == {"failed": 1}
    take(pytester, "prices.py")
    mended = pytester.runpytest_subprocess("--strandline-seeds", str(seed + 1))
    assert mended.parseoutcomes() == {"passed": seed + 1}, mended.stdout.str()
