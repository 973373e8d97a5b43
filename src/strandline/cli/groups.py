"""`strandline group`: list, describe, reset-offsets, delete."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    CommandFailed,
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
from strandline.client.config import duration_ms
from strandline.client.errors import ClientTimeout
from strandline.client.types import EARLIEST, LATEST, GroupDescription, OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.admin import Admin

INACTIVE = ("Empty", "Dead")

GroupOffsets = Mapping[TopicPartition, OffsetAndMetadata]


@click.group()
def group() -> None:
    """List and describe consumer groups, move what they have committed, delete them."""


@group.command("list")
@output_option
@target_options
def list_groups(output: str, **where: Any) -> None:
    """List the groups: state, members, and how many records each is behind in all.

    The lag of a group is of the partitions of which it has committed something; `strandline group describe` has them.

    \b
    strandline group list
    strandline group list --output json | jq -r '.[] | select(.lag > 1000) | .group'
    """
    with admin_for(Target(**where)) as admin:
        found, faults = _listed(admin)
    if output == "json":
        print_json(found)
    elif not found:
        echo("no groups yet; join one with: strandline consume TOPIC --group NAME")
    else:
        columns = ("group", "state", "members", "lag", "type")
        rows = [
            (
                one["group"], one["state"] or "?", "?" if one["members"] is None else one["members"],
                one["lag_words"] if one["expired_unread"] or one["lag"] is None else one["lag"], one["type"] or "?",
            )
            for one in found
        ]  # fmt: skip
        print_table(columns, rows)
    for fault in faults:
        echo(f"! {fault}", err=True)


def _listed(admin: Admin) -> tuple[list[dict[str, Any]], list[str]]:
    """All groups as JSON objects, and errors because of which members or lag of some are unknown."""
    listed = admin.list_groups()
    described: dict[str, tuple[GroupDescription, GroupOffsets]] = {}
    faults: dict[str, str] = {}
    gone: set[str] = set()
    for one in listed:
        name = one.group_id
        try:
            described[name] = admin.describe_groups([name])[name], admin.list_group_offsets(name)
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                gone.add(name)  # deleted since
            else:
                faults[name] = str(error)
        except ClientTimeout as error:
            faults[name] = f"{error}; the groups behind it were not asked for"
            break  # each would take as long
    start, end = _bounds(admin, sorted({item for _, offsets in described.values() for item in offsets}))
    found = []
    for one in listed:
        told: dict[str, Any] = {"group": one.group_id, "state": one.state, "type": one.type}
        told |= {"members": None, "lag": None, "lag_words": "?", "expired_unread": 0}
        if one.group_id in described:
            whole = _document(*described[one.group_id], start, end)
            known = any(part["lag"] is not None for part in whole["partitions"])
            told |= {name: whole[name] for name in ("state", "lag_words", "expired_unread")}
            told |= {"members": len(whole["members"]), "lag": whole["lag"] if known else None}
        if one.group_id not in gone:
            found.append(told)
    return found, [f"{name}: {why}" for name, why in faults.items()]


@group.command("describe")
@click.argument("names", nargs=-1, required=True, shell_complete=group_names)
@output_option
@target_options
def describe(names: tuple[str, ...], output: str, **where: Any) -> None:
    """Show members, what they read, what is committed, and how far behind it is.

    \b
    strandline group describe kitchen
    strandline group describe kitchen --output json
    """
    with admin_for(Target(**where)) as admin:
        documents = []
        for told in admin.describe_groups(names).values():
            offsets = admin.list_group_offsets(told.group_id)
            owned = {item for member in told.members for item in member.assignment}
            documents.append(_document(told, offsets, *_bounds(admin, sorted({*offsets, *owned}))))
    if output == "json":
        print_json(documents)
        return
    for one in documents:
        columns = ("topic", "partition", "committed", "end", "lag", "member")
        rows = [
            (
                part["topic"], part["partition"], "-" if part["committed"] is None else part["committed"],
                "?" if part["end"] is None else part["end"], part["lag_words"], part["member"] or "-",
            )
            for part in one["partitions"]
        ]  # fmt: skip
        title = f"{one['group']}: {one['state']}, {plural(len(one['members']), 'member')}"
        title += f", assignor {one['assignor']}" if one["assignor"] else ""
        title += f", coordinator {one['coordinator']}; {one['lag_words']}"
        echo(title)
        print_table(columns, rows)
        idle = [member["client_id"] for member in one["members"] if not member["partitions"]]
        if idle:
            echo(f"without a partition: {', '.join(idle)}")
        if one["expired_unread"]:
            echo(
                f"! {plural(one['expired_unread'], 'record')} expired unread: {one['group']} had not read them when "
                "retention, or somebody, deleted them. What it does at such an offset is its auto.offset.reset; "
                "retention.ms and retention.bytes of the topic say how long records stay",
                err=True,
            )


def lag_words(committed: int | None, start: int | None, end: int | None) -> str:
    """Lag of a group in one partition, in words."""
    if end is None or start is None:
        return "! no leader: unknown"
    if committed is None:
        return "no committed offset"
    if committed < start:
        return f"! {end - committed} behind, {plural(start - committed, 'record')} expired unread"
    if committed > end:
        return f"! {committed - end} past the end of the log"
    return "caught up" if committed == end else f"{end - committed} behind"


def expired_unread(committed: int | None, start: int | None) -> int | None:
    """Offsets between what a group has committed and where the log begins by now; None: not known."""
    return None if committed is None or start is None else max(start - committed, 0)


def _document(
    one: GroupDescription, offsets: GroupOffsets, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    """A group as a JSON object, from the start and end offsets of its partitions."""
    owners = {item: member for member in one.members for item in member.assignment}
    partitions: list[dict[str, Any]] = []
    for item in sorted({*offsets, *owners}):
        committed = offsets[item].offset if item in offsets else None
        member = owners.get(item)
        behind = None if committed is None or item not in end else max(end[item] - committed, 0)
        partitions.append(
            {
                "topic": item.topic,
                "partition": item.partition,
                "committed": committed,
                "start": start.get(item),
                "end": end.get(item),
                "lag": behind,
                "expired_unread": expired_unread(committed, start.get(item)),
                "lag_words": lag_words(committed, start.get(item), end.get(item)),
                "member": None if member is None else member.client_id or member.member_id,
                "metadata": offsets[item].metadata if item in offsets else "",
            }
        )
    lags: list[int] = [part["lag"] for part in partitions if part["lag"] is not None]
    words = "nothing committed" if not offsets else f"{sum(lags)} behind in all" if sum(lags) else "caught up"
    unknown = sum(part["committed"] is not None and part["lag"] is None for part in partitions)
    if unknown:
        words = f"! {sum(lags)} behind in all, without {plural(unknown, 'partition')} that has no leader"
    expired = sum(part["expired_unread"] or 0 for part in partitions)
    if expired:
        words = f"! {sum(lags)} behind in all, {plural(expired, 'record')} expired unread"
    return {
        "group": one.group_id,
        "state": one.state,
        "type": one.type,
        "assignor": one.assignor,
        "coordinator": one.coordinator.node_id,
        "lag": sum(lags),
        "lag_words": words,
        "expired_unread": expired,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [[item.topic, item.partition] for item in member.assignment],
            }
            for member in one.members
        ],
        "partitions": partitions,
    }


def _bounds(admin: Admin, wanted: list[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Start and end offsets of the logs; partitions without a leader, or deleted, are left out."""
    topics = set(admin.list_topics(include_internal=True))
    led = [
        TopicPartition(one.name, part.partition)
        for one in admin.describe_topics(sorted({item.topic for item in wanted} & topics))
        for part in one.partitions
        if part.leader is not None
    ]
    asked = [item for item in wanted if item in led]
    first = admin.list_offsets(dict.fromkeys(asked, EARLIEST))
    last = admin.list_offsets(dict.fromkeys(asked, LATEST))
    return {item: at.offset for item, at in first.items()}, {item: at.offset for item, at in last.items()}


@group.command("delete")
@click.argument("names", nargs=-1, required=True, shell_complete=group_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@output_option
@target_options
def delete(names: tuple[str, ...], yes: bool, dry_run: bool, output: str, **where: Any) -> None:
    """Delete groups without members, with all that they have committed.

    \b
    strandline group delete kitchen --dry-run
    strandline group delete kitchen --yes
    """
    deleted = []
    with admin_for(Target(**where)) as admin:
        for one in admin.describe_groups(names).values():
            _refuse_active(one, "delete it")
            count = len(admin.list_group_offsets(one.group_id))
            what = f"{one.group_id}: {plural(count, 'committed offset')}"
            if not dry_run:
                if not yes:
                    if not sys.stdin.isatty():
                        raise CommandWrong(f"not deleting {what}: nobody is there to ask; say --yes to mean it")
                    confirm(f"Delete group {what}? It cannot be undone", abort=True, err=True)
                admin.delete_groups([one.group_id])
            deleted.append({"group": one.group_id, "committed_offsets": count})
            if output == "table":
                echo(f"{'would delete' if dry_run else 'deleted'} group {what}")
    if output == "json":
        print_json({"deleted": deleted, "dry_run": dry_run})


def _refuse_active(one: GroupDescription, what: str) -> None:
    if one.state not in INACTIVE or one.members:
        names = ", ".join(sorted({member.client_id or member.member_id for member in one.members})) or "nobody yet"
        raise CommandFailed(
            f"group {one.group_id} is in use ({one.state}; members: {names}): stop its consumers first, then {what}"
        )


@group.command("reset-offsets")
@click.argument("name", shell_complete=group_names)
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="Only this topic; repeatable.",
              shell_complete=topic_names)  # fmt: skip
@click.option("--to-earliest", is_flag=True, help="To the first record that the log has.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-offset", type=click.IntRange(0), help="To this offset.")
@click.option("--to-datetime", type=Moment(), help="To the first record since: 2024-05-01T12:00 (UTC), 15m (ago).")
@click.option("--by-duration", metavar="PT1H", help="To the first record of the last hour (ISO 8601, as Kafka's tool).")
@click.option("--shift-by", type=int, help="By so many records: forward, or with a minus sign backward.")
@dry_run_option
@output_option
@target_options
def reset_offsets(
    *,
    name: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    by_duration: str | None,
    shift_by: int | None,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Move what a group has committed. Refused while the group has members.

    Without --topic: every partition that the group has committed anything of.

    \b
    strandline group reset-offsets kitchen --to-earliest --dry-run
    strandline group reset-offsets kitchen --topic orders:0,1 --shift-by -100
    strandline group reset-offsets kitchen --topic orders --to-datetime 2024-05-01T12:00
    """
    given = (to_offset, to_datetime, by_duration, shift_by)
    if to_earliest + to_latest + sum(one is not None for one in given) != 1:
        raise click.UsageError(
            "say one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration and --shift-by"
        )
    if by_duration is not None:
        to_datetime = SystemClock().wall_ms() - _duration(by_duration)
    with admin_for(Target(**where)) as admin:
        known = {one.group_id for one in admin.list_groups()}
        if name in known:
            _refuse_active(admin.describe_groups([name])[name], "reset its offsets")
        before = admin.list_group_offsets(name)
        wanted = _wanted(admin, name, topics, before)
        start, end = _bounds(admin, wanted)
        missing = [item for item in wanted if item not in end]
        if missing:
            raise CommandFailed(f"{missing[0]} has no leader, or does not exist: nothing was reset")
        if to_earliest:
            goals = start
        elif to_latest:
            goals = end
        elif to_offset is not None:
            goals = dict.fromkeys(wanted, to_offset)
        elif to_datetime is not None:
            found = admin.list_offsets(dict.fromkeys(wanted, to_datetime))
            goals = {item: end[item] if at.offset < 0 else at.offset for item, at in found.items()}
        else:
            goals = _shifted(name, wanted, before, shift_by or 0)
        goals = {item: min(max(goals[item], start[item]), end[item]) for item in wanted}
        if not dry_run:
            admin.alter_group_offsets(name, goals)
    rows = [
        (
            item.topic, item.partition, before[item].offset if item in before else "-", goals[item],
            lag_words(goals[item], start[item], end[item]),
        )
        for item in wanted
    ]  # fmt: skip
    if output == "json":
        names = ("topic", "partition", "before", "after", "lag_words")
        print_json(
            {"group": name, "dry_run": dry_run, "partitions": [dict(zip(names, row, strict=True)) for row in rows]}
        )
        return
    print_table(("topic", "partition", "before", "would be" if dry_run else "now", "lag"), rows)


def _duration(text: str) -> int:
    try:
        return duration_ms(f"by_duration:{text}")
    except ConfigError as error:
        raise click.BadParameter(
            f"{text!r} is no duration as PT1H, PT15M or P7D", param_hint="--by-duration"
        ) from error


def _wanted(admin: Admin, name: str, topics: tuple[str, ...], before: GroupOffsets) -> list[TopicPartition]:
    if not topics:
        if not before:
            raise CommandFailed(f"group {name} has committed nothing: say which --topic")
        return sorted(before)
    wanted: dict[TopicPartition, None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if colon and not all(part.isdecimal() for part in numbers.split(",")):
            raise CommandWrong(f"{text!r}: partitions are numbers with commas between, as {topic}:0,1")
        [described] = admin.describe_topics([topic])
        there = [part.partition for part in described.partitions]
        for number in [int(part) for part in numbers.split(",")] if colon else there:
            if number not in there:
                raise CommandWrong(f"topic {topic} has partitions {there[0]} to {there[-1]}, not {number}")
            wanted[TopicPartition(topic, number)] = None
    return list(wanted)


def _shifted(name: str, wanted: list[TopicPartition], before: GroupOffsets, by: int) -> dict[TopicPartition, int]:
    for item in wanted:
        if item not in before:
            raise CommandFailed(f"group {name} has committed nothing of {item}: there is nothing to shift")
    return {item: before[item].offset + by for item in wanted}
