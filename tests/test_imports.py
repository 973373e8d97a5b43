"""No module imports itself by way of others, imports for type checking included. import-linter holds the layers."""

from __future__ import annotations

import importlib
import subprocess
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


def test_a_node_loads_nothing_that_it_does_not_need() -> None:
    """Each of a machine's nodes would pay for what only the command line needs, or only who compresses or has patterns.
    structlog must not bring rich either; others can import it after."""
    code = (
        "import sys\n"
        "LIBRARIES = 'cramjam', 'zstandard', 're2', 'difflib', 'urllib.request'\n"
        "import strandline.cluster.node.run_node, strandline.cluster.node.node\n"
        "print(sorted({'click', 'rich', 'pygments', 'hypothesis', *LIBRARIES} & set(sys.modules)))\n"
        "import rich.table"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"]
