"""The programs of docs/uses/recipes.md, as modules and as processes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = DOCS / "examples" / "recipes"


def load(name: str) -> ModuleType:
    """The program as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """The program as its users run it."""
    return subprocess.Popen([sys.executable, str(RECIPES / f"{name}.py"), *arguments], stderr=subprocess.PIPE)
