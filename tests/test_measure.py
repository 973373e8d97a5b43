"""What docs/measure.py counts: imports that climb, circles, rooms."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
measure: Any = importlib.import_module("measure")

FILES_THAT_NAME_ONE = {"setting": 3, "operation of the controller": 10, "API": 9, "metadata record": 10}
"""The median of each kind may be so many files of src. Lower it when you can."""


def test_circles_are_found_whole() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert [sorted(circle) for circle in measure.circles(graph)] == [["a", "b", "c"], ["d", "e"]]


def test_an_import_climbs_up_and_sideways_but_not_down() -> None:
    graph = {
        "strandline.log.segment": {"strandline.replica.manager", "strandline.proto.ids"},
        "strandline.replica.manager": {"strandline.controller.api", "strandline.log.segment"},
        "strandline.controller.raft.core": {"strandline.controller.raft.ready"},
    }
    assert measure.climbing(graph) == [
        "strandline.log.segment -> strandline.replica.manager",
        "strandline.replica.manager -> strandline.controller.api",
    ]


def test_every_module_stands_in_a_room_with_a_floor() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src" / "strandline").rglob("*.py")
    ]
    homeless = [name for name in modules if measure.room_of(name) is None and name != "strandline.__init__"]
    assert not homeless
    assert {measure.room_of(name) for name in modules} - {None} <= set(measure.LEVELS)


def test_no_import_climbs() -> None:
    assert measure.climbing(measure.imports(["strandline"])) == []


def test_statements_are_counted_without_docstrings() -> None:
    tree = ast.parse('"""A module."""\nX = 1\n"""A constant."""\n\ndef f():\n    """Double."""\n    return 2 * X\n')
    assert measure.statements(tree) == 3


def test_a_module_with_one_importer() -> None:
    assert measure.single_importers({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"b"}


def test_files_that_name_a_thing_in_any_spelling() -> None:
    texts = {"one.py": "CREATE_TOPICS = 19", "two.py": "class CreateTopicsRequest:", "three.py": "topics.create()"}
    found = measure.named_in({"API": ["CreateTopics"]}, texts)
    assert found == {"API": {"CreateTopics": 2}}


def test_every_kind_has_names_with_more_than_one_word() -> None:
    names = measure.names_of_kinds()
    assert tuple(names) == measure.KINDS
    assert all(len(each) > 10 for each in names.values())


def test_one_more_of_a_kind_is_named_in_few_files() -> None:
    """What those take that there are; tests with a made-up one of each (docs/measure.py names them) show the least."""
    texts = {path.relative_to(ROOT / "src").as_posix(): path.read_text() for path in (ROOT / "src").rglob("*.py")}
    named = measure.named_in(measure.names_of_kinds(), texts)
    found = {kind: median(counts.values()) for kind, counts in named.items()}
    assert {kind: found[kind] for kind in found if found[kind] > FILES_THAT_NAME_ONE[kind]} == {}


def test_no_mutant_is_found_by_the_name_of_a_function() -> None:
    assert measure.anchored('Patch("replica.partition:Partition.append", "log.append(", "")') == 1
    assert not sum(measure.anchored(path.read_text()) for path in (ROOT / "lab").rglob("*.py"))
