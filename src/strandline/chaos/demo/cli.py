"""`strandline demo`: run the main job and show what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from strandline.cli.common import output_option, print_json
from strandline.cli.outcome import outcome_document, show_outcome
from strandline.cli.screen import say


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
@output_option
def demo(limit: int | None, spark: bool, output: str) -> None:
    """Send the 336,776 flights of 2013 through a cluster whose busiest leader is killed, and check what is left.

    Starts three nodes of its own on free ports. Exits 0 only if every acknowledged record was read back once, in
    order and unchanged, the killed node caught up, the replicas are byte-identical, and Spark counts the same. Without
    PySpark or Java that last one is not judged, and says what to install; root on Debian gets Java by apt-get.
    """
    from strandline.chaos.demo.job import run_job
    from strandline.spark.pipelines.dataset import DatasetMissing

    try:
        with RichProgress() as progress:
            outcome = run_job(progress, limit=limit, spark=spark)
    except DatasetMissing as missing:
        raise click.ClickException(str(missing)) from missing
    if output == "json":
        print_json(outcome_document(outcome))
    else:
        show_outcome(outcome)
        say("Nothing acknowledged was lost." if outcome.held else "The job did not hold.", bold=True)
    if not outcome.held:
        raise SystemExit(1)
