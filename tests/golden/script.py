"""Golden scenarios: a text file of commands behind `> `, and below each what happened.

A line that begins with `#` is a comment, and kept. A scenario passes if playing its commands gives the file, letter by
letter; `--update` writes it anew. `> expect ...` fails by itself, so that no update can make a broken rule golden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest


class Stage(Protocol):
    """Where a scenario is played."""

    def command(self, line: str) -> list[str]:
        """Carry out one command; what happened, a line each. Raises AssertionError where an `expect` does not hold."""


def play(text: str, stage: Stage) -> str:
    """The scenario with its output as it is now."""
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            out.append(line)
        elif line.startswith("> "):
            out += ["", line, *(f"    {result}".rstrip() for result in stage.command(line[2:]))]
    return "\n".join(out).strip() + "\n"


def hold(path: Path, stage: Stage, request: pytest.FixtureRequest) -> None:
    """What the file says is what happens; or with `--update`, what happens is what the file says."""
    expected = path.read_text()
    actual = play(expected, stage)
    if request.config.getoption("--update", default=False):
        path.write_text(actual)
    else:
        assert actual == expected
