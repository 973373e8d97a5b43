"""Seconds that tests take: measured by whole runs, kept in tests/durations.json, and the order of the next run.

`make test` writes build/durations.json; `make durations` takes it over. A file of tests that is not in it yet is quick.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "durations.json"

QUICK_S = 2.0
"""Files that take less run first: three of four files, and a tenth of the time. A fault in a core shows there."""

_TOLD_S = 0.5
"""Files that take less are not kept by name."""

_SLOWEST = 30


def in_order(files: Iterable[str]) -> list[str]:
    """Files of tests, from the root of the project: quick ones as they come, then the others, slowest first.

    Of the others the slowest begin first, so that no worker ends long after the rest.
    """
    return sorted(files, key=lambda file: -seconds(file) if seconds(file) > QUICK_S else -1e9)


def seconds(file: str) -> float:
    """Seconds that a file took in the run that is kept."""
    found: float = _kept()["files"].get(file, 0.0)
    return found


def slowest_table() -> str:
    """The slowest tests, for the documentation."""
    lines = ["| seconds | test |", "|---|---|"]
    for test, took in _kept()["slowest"].items():
        path, _, name = test.partition("::")
        told = name.replace("|", "\\|")
        lines.append(f"| {took:.1f} | [{path.removeprefix('tests/')}](../{path}) `{told}` |")
    return "\n".join(lines)


@cache
def _kept() -> dict[str, dict[str, float]]:
    kept: dict[str, dict[str, float]] = json.loads(KEPT.read_text())
    return kept


class Recorder:
    """A plugin of pytest: adds up what each test and each file took, set up and torn down, and writes it at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One of three for each test."""
        self._tests[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Files by name, tests by time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(summed(self._tests), indent=1) + "\n")


def summed(tests: dict[str, float]) -> dict[str, dict[str, float]]:
    """The seconds of each file, and of the slowest tests."""
    files: dict[str, float] = defaultdict(float)
    for test, took in tests.items():
        files[test.partition("::")[0]] += took
    slowest = sorted(tests, key=lambda test: -tests[test])[:_SLOWEST]
    return {
        "files": {file: round(took, 1) for file, took in sorted(files.items()) if took >= _TOLD_S},
        "slowest": {test: round(tests[test], 1) for test in slowest},
    }


def main() -> None:
    """Take over what a whole run has measured."""
    measured = ROOT / "build" / "durations.json"
    if not measured.is_file():
        sys.exit(f"{measured.relative_to(ROOT)} is not there: `make test` writes it")
    KEPT.write_text(measured.read_text())
    files: dict[str, float] = json.loads(KEPT.read_text())["files"]
    click.echo(f"{KEPT.relative_to(ROOT)}: {len(files)} files, {sum(files.values()):.0f} s; now `make docs`")


if __name__ == "__main__":
    main()
