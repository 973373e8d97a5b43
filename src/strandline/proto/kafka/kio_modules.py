"""kio's modules, imported when first used: one for each message and version (all of them cost 2 s and 39 MB)."""

from __future__ import annotations

import importlib
from functools import lru_cache
from types import ModuleType

from strandline.proto.lean_imports import import_without


def module(api: str, version: int, kind: str) -> ModuleType:
    """kio's module of one message: `module("list_offsets", 6, "request").ListOffsetsRequest`.

    Raises:
        ModuleNotFoundError: kio has no such version.
    """
    _keep_test_library_out()
    return importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")


@lru_cache(maxsize=1)
def _keep_test_library_out() -> None:
    """kio registers strategies with hypothesis where that is installed: 14 MB and 0.1 to 0.2 s that neither a node nor
    a client has a use for."""
    import_without("kio.static.primitive", "hypothesis", "hypothesis.strategies")
