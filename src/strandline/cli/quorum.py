"""`strandline quorum`: the client's commands, and what is done to a stopped controller's own directory."""

from __future__ import annotations

import click

from strandline.cli.cluster import quorum
from strandline.cli.common import (
    config_option,
    dry_run_option,
    load_config,
    output_option,
    plain_errors,
    print_json,
    settings_option,
)
from strandline.cli.screen import echo

__all__ = ["quorum"]

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
