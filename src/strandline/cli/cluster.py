"""`strandline cluster` and `strandline quorum`: who is there, who leads, who lags."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import click

from strandline.cli.common import Target, admin_for, output_option, plural, print_json, print_table, target_options
from strandline.cli.voters import restore_vote
from strandline.client.types import QuorumDescription
from strandline.proto.system import SystemClock


@click.group()
def cluster() -> None:
    """The brokers of a cluster."""


@cluster.command("describe")
@output_option
@target_options
def describe_cluster(output: str, **where: Any) -> None:
    """Show every broker: where it is, whether it serves, what it leads.

    \b
    strandline cluster describe
    strandline cluster describe --output json -b 10.0.0.7:9092
    """
    with admin_for(Target(**where)) as admin:
        described = admin.describe_cluster()
        topics = admin.describe_topics(admin.list_topics(include_internal=True))
    parts = [part for item in topics for part in item.partitions]
    leads = Counter(part.leader for part in parts)
    copies = Counter(node for part in parts for node in part.replicas)
    behind = Counter(node for part in parts for node in part.replicas if node not in part.isr)
    under = sum(len(part.isr) < len(part.replicas) for part in parts)
    if output == "json":
        nodes = [
            asdict(node)
            | {
                "leads": leads[node.node_id],
                "replicas": copies[node.node_id],
                "replicas_not_in_sync": behind[node.node_id],
            }
            for node in described.nodes
        ]
        print_json(
            {
                "cluster_id": described.cluster_id,
                "controller_id": described.controller_id,
                "brokers": nodes,
                "topics": len(topics),
                "partitions": len(parts),
                "under_replicated_partitions": under,
                "leaderless_partitions": leads[None],
            }
        )
        return
    rows = [
        (
            node.node_id, f"{node.host}:{node.port}", node.rack or "-", "! fenced" if node.fenced else "serving",
            leads[node.node_id], copies[node.node_id],
            f"! {behind[node.node_id]}" if behind[node.node_id] else 0,
        )
        for node in described.nodes
    ]  # fmt: skip
    title = f"cluster {described.cluster_id}"
    print_table(("broker", "address", "rack", "state", "leads", "replicas", "not in sync"), rows, title=title)
    trouble = [
        f"{plural(number, 'partition')} {what}"
        for number, what in ((under, "under-replicated"), (leads[None], "without a leader"))
        if number
    ]
    click.echo(
        f"{plural(len(topics), 'topic')}, {plural(len(parts), 'partition')}; " + (", ".join(trouble) or "all in sync")
    )


@click.group()
def quorum() -> None:
    """The metadata quorum of a cluster."""


quorum.add_command(restore_vote)


@quorum.command("describe")
@output_option
@target_options
def describe_quorum(output: str, **where: Any) -> None:
    """Show the quorum's leader, its epoch, and how far each voter and observer is behind.

    \b
    strandline quorum describe
    strandline quorum describe --output json
    """
    with admin_for(Target(**where)) as admin:
        described = admin.describe_quorum()
    if output == "json":
        print_json(asdict(described))
        return
    title = (
        f"metadata quorum: leader {described.leader_id} in epoch {described.leader_epoch}, "
        f"high watermark {described.high_watermark}"
    )
    columns = ("node", "role", "log end", "lag", "caught up", "directory id")
    print_table(columns, _quorum_rows(described, SystemClock().wall_ms()), title=title)
    voters = {item.node_id for item in described.voters}
    for node_id in sorted({item.node_id for item in described.observers} & voters):
        lost = f"! node {node_id} has lost its log, or its disk, and has no vote"
        click.echo(f"{lost}: strandline quorum restore-vote {node_id}")


def _quorum_rows(described: QuorumDescription, now_ms: int) -> list[tuple[object, ...]]:
    voters = [item for item in described.voters if item.node_id == described.leader_id]
    end = voters[0].log_end_offset if voters else described.high_watermark
    rows: list[tuple[object, ...]] = []
    for role, members in (("voter", described.voters), ("observer", described.observers)):
        for item in members:
            leads = item.node_id == described.leader_id
            seen = item.last_caught_up_timestamp_ms
            caught_up = "-" if leads else "! never" if seen < 0 else f"{max(0, now_ms - seen):,} ms ago"
            name = "leader" if leads else role
            lag = max(0, end - item.log_end_offset)
            rows.append((item.node_id, name, item.log_end_offset, lag, caught_up, item.directory_id or "-"))
    return rows
