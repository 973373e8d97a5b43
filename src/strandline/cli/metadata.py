"""`strandline metadata`: the cluster's metadata as a document, their history record by record, and their faults."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    CommandWrong,
    Target,
    admin_for,
    numbers,
    output_option,
    plain_errors,
    plural,
    print_json,
    print_table,
    shown_time,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import echo

if TYPE_CHECKING:
    from strandline.controller.history import Change, MetadataDirectory

DIRECTORY = click.Path(exists=True, file_okay=False)

FOUND = 1


@click.group()
def metadata() -> None:
    """The metadata of a cluster: of a running one, or in a controller's or broker's data directory.

    A directory is only read: its node may run, and need not. History and check want a directory, for brokers keep no
    past for clients: say it on a machine of the cluster, or on a copy of __cluster_metadata-0. What clients may see of
    the present they ask their brokers for, by their own rights; the HTTP listener, which asks nobody for a login, tells
    none of it.
    """


@contextmanager
def opened(directory: str) -> Iterator[MetadataDirectory]:
    """The metadata in a directory. Raises what `MetadataDirectory` does."""
    from strandline.controller.history import MetadataDirectory
    from strandline.log.overlay import OverlayDisk

    path = str(Path(directory).absolute())
    with closing(OverlayDisk(path)) as disk:
        yield MetadataDirectory(disk, path)


def directory_document(directory: MetadataDirectory, at: int | None) -> dict[str, Any]:
    """All metadata of a directory. Raises ConfigError, CorruptLogError, FatalError."""
    from strandline.controller.metadata.shown import document

    voters = directory.voters(at)
    held = directory.held
    return {
        "source": directory.directory,
        "known_to_be_committed_below": held or None,
        **document(directory.image(at)),
        "voters": None
        if voters is None
        else [{"node_id": key.node_id, "directory_id": key.directory_id and str(key.directory_id)} for key in voters],
    }


@metadata.command("dump")
@click.argument("directory", type=DIRECTORY, required=False)
@click.option(
    "--at", type=click.IntRange(0), metavar="OFFSET", help="As it was there, where the log reaches back to it."
)
@output_option
@target_options
def dump(*, directory: str | None, at: int | None, output: str, **where: Any) -> None:
    """Show all metadata: brokers, topics with their partitions, configs, access, users, quotas, levels, voters.

    Without a DIRECTORY a running cluster is asked, as far as this client may. No secret is shown: of a password that
    there is one.

    \b
    strandline metadata dump -b 10.0.0.7:9092 --output json > metadata.json
    strandline metadata dump /var/lib/strandline
    strandline metadata dump /var/lib/strandline --at 41873 --output json | jq '.topics[] | select(.name == "orders")'
    """
    if directory is None:
        if at is not None:
            raise CommandWrong("--at wants a DIRECTORY: brokers tell clients the present alone")
        from strandline.tools.described import Described

        target = Target(**where)
        with admin_for(target) as admin:
            found = {"source": target.bootstrap, **Described(admin).document()}
    else:
        with plain_errors(), opened(directory) as reader:
            found = directory_document(reader, at)
    if output == "json":
        print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    echo(f"cluster {found['cluster_id']}, metadata up to offset {found['offset']}, epoch {found['epoch']}")
    if found.get("timestamp_ms"):
        echo(f"written {shown_time(found['timestamp_ms'])}")
    held = found.get("known_to_be_committed_below")
    if held is not None and found["offset"] >= held:
        echo(f"what lies below {held} is committed for certain; what lies behind most likely is, or will be")
    levels = found["levels"] or {}
    echo("levels: " + (", ".join(f"{name} {level}" for name, level in sorted(levels.items())) or "-"))
    if found["voters"]:
        echo("voters: " + ", ".join(str(one["node_id"]) for one in found["voters"]))
    rows = [
        (one["node_id"], _address(one), one["rack"] or "-", "! fenced" if one["fenced"] else "serving")
        for one in found["brokers"]
    ]
    print_table(("broker", "address", "rack", "state"), rows, title=plural(len(rows), "broker"))
    parts = [(topic["name"], part) for topic in found["topics"] for part in topic["partitions"]]
    print_table(
        ("topic", "part", "leader", "epoch", "replicas", "ISR", "ELR", "in doubt"),
        [
            (
                name, part["partition"], "! none" if part["leader"] is None else part["leader"], part["leader_epoch"],
                numbers(part["replicas"]), numbers(part["isr"]), numbers(part["eligible_leader_replicas"]),
                numbers(part["last_known_elr"]),
            )
            for name, part in parts
        ],
        title=f"{plural(len(found['topics']), 'topic')}, {plural(len(parts), 'partition')}",
    )  # fmt: skip
    configs = [(f"topic {one['name']}", one["configs"] or {}) for one in found["topics"]]
    configs += [
        ("all brokers" if one["broker"] is None else f"broker {one['broker']}", one["configs"])
        for one in found["broker_configs"] or ()
    ]
    lines = [(whose, f"{name} = {value}") for whose, values in configs for name, value in values.items()]
    for title, entries in (("acl", found["acls"]), ("user", found["users"]), ("quota", found["quotas"])):
        lines += [(title, json.dumps(one, default=str)) for one in entries or ()]
    if lines:
        print_table(("of", "set"), lines, title="configs, access, users, quotas")
    for sentence in found.get("unknown", ()):
        echo(f"unknown: {sentence}")


def _address(broker: dict[str, Any]) -> str:
    if "host" in broker:
        return f"{broker['host']}:{broker['port']}"
    return ", ".join(f"{name} {one['host']}:{one['port']}" for name, one in broker["listeners"].items()) or "-"


@metadata.command("history")
@click.argument("directory", type=DIRECTORY)
@click.option("--topic", shell_complete=topic_names, help="What was done to this topic alone.")
@click.option("--partition", type=click.IntRange(0), help="To this partition of the topic.")
@click.option("--broker", type=click.IntRange(0), help="To this broker, and to the partitions that it led or leads.")
@click.option("--elections", is_flag=True, help="Changes of leaders alone: who led when, and why.")
@output_option
def history(
    *, directory: str, topic: str | None, partition: int | None, broker: int | None, elections: bool, output: str
) -> None:
    """Show the records of the metadata log in order: offset, time, epoch, the controller that decided, what, and why.

    Each election is one record, with its reason. The log reaches back to the oldest snapshot that is kept; what lies
    before is gone. The node may run: what it writes meanwhile is not shown.

    \b
    strandline metadata history /var/lib/strandline --topic orders --partition 0 --elections
    strandline metadata history /var/lib/strandline --broker 2 --output json
    """
    if partition is not None and topic is None:
        raise CommandWrong("--partition wants the --topic that it is of")
    with plain_errors(), opened(directory) as reader:
        wanted = (one for one in reader.changes() if _is_wanted(one, topic, partition, broker, elections))
        documents = [_document(one) for one in wanted]
        first = 0 if reader.beginning is None else reader.beginning.offset
        unreadable = reader.problems
    if output == "json":
        print_json(
            {
                "directory": directory,
                "begins_at": first,
                "records": documents,
                "unreadable": [one._asdict() for one in unreadable],
            }
        )
        return
    print_table(
        ("offset", "time", "epoch", "by", "what, and why"),
        [
            (one["offset"], shown_time(one["timestamp_ms"]), one["epoch"], _by(one["controller"]), one["what"])
            for one in documents
        ],
        title=plural(len(documents), "record"),
    )
    if first:
        echo(f"The log begins at offset {first}; what was before is in the snapshot, without its history.")
    for one in unreadable:
        echo(f"! {one.where}: {one.found}")


def newest_changes(reader: MetadataDirectory, count: int) -> list[dict[str, Any]]:
    """The last records of a directory's log. Raises CorruptLogError, FatalError."""
    return [_document(one) for one in deque(reader.changes(), maxlen=count)]


def _by(controller: int | None) -> str:
    return "-" if controller is None else f"node {controller}"


def _is_wanted(change: Change, topic: str | None, partition: int | None, broker: int | None, elections: bool) -> bool:
    from strandline.controller.metadata.shown import subject

    about = subject(change.record, change.before, change.after)
    if elections and getattr(change.record, "leader", None) is None:
        return False
    if topic is not None and about.topic != topic:
        return False
    if partition is not None and about.partition != partition:
        return False
    return broker is None or broker in (about.broker, *_leaders(change, about.topic, about.partition))


def _leaders(change: Change, topic: str | None, partition: int | None) -> Iterator[int]:
    """Leaders of a changed partition before and after."""
    if topic is not None and partition is not None and hasattr(change.record, "leader"):
        for image in (change.before, change.after):
            found = image.partition(topic, partition)
            if found is not None and found.has_leader:
                yield found.leader


def _document(change: Change) -> dict[str, Any]:
    from strandline.controller.metadata.shown import fields_of, sentence, subject

    about = subject(change.record, change.before, change.after)
    found: dict[str, Any] = {
        "offset": change.offset,
        "timestamp_ms": change.timestamp_ms,
        "epoch": change.epoch,
        "controller": change.controller,
        "kind": type(change.record).__name__,
        "topic": about.topic,
        "partition": about.partition,
        "broker": about.broker,
        "what": sentence(change.record, change.before, change.after),
        "why": getattr(change.record, "reason", "") or None,
        "record": fields_of(change.record),
    }
    if getattr(change.record, "leader", None) is not None and about.topic is not None and about.partition is not None:
        old = change.before.partition(about.topic, about.partition)
        new = change.after.partition(about.topic, about.partition)
        found["leader_before"] = old.leader if old is not None and old.has_leader else None
        found["leader_epoch"] = None if new is None else new.leader_epoch
    return found


@metadata.command("check")
@click.argument("directory", type=DIRECTORY)
@output_option
def check(*, directory: str, output: str) -> None:
    """Replay the metadata of a directory, and name what cannot be: damage, gaps, a snapshot that says something else
    than the log, leaders outside of the ISR, replicas on nobody's broker. Changes nothing; the node may run.

    Exits 0 when all is well, 1 when something is found.

    \b
    strandline metadata check /var/lib/strandline
    strandline metadata check copy-of/__cluster_metadata-0 --output json
    """
    with plain_errors(), opened(directory) as reader:
        found = found_in(reader)
    if output == "json":
        print_json({"directory": directory, "found": found})
    else:
        for one in found:
            echo(f"! {one['where']}: {one['found']}")
            echo(f"    {one['advice']}")
        echo(f"{plural(len(found), 'finding')}." if found else "Nothing found that is wrong.")
    if found:
        raise SystemExit(FOUND)


def found_in(reader: MetadataDirectory) -> list[dict[str, str]]:
    """Everything that is wrong with the metadata of a directory."""
    from strandline.controller.metadata.shown import flaws
    from strandline.proto.errors import FatalError, StorageError

    found = [one._asdict() for one in reader.check()]
    try:
        image = reader.image()
    except (FatalError, StorageError):
        return found  # that is why: it is among the findings
    return found + [one._asdict() for one in flaws(image)]
