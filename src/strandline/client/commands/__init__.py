"""The client side of the command line: topics, records, groups, configs, cluster and quorum, over Kafka's wire."""

from __future__ import annotations

import click


def register(group: click.Group) -> None:
    """Add the commands to the program's group."""
    from strandline.client.commands.bench import bench
    from strandline.client.commands.cluster import cluster, quorum
    from strandline.client.commands.configs import config
    from strandline.client.commands.consume import consume
    from strandline.client.commands.dead_letters import dead_letters
    from strandline.client.commands.groups import group as groups
    from strandline.client.commands.produce import produce
    from strandline.client.commands.topics import topic

    for command in (topic, produce, consume, groups, dead_letters, config, cluster, quorum, bench):
        group.add_command(command)
