"""Citations lead somewhere: each rule, schedule and row that is cited has its anchor in docs/rules.md."""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.mutants import MUTANTS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
citations: Any = importlib.import_module("citations")


@pytest.fixture(scope="module")
def prose() -> list[Any]:
    return list(citations.all_prose())


def test_each_citation_has_its_anchor(prose: list[Any]) -> None:
    anchors = citations.anchors()
    found = [citation for text in prose for citation in citations.cited(text)]
    lost = [f"{one.path}:{one.line}: docs/rules.md has no {one.anchor}" for one in found if one.anchor not in anchors]
    assert not lost, "\n".join(lost)
    assert len(found) > 1_500, "most citations are not seen"


def test_each_citation_is_spelled_as_all_others(prose: list[Any]) -> None:
    wrong = [
        f"{text.path}:{text.line}: {words!r} is spelled `rule A8`, `rules B`, `schedule 27` or `row S86` elsewhere"
        for text in prose
        for words in citations.misspelled(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_each_mutant_is_filed_under_a_rule_with_a_number() -> None:
    anchors = citations.anchors()
    lost = {name: one.part for name, one in MUTANTS.items() if one.part.lower().replace(" ", "-") not in anchors}
    assert not lost
    assert {name: one.part for name, one in MUTANTS.items() if not one.part[-1].isdigit()} == {}


def test_the_page_has_each_number_once() -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    anchors = Counter(re.findall(r'<a id="([^"]+)">', page))
    assert {anchor for anchor, times in anchors.items() if times > 1} == set()
    assert {f"a{number}" for number in range(1, 18)} | {f"schedule-{number}" for number in range(1, 69)} <= set(anchors)


@pytest.mark.parametrize("name", ["rules.md", "mutants.md"])
def test_links_to_rules_lead_to_an_anchor(name: str) -> None:
    links = re.findall(r"\]\((?:rules\.md)?#([^)]+)\)", (ROOT / "docs" / name).read_text())
    assert links
    assert not set(links) - set(re.findall(r'<a id="([^"]+)">', (ROOT / "docs" / "rules.md").read_text()))


def cited(text: str, label: bool = False) -> list[str]:
    return [one.anchor for one in citations.cited(citations.Prose("a.py", 1, text, label=label))]


@pytest.mark.parametrize(
    ("text", "anchors"),
    [
        ("Durable (rule A1).", ["a1"]),
        ("Rules A7 to A9, A11 and E5: fetches.", ["a7", "a8", "a9", "a11", "e5"]),
        ("Invariants of rules A and B, checked.", ["a", "b"]),
        ("Schedules 1 to 3, and KAFKA-12153; schedule 27.", ["schedule-1", "schedule-2", "schedule-3", "schedule-27"]),
        ("Rows S08 to S10, S100.", ["s08", "s09", "s10", "s100"]),
        ("# ends a line (rules A3,\n# A4)", ["a3", "a4"]),
        ("see [rule](rules.md#schedule-4)", ["schedule-4"]),
        ("The rule\n\nA broker leaves.", []),
    ],
)
def test_what_is_a_citation(text: str, anchors: list[str]) -> None:
    assert cited(text) == anchors
    assert citations.misspelled(citations.Prose("a.py", 1, text)) == []


def test_a_label_is_a_citation() -> None:
    """Of the rule that a mutant or a schedule names; nowhere else."""
    assert cited("A8, A9: flush before the ack", label=True) == ["a8", "a9"]
    assert cited("schedule 45: cut is not intact", label=True) == ["schedule-45"]
    assert citations.misspelled(citations.Prose("a.py", 1, "A8: flush before the ack")) == ["A8"]


@pytest.mark.parametrize(
    "words", ["D-27", "F-55", "F45", "A8", "A-8", "S86", "rule B", "correctness E", "performance rule 1"]
)
def test_other_spellings_are_found(words: str) -> None:
    assert citations.misspelled(citations.Prose("a.py", 1, f"So it is ({words}: why).")) == [words]


@pytest.mark.parametrize(
    "words", ["KAFKA-12153", "KIP-98", "G1a", "`A0`", "Jepsen's G0", "a rule-A-like word", "test_s07_x"]
)
def test_other_words_are_left_alone(words: str) -> None:
    assert citations.misspelled(citations.Prose("a.py", 1, f"So it is ({words}: why).")) == []
