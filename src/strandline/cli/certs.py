"""Command `strandline certs`: creates certificates for development and tests."""

from __future__ import annotations

from pathlib import Path

import click

from strandline.cli.common import plain_errors
from strandline.cli.screen import echo


@click.group()
def certs() -> None:
    """Certificates for development and tests."""


@certs.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--nodes", default="1,2,3", show_default=True, metavar="ID,...", help="Ids of nodes.")
@click.option("--clients", default="client", show_default=True, metavar="NAME,...", help="Names of clients.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A name or address of the nodes, beside those of this machine.",
)
@click.option("--cluster-id", default="", help="Let the nodes' certificates hold in this cluster alone.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they hold.")
def dev(directory: Path, *, nodes: str, clients: str, hosts: tuple[str, ...], cluster_id: str, days: int) -> None:
    """Make a CA and certificates of nodes and clients in DIR, as PEM files.

    Each .pem file holds a private key and its chain, for `ssl.keystore.location`; ca.pem is for
    `ssl.truststore.location` of all nodes and clients. A client's .properties file is for --command-config of our
    commands and of Kafka's. An existing CA is used again. Certificates are always replaced; running nodes and new
    connections of clients use the new ones. Not for a cluster that others can reach: the CA's key is not encrypted.

    \b
    strandline certs dev ./certs
    strandline certs dev ./certs --nodes 1,2,3 --host broker.example.com --clients alice,bob
    """
    from strandline.cluster.security.dev_certificates import DevCa, client_properties

    numbers = [part.strip() for part in nodes.split(",") if part.strip()]
    if not all(number.isdigit() for number in numbers):
        raise click.BadParameter(f"{nodes!r} is no list of node ids", param_hint="--nodes")
    names = [part.strip() for part in clients.split(",") if part.strip()]
    if any("/" in name for name in names):
        raise click.BadParameter(f"{clients!r}: names become files, and hold no /", param_hint="--clients")
    with plain_errors():
        ca = DevCa(directory)
        made = [ca.file]
        made += [ca.node(int(number), hosts=hosts, cluster_id=cluster_id, days=days) for number in numbers]
        made += [ca.client(name, days=days) for name in names]
        for name, path in zip(names, made[1 + len(numbers) :], strict=True):
            made.append(directory / f"client-{name}.properties")
            made[-1].write_text(client_properties(ca.file.absolute(), path.absolute()))
    for path in made:
        echo(path)
