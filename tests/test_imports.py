"""No module imports itself by way of others, imports for type checking included. import-linter holds the layers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
measure: Any = importlib.import_module("measure")


def test_no_import_goes_in_a_circle() -> None:
    found = [sorted(circle) for circle in measure.circles(measure.imports(["strandline"]))]
    assert not found, (
        "one of them must not know the other: name what it needs of it (a Protocol, a callback, a third file)"
    )
