"""`strandline demo`: run the main job and show what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click


class RichProgress:
    """Progress bars on a terminal, plain lines elsewhere; on standard error, so that the result can be piped."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._current: Any = None

    def __enter__(self) -> RichProgress:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._finish()
        self._progress.stop()

    def step(self, title: str, total: int | None = None) -> Callable[[int], None]:
        """A new step; the one before is done."""
        self._finish()
        if not self._console.is_terminal:
            self._console.print(f"... {title}")
        task = self._current = self._progress.add_task(title, total=total)
        return lambda done: self._progress.update(task, completed=done)

    def _finish(self) -> None:
        if self._current is not None:
            task = self._progress.tasks[self._current]
            total = task.total if task.total is not None else 1
            self._progress.update(self._current, total=total, completed=total)


@click.command()
@click.option("--limit", type=click.IntRange(min=100), help="Send the first rows only, for a quick try.")
@click.option("--spark/--no-spark", default=True, help="Whether Spark counts the rows too.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def demo(limit: int | None, spark: bool, output: str) -> None:
    """Send the 336,776 flights of 2013 through a cluster whose busiest leader is killed, and check what is left.

    Starts three nodes of its own on free ports. Exits 0 only if every acknowledged record was read back once, in
    order and unchanged, the killed node caught up, the replicas are byte-identical, and Spark counts the same.
    """
    from strandline.chaos.demo.dataset import DatasetMissing
    from strandline.chaos.demo.job import run_job

    try:
        with RichProgress() as progress:
            outcome = run_job(progress, limit=limit, spark=spark)
    except DatasetMissing as missing:
        raise click.ClickException(str(missing)) from missing
    if output == "json":
        checks = {name: {"held": held, "says": says} for name, (held, says) in outcome.checks.items()}
        click.echo(json.dumps({"held": outcome.held, "figures": outcome.figures, "checks": checks}, indent=2))
    else:
        show(outcome.figures, outcome.checks, outcome.held)
    if not outcome.held:
        raise SystemExit(1)


def show(figures: dict[str, str], checks: dict[str, tuple[bool | None, str]], held: bool) -> None:
    """The two tables at the end. Words carry the verdict, colour only repeats it."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="What was measured", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in figures.items():
        table.add_row(name, value)
    console.print(table)
    words = {True: "[blue]held[/]", False: "[bold yellow]FAILED[/]", None: "not judged"}
    table = Table(title="What was checked", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for name, (verdict, says) in checks.items():
        table.add_row(name, words[verdict], says)
    console.print(table)
    console.print("Nothing acknowledged was lost." if held else "The job did not hold.", style="bold")
