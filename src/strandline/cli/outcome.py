"""Output of the outcome of a job, for `strandline demo` and `strandline spark run`."""

from __future__ import annotations

from typing import Any

from strandline.proto.printable import printable_lines
from strandline.spark.pipelines.outcome import Outcome

WORDS = {True: "[blue]held[/]", False: "[bold yellow]FAILED[/]", None: "not judged"}
"""Verdict -> its text. The text alone is sufficient where colours are not visible."""


def show_outcome(outcome: Outcome) -> None:
    """Print two tables: the figures and the checks. Text in square brackets (`.[spark]`) is not taken for a style."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(title="What was measured", title_justify="left", show_header=False)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in outcome.figures.items():
        table.add_row(name, Text(printable_lines(value)))
    console.print(table)
    table = Table(title="What was checked", title_justify="left", show_header=False)
    for style in ("bold", None, None):
        table.add_column(style=style, overflow="fold")
    for name, (verdict, says) in outcome.checks.items():
        table.add_row(name, WORDS[verdict], Text(printable_lines(says)))
    console.print(table)


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Outcome as a JSON document."""
    verdicts = {name: {"held": verdict, "says": says} for name, (verdict, says) in outcome.checks.items()}
    return {"held": outcome.held, "figures": dict(outcome.figures), "checks": verdicts}
