"""Safety checks: they stop the node with the invariant's name, and they work under `python -O` too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from strandline.proto.ensure import INVARIANTS, ensure, present
from strandline.proto.errors import FatalError


def named_in_the_source() -> Iterator[str]:
    """The invariant of every call of `ensure` and `present`: a literal, or the check cannot be listed."""
    for path in Path(strandline.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("ensure", "present")
                and path.name != "ensure.py"
            ):
                name = node.args[1]
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}"
                yield name.value


def test_declared_invariants_and_checks_agree() -> None:
    assert set(named_in_the_source()) == set(INVARIANTS)


def test_every_invariant_has_a_camel_case_name_and_a_sentence() -> None:
    for name, sentence in INVARIANTS.items():
        assert re.fullmatch(r"([A-Z][a-z]*)+", name)
        assert len(sentence.split()) >= 5


def test_what_holds_passes() -> None:
    ensure(True, "MonotonicEpoch", was=3, now=4)
    assert present(0, "NoGap") == 0


def test_a_broken_invariant_is_fatal_and_names_itself_and_the_facts() -> None:
    with pytest.raises(FatalError) as broken:
        ensure(False, "MonotonicEpoch", was=4, now=3)
    assert str(broken.value) == (
        "internal error: MonotonicEpoch does not hold: the epoch never goes back [was=4, now=3]"
    )
    with pytest.raises(FatalError, match="NoGap does not hold: each batch begins where the log ends"):
        present(None, "NoGap")


def test_an_undeclared_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        ensure(False, "NobodyDeclaredThis")


def test_it_stops_under_python_o_too() -> None:
    program = "from strandline.proto.ensure import ensure; assert False; ensure(False, 'NoGap')"
    ended = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "FatalError: internal error: NoGap does not hold" in ended.stderr
