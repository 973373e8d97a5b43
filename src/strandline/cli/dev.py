"""`strandline dev`: a cluster of real processes on this machine."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from strandline.cli.common import output_option, plain_errors, plural, print_table, settings_option
from strandline.cli.screen import echo
from strandline.cluster.node.dev_layout import PORT_BASE, STATE_FILE
from strandline.cluster.node.dev_login import KCAT_FILE, USER

if TYPE_CHECKING:
    from strandline.cluster.node.dev import DevCluster

WATCH_INTERVAL_S = 0.2


@click.command()
@click.option("--nodes", type=click.IntRange(1, 50), help="How many brokers; 3, or as many as --data-dir holds.")
@click.option(
    "--controllers",
    type=click.IntRange(0, 9),
    default=0,
    show_default=True,
    help="Controllers as processes of their own; 0: every node is broker and controller.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Where the data lie, kept for the next start. Left out: a temporary directory, deleted at the end.",
)
@click.option("--fresh", is_flag=True, help="Delete what --data-dir holds of an earlier cluster first.")
@click.option(
    "--port-base",
    type=int,
    default=PORT_BASE,
    show_default=True,
    help="Clients' port of node 1; the next nodes have the next ports. gRPC is 10000 higher, HTTP 1000 lower. 0: any.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Speak TLS on every listener, with a CA of its own; clients need a certificate, which is made for them.",
)
@click.option("--sasl", is_flag=True, help="With --secure: clients log in, as a user that is made for them.")
@settings_option
@output_option
def dev(
    *,
    nodes: int | None,
    controllers: int,
    data_dir: str | None,
    fresh: bool,
    port_base: int,
    secure: bool,
    sasl: bool,
    overrides: dict[str, str],
    output: str,
) -> None:
    """Run a cluster on this machine: three nodes, each a process of its own, until Ctrl-C.

    Nodes that die are not started again: that is yours to watch. With --output json one line says where everything is
    once all are ready, and one more when a node ends.

    \b
    strandline dev
    strandline dev --nodes 5 --controllers 3 --port-base 0
    strandline dev --secure
    strandline dev --secure --sasl
    strandline dev --secure --sasl -X authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
    strandline dev --data-dir ./cluster -X num.partitions=3
    """
    from strandline.cluster.node.dev import DevCluster

    if fresh:
        if data_dir is None:
            raise click.UsageError("--fresh needs --data-dir: without one the data are new each time")
        _drop(Path(data_dir))
    stopping = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    with plain_errors():
        cluster = DevCluster(
            data_dir,
            nodes=nodes,
            controllers=controllers,
            port_base=port_base,
            secure=secure,
            sasl=sasl,
            settings=overrides,
        )
        if output == "table":
            count = len({*cluster.broker_ids, *cluster.controller_ids})
            echo(f"Starting {plural(count, 'node')}; Ctrl-C stops them.", err=True)
        try:
            cluster.start()
            _tell_ready(cluster, output, kept=data_dir is not None)
            _watch(cluster, stopping, output)
            if output == "table":
                echo("Stopping.")
        finally:
            cluster.stop()


def _drop(directory: Path) -> None:
    """Delete an earlier cluster; anything else is not ours to delete."""
    if not directory.exists():
        return
    if any(directory.iterdir()) and not (directory / STATE_FILE).exists():
        raise click.UsageError(f"{directory} holds no cluster of `strandline dev`; it is not deleted")
    shutil.rmtree(directory)


def _tell_ready(cluster: DevCluster, output: str, *, kept: bool) -> None:
    if output == "json":
        places = [
            {
                "node_id": node_id,
                "pid": cluster.pid(node_id),
                "client": cluster.client(node_id) if node_id in cluster.broker_ids else None,
                "http": cluster.http(node_id),
                "data_dir": cluster.data_dir(node_id),
                "log": cluster.log_path(node_id),
            }
            for node_id in cluster.node_ids
        ]
        ready = {"event": "ready", "bootstrap": cluster.bootstrap, "nodes": places}
        if cluster.client_properties is not None:
            ready["client_properties"] = str(cluster.client_properties)
        echo(json.dumps(ready))
        return
    scheme = "http" if cluster.client_properties is None else "https"
    rows = [
        (
            node_id,
            cluster.roles(node_id),
            cluster.client(node_id) if node_id in cluster.broker_ids else "-",
            f"{scheme}://{cluster.http(node_id)}/metrics",
            cluster.pid(node_id),
        )
        for node_id in cluster.node_ids
    ]
    print_table(("node", "roles", "clients", "metrics", "pid"), rows, title="The cluster is ready")
    how_long = "kept" if kept else "deleted at the end; --data-dir keeps it"
    echo(f"Data and logs: {cluster.root} ({how_long})")
    bootstrap = cluster.client(cluster.broker_ids[0])
    if cluster.client_properties is not None:
        _tell_how_to_connect(bootstrap, cluster.client_properties, cluster.super_users)
        return
    where = "" if bootstrap == f"127.0.0.1:{PORT_BASE}" else f" -b {bootstrap}"
    echo(f"Try: strandline topic create orders{where}    or: kcat -b {bootstrap} -L    Ctrl-C stops the cluster.")


def _tell_how_to_connect(bootstrap: str, properties: Path, super_users: tuple[str, ...]) -> None:
    """Print how to connect to a secure cluster: with our commands, with kcat, with Kafka's tools, with curl."""
    ca, pem = properties.with_name("ca.pem"), properties.with_name("client-dev.pem")
    by_kcat = properties.with_name(KCAT_FILE)
    logs_in = "SASL_SSL" in properties.read_text()
    echo("Clients log in:" if logs_in else "Clients show a certificate:")
    echo(f"  strandline topic create orders -b {bootstrap} --command-config {properties}")
    echo(
        f"  kcat -F {by_kcat} -b {bootstrap} -L"
        if logs_in
        else f"  kcat -b {bootstrap} -L -X security.protocol=ssl -X ssl.ca.location={ca}"
        f" -X ssl.certificate.location={pem} -X ssl.key.location={pem}"
    )
    echo(f"  kafka-topics.sh --bootstrap-server {bootstrap} --command-config {properties} --list")
    if super_users:
        echo(f"Brokers ask who may do what: {' and '.join(super_users)} may do everything, others what ACLs allow:")
        alice = super_users[-1].replace(USER, "alice")
        where = f"-b {bootstrap} --command-config {properties}"
        echo(f"  strandline acl add --allow-principal {alice} --producer --topic orders {where}")
    echo(f"  curl --cacert {ca} https://... of the table. Ctrl-C stops the cluster.")


def _watch(cluster: DevCluster, stopping: threading.Event, output: str) -> None:
    """Wait for the end of the cluster, and report nodes that end by themselves, including one that died since it was
    ready."""
    alive = set(cluster.node_ids)
    while not stopping.wait(WATCH_INTERVAL_S):
        for node_id in sorted(alive - set(cluster.pids())):
            alive.discard(node_id)
            if output == "json":
                echo(json.dumps({"event": "ended", "node_id": node_id, "exit_code": cluster.exit_code(node_id)}))
            else:
                echo(f"Node {node_id} has ended (exit code {cluster.exit_code(node_id)}).", err=True)
                echo(f"Its log ends:\n{cluster.last_words(node_id)}", err=True)
        if not alive:
            raise click.ClickException("every node has ended")
