"""`strandline topic trim`: delete the oldest records of a topic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    CommandWrong,
    Moment,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    plural,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.name_completion import group_names, topic_names
from strandline.cli.screen import confirm, echo
from strandline.client.types import EARLIEST, LATEST
from strandline.proto.ids import TopicPartition

if TYPE_CHECKING:
    from strandline.client.admin import Admin


@click.command("trim")
@click.argument("name", shell_complete=topic_names)
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this; repeatable.")
@click.option("--before-offset", type=click.IntRange(0), help="Delete what lies before this offset.")
@click.option("--before", type=Moment(), help="Delete what is older: 7d (ago), 2024-05-01T12:00 (UTC), milliseconds.")
@click.option(
    "--committed-by", "groups", multiple=True, metavar="GROUP", shell_complete=group_names,
    help="Delete what all these groups have committed; repeatable. What one of them has no offset of stays.",
)  # fmt: skip
@click.option("--everything", is_flag=True, help="Delete all records that there are now.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@output_option
@target_options
def trim(
    *,
    name: str,
    partitions: tuple[int, ...],
    before_offset: int | None,
    before: int | None,
    groups: tuple[str, ...],
    everything: bool,
    yes: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Delete the oldest records of a topic (DeleteRecords). It cannot be undone.

    \b
    strandline topic trim orders --committed-by kitchen --committed-by billing --dry-run
    strandline topic trim orders --before 7d --yes
    """
    if sum((before_offset is not None, before is not None, bool(groups), everything)) != 1:
        raise click.UsageError("say one of --before-offset, --before, --committed-by and --everything")
    with admin_for(Target(**where)) as admin:
        [described] = admin.describe_topics([name])
        there = [part.partition for part in described.partitions]
        wrong = [number for number in partitions if number not in there]
        if wrong:
            raise CommandWrong(f"topic {name} has partitions {there[0]} to {there[-1]}, not {wrong[0]}")
        wanted = [TopicPartition(name, number) for number in partitions or there]
        first = {item: at.offset for item, at in admin.list_offsets(dict.fromkeys(wanted, EARLIEST)).items()}
        last = {item: at.offset for item, at in admin.list_offsets(dict.fromkeys(wanted, LATEST)).items()}
        goals = _goals(admin, wanted, last, before_offset=before_offset, before=before, groups=groups)
        goals = {item: min(max(goal, first[item]), last[item]) for item, goal in goals.items()}
        count = sum(goal - first[item] for item, goal in goals.items())
        if not dry_run and count and not yes:
            if not sys.stdin.isatty():
                raise CommandWrong(
                    f"not deleting {plural(count, 'record')} of {name}: nobody is there to ask; say --yes"
                )
            confirm(f"Delete about {plural(count, 'record')} of {name}? It cannot be undone", abort=True)
        moving = {item: goal for item, goal in goals.items() if goal > first[item]}
        starts = moving if dry_run or not moving else admin.delete_records(moving)
    rows = [(item.partition, first[item], starts.get(item, first[item]), last[item]) for item in wanted]
    if output == "json":
        names = ("partition", "log_start_before", "log_start", "high_watermark")
        print_json(
            {"topic": name, "dry_run": dry_run, "partitions": [dict(zip(names, row, strict=True)) for row in rows]}
        )
        return
    print_table(("partition", "log start before", "log start now", "high watermark"), rows)
    echo(f"{'would delete' if dry_run else 'deleted'} about {plural(count, 'record')} of {name}")


def _goals(
    admin: Admin,
    wanted: list[TopicPartition],
    last: dict[TopicPartition, int],
    *,
    before_offset: int | None,
    before: int | None,
    groups: tuple[str, ...],
) -> dict[TopicPartition, int]:
    """New start offset of each log; a partition that must stay as it is has none."""
    if before_offset is not None:
        return dict.fromkeys(wanted, before_offset)
    if before is not None:
        found = admin.list_offsets(dict.fromkeys(wanted, before))
        return {item: last[item] if at.offset < 0 else at.offset for item, at in found.items()}
    if groups:
        committed = [admin.list_group_offsets(group, wanted) for group in groups]
        return {
            item: min(offsets[item].offset for offsets in committed)
            for item in wanted
            if all(item in offsets for offsets in committed)
        }
    return dict(last)
