"""The list of other people's bugs in docs/exactly-once.md: each number stands in the file of tests that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "docs/exactly-once.md").read_text().partition("## Bugs of others, each with a test")[2]
ROWS = re.findall(r"^\| (.+?) \| .+? \| \[.+?\]\(\.\./(tests/.+?)\) \|$", SECTION, re.MULTILINE)
NAMED = [(number, path) for numbers, path in ROWS for number in numbers.split(", ")]


@pytest.mark.parametrize(("number", "path"), NAMED, ids=[number for number, _ in NAMED])
def test_a_test_names_it(number: str, path: str) -> None:
    """In its name, as kafka_17754, or in a sentence."""
    text = (ROOT / path).read_text().lower().replace("_", "-")
    assert number.lower() in text or number.lower().replace("#", "-") in text


def test_the_list_is_read() -> None:
    """And not a table of another form."""
    assert len(NAMED) >= 30
