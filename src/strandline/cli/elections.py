"""Command `strandline topic elect`: elects leaders by hand, and shows what an unclean election would lose."""

from __future__ import annotations

import sys
from typing import Any

import click

from strandline.cli.common import (
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    plural,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import confirm, echo
from strandline.client.types import Election
from strandline.proto.error_codes import ErrorCode


@click.command("elect")
@click.argument("names", nargs=-1, shell_complete=topic_names)
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
@click.option("--unclean", is_flag=True, help="Any live replica may lead, though records are lost that it lacks.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before an unclean election.")
@dry_run_option
@output_option
@target_options
def elect(
    *,
    names: tuple[str, ...],
    partitions: tuple[int, ...],
    unclean: bool,
    yes: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Elect leaders: the preferred replicas, or with --unclean any live replica of partitions that have no leader.

    Without topics: every partition of the cluster that needs it. An unclean election is the last resort: what it loses
    is shown first.

    \b
    strandline topic elect
    strandline topic elect orders --partition 0 --unclean --dry-run
    strandline topic elect orders --partition 0 --unclean --yes
    """
    if partitions and not names:
        raise click.UsageError("--partition wants a topic")
    with admin_for(Target(**where)) as admin:
        wanted = [
            (item.name, part.partition)
            for item in admin.describe_topics(names)
            for part in item.partitions
            if not partitions or part.partition in partitions
        ]
        asked = wanted if names else None
        missing = sorted(set(partitions) - {number for _, number in wanted})
        if missing:
            raise CommandWrong(f"{', '.join(names)}: no partition {missing[0]}")
        if unclean and not dry_run and not yes:
            preview = [one for one in admin.elect_leaders(asked, unclean=True, dry_run=True) if _is_shown(one)]
            _confirm(preview)
        elections = [one for one in admin.elect_leaders(asked, unclean=unclean, dry_run=dry_run) if _is_shown(one)]
    _print(elections, output, dry_run)
    if any(not one.held for one in elections):
        sys.exit(1)


def _is_shown(one: Election) -> bool:
    """True if the partition is shown. One that already has the right leader is not."""
    return one.error is not ErrorCode.ELECTION_NOT_NEEDED


def _confirm(preview: list[Election]) -> None:
    if not any(one.held for one in preview):
        return
    costs = "\n".join(f"  {one.topic}-{one.partition}: {one.message}" for one in preview if one.held)
    if not sys.stdin.isatty():
        raise CommandWrong(f"not electing: nobody is there to ask; say --yes to accept this:\n{costs}")
    echo(costs, err=True)
    confirm("Elect these leaders? What they lack is lost for good", abort=True)


def _print(elections: list[Election], output: str, dry_run: bool) -> None:
    if output == "json":
        print_json(
            [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "error": None if one.held else one.error.name,
                    "message": one.message,
                    "dry_run": dry_run,
                }
                for one in elections
            ]
        )
        return
    if not elections:
        echo("no partition needs an election")
        return
    held = sum(one.held for one in elections)
    verb = "would get" if dry_run else "got"
    rows = [
        [f"{one.topic}-{one.partition}", "ok" if one.held else f"! {one.error.name}", one.message] for one in elections
    ]
    print_table(("partition", "election", "what it means"), rows)
    echo(f"{plural(held, 'partition')} {verb} a leader")
