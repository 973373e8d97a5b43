"""Further work of `strandline sim`: explain a failure, shrink it, stop a run and look."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from strandline.chaos.explain import page, state, text
from strandline.chaos.explain.shrink import Shrinker
from strandline.chaos.explain.watch import watch
from strandline.chaos.runner import Outcome, Run
from strandline.cli.screen import echo


@dataclass(frozen=True)
class Case:
    """A scenario as the command line names it: enough to run any seed of it again."""

    scenario: str
    changes: Mapping[str, Any]
    make_run: Callable[[str, Mapping[str, Any], str | None, int], Run]
    program: tuple[str, ...]
    """The words that begin the command."""

    def make(self, seed: int) -> Run:
        """The run of a seed."""
        return self.make_run(self.scenario, self.changes, None, seed)

    def command(self, seed: int, *more: str, changes: Mapping[str, Any] | None = None) -> str:
        """The command that runs it again."""
        words = [*self.program, "--seed", str(seed)]
        if self.scenario != "cluster":
            words += ["--scenario", self.scenario]
        options = merged(self.changes, changes or {})
        if options:
            words += ["--options", json.dumps(options)]
        return shlex.join([*words, *more])


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` over it, nested."""
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def explain(case: Case, seed: int, *, html: str | None, history: str | None, quiet: bool = False) -> None:
    """Run a seed once more, watched, and tell its story; `quiet`: into the files alone."""
    watched = watch(seed, case.make, history_file=history)
    story = watched.story
    assert story is not None
    story.replay = [case.command(seed, "--timeline"), case.command(seed, "--shrink")]
    if not quiet:
        echo("")
        for line in text.render(story):
            echo(f"  {line}".rstrip())
    if html is not None:
        Path(html).write_text(page.render(story), encoding="utf-8")
        echo(f"  written: {html}", err=True)
    if history is not None:
        echo(f"  written: {history} (strandline check {history})", err=True)


def show_state(case: Case, seed: int, until_ms: float, *, as_json: bool) -> None:
    """Stop a seed at an instant, and show all nodes."""
    watched = watch(seed, case.make, until_ms=until_ms)
    if watched.ended != "stopped":
        story = watched.story
        ended_ms = story.failed_ms if story is not None else 0.0
        raise click.ClickException(f"the run {watched.ended} at {ended_ms:,.0f} ms, before {until_ms:,.0f} ms")
    if as_json:
        echo(json.dumps({"seed": seed} | watched.state, default=str))
    else:
        echo("\n".join(state.render(watched.state)))


def shrink(case: Case, failure: Outcome, *, jobs: int, runs_max: int, html: str | None, quiet: bool = False) -> str:
    """Shrink a failure, tell how far and which faults are left, and explain what is left. The command that runs it."""

    def make(changes: dict[str, Any]) -> Run:
        return case.make_run(case.scenario, merged(case.changes, changes), None, failure.seed)

    def on_progress(line: str) -> None:
        echo(f"  shrinking, {shrinker.runs} runs: {line}", err=True)

    shrinker = Shrinker(failure.seed, make, failure, jobs=jobs, runs_max=runs_max, on_progress=on_progress)
    shrunk = shrinker.run()
    changes = shrunk.best.changes()
    command = case.command(failure.seed, changes=changes)
    if not quiet:
        bound = f", the bound ({runs_max}) reached" if shrunk.exhausted else ""
        left = len(shrunk.best.kept)
        echo("")
        echo(f"  shrunk: {left} of {shrunk.faults_before} faults are left, after {shrunk.runs} runs{bound}")
        echo(f"  {shrunk.outcome.message}")
        echo(f"  replay: {command}")
        smaller = replace(case, changes=merged(case.changes, changes))
        explain(smaller, failure.seed, html=html, history=None)
    return command
