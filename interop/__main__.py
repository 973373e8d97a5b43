"""Run other people's Kafka clients, unmodified, against a cluster of three, and print one table: client by feature."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import sys
from collections.abc import Callable

import click
from bench.clusters import Cluster, KafkaCluster, StrandlineCluster, end_as_asked, wait_ready
from bench.fetched import Unavailable
from rich.console import Console

from interop.clients import CLIENTS, Client
from interop.features import Feature
from interop.logins import admin_login, tls_context
from interop.results import FAILED, SIGNS, Result, as_json, differences, reasons, run_client, table
from interop.security import LEVELS, SecuredCluster, SecuredKafkaCluster
from interop.suite import eventually

START_TIMEOUT_S = 180.0

WIDTH = 200
"""Characters that the table may take, also where the terminal is narrower: all clients need 165."""

NO_TYPOS = {"auto.create.topics.enable": "false"}
"""Strandline's default; Kafka's own is to create a topic whose name somebody mistyped."""

CLUSTERS: dict[tuple[str, bool], Callable[[str], Cluster]] = {
    ("strandline", False): lambda _: StrandlineCluster(),
    ("strandline", True): SecuredCluster,
    ("kafka", False): lambda _: KafkaCluster(NO_TYPOS),
    ("kafka", True): lambda _: SecuredKafkaCluster(NO_TYPOS),
}
"""By name, and whether it asks who comes in; made for a level of security."""


def api_keys(bootstrap: str, context: ssl.SSLContext | None = None) -> frozenset[int]:
    """The API keys that a broker advertises, asked with ApiVersions 0, before any login."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), 10))
        if context is not None:
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
        connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">i", answers.read(4))
            body = answers.read(length)
    count = struct.unpack_from(">i", body, 6)[0]
    return frozenset(struct.unpack_from(">h", body, 10 + 6 * number)[0] for number in range(count))


def listens(address: str) -> bool:
    """Whether somebody accepts connections there: Kafka's brokers are registered a moment before they listen."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
        return True
    return False


def run_cluster(
    name: str, level: str, clients: list[Client], wanted: Callable[[Feature], bool], console: Console
) -> list[Result]:
    """Start a cluster at this level of security, try every client on it, and stop it."""

    def say(result: Result) -> None:
        seconds = f"{result.seconds:.1f} s"
        console.print(f"{name} {result.client}: {result.feature}: {SIGNS[result.outcome]} {seconds}", highlight=False)
        if result.outcome == FAILED:
            console.print(f"    {result.reason}", highlight=False, markup=False)

    cluster = CLUSTERS[name, level != "none"](level)
    try:
        cluster.start()
        wait_ready(cluster.bootstrap, START_TIMEOUT_S)
        eventually(lambda: all(map(listens, cluster.bootstrap.split(","))), START_TIMEOUT_S)
        served = api_keys(cluster.bootstrap, tls_context(admin_login()))
        authority = cluster.authority() if isinstance(cluster, SecuredCluster | SecuredKafkaCluster) else None
        results = []
        for client in [each.at(level) for each in clients]:
            features = list(filter(wanted, client.features))
            results += run_client(name, client, features, cluster.bootstrap, served, say, authority, cluster)
        return results
    finally:
        cluster.stop()


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice([each.name for each in CLIENTS]), help="These clients alone.")
@click.option("--feature", "words", multiple=True, help="Features whose name holds this text alone.")
@click.option("--against", type=click.Choice(["strandline", "kafka", "both"]), default="strandline", show_default=True)
@click.option("--security", "level", type=click.Choice(LEVELS), default="none", show_default=True)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(only: tuple[str, ...], words: tuple[str, ...], against: str, level: str, output: str) -> None:
    """Exit code 1 where a client failed against Strandline."""
    if against != "strandline" and level not in ("none", "sasl"):
        raise click.UsageError(f"--against {against} goes with --security none or sasl, not {level}")
    clients = [each for each in CLIENTS if not only or each.name in only]
    end_as_asked()

    def wanted(feature: Feature) -> bool:
        return not words or any(word in feature.name for word in words)

    console = Console(stderr=True, soft_wrap=True)
    results: list[Result] = []
    for name in ("strandline", "kafka") if against == "both" else (against,):
        try:
            results += run_cluster(name, level, clients, wanted, console)
        except Unavailable as reason:
            console.print(f"{name}: skipped: {reason}")
    show(results, output)
    failed = any(each.outcome == FAILED for each in results if each.against == "strandline" or against == "kafka")
    sys.exit(1 if failed else 0)


def show(results: list[Result], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(as_json(results), indent=1))
        return
    console = Console(width=max(WIDTH, Console().width), soft_wrap=True)
    for name in dict.fromkeys(each.against for each in results):
        console.print(table(name, [each for each in results if each.against == name]))
    for line in reasons(results):
        console.print(line, highlight=False, markup=False)
    for line in differences(results):
        console.print(f"differs: {line}", highlight=False, markup=False)


if __name__ == "__main__":
    main()
