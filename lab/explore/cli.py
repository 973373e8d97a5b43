"""`python -m lab.explore`: an exhaustive search over the production cores, within bounds."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.explore.bounds import PRESETS, PartitionBounds, QuorumBounds, changed, preset_of
from lab.explore.models import make_model
from lab.explore.search import Limits
from lab.mutants import MUTANTS, without

if TYPE_CHECKING:
    from lab.explore.model import Model
    from lab.explore.search import Found
    from lab.explore.trace import Trace


@click.group("explore")
def explore() -> None:
    """Meet every state of the production cores within bounds, and check that none breaks an invariant.

    Seeds of the simulator sample schedules; here every order of messages, syncs, crashes and timers is tried, the
    shortest first. What is explored, and what each bound means, stands in docs/explorer.md.
    """


def _bounds_options(kind: type) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for bound in reversed(fields(kind)):
            name = f"--{bound.name.replace('_', '-')}"
            reach = click.IntRange(bound.metadata["least"], bound.metadata["most"])
            command = click.option(name, bound.name, type=reach, default=None, help=bound.metadata["help"])(command)
        return command

    return decorate


def _presets(model: str) -> Callable[[Any], Any]:
    words = "; ".join(f"{preset.name}: {preset.purpose}" for preset in PRESETS[model])
    names = click.Choice([preset.name for preset in PRESETS[model]])
    return click.option("--preset", type=names, default="usual", help=f"Bounds with a name. {words}.")


def _search_options(command: Any) -> Any:
    options = (
        click.option(
            "--after", metavar="STEPS", help="Begin after these steps, with ; between them; they cost nothing."
        ),
        click.option("--states", type=click.IntRange(1), default=5_000_000, help="End after so many states."),
        click.option("--depth", type=click.IntRange(1), default=1000, help="End at that depth."),
        click.option("--minutes", type=click.FloatRange(0), default=None, help="End after that time."),
        click.option(
            "--memory-mb", type=click.IntRange(1), default=None, help="End at so much memory, of all processes."
        ),
        click.option("--jobs", type=click.IntRange(1), default=2, help="Processes, each with states of its own."),
        click.option(
            "--break",
            "break_name",
            type=click.Choice(tuple(MUTANTS)),
            metavar="MUTANT",
            help="Take a rule out on purpose (see `python -m lab.mutants --list`): some step must break an invariant.",
        ),
        click.option(
            "--replay", metavar="STEPS", help="Do not search: take these steps, with ; between them, or those of @FILE."
        ),
        click.option("--html", type=click.Path(dir_okay=False), help="Write the story of the path as a page."),
        click.option("--scenario", type=click.Path(dir_okay=False), help="Write the path as a golden scenario."),
        click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="json: one object."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@explore.command("quorum")
@_presets("quorum")
@_bounds_options(QuorumBounds)
@_search_options
def quorum(**options: Any) -> None:
    """Three voters of the metadata quorum: elections, appends, fetches, crashes, snapshots.

    Exit 1 if an invariant was broken: the path to it is told, and how to walk it again.

    \b
    python -m lab.explore quorum
    python -m lab.explore quorum --epochs 2 --crashes 0 --network 1
    python -m lab.explore quorum --preset small --break two-votes-an-epoch --html path.html
    """
    _run("quorum", **options)


@explore.command("partition")
@_presets("partition")
@_bounds_options(PartitionBounds)
@_search_options
def partition(**options: Any) -> None:
    """Three brokers with one partition, and its controller: replication, ISR, elections, fencing, registration.

    Exit 1 if an invariant was broken: the path to it is told, and how to walk it again.

    \b
    python -m lab.explore partition --preset small
    python -m lab.explore partition --preset all-crash --break member-in-doubt-does-not-wait
    python -m lab.explore partition --crashes 2 --delays 1 --minutes 10 --memory-mb 4000
    python -m lab.explore partition --network 1 --fences 1 --break isr-instead-of-maximal
    """
    _run("partition", **options)


@dataclass(frozen=True)
class Case:
    """Model and bounds to explore, as the command line names them."""

    model: str
    bounds: Any
    after: str = ""
    break_name: str | None = None

    def make(self) -> Model:
        """The model. Raises BadParameter where it cannot begin after those steps."""
        model = make_model(self.model, self.bounds, steps_of(self.after))
        try:
            model.starts()
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--after") from None
        return model

    def command(self, steps: list[str]) -> str:
        """The command that walks a path again."""
        words = ["python", "-m", "lab.explore", self.model]
        for name, value in asdict(self.bounds).items():
            if value != asdict(preset_of(self.model, "usual").bounds)[name]:
                words += [f"--{name.replace('_', '-')}", str(value)]
        if self.after:
            words += ["--after", self.after]
        if self.break_name is not None:
            words += ["--break", self.break_name]
        return shlex.join([*words, "--replay", "; ".join(steps)])


def steps_of(text: str) -> list[str]:
    """The names of steps that are given in one string."""
    return [name.strip() for name in text.split(";") if name.strip()]


def _run(
    model_name: str,
    *,
    preset: str,
    after: str | None,
    states: int,
    depth: int,
    minutes: float | None,
    memory_mb: int | None,
    jobs: int,
    break_name: str | None,
    replay: str | None,
    html: str | None,
    scenario: str | None,
    output: str,
    **bounds: int | None,
) -> None:
    chosen = preset_of(model_name, preset)
    try:
        wanted = changed(chosen.bounds, {name: value for name, value in bounds.items() if value is not None})
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    case = Case(model_name, wanted, chosen.after if after is None else after, break_name)
    with without(break_name):
        model = case.make()
        if replay is not None:
            trace = _walk(model, replay)
            _tell_trace(case, model, trace, html=html, scenario=scenario, output=output)
            sys.exit(1 if trace.violation is not None else 0)
        seconds = float("inf") if minutes is None else minutes * 60
        memory = float("inf") if memory_mb is None else memory_mb
        found = _search(model, Limits(states, depth, seconds, memory), jobs)
        path = None
        if found.broken is not None:
            from lab.explore.trace import retrace

            path = retrace(model, found.broken)
        _tell_found(case, found, path, output)
        if path is not None:
            shown = output if output == "table" else ""
            _tell_trace(case, model, path, html=html, scenario=scenario, output=shown)
            sys.exit(1)


def _search(model: Model, limits: Limits, jobs: int) -> Found:
    from lab.explore.workers import explore as run

    with _progress() as on_level:
        return run(model, limits, jobs=jobs, on_level=on_level)


@contextmanager
def _progress() -> Iterator[Any]:
    """A line that moves where somebody watches: depth, states, steps, and how fast."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("the first states", total=None)

        def on_level(depth: int, ahead: int, states: int, steps: int) -> None:
            rate = states / (bar.tasks[task].elapsed or 1.0)
            words = f"depth {depth}: {ahead:,} states; {states:,} in all, {steps:,} steps, {rate:,.0f} states/s"
            bar.update(task, description=words)

        yield on_level


def _tell_found(case: Case, found: Found, path: Trace | None, output: str) -> None:
    if output == "json":
        from lab.explore.story import facts

        answer = {
            **_facts_of(case),
            "complete": found.complete,
            "stopped": found.stopped,
            "depth": found.depth,
            "states": found.states,
            "steps": found.steps,
            "seconds": round(found.seconds, 2),
            "memory_mb": round(found.memory_mb),
            "levels": [asdict(level) for level in found.levels],
            "path": None if path is None else facts(path),
            "replay": None if path is None else case.command(path.names),
        }
        click.echo(json.dumps(answer))
        return
    click.echo(f"{'depth':>5}  {'states':>10}  {'in all':>12}  {'steps':>12}  {'s':>8}")
    for level in found.levels:
        figures = f"{level.new:>10,}  {level.states:>12,}  {level.steps:>12,}  {level.seconds:>8.1f}"
        click.echo(f"{level.depth:>5}  {figures}")
    rate = found.states / max(found.seconds, 0.001)
    figures = f"{found.states:,} states, {found.steps:,} steps in {found.seconds:.1f} s ({rate:,.0f} states/s)"
    click.echo(f"{figures}, {found.memory_mb:,.0f} MB")
    if found.broken is None and found.complete:
        click.secho(f"every state within the bounds holds; the furthest lie {found.depth - 1} steps deep", fg="green")
    elif found.broken is None:
        click.echo(f"stopped by {found.stopped}: every state less than {found.depth} steps deep holds")


def _facts_of(case: Case) -> dict[str, Any]:
    return {"model": case.model, "bounds": asdict(case.bounds), "after": case.after, "break": case.break_name}


def _walk(model: Model, replay: str) -> Trace:
    from lab.explore.trace import NoSuchStep, walk

    names = steps_of(replay)
    if replay.startswith("@"):
        lines = Path(replay[1:]).read_text(encoding="utf-8").splitlines()
        steps = [line[2:] for line in lines if line.startswith("> ")]
        names = [step for step in steps[1:] if not step.startswith(("expect ", "after "))]
    try:
        return walk(model, names)
    except NoSuchStep as error:
        raise click.ClickException(str(error)) from None


def _tell_trace(case: Case, model: Model, path: Trace, *, html: str | None, scenario: str | None, output: str) -> None:
    from lab.explore.story import facts, golden, story_of
    from strandline.chaos.explain import page, text

    command = case.command(path.names)
    story = story_of(model, path, [command])
    if output == "json":
        click.echo(json.dumps({**_facts_of(case), **facts(path)}))
    elif output == "table":
        click.echo("")
        for line in text.render(story, lines_max=200):
            click.echo(f"  {line}".rstrip())
        click.echo(f"  replay: {command}")
    if html is not None:
        Path(html).write_text(page.render(story), encoding="utf-8")
        click.echo(f"  written: {html}", err=True)
    if scenario is not None:
        Path(scenario).write_text(golden(model, path, case.after), encoding="utf-8")
        click.echo(f"  written: {scenario}", err=True)
