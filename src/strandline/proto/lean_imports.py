"""Imports that leave out what a library would use if it is installed, and a node has no use for."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def import_without(name: str, *unwanted: str) -> ModuleType:
    """Import a module as if `unwanted` were not installed; what is imported already stays as it is."""
    absent = [one for one in unwanted if one not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: "not importable", see the import system
    try:
        return importlib.import_module(name)
    finally:
        for one in absent:
            del sys.modules[one]
