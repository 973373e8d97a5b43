"""Regular expressions of members: RE2's, in time linear in the name, and refused when they are too much."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.cluster.groups.consumer_protocol.subscriptions import PatternError, TopicPattern

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
    """Never another error."""
    try:
        pattern = TopicPattern(text)
    except PatternError:
        return
    pattern.check(["", "a", "ab", "b-1"])


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        ("(?i)ORDERS", "orders", True),
        ("[[:alpha:]]+-\\d{2}", "orders-07", True),
        (r"\pL+", "orders", True),
        (r"\Qa.b\E", "axb", False),
        (r".*\border\b.*", "new-order-7", True),
        ("orders|", "", True),
        ("order", "orders", False),
    ],
)
def test_the_dialect_is_re2(text: str, name: str, matches: bool) -> None:
    """What Kafka's clients send to a broker that speaks KIP-848."""
    assert TopicPattern(text).matches(name) == matches


@pytest.mark.parametrize(
    ("text", "name"),
    [("(a*)*b", "a" * 249), ("(a|a)*b", "a" * 249), ("(a|aa){300}b", "a" * 249), ("(.*.*.*)*x", "y" * 249)],
)
def test_what_stops_a_backtracking_matcher(text: str, name: str) -> None:
    """Python's `re` would be at it for ever."""
    pattern = TopicPattern(text)
    pattern.check([name])
    assert not pattern.matches(name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "missing"),
        ("a)", "unexpected"),
        ("[a", "missing"),
        ("*a", "repetition"),
        ("a**", "repetition"),
        ("a{2}{3}", "repetition"),
        ("a{3,2}", "repetition"),
        ("a{1001}", "repetition"),
        ("a{99999}", "repetition"),
        ("[z-a]", "range"),
        ("(?=a)", "perl operator"),
        (r"(a)\1", "escape"),
        ("((a{50}){50}){50}", "repetition"),
        ("((){1000}){1000}", "repetition"),
        (r"\pL{50}", "instructions"),
        (r"(\pL{10}){20}", "too large"),
        ("a" * 1025, "longer"),
        ("(?P<name", "name"),
        ("\ud800", "surrogate"),
    ],
)
def test_refused(text: str, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With RE2's own words, which go to the member and not to standard error."""
    with pytest.raises(PatternError, match=reason):
        TopicPattern(text)
    assert capfd.readouterr().err == ""


def test_one_that_costs_too_much_against_the_topics() -> None:
    """Within the limits of each by itself, but the topics are many: refused when the member joins, before it is
    held against any of them."""
    rng = random.Random(3)
    names = ["".join(rng.choices("ab", k=249)) for _ in range(1_000)]
    with pytest.raises(PatternError, match="costs"):
        TopicPattern(".*a.{240}z").check(names)


def test_many_topics_and_a_large_expression() -> None:
    """What is dear within the bound is not refused, and its results are kept."""
    pattern = TopicPattern("(.{0,1}){50}z")
    names = [f"topic-{number}-{'x' * 200}" for number in range(500)]
    pattern.check(names)
    assert not any(map(pattern.matches, names))


def test_all_topics_of_a_large_cluster_match_a_simple_expression() -> None:
    names = [f"team.of.somebody.orders-{number:05}" for number in range(30_000)]
    pattern = TopicPattern(r"team\.of\..*")
    pattern.check(names)
    assert all(map(pattern.matches, names))
