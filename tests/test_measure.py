"""What docs/measure.py counts: imports that climb, circles, rooms."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
measure: Any = importlib.import_module("measure")


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
