"""`strandline cluster` and `strandline quorum`: who is there, who leads, who lags; `unregister`, by which a broker that
does not come back leaves; `bundle`, for a report; and `restore-vote`, by which a controller that lost its metadata log
gets its vote back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import click

from strandline.cli.bundle import bundle
from strandline.cli.common import (
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    plain_errors,
    plural,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.http_listener import ask_json, cacert_option
from strandline.cli.moves import rebalance
from strandline.cli.screen import echo
from strandline.client.types import PartitionDescription, QuorumDescription, QuorumReplica
from strandline.proto.system import SystemClock

SILENT_MS = 3_000
"""Milliseconds without a fetch after which a voter counts as down, or as running with another directory. The leader
waits as long."""


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
    """Entry of the observer (a node without a vote) `node_id`; if there are several, that of the last one to
    fetch."""
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
        echo(f"Node {node_id} has its vote: there is nothing to restore.")
    else:
        would = "votes again" if changed else "would vote again"
        echo(f"Node {node_id} {would}, with directory {observer.directory_id}.")
        if former is not None:
            lost = "has" if changed else "would have"
            echo(f"Directory {former.directory_id or '(any)'} {lost} no vote any more.")


@click.group()
def cluster() -> None:
    """The brokers of a cluster."""


cluster.add_command(rebalance)


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
    echo(f"{plural(len(topics), 'topic')}, {plural(len(parts), 'partition')}; " + (", ".join(trouble) or "all in sync"))


@cluster.command("clients")
@click.argument("nodes", nargs=-1, required=True, metavar="HOST:PORT...")
@cacert_option
@output_option
def clients(nodes: tuple[str, ...], cacert: str | None, output: str) -> None:
    """List clients that push their own metrics (KIP-714): what they are, and the lag and latency that they see.

    The arguments are the HTTP listeners of all brokers (HTTP:// in `listeners`; `strandline dev` prints them): each
    client pushes to one of them. Nothing is pushed until somebody subscribes. Java, librdkafka and what is built on
    them push by themselves then; `-o json` shows everything that they say.

    \b
    strandline config alter client-metrics all --set metrics=* --set interval.ms=30000
    strandline cluster clients 127.0.0.1:9194 127.0.0.1:9195 127.0.0.1:9196
    """
    with plain_errors():
        answers = {node: ask_json(node, "/clients", cacert) for node in nodes}
    found = [{"broker": answer["node_id"], **client} for answer in answers.values() for client in answer["clients"]]
    found.sort(key=lambda client: (client["client_id"], client["client_instance_id"]))
    if output == "json":
        print_json(found)
        return
    if not found:
        echo(
            "no client has pushed its metrics to these brokers: subscribe by `strandline config alter client-metrics "
            "all --set metrics=*`, and wait for their interval.ms"
        )
        return
    columns = ("client id", "software", "instance", "address", "broker", "pushed", "lag max", "latency ms")
    print_table(columns, [_client_row(client) for client in found])


def _client_row(client: dict[str, Any]) -> tuple[object, ...]:
    metrics = client["metrics"]
    age = "closed" if client["closed"] else f"{client['pushed_ms_ago'] / 1000:.0f} s ago"
    return (
        client["client_id"],
        f"{client['client_software_name']} {client['client_software_version']}",
        client["client_instance_id"],
        client["client_source_address"],
        client["broker"],
        age,
        _greatest(metrics, "records.lag.max"),
        _greatest(metrics, "request.latency.avg"),
    )


def _greatest(metrics: dict[str, float], ending: str) -> str:
    """The greatest of the metrics whose names end so; clients of every kind have the last words alike."""
    values = [value for name, value in metrics.items() if name.endswith(ending)]
    return f"{max(values):.0f}" if values else "-"


cluster.add_command(bundle)


@cluster.command("unregister")
@click.argument("node_id", type=click.IntRange(0))
@dry_run_option
@output_option
@target_options
def unregister(*, node_id: int, dry_run: bool, output: str, **where: Any) -> None:
    """Take a broker that does not come back out of the cluster, so that nothing waits for it: no upgrade, no election.

    It must be down, and no partition may have its last complete copy there. Its replicas stay assigned to it.

    \b
    strandline cluster describe                   it is fenced
    strandline cluster unregister 3 --dry-run
    strandline cluster unregister 3
    """
    with admin_for(Target(**where)) as admin:
        node = next((one for one in admin.describe_cluster().nodes if one.node_id == node_id), None)
        if node is None:
            raise CommandWrong(f"broker {node_id} is not registered: `strandline cluster describe` shows who is")
        if not node.fenced:
            raise CommandWrong(f"broker {node_id} serves: stop it first, and wait until it is fenced")
        topics = admin.describe_topics(admin.list_topics(include_internal=True))
        theirs = [(topic.name, part) for topic in topics for part in topic.partitions if node_id in part.replicas]
        last = [f"{name}-{part.partition}" for name, part in theirs if _is_last(part, node_id)]
        if last:
            raise CommandWrong(
                f"the last complete copy of {plural(len(last), 'partition')} is on broker {node_id}: "
                f"{', '.join(last[:5])}{' ...' if len(last) > 5 else ''}. Start it again; or, if its disk is lost, "
                "elect another replica (`strandline topic elect --unclean` says what that loses), or delete the topic"
            )
        if not dry_run:
            admin.unregister_broker(node_id)
    if output == "json":
        print_json({"node_id": node_id, "replicas": len(theirs), "changed": not dry_run})
        return
    echo(f"Broker {node_id} {'would be' if dry_run else 'is'} taken out of the cluster.")
    if theirs:
        what = "stay assigned to it, and are a replica short until a broker of this id is back"
        echo(f"{plural(len(theirs), 'partition')} {what}.")


def _is_last(part: PartitionDescription, node_id: int) -> bool:
    """Nobody else is in the ISR, or eligible."""
    return part.leader is None and not {*part.isr, *(part.eligible_leader_replicas or ())} - {node_id}


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
        echo(f"{lost}: strandline quorum restore-vote {node_id}")


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
