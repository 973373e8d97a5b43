"""The mutants themselves: every one still changes the code it names, and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from lab.mutants import MUTANTS, Mutant, Patch, StalePatch, without
from lab.mutants.patching import applied

ROOT = Path(__file__).parent.parent.parent
TABLES = sorted((ROOT / "lab/mutants").glob("*.py"))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_code_that_is_there(name: str) -> None:
    """A patch whose function or line was rewritten would test nothing."""
    mutant = MUTANTS[name]
    assert mutant.patches
    assert ":" in mutant.rule
    with without(name):
        pass


@pytest.mark.parametrize("name", MUTANTS)
def test_what_kills_a_mutant_exists(name: str) -> None:
    """A pytest node id of this checkout, or a seed of a scenario."""
    killers = MUTANTS[name].killed_by
    assert killers
    for killer in killers:
        if killer.startswith("seed:"):
            _, scenario, seed = killer.split(":")
            assert scenario in {"cluster", "quorum"}
            assert seed.isdigit()
        else:
            path, _, test = killer.partition("::")
            assert not test or test.partition("[")[0] in functions(path), killer


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_no_name_is_used_twice() -> None:
    """The later table would take the earlier one's mutant away."""
    names = re.findall(r'(?:change|Mutant)\(\s*"([a-z0-9-]+)"', "\n".join(path.read_text() for path in TABLES))
    assert sorted(names) == sorted(MUTANTS)


def test_a_mutant_is_in_force_while_it_is_applied() -> None:
    """Callers that imported the function by name run it too; afterwards all is as before, even after an error."""
    from strandline.controller.machine.isr import check_leader as by_name

    before = by_name.__code__
    change = Patch("controller.machine.isr:check_leader", "if sender != partition.leader:", "if False:")

    def fail() -> None:
        with applied(Mutant("m", "X: y", (change,), ("-",))):
            assert by_name.__code__ is not before
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert by_name.__code__ is before


@pytest.mark.parametrize(
    ("where", "old", "why"),
    [
        ("controller.machine.isr:validate", "if sender is partition.leader:", "0 times"),
        ("controller.machine.isr:validate", "raise KafkaError(", "times, not once"),
        ("controller.machine.isr:no_such", "if", "there is no no_such"),
        ("controller.machine.nowhere:validate", "if", "there is no module"),
        ("controller.machine.isr:KafkaError", "if", "no function"),
    ],
)
def test_a_stale_patch_says_so(where: str, old: str, why: str) -> None:
    """Instead of testing the code as it is."""
    with pytest.raises(StalePatch, match=why), applied(Mutant("m", "X: y", (Patch(where, old, "if True:"),), ("-",))):
        pytest.fail("a stale patch was applied")
