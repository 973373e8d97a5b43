"""`strandline explore`: an exhaustive search over the production cores, within bounds."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import contextmanager
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strandline.chaos.explore.bounds import PRESETS, make_model
from strandline.chaos.mutants import MUTANTS, without

if TYPE_CHECKING:
    from strandline.chaos.explore.model import Model
    from strandline.chaos.explore.search import Found
    from strandline.chaos.explore.trace import Trace


@click.command("explore")
@click.argument("model_name", metavar="MODEL", type=click.Choice(tuple(PRESETS)))
@click.option("--preset", default="usual", help="Named bounds: small (seconds) or usual (minutes).")
@click.option(
    "--bound", "bounds", multiple=True, metavar="NAME=N", help="Another bound than the preset's; may be repeated."
)
@click.option("--after", metavar="STEPS", help="Begin after these steps, with ; between them: they cost nothing.")
@click.option("--states", type=click.IntRange(1), default=5_000_000, help="End after so many states.")
@click.option("--depth", type=click.IntRange(1), default=1000, help="End at that depth.")
@click.option("--minutes", type=float, default=None, help="End after that time.")
@click.option("--jobs", type=click.IntRange(1), default=2, help="Processes, each with states of its own.")
@click.option(
    "--break",
    "break_name",
    type=click.Choice(tuple(MUTANTS)),
    metavar="MUTANT",
    help="Take a rule out on purpose (see `strandline mutants --list`): some state must break an invariant.",
)
@click.option("--replay", metavar="STEPS", help="Do not search: take these steps, with ; between them, or of a file (@FILE).")
@click.option("--html", type=click.Path(dir_okay=False), help="Write the story of the path as a page.")
@click.option("--scenario", type=click.Path(dir_okay=False), help="Write the path as a golden scenario.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="json: one object.")
def explore(
    *,
    model_name: str,
    preset: str,
    bounds: tuple[str, ...],
    after: str | None,
    states: int,
    depth: int,
    minutes: float | None,
    jobs: int,
    break_name: str | None,
    replay: str | None,
    html: str | None,
    scenario: str | None,
    output: str,
) -> None:
    """Meet every state of the quorum or of a partition within bounds, and check that none breaks an invariant.

    The pure cores are the product's own; around them every order of messages, syncs, crashes and timers is tried, the
    shortest first. What is explored, and what each bound means, stands in docs/exploring.md. Exit 1 if an invariant
    was broken: the path to it is told, and how to walk it again.

    \b
    strandline explore quorum
    strandline explore partition --preset small
    strandline explore partition --bound crashes=2 --bound delays=1 --minutes 10
    strandline explore quorum --preset small --break two-votes-an-epoch --html path.html
    """
    case = _case(model_name, preset, bounds, after, break_name)
    with without(break_name):
        model = case.make()
        if replay is not None:
            trace = _walk(model, replay)
            _tell_trace(case, model, trace, html, scenario, output)
            sys.exit(1 if trace.violation is not None else 0)
        found = _search(model, states, depth, minutes, jobs)
        trace = None
        if found.broken is not None:
            from strandline.chaos.explore.trace import retrace

            trace = retrace(model, found.broken)
        _tell_found(case, found, trace, output)
        if trace is not None:
            _tell_trace(case, model, trace, html, scenario, output if output == "table" else "none")
            sys.exit(1)


class _Case:
    """What is explored, as the command line names it."""

    def __init__(self, model: str, bounds: Mapping[str, int], after: str, break_name: str | None) -> None:
        self.model = model
        self.bounds = dict(bounds)
        self.after = after
        self.break_name = break_name

    def make(self) -> Model:
        try:
            model = make_model(self.model, self.bounds, steps_of(self.after))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--bound") from None
        try:
            model.starts()
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--after") from None
        return model

    def command(self, steps: list[str]) -> str:
        """The command that walks a path again."""
        words = ["strandline", "explore", self.model]
        for name, value in self.bounds.items():
            words += ["--bound", f"{name}={value}"]
        if self.after:
            words += ["--after", self.after]
        if self.break_name is not None:
            words += ["--break", self.break_name]
        return shlex.join([*words, "--replay", "; ".join(steps)])


def steps_of(text: str) -> list[str]:
    """The names of steps that are given in one string."""
    return [name.strip() for name in text.split(";") if name.strip()]


def _case(model: str, preset: str, changes: tuple[str, ...], after: str | None, break_name: str | None) -> _Case:
    found = {one.name: one for one in PRESETS[model]}
    if preset not in found:
        there = ", ".join(found)
        raise click.BadParameter(f"the {model} has no preset {preset!r}; there are {there}", param_hint="--preset")
    bounds = dict(found[preset].bounds)
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not value.lstrip("-").isdigit():
            raise click.BadParameter(f"{change!r} is not of the form NAME=N", param_hint="--bound")
        bounds[name] = int(value)
    return _Case(model, bounds, found[preset].after if after is None else after, break_name)


def _search(model: Model, states: int, depth: int, minutes: float | None, jobs: int) -> Found:
    from strandline.chaos.explore.search import Limits
    from strandline.chaos.explore.workers import explore as run

    seconds = float("inf") if minutes is None else minutes * 60
    with _progress() as told:
        return run(model, Limits(states, depth, seconds), jobs=jobs, told=told)


@contextmanager
def _progress() -> Iterator[Any]:
    """A line that moves where somebody watches: depth, states, steps, and how fast."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("the first states", total=None)

        def told(depth: int, ahead: int, states: int, steps: int) -> None:
            rate = states / (bar.tasks[task].elapsed or 1.0)
            words = f"depth {depth} of {ahead:,} states; {states:,} states in all, {steps:,} steps, {rate:,.0f} states/s"
            bar.update(task, description=words)

        yield told


def _tell_found(case: _Case, found: Found, trace: Trace | None, output: str) -> None:
    if output == "json":
        from strandline.chaos.explore.story import facts

        told = {
            "model": case.model,
            "bounds": case.bounds,
            "after": case.after,
            "break": case.break_name,
            "complete": found.complete,
            "stopped": found.stopped,
            "depth": found.depth,
            "states": found.states,
            "steps": found.steps,
            "seconds": round(found.seconds, 2),
            "levels": [asdict(level) for level in found.levels],
            "path": None if trace is None else facts(trace),
            "replay": None if trace is None else case.command(trace.names),
        }
        click.echo(json.dumps(told))
        return
    click.echo(f"{'depth':>5}  {'states':>10}  {'in all':>12}  {'steps':>12}  {'s':>8}")
    for level in found.levels:
        figures = f"{level.new:>10,}  {level.states:>12,}  {level.steps:>12,}  {level.seconds:>8.1f}"
        click.echo(f"{level.depth:>5}  {figures}")
    rate = found.states / max(found.seconds, 0.001)
    click.echo(f"{found.states:,} states, {found.steps:,} steps in {found.seconds:.1f} s ({rate:,.0f} states/s)")
    if found.broken is not None:
        return
    if found.complete:
        click.secho(f"every state within the bounds holds; the furthest lie {found.depth - 1} steps deep", fg="green")
    else:
        click.echo(f"stopped by {found.stopped}: every state less than {found.depth} steps deep holds")


def _walk(model: Model, replay: str) -> Trace:
    from strandline.chaos.explore.trace import NoSuchStep, walk

    text = Path(replay[1:]).read_text() if replay.startswith("@") else replay
    lines = [line.removeprefix("> ") for line in text.splitlines() if line.startswith("> ")] if "\n" in text else [text]
    try:
        return walk(model, [name for line in lines for name in steps_of(line)])
    except NoSuchStep as error:
        raise click.ClickException(str(error)) from None


def _tell_trace(case: _Case, model: Model, trace: Trace, html: str | None, scenario: str | None, output: str) -> None:
    from strandline.chaos.explain import page, text
    from strandline.chaos.explore.story import facts, scenario as scenario_of, story_of

    command = case.command(trace.names)
    story = story_of(model, trace, [command])
    if output == "json":
        click.echo(json.dumps({"model": case.model, "bounds": case.bounds, "break": case.break_name, **facts(trace)}))
    elif output == "table":
        click.echo("")
        for line in text.render(story, lines_max=200):
            click.echo(f"  {line}".rstrip())
        click.echo(f"  replay: {command}")
    if html is not None:
        Path(html).write_text(page.render(story), encoding="utf-8")
        click.echo(f"  written: {html}", err=True)
    if scenario is not None:
        bounds = " ".join(f"{name}={value}" for name, value in case.bounds.items())
        head = [f"# {story.error}: {story.message}", "", f"> {case.model} {bounds}"]
        Path(scenario).write_text("\n".join([*head, *scenario_of(model, trace)]) + "\n", encoding="utf-8")
        click.echo(f"  written: {scenario}", err=True)
