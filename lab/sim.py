"""`python -m lab.sim`: `strandline sim` with a rule taken out."""

from __future__ import annotations

from typing import Any

import click

from lab.mutants import MUTANTS, without
from strandline.chaos.cli import sim

PROGRAM = ("python", "-m", "lab.sim")

_BREAK = click.Option(
    ["--break", "break_name"],
    type=click.Choice(tuple(MUTANTS)),
    metavar="MUTANT",
    help="The rule to take out (see `python -m lab.mutants --list`): some seed must fail.",
)


@click.command("lab.sim", params=[_BREAK, *sim.params])
@click.pass_context
def main(context: click.Context, /, break_name: str | None, **options: Any) -> None:
    """Run seeds of the simulator without one rule of the protocol; the other options are those of `strandline sim`.

    \b
    python -m lab.sim --seeds 60 --break isr-instead-of-maximal
    """
    context.obj = PROGRAM if break_name is None else (*PROGRAM, "--break", break_name)
    with without(break_name):
        context.invoke(sim, **options)


if __name__ == "__main__":
    main(prog_name="python -m lab.sim")
