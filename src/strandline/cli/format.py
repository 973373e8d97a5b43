"""`strandline format`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

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

if TYPE_CHECKING:
    from strandline.cluster.node.format import Formatted


@click.command("format")
@config_option
@settings_option
@click.option(
    "--cluster-id", help="The cluster's id, the same for all its nodes. Left out: a new one is made and shown."
)
@click.option(
    "--initial-controllers",
    default="",
    metavar="ID@HOST:PORT,...",
    help="The controllers, by their INTERNAL listeners; the same for all nodes. Left out: controller.quorum.voters.",
)
@click.option("--standalone", is_flag=True, help="This controller is the only one of a new cluster; more join later.")
@click.option(
    "--no-initial-controllers",
    is_flag=True,
    help="The cluster is there already: find it by controller.quorum.bootstrap.servers. A controller has no vote yet.",
)
@click.option("--ignore-formatted", is_flag=True, help="Leave a directory that is this node's already as it is.")
@click.option(
    "--without-vote",
    is_flag=True,
    help="A controller of a running cluster whose disk was lost: it gets its vote by `quorum restore-vote`.",
)
@click.option(
    "-S",
    "--add-scram",
    multiple=True,
    metavar="MECHANISM=[name=...,password=...]",
    help="A user of the new cluster, its password best as ${env:NAME} or ${file:PATH:KEY}; for every controller.",
)
@click.option(
    "--release-version",
    default="",
    metavar="RELEASE",
    help="A new cluster has the levels of this release of Strandline.",
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME=LEVEL",
    help="A feature of a new cluster has this level, as metadata.version=1; left out: the newest.",
)
@dry_run_option
@output_option
def format_(
    *,
    config_path: str | None,
    overrides: dict[str, str],
    cluster_id: str | None,
    initial_controllers: str,
    standalone: bool,
    no_initial_controllers: bool,
    ignore_formatted: bool,
    without_vote: bool,
    add_scram: tuple[str, ...],
    release_version: str,
    features: tuple[str, ...],
    dry_run: bool,
    output: str,
) -> None:
    """Prepare a node's data directories: each once in its life.

    A node refuses a directory that is not formatted, for a controller whose disk was wiped and that formatted itself
    would vote twice.

    \b
    strandline format --config node-1.properties                     makes a cluster id and shows it
    strandline format --config node-2.properties --cluster-id ID     the same id for every other node
    strandline format --cluster-id ID -X node.id=1 -X log.dirs=/data \\
        --initial-controllers 1@10.0.0.1:19092,2@10.0.0.2:19092,3@10.0.0.3:19092
    strandline format --config node-1.properties --standalone            the first controller; others are added later
    strandline format --config node-4.properties --cluster-id ID --no-initial-controllers     one that is to be added
    strandline format --config node-3.properties --cluster-id ID --without-vote        a new disk for controller 3
    strandline format --config node-1.properties             a directory was added to log.dirs, or has a new disk
    strandline format --config node-1.properties --cluster-id ID \\
        --add-scram 'SCRAM-SHA-256=[name=admin,password=${env:ADMIN_PASSWORD}]'
    strandline format --config node-1.properties --feature metadata.version=1      older builds can read it
    """
    from strandline.cluster.node.config_values import parse_voters
    from strandline.cluster.node.format import (
        cluster_id_of,
        format_directory,
        random_cluster_id,
        with_kraft_version,
    )
    from strandline.log.checkpoints import encode_id
    from strandline.log.real_disk import RealDisk
    from strandline.proto.errors import ConfigError
    from strandline.proto.system import system_rng

    rng = system_rng()
    with plain_errors():
        config = load_config(config_path, overrides)
        if no_initial_controllers and (initial_controllers or standalone or config.quorum_voters):
            expected = "alone, without other controllers named here or in controller.quorum.voters"
            raise ConfigError("--no-initial-controllers", "", expected)
        first_of_many = bool(initial_controllers) and config.is_controller and not without_vote
        disk = RealDisk()
        made = format_directory(
            disk,
            config,
            cluster_id=cluster_id or cluster_id_of(disk, config) or random_cluster_id(rng),
            initial_controllers=parse_voters("--initial-controllers", initial_controllers),
            rng=rng,
            ignore_formatted=ignore_formatted,
            without_vote=without_vote,
            standalone=standalone,
            dry_run=dry_run,
            add_scram=add_scram,
            release=release_version,
            features=with_kraft_version(release_version, features) if first_of_many else features,
        )
    if output == "json":
        print_json(
            {
                "directory": made.path,
                "node_id": made.meta.node_id,
                "cluster_id": made.meta.cluster_id,
                "directory_id": encode_id(made.meta.directory_id),
                "formatted": not (dry_run or made.already),
                "others": {path: not (dry_run or already) for path, already in made.others.items()},
            }
        )
        return
    _tell(made, dry_run=dry_run)
    if add_scram and made.already:
        echo("Its users are as they were: --add-scram makes them with a directory; strandline user set, later on.")
    if without_vote:
        _tell_voteless(made, "restore-vote")
    elif config.is_controller and not made.voters:
        _tell_voteless(made, "add")
    if cluster_id is None and not made.already:
        echo(f"Format the other nodes with --cluster-id {made.meta.cluster_id}")


def _tell(made: Formatted, *, dry_run: bool) -> None:
    for path, already in {made.path: made.already, **made.others}.items():
        verb = "is formatted already" if already else "would be formatted" if dry_run else "is formatted"
        echo(f"{path} {verb}: node {made.meta.node_id} of cluster {made.meta.cluster_id}.")


def _tell_voteless(made: Formatted, command: str) -> None:
    node = made.meta.node_id
    echo(f"It has no vote: start it, and run `strandline quorum {command} {node}` when it has caught up.")
