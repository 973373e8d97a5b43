"""`strandline sim`: seeds of the simulator, in parallel, with everything that a failure needs to be replayed."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from strandline.chaos.mutants import MUTANTS

if TYPE_CHECKING:
    from strandline.chaos.runner import Outcome, Run

SCENARIOS = ("cluster", "quorum")

_TIMELINE_LINES = 60


def make_run(scenario: str, changes: Mapping[str, Any], trace_file: str | None, seed: int) -> Run:
    """One seed of a scenario, with options changed. Raises ValueError for an option that does not exist."""
    from strandline.chaos.options import override

    run: Any
    if scenario == "quorum":
        from strandline.chaos.quorum_scenario import QuorumOptions, QuorumRun

        run = QuorumRun(seed, override(QuorumOptions.draw(seed), changes))
    else:
        from strandline.chaos.scenario import ScenarioOptions, ScenarioRun

        run = ScenarioRun(seed, override(ScenarioOptions.draw(seed), changes))
    if trace_file is not None:
        # By lines: the run's process ends without closing anything.
        sink = open(trace_file, "w", buffering=1)  # noqa: SIM115
        run.world.loop.trace_sink = lambda line: print(line, file=sink)
    return run  # type: ignore[no-any-return]


@click.command("sim")
@click.option(
    "--seeds", type=click.IntRange(1), default=None, help="How many seeds to run (default 20; with --seed 1)."
)
@click.option("--seed", type=int, default=None, help="The first seed, or the one to replay.")
@click.option("--minutes", type=float, default=None, help="Run ever new seeds for so long instead of a fixed number.")
@click.option("--scenario", type=click.Choice(SCENARIOS), default="cluster", help="What to simulate.")
@click.option("--jobs", type=click.IntRange(1), default=2, help="Seeds at a time, each in a process of its own.")
@click.option("--options", "options_text", default="{}", help="JSON: changes to what the seed draws.")
@click.option(
    "--break",
    "break_name",
    type=click.Choice(tuple(MUTANTS)),
    metavar="MUTANT",
    help="Take a rule out on purpose (see `strandline mutants --list`): some seed must fail.",
)
@click.option("--timeline", is_flag=True, help="Show faults and log lines of every seed, not only of failed ones.")
@click.option("--trace-file", type=click.Path(dir_okay=False), help="Write every event of a single seed to a file.")
@click.option("--keep-going", is_flag=True, help="Go on after a failure.")
@click.option("--output", type=click.Choice(("table", "json")), default="table", help="json: one object a seed.")
def sim(
    *,
    seeds: int | None,
    seed: int | None,
    minutes: float | None,
    scenario: str,
    jobs: int,
    options_text: str,
    break_name: str | None,
    timeline: bool,
    trace_file: str | None,
    keep_going: bool,
    output: str,
) -> None:
    """Run a cluster of the production code in a simulated world and check that no promise is broken.

    Time, network, disks and crashes follow from a seed: the same seed is the same run, on every machine. What is
    checked, and how a failure is replayed, stands in docs/testing.md.

    \b
    strandline sim --seeds 200
    strandline sim --seed 37 --timeline
    strandline sim --seeds 60 --break isr-instead-of-maximal
    strandline sim --seed 5 --options '{"duration_ms": 60000, "faults": {"kinds": ["kill"]}}'
    """
    from strandline.chaos.runner import run_seeds

    changes = _parse_options(options_text)
    first = seed if seed is not None else 0
    number = seeds if seeds is not None else (1 if seed is not None else 20)
    if trace_file is not None and (number != 1 or minutes is not None):
        raise click.UsageError("--trace-file is for one seed: name it with --seed")
    make = partial(make_run, scenario, changes, trace_file)
    try:
        make_run(scenario, changes, None, first)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--options") from None
    which = count(first) if minutes is not None else range(first, first + number)
    chosen = _until(which, minutes)
    report = _Report(output, timeline, partial(_replay_command, scenario, options_text, break_name))
    total = None if minutes is not None else number
    outcomes = run_seeds(chosen, make, jobs=jobs, break_name=break_name)
    for outcome in report.progress(outcomes, total):
        report.tell(outcome)
        if not outcome.ok and not keep_going:
            break
    outcomes.close()
    report.close()
    if report.failed:
        sys.exit(1)


def _parse_options(text: str) -> dict[str, Any]:
    try:
        changes = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--options") from None
    if not isinstance(changes, dict):
        raise click.BadParameter("a JSON object is wanted", param_hint="--options")
    return changes


def _until(seeds: Iterable[int], minutes: float | None) -> Iterator[int]:
    deadline = None if minutes is None else time.monotonic() + minutes * 60
    for seed in seeds:
        if deadline is not None and time.monotonic() > deadline:
            return
        yield seed


def _replay_command(scenario: str, options_text: str, break_name: str | None, seed: int) -> str:
    words = ["strandline", "sim", "--seed", str(seed), "--timeline"]
    if scenario != SCENARIOS[0]:
        words += ["--scenario", scenario]
    if options_text != "{}":
        words += ["--options", options_text]
    if break_name is not None:
        words += ["--break", break_name]
    return shlex.join(words)


class _Report:
    """What is shown: a progress bar on standard error, failures in full, a summary."""

    def __init__(self, output: str, timeline: bool, replay: Callable[[int], str]) -> None:
        self.failed: list[int] = []
        self._json = output == "json"
        self._timeline = timeline
        self._replay = replay
        self._seeds = 0
        self._cpu_s = 0.0
        self._sums: dict[str, float] = {}

    def progress(self, outcomes: Iterator[Outcome], total: int | None) -> Iterator[Outcome]:
        """Pass the outcomes on, with a bar where somebody watches."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("seeds", total=total)
            for outcome in outcomes:
                bar.advance(task)
                yield outcome

    def tell(self, outcome: Outcome) -> None:
        """One seed ended."""
        self._seeds += 1
        self._cpu_s += outcome.cpu_s
        if not outcome.ok:
            self.failed.append(outcome.seed)
        for name, value in outcome.figures.items():
            if isinstance(value, (int, float)):
                self._sums[name] = self._sums.get(name, 0) + value
        if self._json:
            told = asdict(outcome) | ({} if outcome.ok else {"replay": self._replay(outcome.seed)})
            if outcome.ok and not self._timeline:
                del told["events"], told["options"]
            click.echo(json.dumps(told, default=str))
        elif not outcome.ok or self._timeline:
            self._tell_in_full(outcome)

    def _tell_in_full(self, outcome: Outcome) -> None:
        click.secho(f"seed {outcome.seed}: {'held' if outcome.ok else outcome.error}", bold=True)
        lines = outcome.events if self._timeline else outcome.events[-_TIMELINE_LINES:]
        if len(lines) < len(outcome.events):
            click.echo(f"  ... {len(outcome.events) - len(lines)} earlier events: see --timeline")
        for at_ms, what in lines:
            click.echo(f"  {at_ms:>8} ms  {what}")
        if not outcome.ok:
            click.secho(f"  {outcome.message}", fg="red")
            if outcome.details:
                click.echo(outcome.details)
            click.echo(f"  options: {json.dumps(outcome.options, default=str)}")
            click.echo(f"  replay:  {self._replay(outcome.seed)}")
        else:
            click.echo(f"  {json.dumps(outcome.figures, default=str)}")

    def close(self) -> None:
        """The summary."""
        if self._json:
            return
        held = self._seeds - len(self.failed)
        figures = ", ".join(
            f"{self._sums[name]:,.0f} {words}"
            for name, words in (
                ("events", "events"),
                ("acked", "acks"),
                ("polled", "records read"),
                ("faults", "faults"),
            )
            if name in self._sums
        )
        click.echo(f"{held} of {self._seeds} seeds held; {figures}; {self._cpu_s:.0f} s of CPU")
        if self.failed:
            click.secho("failed: " + " ".join(str(seed) for seed in self.failed), fg="red")
