"""`python -m lab.mutants`: verdicts, exit codes, and what it says where it cannot work."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from lab.mutants import MUTANTS, Mutant
from lab.mutants.cli import mutants as command
from lab.mutants.mutant import condition
from lab.pages.mutants import mutants_table

ROW = "tests/controller/machine/test_isr.py::test_row_of_the_table[not the leader]"
HARMLESS = Mutant("anybody-alters-the-isr", "B2: nothing", (condition("not not (...)"),), (ROW,))


def mutants(*arguments: str) -> Result:
    """Through the program, as `make mutants` does."""
    return CliRunner().invoke(command, arguments)


@pytest.fixture
def harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that breaks nothing, in the place of one that does."""
    monkeypatch.setitem(MUTANTS, HARMLESS.name, HARMLESS)


def test_a_mutant_that_is_noticed_exits_0() -> None:
    """One object a mutant, with what killed it."""
    result = mutants("anybody-alters-the-isr", "--output", "json")
    assert result.exit_code == 0, result.output
    (verdict,) = (json.loads(line) for line in result.stdout.splitlines())
    assert verdict["killed"]
    assert verdict["killed_by"] == [ROW]
    assert verdict["survived"] == []
    assert verdict["seconds"] > 0


@pytest.mark.usefixtures("harmless")
def test_a_mutant_that_survives_exits_1_and_is_named() -> None:
    """With what did not notice it."""
    result = mutants(HARMLESS.name, "old-leader-alters-the-isr", "--jobs", "1")
    assert result.exit_code == 1, result.output
    assert "1 of 2 mutants killed" in result.stdout
    assert f"survived: {HARMLESS.name}" in result.stdout
    assert f"not by {ROW}" in result.stdout


def test_what_a_mutant_changes_is_shown() -> None:
    """The table names no code: this finds it."""
    shown = mutants("anybody-alters-the-isr", "--diff").stdout
    assert "+++ strandline/controller/machine/isr.py:check_leader" in shown
    assert "-    if sender != partition.leader:" in shown
    assert "+    if False:" in shown


def test_selection_by_rule() -> None:
    """One rule, by its whole name; a letter is all of its rules; an unknown one is told with those there are."""
    listed = mutants("--rule", "A1", "--list").stdout.splitlines()
    assert "vote-not-durable" in listed[0]
    assert all(" A1: " in line for line in listed)
    assert len(mutants("--rule", "A", "--list").stdout.splitlines()) > len(listed)
    assert all(" schedule 45: " in line for line in mutants("--rule", "schedule 45", "--list").stdout.splitlines())
    wrong = mutants("--rule", "Z9")
    assert wrong.exit_code == 2
    assert "A13" in wrong.output
    assert mutants("no-such-mutant").exit_code == 2


def test_every_rule_has_its_mutants() -> None:
    """All of section A, and some of each other; the page has them all."""
    parts = {mutant.part for mutant in MUTANTS.values()}
    assert {f"A{number}" for number in range(1, 18)} <= parts
    assert {mutant.section for mutant in MUTANTS.values()} == {"A", "B", "C", "E", "schedule"}
    table = mutants_table()
    assert all(f"`{name}`" in table for name in MUTANTS)
    assert len(MUTANTS) > 150
