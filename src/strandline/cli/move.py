"""Command `strandline log move`: moves a replica to another log directory of its broker (KIP-113)."""

from __future__ import annotations

import threading
from typing import Any

import click

from strandline.cli.common import (
    CommandFailed,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    print_json,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import echo
from strandline.cli.sizes import shown_bytes
from strandline.client.admin import Admin
from strandline.client.types import LogDirDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition

INTERVAL_S = 1.0
"""Seconds between two checks of the progress."""

_WORDS = {
    ErrorCode.LOG_DIR_NOT_FOUND: "the broker has no such directory in log.dirs, or it is offline",
    ErrorCode.REPLICA_NOT_AVAILABLE: "the broker has no replica of this partition",
    ErrorCode.KAFKA_STORAGE_ERROR: "the replica is offline or rotten, or there is no room; the broker's log says which",
}


@click.command("move")
@click.argument("topic", shell_complete=topic_names)
@click.argument("partition", type=click.IntRange(0))
@click.option("--broker", type=click.IntRange(0), required=True, help="Whose replica.")
@click.option("--to", "path", required=True, help="The directory, as in the broker's log.dirs.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end; a repetition without it does.")
@dry_run_option
@output_option
@target_options
def move(
    *, topic: str, partition: int, broker: int, path: str, no_wait: bool, dry_run: bool, output: str, **where: Any
) -> None:
    """Move a replica to another log directory of its broker, while it is written and read.

    It is copied beside the log and takes its place once it is whole. Where the replica is already: a move that is under
    way is given up. A broker that restarts forgets what is under way.

    \b
    strandline log move orders 0 --broker 2 --to /disk2/strandline
    """
    tp = TopicPartition(topic, partition)
    with admin_for(Target(**where)) as admin:
        if dry_run:
            _preview(admin, broker, tp, path, output)
            return
        [error] = admin.alter_replica_log_dirs({(topic, partition, broker): path}).values()
        if error is not None:
            raise _refused(broker, tp, _WORDS.get(error.code) or str(error), _dirs(admin, broker))
        done = _there(admin, broker, tp, path)
        while not done and not no_wait:
            _tell(admin, broker, tp, path, output)
            threading.Event().wait(INTERVAL_S)
            done = _there(admin, broker, tp, path)
    if output == "json":
        print_json({"topic": topic, "partition": partition, "broker": broker, "log_dir": path, "done": done})
    else:
        echo(f"{tp} on broker {broker}: {'it is in' if done else 'on its way to'} {path}")


def _preview(admin: Admin, broker: int, tp: TopicPartition, path: str, output: str) -> None:
    """Preview of the move. Raises CommandFailed for a move that the broker would refuse."""
    dirs = _dirs(admin, broker)
    target = next((one for one in dirs if one.path == path and one.error is None), None)
    if target is None:
        raise _refused(broker, tp, _WORDS[ErrorCode.LOG_DIR_NOT_FOUND], dirs)
    source = next((one for one in dirs if tp in one.replicas), None)
    if source is None:
        raise _refused(broker, tp, _WORDS[ErrorCode.REPLICA_NOT_AVAILABLE], dirs)
    size = 0 if source is target else source.replicas[tp].size_bytes
    if target.usable_bytes is not None and size > target.usable_bytes:
        raise _refused(broker, tp, f"it has {shown_bytes(size)}, and there is no room for it", dirs)
    if output == "json":
        print_json({"topic": tp.topic, "partition": tp.partition, "broker": broker, "from": source.path,
                    "log_dir": path, "bytes": size, "dry_run": True})  # fmt: skip
    elif source is target:
        echo(f"{tp} on broker {broker}: it is in {path}; a move that is under way would be given up")
    else:
        echo(f"{tp} on broker {broker}: {shown_bytes(size)} would move from {source.path} to {path}")


def _refused(broker: int, tp: TopicPartition, why: str, dirs: list[LogDirDescription]) -> CommandFailed:
    known = ", ".join(_named(one) for one in dirs)
    return CommandFailed(f"{tp} on broker {broker}: {why}; its directories: {known}")


def _dirs(admin: Admin, broker: int) -> list[LogDirDescription]:
    return admin.describe_log_dirs([broker])[broker]


def _named(one: LogDirDescription) -> str:
    if one.error is not None:
        return f"{one.path} (offline)"
    return one.path if one.usable_bytes is None else f"{one.path} ({shown_bytes(one.usable_bytes)} free)"


def _there(admin: Admin, broker: int, tp: TopicPartition, path: str) -> bool:
    """True if the replica is in the directory. Raises CommandFailed if it is neither there nor being moved there."""
    dirs = _dirs(admin, broker)
    if any(tp in one.moving and one.path == path for one in dirs):
        return False
    if any(tp in one.replicas and one.path == path for one in dirs):
        return True
    raise CommandFailed(f"{tp}: the move was given up; the log of broker {broker} says why, unless it was restarted")


def _tell(admin: Admin, broker: int, tp: TopicPartition, path: str, output: str) -> None:
    for one in _dirs(admin, broker):
        if tp in one.moving and one.path == path and output != "json":
            copy = one.moving[tp]
            echo(f"{tp}: {copy.size_bytes} bytes are copied, {copy.lag_records} offsets are left", err=True)
