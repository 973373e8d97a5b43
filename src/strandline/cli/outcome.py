"""What a job that checks itself shows at its end: `strandline demo`, `strandline spark run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Checks = Mapping[str, tuple[bool | None, str]]
"""Name -> whether it held (None: it could not be judged), and a sentence with the figures."""

WORDS = {True: "[blue]held[/]", False: "[bold yellow]FAILED[/]", None: "not judged"}
"""Words carry the verdict, colour only repeats it."""


def show_outcome(figures: Mapping[str, str], checks: Checks) -> None:
    """Two tables: what was measured, what was checked. Sentences are shown as they are: `.[spark]` is no style."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(title="What was measured", title_justify="left", show_header=False)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in figures.items():
        table.add_row(name, Text(value))
    console.print(table)
    table = Table(title="What was checked", title_justify="left", show_header=False)
    for style in ("bold", None, None):
        table.add_column(style=style, overflow="fold")
    for name, (verdict, says) in checks.items():
        table.add_row(name, WORDS[verdict], Text(says))
    console.print(table)


def outcome_document(figures: Mapping[str, str], checks: Checks, *, held: bool) -> dict[str, Any]:
    """The same for programs."""
    verdicts = {name: {"held": verdict, "says": says} for name, (verdict, says) in checks.items()}
    return {"held": held, "figures": dict(figures), "checks": verdicts}
