"""`strandline quorum`: the client's commands, and what is done to a stopped controller's own directory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.cluster import quorum
from strandline.cli.common import (
    CommandFailed,
    CommandWrong,
    Target,
    admin_for,
    config_option,
    dry_run_option,
    load_config,
    output_option,
    plain_errors,
    print_json,
    settings_option,
    target_options,
)
from strandline.cli.screen import echo
from strandline.client.types import QuorumDescription, QuorumReplica
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.admin import Admin

__all__ = ["quorum"]

_LOOK_AGAIN_S = 1.0
"""Seconds between two looks at a controller that has not caught up."""

_NOT_THERE = (
    "it does not follow the quorum. Start it, with controller.quorum.bootstrap.servers naming a controller that runs; "
    "`strandline quorum describe` shows it then"
)

_FRESH_MS = 1_500
"""A controller has caught up if it had all that the leader had so lately."""

_RISK = (
    "Changes of topics, leaders and settings that were committed may be lost for good, and acknowledged records with "
    "them: those that only what this node lost held, and controllers that are away. Do it only where too few "
    "controllers with their logs are left to elect a leader; to one node, while every controller that still has its "
    "log runs; and restore the votes of the others by `strandline quorum restore-vote`."
)


@quorum.command("force-vote")
@config_option
@settings_option
@click.option("--i-accept-the-loss-of-committed-metadata", "accepted", is_flag=True, help="Do it: the risk is taken.")
@dry_run_option
@output_option
def force_vote(
    *, config_path: str | None, overrides: dict[str, str], accepted: bool, dry_run: bool, output: str
) -> None:
    """Let a stopped controller vote although its metadata log was lost, or its end cut: the last resort.

    While a majority of the controllers have their logs, `strandline quorum restore-vote` gives a vote back and risks
    nothing. This command is for when it is too late for that. It changes two small files of the node's data directory;
    the node must not run.

    \b
    strandline quorum force-vote --config node-3.properties --dry-run
    strandline quorum force-vote --config node-3.properties --i-accept-the-loss-of-committed-metadata
    """
    from strandline.cluster.node.format import read_directory
    from strandline.cluster.node.main_directory import as_it_starts
    from strandline.controller.quorum.quorum import memory_of
    from strandline.log.real_disk import RealDisk

    with plain_errors():
        config = load_config(config_path, overrides)
        disk = RealDisk()
        config = as_it_starts(config, dict.fromkeys(config.log_dirs, disk))
        directory = read_directory(disk, config)
        memory = memory_of(disk, config.data_dir, directory.meta.directory_id, promises=config.is_controller)
        memory.recall()
        if memory.lost:
            raise click.ClickException(
                f"{memory.lost}. Start the node once, so that it follows the others, and stop it."
            )
        node, lost = config.node_id, not memory.now.has_vote or memory.now.election.doubt is not None
        if lost and not dry_run:
            if not accepted:
                raise click.ClickException(f"{_RISK} If so, add --i-accept-the-loss-of-committed-metadata.")
            memory.force_vote()
    if output == "json":
        print_json({"node_id": node, "had_vote": not lost, "changed": lost and not dry_run})
    elif not lost:
        echo(f"Node {node} has its vote: there is nothing to force.")
    elif dry_run:
        echo(f"Node {node} has no vote, or a doubtful one, and would have one again. {_RISK}")
    else:
        echo(f"Node {node} votes again when it starts.")


_node = click.argument("node_id", type=click.IntRange(0))
_wait = click.option(
    "--wait-s", type=click.IntRange(0), default=300, show_default=True, help="How long it may take to catch up."
)
_at = click.option(
    "--at", "at", metavar="HOST:PORT", help="Its INTERNAL listener. Left out: where it says itself that it listens."
)


@quorum.command("add")
@_node
@_at
@_wait
@dry_run_option
@output_option
@target_options
def add(*, node_id: int, at: str | None, wait_s: int, dry_run: bool, output: str, **where: Any) -> None:
    """Make a controller a voter, once it has caught up (KIP-853; kraft.version 1).

    Format it with --no-initial-controllers and controller.quorum.bootstrap.servers, and start it first.

    \b
    strandline quorum add 4 --dry-run
    strandline quorum add 4
    """
    with admin_for(Target(**where)) as admin:
        _check_that_voters_change(admin)
        described = admin.describe_quorum()
        if any(item.node_id == node_id for item in described.voters):
            raise CommandWrong(_votes_already(described, node_id))
        newcomer = _newcomer(described, node_id) if dry_run else _add(admin, node_id, at, wait_s, output)
    if output == "json":
        print_json({"node_id": node_id, "directory_id": newcomer.directory_id, "changed": not dry_run})
        return
    echo(f"Node {node_id} {'would vote' if dry_run else 'votes'}, with directory {newcomer.directory_id}.")


@quorum.command("remove")
@_node
@dry_run_option
@output_option
@target_options
def remove(*, node_id: int, dry_run: bool, output: str, **where: Any) -> None:
    """Take a controller's vote: of one that runs, of one that is gone for good, of the leader (KIP-853; kraft.version
    1).

    A majority of those that are left must be up. The controller follows on as an observer; stop it when you like.

    \b
    strandline quorum remove 3 --dry-run
    strandline quorum remove 3
    """
    with admin_for(Target(**where)) as admin:
        _check_that_voters_change(admin)
        voter = _voter(admin.describe_quorum(), node_id)
        if not dry_run:
            admin.remove_voter(node_id, voter.directory_id)
    if output == "json":
        print_json({"node_id": node_id, "directory_id": voter.directory_id, "changed": not dry_run})
        return
    echo(f"Node {node_id} {'would have' if dry_run else 'has'} no vote any more; directory {voter.directory_id}.")


@quorum.command("replace")
@click.argument("old_id", type=click.IntRange(0))
@click.argument("new_id", type=click.IntRange(0))
@_at
@_wait
@dry_run_option
@output_option
@target_options
def replace(*, old_id: int, new_id: int, at: str | None, wait_s: int, dry_run: bool, output: str, **where: Any) -> None:
    """Add one controller and remove another, in this order: for a machine that is gone, or is to go (kraft.version 1).

    For a new disk under the same node id it is `strandline quorum restore-vote`.

    \b
    strandline quorum replace 3 4 --dry-run
    strandline quorum replace 3 4
    """
    if old_id == new_id:
        raise click.UsageError(f"for a new disk of node {old_id} it is: strandline quorum restore-vote {old_id}")
    with admin_for(Target(**where)) as admin:
        _check_that_voters_change(admin)
        described = admin.describe_quorum()
        old = next((item for item in described.voters if item.node_id == old_id), None)
        has_vote = next((item for item in described.voters if item.node_id == new_id), None)
        if old is None and has_vote is None:
            _voter(described, old_id)
        new = has_vote or (_newcomer(described, new_id) if dry_run else _add(admin, new_id, at, wait_s, output))
        if not dry_run and old is not None:  # else a repetition: what was broken off is ended
            admin.remove_voter(old_id, old.directory_id)
    changed = not dry_run and (old is not None or has_vote is None)
    if output == "json":
        print_json({"old": old_id, "new": new_id, "directory_id": new.directory_id, "changed": changed})
        return
    echo(f"Node {new_id} {'would vote' if dry_run else 'votes'} instead of node {old_id}.")


def _check_that_voters_change(admin: Admin) -> None:
    """Check that the cluster's voters can change. Raises CommandWrong if they are configured statically, before the
    command waits or a dry run promises anything."""
    from strandline.controller.metadata.features import KRAFT_FEATURE

    if not admin.describe_features().finalized.get(KRAFT_FEATURE):
        raise CommandWrong(
            f"the controllers are those that are configured ({KRAFT_FEATURE} 0): `strandline upgrade finalize "
            f"{KRAFT_FEATURE}=1` lets them come and go, and stays. For a lost disk it is `strandline quorum "
            "restore-vote`"
        )


def _votes_already(described: QuorumDescription, node_id: int) -> str:
    if any(item.node_id == node_id for item in described.observers):
        return f"another directory of node {node_id} votes: strandline quorum restore-vote {node_id}"
    return f"node {node_id} votes already"


def _voter(described: QuorumDescription, node_id: int) -> QuorumReplica:
    for item in described.voters:
        if item.node_id == node_id:
            return item
    voters = ", ".join(str(item.node_id) for item in described.voters)
    raise CommandWrong(f"node {node_id} is no voter: these are: {voters}")


def _newcomer(described: QuorumDescription, node_id: int) -> QuorumReplica:
    """Entry of the observer (a node without a vote) `node_id`; if there are several, that of the last one to
    fetch. Raises CommandWrong."""
    newcomer = _following(described, node_id)
    if newcomer is None:
        raise CommandWrong(f"node {node_id}: {_NOT_THERE}")
    return newcomer


def _following(described: QuorumDescription, node_id: int) -> QuorumReplica | None:
    mine = [item for item in described.observers if item.node_id == node_id and item.directory_id is not None]
    return max(mine, key=lambda item: item.last_fetch_timestamp_ms, default=None)


def _add(admin: Admin, node_id: int, at: str | None, wait_s: int, output: str) -> QuorumReplica:
    """Wait until the newcomer has caught up, and give it its vote."""
    from strandline.cluster.node.config_values import parse_endpoint

    with plain_errors():
        endpoint = None if at is None else parse_endpoint("--at", at)
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + wait_s * 1000
    told = ""
    while True:
        described = admin.describe_quorum()
        newcomer = _following(described, node_id)
        why = _NOT_THERE if newcomer is None else _lag(described, newcomer)
        if not why and newcomer is not None and newcomer.directory_id is not None:
            try:
                admin.add_voter(node_id, newcomer.directory_id, endpoint)
            except KafkaError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise
                why = error.message
            else:
                return newcomer
        if clock.monotonic_ms() >= deadline_ms:
            raise CommandFailed(f"node {node_id} has no vote after {wait_s} s: {why}")
        if output != "json" and why != told:
            echo(f"Node {node_id} has no vote yet: {why}", err=True)
        told = why
        asyncio.run(asyncio.sleep(_LOOK_AGAIN_S))


def _lag(described: QuorumDescription, newcomer: QuorumReplica) -> str:
    """Reason why a new controller cannot become a voter yet, as a sentence; "" if none is known."""
    now_ms = max(item.last_fetch_timestamp_ms for item in described.voters)  # the leader's own is that of its answer
    if now_ms - newcomer.last_fetch_timestamp_ms > _FRESH_MS:
        return "it does not fetch, or has only begun to. Does it run?"
    if now_ms - newcomer.last_caught_up_timestamp_ms > _FRESH_MS:
        end = max(item.log_end_offset for item in described.voters)
        return f"it has {max(0, newcomer.log_end_offset)} of {end} records of the metadata log"
    return ""
