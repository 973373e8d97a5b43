"""`strandline sim`: seeds of the simulator, in parallel, with everything that a failure needs to be replayed."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from strandline.cli.screen import echo, say
from strandline.proto.json_text import read_json

if TYPE_CHECKING:
    from strandline.chaos.explain.commands import Case
    from strandline.chaos.runner import Outcome, Run

SCENARIOS = ("cluster", "tiered", "transactions", "quorum")
PROGRAM = ("strandline", "sim")

_TIMELINE_LINES = 60
_EXPLAINED_MAX = 3


def make_run(scenario: str, changes: Mapping[str, Any], trace_file: str | None, seed: int) -> Run:
    """One seed of a scenario, with options changed. Raises ValueError for an option or a fault that does not exist."""
    from strandline.chaos.nemesis.kinds import FAULTS
    from strandline.chaos.options import override

    faults = changes.get("faults")
    kinds = faults.get("kinds", ()) if isinstance(faults, Mapping) else ()
    unknown = [kind for kind in kinds if kind not in FAULTS]
    if unknown:
        raise ValueError(f"there is no fault {', '.join(map(str, unknown))}; known here: {', '.join(sorted(FAULTS))}")
    run: Any
    if scenario == "quorum":
        from strandline.chaos.quorum_scenario import QuorumOptions, QuorumRun

        run = QuorumRun(seed, override(QuorumOptions.draw(seed), changes))
    else:
        from strandline.chaos.scenario import ScenarioRun
        from strandline.chaos.scenario_options import ScenarioOptions

        drawn = ScenarioOptions.draw(seed, scenario=scenario)
        run = ScenarioRun(seed, override(drawn, changes))
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
@click.option("--timeline", is_flag=True, help="Show faults and log lines of every seed, not only of failed ones.")
@click.option("--trace-file", type=click.Path(dir_okay=False), help="Write every event of a single seed to a file.")
@click.option("--until", "until_ms", type=float, metavar="MS", help="Stop there, in virtual time, and show all nodes.")
@click.option("--shrink", is_flag=True, help="Find fewer faults and a shorter run that still fail; with --seed.")
@click.option("--shrink-runs", type=click.IntRange(1), default=120, help="How many runs shrinking may take.")
@click.option("--explain/--no-explain", default=True, help="Run a failed seed once more, watched, and tell its story.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write the story of a single seed as a page.")
@click.option("--history", type=click.Path(dir_okay=False), help="Write what clients saw, for `strandline check`.")
@click.option("--marks", is_flag=True, help="Tell which rare branches the seeds reached, and what the faults did.")
@click.option("--keep-going", is_flag=True, help="Go on after a failure.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="json: one object a seed.")
@click.pass_obj
def sim(
    program: tuple[str, ...] | None,
    *,
    seeds: int | None,
    seed: int | None,
    minutes: float | None,
    scenario: str,
    jobs: int,
    options_text: str,
    timeline: bool,
    trace_file: str | None,
    until_ms: float | None,
    shrink: bool,
    shrink_runs: int,
    explain: bool,
    html: str | None,
    history: str | None,
    marks: bool,
    keep_going: bool,
    output: str,
) -> None:
    """Run a cluster of the production code in a simulated world and check that no promise is broken.

    Time, network, disks and crashes follow from a seed: the same seed is the same run, on every machine. What is
    checked, and how a failure is replayed, stands in docs/simulator.md.

    \b
    strandline sim --seeds 200
    strandline sim --seed 37 --timeline
    strandline sim --seed 37 --shrink --html failure.html
    strandline sim --seed 37 --until 4500
    strandline sim --seed 5 --options '{"duration_ms": 60000, "faults": {"kinds": ["kill"]}}'
    """
    from strandline.chaos.explain import commands
    from strandline.chaos.explain.commands import Case
    from strandline.chaos.runner import run_seeds

    changes = _parse_options(options_text)
    first = seed if seed is not None else 0
    number = seeds if seeds is not None else (1 if seed is not None else 20)
    if trace_file is not None and (number != 1 or minutes is not None):
        raise click.UsageError("--trace-file is for one seed: name it with --seed")
    one = seed is not None and number == 1 and minutes is None
    if not one and (until_ms is not None or shrink or html is not None or history is not None):
        raise click.UsageError("--until, --shrink, --html and --history are for one seed: name it with --seed")
    make = partial(make_run, scenario, changes, trace_file)
    try:
        make_run(scenario, changes, None, first)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--options") from None
    case = Case(scenario, changes, make_run, program or PROGRAM)
    if until_ms is not None:
        commands.show_state(case, first, until_ms, as_json=output == "json")
        return
    which = count(first) if minutes is not None else range(first, first + number)
    chosen = _until(which, minutes)
    report = _Report(output, timeline, case)
    total = None if minutes is not None else number
    outcomes = run_seeds(chosen, make, jobs=jobs)
    try:
        with _ended_by_sigterm():
            for outcome in report.progress(outcomes, total):
                report.tell(outcome)
                if one and shrink and not outcome.ok:
                    report.shrunk = commands.shrink(
                        case, outcome, jobs=jobs, runs_max=shrink_runs, html=html, quiet=output == "json"
                    )
                elif html is not None or history is not None or (explain and not outcome.ok and report.may_explain()):
                    quiet = outcome.ok or output == "json"
                    commands.explain(case, outcome.seed, html=html, history=history, quiet=quiet)
                if not outcome.ok and not keep_going:
                    break
    finally:
        outcomes.close()
        report.close()
        if marks:
            report.show_marks()
    if report.failed:
        sys.exit(1)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that the results found until then are printed."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parse_options(text: str) -> dict[str, Any]:
    try:
        changes = read_json(text)
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


class _Report:
    """Output of a run: a progress bar on standard error, failures in full, a summary."""

    def __init__(self, output: str, timeline: bool, case: Case) -> None:
        self.failed: list[int] = []
        self.shrunk = ""
        """The command that runs what shrinking left."""
        self._json = output == "json"
        self._timeline = timeline
        self._case = case
        self._seeds = 0
        self._cpu_s = 0.0
        self._sums: dict[str, float] = {}
        self._figures: list[dict[str, Any]] = []

    def progress(self, outcomes: Iterator[Outcome], total: int | None) -> Iterator[Outcome]:
        """Pass the outcomes on, and show a progress bar on a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("seeds", total=total)
            for outcome in outcomes:
                bar.advance(task)
                yield outcome

    def may_explain(self) -> bool:
        """True while few failures were explained: only the first ones of a run are."""
        return not self._json and len(self.failed) <= _EXPLAINED_MAX

    def _replay(self, seed: int) -> str:
        return self._case.command(seed, "--timeline")

    def tell(self, outcome: Outcome) -> None:
        """Report that one seed ended."""
        self._seeds += 1
        self._cpu_s += outcome.cpu_s
        if not outcome.ok:
            self.failed.append(outcome.seed)
        self._figures.append(outcome.figures)
        for name, value in outcome.figures.items():
            if isinstance(value, (int, float)):
                self._sums[name] = self._sums.get(name, 0) + value
        if self._json:
            entry = asdict(outcome) | ({} if outcome.ok else {"replay": self._replay(outcome.seed)})
            if outcome.ok and not self._timeline:
                del entry["events"], entry["options"]
            echo(json.dumps(entry, default=str))
        elif not outcome.ok or self._timeline:
            self._tell_in_full(outcome)

    def _tell_in_full(self, outcome: Outcome) -> None:
        say(f"seed {outcome.seed}: {'held' if outcome.ok else outcome.error}", bold=True)
        lines = outcome.events if self._timeline else outcome.events[-_TIMELINE_LINES:]
        if len(lines) < len(outcome.events):
            echo(f"  ... {len(outcome.events) - len(lines)} earlier events: see --timeline")
        for at_ms, what in lines:
            echo(f"  {at_ms:>8} ms  {what}")
        if not outcome.ok:
            say(f"  {outcome.message}", fg="red")
            if outcome.details:
                echo(outcome.details)
            echo(f"  options: {json.dumps(outcome.options, default=str)}")
            echo(f"  replay:  {self._replay(outcome.seed)}")
            echo(f"  shrink:  {self._case.command(outcome.seed, '--shrink', '--html', f'seed{outcome.seed}.html')}")
        else:
            echo(f"  {json.dumps(outcome.figures, default=str)}")

    def show_marks(self) -> None:
        """Print the tables of coverage marks, of faults, and of what those did."""
        from strandline.chaos.mark_table import tables

        counted = tables()
        for figures in self._figures:
            for key, table in counted.items():
                table.add(figures.get(key, {}))
        if self._json:
            echo(json.dumps({key: table.rows() for key, table in counted.items()}))
        else:
            for table in counted.values():
                echo("\n".join([*table.lines(), ""]))

    def close(self) -> None:
        """Print the summary."""
        if self._json:
            if self.shrunk:
                echo(json.dumps({"shrunk": self.shrunk}))
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
        echo(f"{held} of {self._seeds} seeds held; {figures}; {self._cpu_s:.0f} s of CPU")
        if self.failed:
            say("failed: " + " ".join(str(seed) for seed in self.failed), fg="red")
