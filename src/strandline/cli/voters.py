"""`strandline quorum restore-vote`: a controller that lost its metadata log gets its vote back."""

from __future__ import annotations

from typing import Any

import click

from strandline.cli.common import (
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    print_json,
    target_options,
)
from strandline.client.types import QuorumDescription, QuorumReplica

SILENT_MS = 3_000
"""A voter that has not fetched for so long is down, or follows as another directory. The leader waits as long."""


@click.command("restore-vote")
@click.argument("node_id", type=click.IntRange(0))
@dry_run_option
@output_option
@target_options
def restore_vote(*, node_id: int, dry_run: bool, output: str, **where: Any) -> None:
    """Give a controller that lost its metadata log, or its disk, its vote back.

    Such a controller follows the quorum under a new directory id and has no vote. The leader gives the vote to the
    new directory, once that has everything: nothing is risked. A majority of the controllers must be up and have
    their votes.

    \b
    strandline quorum describe                    it is an observer; its old directory is the voter
    strandline quorum restore-vote 3 --dry-run
    strandline quorum restore-vote 3
    """
    with admin_for(Target(**where)) as admin:
        described = admin.describe_quorum()
        former = next((item for item in described.voters if item.node_id == node_id), None)
        observer = _observer(described, node_id)
        if observer is None and former is not None:
            _fetches(described, former)
            _tell(output, node_id, former, None, dry_run)
            return
        if observer is None or observer.directory_id is None:
            raise CommandWrong(
                f"node {node_id} does not follow the quorum: start it, and wait until it is shown by "
                "`strandline quorum describe`"
            )
        if not dry_run:
            if former is not None:
                admin.remove_voter(node_id, former.directory_id)
            admin.add_voter(node_id, observer.directory_id)
    _tell(output, node_id, former, observer, dry_run)


def _fetches(described: QuorumDescription, voter: QuorumReplica) -> None:
    """Raises CommandWrong where a voter is silent: whether it has its log shows when it runs."""
    now_ms = max(
        item.last_fetch_timestamp_ms for item in described.voters
    )  # the leader's own is the time of its answer
    if now_ms - voter.last_fetch_timestamp_ms > SILENT_MS:
        raise CommandWrong(
            f"node {voter.node_id} does not fetch: it has not within {SILENT_MS // 1000} s, or since the leader was "
            "elected. Start it. If it has lost its log it says so, and `strandline quorum describe` shows it as an "
            "observer; then its vote can be restored"
        )


def _observer(described: QuorumDescription, node_id: int) -> QuorumReplica | None:
    """The directory of the node that follows without a vote; of several the one that fetched last."""
    mine = [item for item in described.observers if item.node_id == node_id]
    return max(mine, key=lambda item: item.last_fetch_timestamp_ms, default=None)


def _tell(
    output: str, node_id: int, former: QuorumReplica | None, observer: QuorumReplica | None, dry_run: bool
) -> None:
    changed = observer is not None and not dry_run
    if output == "json":
        print_json(
            {
                "node_id": node_id,
                "former_directory_id": None if former is None else former.directory_id,
                "directory_id": None if observer is None else observer.directory_id,
                "changed": changed,
            }
        )
    elif observer is None:
        click.echo(f"Node {node_id} has its vote: there is nothing to restore.")
    else:
        would = "votes again" if changed else "would vote again"
        click.echo(f"Node {node_id} {would}, with directory {observer.directory_id}.")
        if former is not None:
            lost = "has" if changed else "would have"
            click.echo(f"Directory {former.directory_id or '(any)'} {lost} no vote any more.")
