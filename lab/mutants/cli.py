"""`python -m lab.mutants`: every rule taken out, one at a time, and what notices it."""

from __future__ import annotations

import ast
import difflib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lab.mutants import MUTANTS, Mutant
from lab.mutants.patching import changed_functions
from lab.mutants.places import PACKAGE

if TYPE_CHECKING:
    from lab.mutants.killing import Verdict


@click.command("mutants")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--rule", default=None, help="Only mutants of this rule: A6, 'schedule 45', or a whole section: B.")
@click.option("--list", "list_only", is_flag=True, help="Only say what there is.")
@click.option("--diff", "diff_only", is_flag=True, help="Only show what each changes, where the code is now.")
@click.option("--jobs", type=click.IntRange(1), default=2, help="Mutants at a time, each in a process of its own.")
@click.option("--timeout-s", type=click.FloatRange(1.0), default=300.0, help="For one mutant.")
@click.option(
    "-o", "--output", type=click.Choice(("table", "json")), default="table", help="json: one object a mutant."
)
def mutants(
    *,
    names: tuple[str, ...],
    rule: str | None,
    list_only: bool,
    diff_only: bool,
    jobs: int,
    timeout_s: float,
    output: str,
) -> None:
    """Take each rule out of the running code, and see whether its tests notice.

    A mutant that survives is a hole in the tests: exit 1. What a mutant is, and how the table is read, stands in
    docs/mutants.md.

    \b
    python -m lab.mutants
    python -m lab.mutants --rule A6
    python -m lab.mutants commit-by-count no-pre-vote --output json
    python -m lab.mutants commit-by-count --diff
    """
    chosen = _choose(names, rule)
    if list_only:
        _list(chosen, output)
        return
    if diff_only:
        _show(chosen)
        return
    from lab.mutants.killing import fail_anyway, hold_against_killers

    broken = fail_anyway(chosen)
    for test in broken:
        click.secho(f"{test} fails with every rule in place: it proves nothing", fg="red", err=True)
    if broken:
        click.echo(next(iter(broken.values())), err=True)
    verdicts = hold_against_killers([mutant.name for mutant in chosen], jobs=jobs, timeout_s=timeout_s)
    survived = []
    for verdict in _progress(verdicts, len(chosen)):
        for test in [test for test in verdict.killed_by if test in broken]:
            verdict.killed_by.remove(test)
            verdict.survived.append(test)
        _tell(verdict, output)
        if not verdict.killed:
            survived.append(verdict.name)
    if output == "table":
        click.echo(f"{len(chosen) - len(survived)} of {len(chosen)} mutants killed")
    if survived:
        if output == "table":
            click.secho("survived: " + " ".join(survived), fg="red")
        sys.exit(1)


def _choose(names: tuple[str, ...], rule: str | None) -> list[Mutant]:
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        raise click.BadParameter(f"there is no mutant called {unknown[0]!r} (see --list)", param_hint="NAME")
    chosen = [MUTANTS[name] for name in names] if names else list(MUTANTS.values())
    if rule is not None:
        chosen = [mutant for mutant in chosen if rule in (mutant.part, mutant.section)]
    if not chosen:
        rules = ", ".join(dict.fromkeys(mutant.part for mutant in MUTANTS.values()))
        raise click.BadParameter(f"no mutant is of such a rule; there are {rules}", param_hint="--rule")
    return chosen


def _list(chosen: list[Mutant], output: str) -> None:
    for mutant in chosen:
        if output == "json":
            click.echo(json.dumps({"name": mutant.name, "rule": mutant.rule, "killed_by": mutant.killed_by}))
        else:
            click.echo(f"{mutant.name:<52} {mutant.rule}")


def _show(chosen: list[Mutant]) -> None:
    """The functions before and after, as a diff of what Python reads of them: without comments, in its own layout."""
    for mutant in chosen:
        click.echo(f"{mutant.name}: {mutant.rule}")
        for changed in changed_functions(mutant):
            place = f"{changed.path.relative_to(PACKAGE.parent)}:{changed.qualified_name}"
            before, after = (ast.unparse(tree).splitlines() for tree in (changed.original, changed.function))
            for line in difflib.unified_diff(before, after, place, place, lineterm="", n=1):
                click.echo(f"    {line}")


def _progress(verdicts: Iterator[Verdict], total: int) -> Iterator[Verdict]:
    """Pass the verdicts on, with a bar where somebody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("mutants", total=total)
        for verdict in verdicts:
            bar.advance(task)
            yield verdict


def _tell(verdict: Verdict, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(asdict(verdict) | {"killed": verdict.killed}))
        return
    state = click.style("killed  ", fg="green") if verdict.killed else click.style("SURVIVED", fg="red", bold=True)
    click.echo(f"{state} {verdict.seconds:>7.2f} s  {verdict.name}: {verdict.rule}")
    for killer in verdict.killed_by:
        click.secho(f"             by {killer}", dim=True)
    for killer in verdict.survived:
        click.secho(f"             not by {killer}", fg="red")
    if verdict.details:
        click.echo(verdict.details)
