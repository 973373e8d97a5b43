"""Coverage marks: every declared one is placed, every placed one is declared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import strandline
from strandline.proto import marks

_PLACED = re.compile(r'\bmark\(\s*"([^"]+)"(?: if [^"]+ else "([^"]+)")?\s*\)')


def test_marks_and_their_places_agree() -> None:
    placed: set[str] = set()
    for path in Path(strandline.__file__).parent.rglob("*.py"):
        for found in _PLACED.finditer(path.read_text()):
            placed.update(name for name in found.groups() if name)
    assert placed == set(marks.MARKS)


def test_a_mark_counts_until_it_is_reset() -> None:
    marks.reset()
    marks.mark("torn-tail-cut")
    marks.mark("torn-tail-cut")
    assert marks.counts()["torn-tail-cut"] == 2
    assert marks.counts().keys() == marks.MARKS.keys()
    marks.reset()
    assert not any(marks.counts().values())


def test_an_undeclared_mark_is_an_error() -> None:
    with pytest.raises(KeyError):
        marks.mark("nobody-declared-this")


def test_every_mark_has_a_sentence() -> None:
    for name, sentence in marks.MARKS.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert len(sentence.split()) >= 5
