"""`strandline log repair`: what a start would do to a damaged directory, and a little more; copies are kept."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    CommandFailed,
    CommandWrong,
    dry_run_option,
    output_option,
    plain_errors,
    plural,
    print_json,
)
from strandline.cli.screen import confirm, echo
from strandline.cli.verify import flaw_document, look_through, place_of, quiet, read_lock
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.log.overlay import Change
    from strandline.log.verify.repair import Plan

LEFT = 1


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@output_option
def repair(directory: str, *, yes: bool, dry_run: bool, output: str) -> None:
    """Repair what can be repaired in a stopped node's data directory, and keep a copy of what is taken away.

    Indexes and leader epochs that are wrong are built anew, wrong producer snapshots and left-over files are removed,
    and a torn end is cut where the next start would cut it. The cut is noted for the controller as a start would note
    it: such a replica is not elected on the strength of what is left. What the files here cannot give back is left,
    and the command says what helps. What is taken away is kept in DIRECTORY/repair-TIME.

    Exits 0 when nothing is left that a start refuses, cuts, heals or believes, 1 when something is.

    \b
    strandline log repair /var/lib/strandline --dry-run
    strandline log repair /var/lib/strandline --yes
    """
    path = str(Path(directory).absolute())
    with plain_errors(), quiet():
        if dry_run:
            with read_lock(path):
                plan, changes = _rehearse(path)
            kept: list[str] = []
            target = ""
        else:
            plan, changes, kept, target = _carry_out(path, yes=yes)
    left = [one for one in plan.left if one.flaw.at_start != "ignore"]
    if output == "json":
        print_json(_document(path, plan, changes, kept, target, dry_run=dry_run))
    else:
        _show(plan, changes, target, dry_run=dry_run)
    if left:
        raise SystemExit(LEFT)


def _rehearse(path: str) -> tuple[Plan, list[Change]]:
    """Plan of the repair, and each file before and after: the repair itself, over a disk that changes nothing."""
    from strandline.log.overlay import OverlayDisk
    from strandline.log.verify.repair import Repair, plan

    found = look_through(path)
    made = plan(found.flaws)
    while made.repaired:
        with closing(OverlayDisk(path)) as disk:
            failed = Repair(disk, path, SystemClock()).run(made.repaired)
            if not failed:
                return made, disk.changes()
        for partition, reason in failed.items():
            made.give_up(partition, reason)
    return made, []


def _carry_out(path: str, *, yes: bool) -> tuple[Plan, list[Change], list[str], str]:
    from strandline.log.real_disk import RealDisk
    from strandline.log.verify.repair import Repair, keep

    clock = SystemClock()
    with closing(RealDisk()) as disk:
        lock = disk.lock(path)
        try:
            plan, changes = _rehearse(path)
            if not plan.repaired:
                return plan, [], [], ""
            _confirm(path, plan, changes, yes=yes)
            target = f"{path}/{_name_of_copies(clock.wall_ms())}"
            kept = keep(path, target, changes)
            failed = Repair(disk, path, clock).run(plan.repaired)
        finally:
            lock.release()
    if failed:
        raise CommandFailed(f"internal error: {failed}, which the rehearsal had done. What was there is in {target}")
    return plan, changes, kept, target


def _name_of_copies(now_ms: int) -> str:
    """Name of a directory for copies. It is not a valid partition directory, so that no node opens it."""
    from datetime import datetime, timezone

    return datetime.fromtimestamp(now_ms / 1000, timezone.utc).strftime("repair-%Y%m%dT%H%M%SZ")  # noqa: UP017


def _confirm(path: str, plan: Plan, changes: list[Change], *, yes: bool) -> None:
    if yes:
        return
    what = f"{plural(len(changes), 'file')} of {plural(len(plan.repaired), 'partition')} in {path}"
    if not sys.stdin.isatty():
        raise CommandWrong(f"not changing {what}: nobody is there to ask; see it with --dry-run, and say --yes")
    for change in changes:
        echo(f"  {_line(change)}", err=True)
    confirm(f"Change {what}?", abort=True, err=True)


def _line(change: Change) -> str:
    if change.before is None:
        return f"{change.after}: new, {plural(change.bytes_after, 'byte')}"
    if change.after is None:
        return f"{change.before}: removed, {plural(change.bytes_before, 'byte')}"
    if change.after != change.before:
        return f"{change.before}: becomes {change.after}"
    if change.bytes_after < change.bytes_before and change.before.endswith(".log"):
        cut = change.bytes_before - change.bytes_after
        return f"{change.before}: cut at byte {change.bytes_after:,}, {plural(cut, 'byte')} fewer"
    return f"{change.before}: written anew, {change.bytes_before:,} bytes before, {change.bytes_after:,} after"


def _show(plan: Plan, changes: list[Change], target: str, *, dry_run: bool) -> None:
    repaired = [flaw for flaws in plan.repaired.values() for flaw in flaws]
    for flaw in repaired:
        echo(f"{'would repair' if dry_run else 'repaired'} {flaw.file}{place_of(flaw)}: {flaw.found}")
    for change in changes:
        echo(f"    {_line(change)}")
    for one in plan.left:
        echo(f"! left {one.flaw.file}{place_of(one.flaw)}: {one.flaw.found}")
        echo(f"    instead: {one.why}")
    if target and repaired:
        echo(f"What was taken away is in {target}. Delete it when the node's replicas are in sync.")
    verb = "would be repaired" if dry_run else "repaired"
    echo(f"{plural(len(repaired), 'finding')} {verb}, {len(plan.left)} left.")


def _document(
    path: str, plan: Plan, changes: list[Change], kept: list[str], target: str, *, dry_run: bool
) -> dict[str, Any]:
    return {
        "directory": path,
        "dry_run": dry_run,
        "repaired": [flaw_document(flaw) for flaws in plan.repaired.values() for flaw in flaws],
        "left": [flaw_document(one.flaw) | {"instead": one.why} for one in plan.left],
        "changes": [
            {
                "before": change.before,
                "after": change.after,
                "bytes_before": max(0, change.bytes_before),
                "bytes_after": max(0, change.bytes_after),
            }
            for change in changes
        ],
        "kept_in": target or None,
        "kept": kept,
    }
