"""The programs of docs/uses/hub.md, as modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.acceptance.recipes import DOCS

HUB = DOCS / "examples" / "hub"


@contextmanager
def modules(*names: str) -> Iterator[SimpleNamespace]:
    """These modules for as long as they are needed; their names are too common to stay."""
    for library in ("tantivy", "pyarrow"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install '.[dev,spark]'")
    sys.path.insert(0, str(HUB))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(HUB))
        for path in HUB.glob("*.py"):
            sys.modules.pop(path.stem, None)
