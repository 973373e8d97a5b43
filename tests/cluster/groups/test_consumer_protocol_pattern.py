"""Regular expressions of members: as Python's, but in time linear in the name, and refused when they are too much."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.cluster.groups.consumer_protocol.pattern import WORK_MAX, PatternError, TopicPattern

ATOMS = st.sampled_from(("a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c-]", r"\w", r"\D", "^", "$", "(?:)"))
NAMES = st.text("abc.-1", max_size=7)


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(parts, st.sampled_from(("*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"))).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


@given(st.recursive(ATOMS, _larger, max_leaves=8), st.lists(NAMES, min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_as_python_does(text: str, names: list[str]) -> None:
    """The whole name has to match, as in Kafka."""
    pattern = TopicPattern(text)
    for name in names:
        assert pattern.matches(name) == (re.fullmatch(text, name) is not None), (text, name)


@given(st.text(alphabet="ab()[]{}|*+?\\^$.-,:<P12", max_size=25))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_pattern_or_an_error(text: str) -> None:
    """And what both know, both understand alike."""
    try:
        pattern = TopicPattern(text)
    except PatternError:
        return
    pattern.check(["", "a", "ab", "b-1"])


@pytest.mark.parametrize(
    ("text", "name"),
    [("(a*)*b", "a" * 249), ("(a|a)*b", "a" * 249), ("(a|aa){300}b", "a" * 249), ("(.*.*.*)*x", "y" * 249)],
)
def test_what_stops_a_backtracking_matcher(text: str, name: str) -> None:
    """Python's `re` would be at it for ever: what is counted is the states that are visited."""
    pattern = TopicPattern(text)
    assert not pattern.matches(name)
    assert pattern.work < WORK_MAX


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "ends|end"),
        ("a)", "unexpected"),
        ("[a", "early"),
        ("*a", "nothing to repeat"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("a{x}", "no count"),
        ("a{3,2}", "at most"),
        ("a{1001}", "repetitions"),
        ("a{99999}", "repetitions"),
        ("[z-a]", "range"),
        ("[[:alpha:]]", "not known"),
        ("(?i)a", "flags"),
        ("(?=a)", "flags"),
        (r"\b", "not known"),
        (r"\pL", "not known"),
        (r"(a)\1", "not known"),
        ("(" * 51 + ")" * 51, "deep"),
        ("((a{50}){50}){50}", "states"),
        ("((){1000}){1000}", "parts"),
        ("a" * 1025, "longer"),
        ("(?P<name", "name"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        TopicPattern(text)


def test_one_that_costs_too_much_against_the_topics() -> None:
    """Within the limits of each by itself, but the topics are many: refused when the member joins, not walked for
    minutes."""
    rng = random.Random(3)
    names = ["".join(rng.choices("ab", k=249)) for _ in range(1_000)]
    pattern = TopicPattern(".*a.{240}z")
    with pytest.raises(PatternError, match="costs"):
        pattern.check(names)
    assert pattern.work < 2 * WORK_MAX


def test_many_topics_cost_little() -> None:
    """An expression that is large, but meets the same sets of states again and again."""
    pattern = TopicPattern("(.{0,1}){500}z")
    pattern.check(f"topic-{number}-{'x' * 200}" for number in range(2_000))
