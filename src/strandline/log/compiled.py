"""List of the compiled modules, and a check for those that an installation lacks. Their Python versions do the same
work more slowly (docs/benchmarks.md, "Without the compiled parts")."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

OF_CLIENTS = ("strandline.log._records", "strandline.client._open_batches")
PARTS = (*OF_CLIENTS, "strandline.log._offsets", "strandline.log._sync")
"""Names of all compiled modules. Some belong to packages above this one in the layering."""

CONSEQUENCE = (
    "Python does what is written in C: small records cost about twice the CPU, and are read at a third of the rate"
)
REMEDY = (
    "install a wheel that has them; or a C compiler and Python's headers (Debian: apt-get install gcc python3-dev), "
    "and then Strandline again (pip install --force-reinstall --no-deps)"
)


def missing(parts: Iterable[str] = PARTS) -> dict[str, str]:
    """Return the reason for each compiled module that this installation lacks, by name."""
    lacking: dict[str, str] = {}
    for name in parts:
        try:
            import_module(name)
        except ModuleNotFoundError:
            lacking[name] = "there was no compiler at the installation"
        except ImportError as error:  # also if it was compiled for another Python or C library
            lacking[name] = str(error)
    return lacking
