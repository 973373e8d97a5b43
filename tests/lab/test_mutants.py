"""The mutants themselves: each finds its place in the code, wherever that went, and names tests that exist."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from lab.mutants import MUTANTS, Mutant, StaleMutant, without
from lab.mutants.mutant import Change, always, dropped, instead, never, part, removed, value
from lab.mutants.patching import applied, changed_functions
from lab.mutants.places import MARKER, PACKAGE, places

ROOT = Path(__file__).parent.parent.parent
TABLES = sorted((ROOT / "lab/mutants").glob("*.py"))


def test_each_mutant_finds_its_place_and_changes_it() -> None:
    """One place for each change, one statement there, and in it one part of the shape that the change names."""
    assert stale(PACKAGE, MUTANTS) == {}


def stale(package: Path, names: Iterable[str]) -> dict[str, str]:
    """The mutants that cannot be applied to a package, or that change nothing, and why."""
    found = {}
    for name in sorted(names, key=lambda name: str(places(package).get(MUTANTS[name].markers[0]))):
        try:
            functions = changed_functions(MUTANTS[name], package)
        except StaleMutant as error:
            found[name] = str(error)
            continue
        if any(ast.dump(one.function) == ast.dump(one.original) for one in functions):
            found[name] = "the function is what it was"
    return found


def test_each_marker_is_of_a_mutant_and_names_its_rule() -> None:
    """A comment that leads nowhere, or that names another rule than the mutant does, misleads the reader."""
    known = {marker for mutant in MUTANTS.values() for marker in mutant.markers}
    assert {marker: tuple(map(str, where)) for marker, where in places().items() if marker not in known} == {}


@pytest.mark.parametrize("name", ["anybody-alters-the-isr", "everybody-is-allowed", "copy-follows-into-another-topic"])
def test_a_mutant_is_applied_to_the_running_program(name: str) -> None:
    """A function, a method, and five functions of several files."""
    with without(name):
        pass


def test_what_kills_a_mutant_exists() -> None:
    """A pytest node id of this checkout, or a seed of a scenario."""
    for mutant in MUTANTS.values():
        assert mutant.killed_by, mutant.name
        assert ":" in mutant.rule, mutant.name
        for killer in mutant.killed_by:
            if killer.startswith("seed:"):
                _, scenario, seed = killer.split(":")
                assert scenario in {"cluster", "quorum"}, mutant.name
                assert seed.isdigit(), mutant.name
            else:
                path, _, test = killer.partition("::")
                assert not test or test.partition("[")[0] in functions(path), f"{mutant.name}: {killer}"


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_no_name_is_used_twice() -> None:
    """The later table would take the earlier one's mutant away."""
    names = re.findall(r'(?:change|Mutant)\(\s*"([a-z0-9-]+)"', "\n".join(path.read_text() for path in TABLES))
    assert sorted(names) == sorted(MUTANTS)


# --- code that moves, is formatted and is renamed ---------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package."""
    copy = tmp_path / "strandline"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy


def rename(package: Path, names: dict[str, str]) -> int:
    """Rename in each file of a package, save in the names of mutants; the number of places."""
    number = 0
    word = re.compile(rf"(?<![\w/-])(?:{'|'.join(names)})(?![\w-])")
    for path in package.rglob("*.py"):
        text, places = word.subn(lambda found: names[found[0]], path.read_text())
        if places:
            path.write_text(text)
            number += places
    return number


def test_renaming_a_method_breaks_no_mutant(package: Path) -> None:
    """`Partition.append`, and with it whatever else is called `append`; the classes of it and of its callers too."""
    others = {"append": "append_records", "Partition": "HostedPartition", "ReplicaManager": "Replicas"}
    assert rename(package, others) > 500
    assert stale(package, MUTANTS) == {}


def test_moving_a_function_breaks_no_mutant(package: Path) -> None:
    """Every mutant of a method and of a function, in files of other names in another folder."""
    names = []
    functions = (
        ("replica/partition.py", "Partition", "append"),
        ("log/batch.py", None, "check_client_batches"),
        ("log/batch.py", None, "check_content"),
    )
    for file, scope, name in functions:
        text = (package / file).read_text()
        lines = text.splitlines(keepends=True)
        tree = ast.parse(text)
        function: ast.AST = tree
        for wanted in filter(None, (scope, name)):
            function = next(node for node in ast.walk(function) if getattr(node, "name", None) == wanted)
        assert isinstance(function, ast.FunctionDef)
        moved = slice(function.lineno - 1, function.end_lineno)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        head = [line for node in imports for line in lines[node.lineno - 1 : node.end_lineno]]
        head += [] if scope is None else ["class Elsewhere:\n"]
        (package / "proto" / f"{name}_elsewhere.py").write_text("".join([*head, *lines[moved]]))
        names += [found.partition("/")[2].partition("/")[0] for found in MARKER.findall("".join(lines[moved]))]
        del lines[moved]
        (package / file).write_text("".join(lines))
    assert len(names) > 8
    assert stale(package, names) == {}


def test_formatting_breaks_no_mutant(package: Path) -> None:
    """Lines of 79 columns, and quotes of the other kind."""
    (package / "ruff.toml").write_text('line-length = 79\n[format]\nquote-style = "single"\n')
    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--no-cache", str(package)]
    subprocess.run([*ruff, "--config", str(package / "ruff.toml")], check=True)
    assert (package / "replica/partition.py").read_text() != (PACKAGE / "replica/partition.py").read_text()
    assert stale(package, MUTANTS) == {}


# --- what is said where a place is gone -------------------------------------------------------------------------------

HOLDER = '''
def hold(records, limit):
    """Docstring."""
    for record in records:
        if record.size > limit and not record.control:  # rule A1/m
            return record
    else:  # rule A2/m
        # rule A3/m, rule A4/m
        # rule A5/m
        return first(
            records,  # rule A6/m
            limit,
        )
    twice = 1  # rule A7/m
    twice = 2  # rule A7/m
    twice = records[0]  # rule A8/m because
'''


@pytest.fixture
def holder(tmp_path: Path) -> Path:
    (tmp_path / "holder.py").write_text(HOLDER)
    return tmp_path


def changed(holder: Path, rule: str, change: Change) -> str:
    """The function with one change made."""
    (found,) = changed_functions(Mutant("m", f"{rule}: x", (change,), ("-",)), holder)
    assert found.qualified_name == "hold"
    return ast.unparse(found.function)


@pytest.mark.parametrize(
    ("rule", "change", "line"),
    [
        ("A1", never(), "if False:"),
        ("A1", always(), "if True:"),
        ("A1", dropped("not record.control"), "if record.size > limit:"),
        ("A1", dropped("not item.control"), "if record.size > limit:"),
        ("A1", part("item.size > most", "item.size >= most"), "if record.size >= limit and (not record.control):"),
        ("A1", part("record.size", "max(..., 1)"), "if max(record.size, 1) > limit and (not record.control):"),
        ("A1", removed(), "    pass\n    else:"),
        ("A3", value("None"), "return None"),
        ("A4", dropped("limit"), "return first(records)"),
        ("A5", instead("limit = 0\n..."), "limit = 0\n        return first(records, limit)"),
        ("A6", part("records", "list(...)"), "return first(list(records), limit)"),
    ],
)
def test_what_is_done_to_a_marked_statement(holder: Path, rule: str, change: Change, line: str) -> None:
    """By the part that it names, by its shape where it was renamed, and with what stood there in place of `...`."""
    assert line in changed(holder, rule, change)


@pytest.mark.parametrize(
    ("rule", "change", "why"),
    [
        ("A1", part("record.age", "0"), "is there 2 times, not once, in 'if record.size > limit"),
        ("A1", part("record.size < limit", "True"), "is there 0 times"),
        ("A1", value("None"), "has no value"),
        ("A1", instead("if others:\n    ..."), "m: others: nothing in hold is called so"),
        ("A2", removed(), "marks no statement"),
        ("A3", never(), "has no condition"),
        ("A7", removed(), r"marks 2 places, not one: holder.py:14, holder.py:15"),
        ("A8", removed(), "no comment of the package says # rule A8/m"),
        ("A9", removed(), "no comment of the package says # rule A9/m"),
    ],
)
def test_a_stale_mutant_says_so(holder: Path, rule: str, change: Change, why: str) -> None:
    """Instead of testing the code as it is."""
    with pytest.raises(StaleMutant, match=why):
        changed(holder, rule, change)


def test_a_mutant_is_in_force_while_it_is_applied() -> None:
    """Callers that imported the function by name run it too; afterwards all is as before, even after an error."""
    from strandline.controller.machine.isr import check_leader as by_name

    before = by_name.__code__

    def fail() -> None:
        with applied(MUTANTS["anybody-alters-the-isr"]):
            assert by_name.__code__ is not before
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert by_name.__code__ is before
