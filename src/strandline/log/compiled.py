"""The compiled parts of an installation, and what is said where they are not there: their twins in Python do the same
work more slowly (docs/benchmarks.md, "Without the compiled parts")."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

OF_CLIENTS = ("strandline.log._records", "strandline.client._open_batches")
PARTS = (*OF_CLIENTS, "strandline.log._offsets", "strandline.log._sync")
"""Names of the compiled modules: some lie in packages above this one."""

CONSEQUENCE = (
    "Python does what is written in C: small records cost about twice the CPU, and are read at a third of the rate"
)
REMEDY = (
    "install a wheel that has them; or a C compiler and Python's headers (Debian: apt-get install gcc python3-dev), "
    "and then Strandline again (pip install --force-reinstall --no-deps)"
)


def missing(parts: Iterable[str] = PARTS) -> dict[str, str]:
    """Each part that this installation lacks, and why."""
    lacking: dict[str, str] = {}
    for name in parts:
        try:
            import_module(name)
        except ModuleNotFoundError:
            lacking[name] = "there was no compiler at the installation"
        except ImportError as error:  # of another Python, or of another C library
            lacking[name] = str(error)
    return lacking
