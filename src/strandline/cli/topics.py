"""`strandline topic`: create, list, describe, alter, delete, producers; the other commands have files of their own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from strandline.cli.backup import backup, restore
from strandline.cli.common import (
    CommandFailed,
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    numbers,
    output_option,
    parse_pairs,
    plural,
    print_json,
    print_table,
    shown_time,
    target_options,
)
from strandline.cli.copy import copy
from strandline.cli.effects import values_set, warn, without_effect
from strandline.cli.elections import elect
from strandline.cli.moves import move_topic
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import confirm, echo
from strandline.cli.sizes import size
from strandline.cli.trim import trim
from strandline.client.types import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)
from strandline.proto.audit import AUDIT_TOPIC
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


@click.group()
def topic() -> None:
    """Create, list, describe, alter, copy, trim, back up, delete topics; their sizes and producers; elect leaders."""


@topic.command("create")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", type=click.IntRange(1), default=None, help="Without it: the broker's num.partitions."
)
@click.option(
    "-r",
    "--replication",
    type=click.IntRange(1),
    default=None,
    help="Without it: the broker's default (3, or as many as there are brokers).",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A topic setting, as max.message.bytes=5000000.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed when the topic is there already, whatever it looks like.")
@dry_run_option
@output_option
@target_options
def create(
    *,
    names: tuple[str, ...],
    partitions: int | None,
    replication: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Create one or more topics.

    \b
    strandline topic create orders --partitions 3
    strandline topic create audit -p 6 -r 3 -c max.message.bytes=5000000 -c min.insync.replicas=2
    strandline topic create orders --partitions 3 --dry-run
    """
    settings = parse_pairs(configs, "--config")
    made: list[CreatedTopic] = []
    there: list[str] = []
    with admin_for(Target(**where)) as admin:
        for name in dict.fromkeys(names):
            wanted = NewTopic(name, partitions or -1, replication or -1, settings)
            try:
                made += admin.create_topics([wanted], validate_only=dry_run).values()
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or not if_not_exists:
                    raise
                there.append(name)
        idle = without_effect(admin, ConfigResource("topic", made[0].name), settings) if made else {}
    warn(settings, idle)
    if output == "json":
        created = [_created_json(item) for item in made]
        print_json({"created": created, "existed": there, "dry_run": dry_run, "without_effect": idle})
        return
    verb = "would create" if dry_run else "created"
    for item in made:
        echo(
            f"{verb} topic {item.name}: {plural(item.partitions, 'partition')}, "
            f"{plural(item.replication_factor, 'replica')} each, min.insync.replicas "
            f"{item.configs.get('min.insync.replicas', '?')}"
        )
        if item.replication_factor == 1:
            echo(f"warning: {item.name} has 1 replica: what is lost with its broker is lost", err=True)
    for name in there:
        echo(f"topic {name} is there already")


topic.add_command(elect)
topic.add_command(trim)
topic.add_command(backup)
topic.add_command(restore)
topic.add_command(copy)
topic.add_command(size)
topic.add_command(move_topic)


@topic.command("list")
@click.option("--internal", is_flag=True, help="The cluster's own topics too.")
@output_option
@target_options
def list_topics(internal: bool, output: str, **where: Any) -> None:
    """List the topics with their partitions and health.

    \b
    strandline topic list
    strandline topic list --output json | jq -r '.[].name'
    """
    with admin_for(Target(**where)) as admin:
        described = admin.describe_topics(admin.list_topics(include_internal=internal))
    if output == "json":
        print_json([_topic_json(item) for item in described])
        return
    if not described:
        echo("no topics yet; create one with: strandline topic create NAME --partitions 3")
        return
    rows = [
        (
            item.name,
            len(item.partitions),
            max((len(part.replicas) for part in item.partitions), default=0),
            _health(item),
        )
        for item in described
    ]
    print_table(("topic", "partitions", "replicas", "health"), rows)


@topic.command("describe")
@click.argument("names", nargs=-1, required=True, shell_complete=topic_names)
@output_option
@target_options
def describe(names: tuple[str, ...], output: str, **where: Any) -> None:
    """Show leaders, replicas, in-sync replicas, offsets and changed settings of topics.

    \b
    strandline topic describe orders
    strandline topic describe orders payments --output json
    """
    with admin_for(Target(**where)) as admin:
        topics = admin.describe_topics(names)
        resources = [ConfigResource("topic", item.name) for item in topics]
        configs = {
            resource.name: [entry for entry in entries if not entry.is_default]
            for resource, entries in admin.describe_configs(resources, documentation=True).items()
        }
        led = [(item.name, part.partition) for item in topics for part in item.partitions if part.leader is not None]
        first = admin.list_offsets(dict.fromkeys(led, EARLIEST))
        last = admin.list_offsets(dict.fromkeys(led, LATEST))
        is_tiered = ("remote.storage.enable", "true")
        tiered = {name for name in configs if any((one.name, one.value) == is_tiered for one in configs[name])}
        on_disks = admin.list_offsets({where: EARLIEST_LOCAL for where in led if where[0] in tiered})
    starts = {tuple(where): listed.offset for where, listed in first.items()}
    ends = {tuple(where): listed.offset for where, listed in last.items()}
    local = {tuple(where): listed.offset for where, listed in on_disks.items()}
    if output == "json":
        documents = []
        for item in topics:
            document = _topic_json(item) | {"configs": {entry.name: entry.value for entry in configs[item.name]}}
            for part in document["partitions"]:
                place = (item.name, part["partition"])
                part |= {"log_start_offset": starts.get(place), "high_watermark": ends.get(place)}
                part |= {"local_log_start_offset": local.get(place, starts.get(place))}
            documents.append(document)
        print_json(documents)
        return
    for item in topics:
        changed = ", ".join(_setting(entry) for entry in configs[item.name]) or "all at their defaults"
        rows = [
            (
                part.partition, "! none" if part.leader is None else part.leader, part.leader_epoch,
                numbers(part.replicas), numbers(part.isr), numbers(part.eligible_leader_replicas),
                numbers(part.last_known_elr),
                starts.get((item.name, part.partition), "?"), ends.get((item.name, part.partition), "?"),
                _partition_health(part),
            )
            for part in item.partitions
        ]  # fmt: skip
        columns = (
            "partition",
            "leader",
            "epoch",
            "replicas",
            "in sync",
            "eligible",
            "in doubt",
            "log start",
            "high watermark",
            "health",
        )
        print_table(columns, rows, title=f"{item.name}  (id {item.topic_id})  settings: {changed}")
        for part in item.partitions:
            start, disks_begin = (of.get((item.name, part.partition)) for of in (starts, local))
            if start is not None and disks_begin is not None and start < disks_begin:
                alone = f"offsets {start} to {disks_begin - 1} lie in the object store alone"
                echo(f"{item.name}-{part.partition} begins on the disks at offset {disks_begin}: {alone}.")
            if part.leader is None:
                command = f"strandline topic elect {item.name} --partition {part.partition} --unclean --dry-run"
                echo(f"{item.name}-{part.partition} has no leader. Why, and what each replica holds: {command}")


@topic.command("alter")
@click.argument("name", shell_complete=topic_names)
@click.option("-p", "--partitions", type=click.IntRange(1), help="The new total; it can only grow.")
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a topic setting.")
@click.option("--delete-config", "deleted", multiple=True, metavar="KEY", help="Put a setting back to its default.")
@dry_run_option
@output_option
@target_options
def alter(
    *,
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Add partitions to a topic, or change its settings.

    \b
    strandline topic alter orders --partitions 6
    strandline topic alter orders -c max.message.bytes=5000000 --delete-config segment.bytes
    """
    changes = config_changes(parse_pairs(configs, "--config"), deleted)
    if partitions is None and not changes:
        raise click.UsageError("nothing to alter: give --partitions, --config or --delete-config")
    verb = "would be" if dry_run else "is now"
    lines = []
    document: dict[str, Any] = {"topic": name, "dry_run": dry_run}
    with admin_for(Target(**where)) as admin:
        if partitions is not None:
            [topic_before] = admin.describe_topics([name])
            count = len(topic_before.partitions)
            admin.create_partitions({name: partitions}, validate_only=dry_run)
            document["partitions"] = {"before": count, "after": partitions}
            lines.append(f"topic {name} {verb} at {plural(partitions, 'partition')}, {count} before")
            echo("note: a key may map to another partition now; order per key holds from here on only", err=True)
        if changes:
            resource = ConfigResource("topic", name)
            before = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource]}
            admin.alter_configs({resource: changes}, validate_only=dry_run)
            idle = without_effect(admin, resource, values_set(changes))
            warn(values_set(changes), idle)
            document |= {"configs": changes_json(changes, before), "without_effect": idle}
            lines += changes_text(changes, before, verb)
    if output == "json":
        print_json(document)
        return
    for line in lines:
        echo(line)


@topic.command("delete")
@click.argument("names", nargs=-1, required=True, shell_complete=topic_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--internal", is_flag=True, help="Topics of the cluster itself too.")
@dry_run_option
@output_option
@target_options
def delete(names: tuple[str, ...], yes: bool, internal: bool, dry_run: bool, output: str, **where: Any) -> None:
    """Delete topics with all their records.

    A topic of the cluster itself is refused without --internal: __consumer_offsets has where every group stands,
    __transaction_state the transactions that are open or decided, and who may write under each transactional id.
    Other tools, kafka-topics.sh among them, delete such topics without a question, as with Apache Kafka.

    \b
    strandline topic delete orders --dry-run
    strandline topic delete orders --yes
    """
    deleted = []
    with admin_for(Target(**where)) as admin:
        described = admin.describe_topics(names)
        own = [item.name for item in described if item.is_internal]
        if own and not internal:
            lost = "; ".join(f"{name} is of the cluster itself, and {_lost(name)} is lost with it" for name in own)
            raise CommandWrong(f"nothing was deleted: {lost}. --internal deletes all the same")
        for item in described:
            led = [(item.name, part.partition) for part in item.partitions if part.leader is not None]
            first = admin.list_offsets(dict.fromkeys(led, EARLIEST))
            last = admin.list_offsets(dict.fromkeys(led, LATEST))
            records = sum(last[place].offset - first[place].offset for place in last)
            what = f"{item.name}: {plural(len(item.partitions), 'partition')}, about {plural(records, 'record')}"
            if not dry_run:
                if not yes:
                    _confirm(what)
                admin.delete_topics([item.name])
            deleted.append({"name": item.name, "partitions": len(item.partitions), "records": records})
            if output == "table":
                echo(f"{'would delete' if dry_run else 'deleted'} topic {what}")
    if output == "json":
        print_json({"deleted": deleted, "dry_run": dry_run})


_KEPT = {
    "__consumer_offsets": "where every group stands, so that each begins anew,",
    "__transaction_state": "what is decided of transactions and not carried out, and who may write under each "
    "transactional id,",
    AUDIT_TOPIC: "the record of what was changed and refused",
}


def _lost(name: str) -> str:
    """Loss when an internal topic is deleted, as the object of a sentence."""
    return _KEPT.get(name, "what the cluster keeps there")


def config_changes(settings: Mapping[str, str], deleted: Sequence[str]) -> list[ConfigChange]:
    """The steps that set `settings` and delete `deleted`."""
    both = sorted(set(settings) & set(deleted))
    if both:
        raise click.UsageError(f"{', '.join(both)}: set and deleted at once")
    return [ConfigChange(key, value) for key, value in settings.items()] + [
        ConfigChange(key, None, "delete") for key in deleted
    ]


def changes_text(changes: Sequence[ConfigChange], before: Mapping[str, str | None], verb: str) -> list[str]:
    """One line for each change of a setting, with the old value (for a default of all brokers, only if it was set)."""
    return [
        f"{change.name} {verb} {change.value if change.operation == 'set' else 'at its default'} "
        f"(was {before.get(change.name, 'not set')})"
        for change in changes
    ]


def changes_json(changes: Sequence[ConfigChange], before: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Changes of settings as JSON: `value` is null for a setting that is reset to its default."""
    return [
        {"name": change.name, "operation": change.operation, "value": change.value, "before": before.get(change.name)}
        for change in changes
    ]


@topic.command("producers")
@click.argument("name", shell_complete=topic_names)
@click.option("-p", "--partition", "chosen", type=click.IntRange(0), multiple=True, help="Only this one; repeatable.")
@output_option
@target_options
def producers(name: str, chosen: tuple[int, ...], output: str, **where: Any) -> None:
    """Show who produces: the producers that each partition's leader remembers, the latest first.

    A leader remembers an idempotent producer (Kafka's default) by its id, until producer.id.expiration.ms after its
    last batch; epoch and sequence are those of that batch, and an open transaction is shown by the offset at which it
    begins. Of others, and of a producer's client.id and address, nothing is kept. A producer that starts anew has
    another id.

    \b
    strandline topic producers orders
    strandline topic producers orders --partition 0 --output json
    """
    with admin_for(Target(**where)) as admin:
        [described] = admin.describe_topics([name])
        there = {part.partition: part.leader for part in described.partitions}
        unknown = [number for number in chosen if number not in there]
        if unknown:
            raise CommandWrong(f"topic {name} has partitions 0 to {len(there) - 1}, not {unknown[0]}")
        wanted = sorted(set(chosen)) or sorted(there)
        found = admin.describe_producers([(name, number) for number in wanted if there[number] is not None])
    latest = {place: sorted(known, key=lambda one: -one.last_timestamp_ms) for place, known in found.items()}
    silent = [number for number in wanted if there[number] is None]
    if output == "json":
        print_json([{"partition": place.partition} | one._asdict() for place, known in latest.items() for one in known])
    elif not any(latest.values()):
        echo(f"no leader of {name} remembers a producer")
    else:
        columns = ("partition", "producer id", "epoch", "sequence", "last record (UTC)", "transaction")
        rows = [
            (
                place.partition, one.producer_id, one.producer_epoch, one.last_sequence,
                shown_time(one.last_timestamp_ms).removesuffix(" UTC") if one.last_timestamp_ms >= 0 else "-",
                "-" if one.transaction_start_offset is None else one.transaction_start_offset,
            )
            for place, known in latest.items()
            for one in known
        ]  # fmt: skip
        print_table(columns, rows)
    if silent:
        raise CommandFailed(
            f"no leader tells of the producers of {plural(len(silent), 'partition')}: {numbers(silent)}"
        )


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise CommandWrong(f"not deleting {what}: nobody is there to ask; say --yes to mean it")
    confirm(f"Delete topic {what}? It cannot be undone", abort=True, err=True)


def _setting(entry: ConfigEntry) -> str:
    return f"{entry.name}={entry.value}" + (" (no effect yet)" if entry.without_effect(entry.value) else "")


def _created_json(item: CreatedTopic) -> dict[str, Any]:
    return {
        "name": item.name,
        "topic_id": item.topic_id,
        "partitions": item.partitions,
        "replication_factor": item.replication_factor,
        "configs": dict(item.configs),
    }


def _topic_json(item: TopicDescription) -> dict[str, Any]:
    return asdict(item) | {"health": _health(item).removeprefix("! ")}


def _health(item: TopicDescription) -> str:
    leaderless = sum(part.leader is None for part in item.partitions)
    behind = sum(len(part.isr) < len(part.replicas) for part in item.partitions)
    if leaderless:
        return f"! {leaderless} without a leader"
    return f"! {behind} under-replicated" if behind else "ok"


def _partition_health(part: PartitionDescription) -> str:
    if part.leader is None:
        return "! no leader"
    missing = [node for node in part.replicas if node not in part.isr]
    return f"! not in sync: {numbers(missing)}" if missing else "ok"
