"""Run the measurements and show them: a table, ratios against the peers, and a JSON file."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.table import Table

from bench.clusters import Cluster, KafkaCluster, StrandlineCluster, end_as_asked
from bench.codec import codec_rates
from bench.driven import HALF_LOAD_S, DrivenCluster, measure_driven
from bench.fetched import Unavailable
from bench.floor import WAYS, floor_figures
from bench.groups import group_figures
from bench.losses import losses
from bench.measures import Results, cold_start, failover, latency, throughput
from bench.nats import NatsCluster
from bench.nats import name as nats_name
from bench.own_client import client_figures
from bench.paced import half_load
from bench.peaks import peak_figures
from bench.rabbitmq import RabbitCluster
from bench.secured import LEVELS
from bench.spark import spark_figures
from bench.storage import storage
from bench.tenants import tenants
from bench.transactions import transaction_figures

SPARK_GROUPS = {"spark": ("read", "write"), "spark-reads": ("read",)}
GROUPS = (
    "start",
    "produce",
    "latency",
    "failover",
    "losses",
    "groups",
    "peaks",
    "client",
    "tenants",
    "storage",
    "transactions",
    *SPARK_GROUPS,
)
ONLY_BY_NAME = {"peaks", "client", "tenants", "storage", "transactions", *SPARK_GROUPS}
"""Left out unless named: they take minutes, and Spark needs Java."""

TARGETS = {
    "cold start to the first ack, s": ("<=", 0.8),
    "RSS a node at rest, MB": ("<=", 55),
    "produce 100 B, records/s": (">=", 500_000),
    "produce 100 B, server CPU a node, ms/MB": ("<=", 4),
    "produce 1000 B, MB/s": (">=", 100),
    "produce 1000 B, server CPU a node, ms/MB": ("<=", 2.5),
    "consume 1000 B, MB/s": (">=", 110),
    "ack 1000 B at half the rate carried, p99 ms": ("<=", 10),
    "RSS a node after the load, MB": ("<=", 75),
    "ack 1 KB at 200/s, p50 ms": ("<=", 0.7),
    "ack 1 KB at 200/s, p99 ms": ("<=", 2),
    "ack 1 KB at 1000/s, p50 ms": ("<=", 1),
    "ack 1 KB at 1000/s, p99 ms": ("<=", 5),
    "ack 1 KB, one after the other, CPU a node, ms a record": ("<=", 0.15),
    "kill -9 of a leader to the next ack, s": ("<=", 1),
    "consume 100 B in a group of 2, records/s": (">=", 250_000),
    "kill -9 of a group's coordinator until it reads and commits, s": ("<=", 3),
    "kill -9 of a transaction coordinator to the next commit, s": ("<=", 1),
    "10x peak, lost, records": ("<=", 0),
    "10x peak, handled twice, records": ("<=", 0),
    "produce 1 KB, group is stopped over group reads along": (">=", 0.9),
    "Spark batch 100 B, strandline over kafka": (">=", 1),
    "Spark stream 100 B, strandline over kafka": (">=", 1),
    "Spark batch 1000 B, strandline over kafka": (">=", 1),
    "Spark stream 1000 B, strandline over kafka": (">=", 1),
    "client 100 B, produce, ours over confluent-kafka": (">=", 1),
    "client 1000 B, produce, ours over confluent-kafka": (">=", 1),
    "client 100 B, read, ours over confluent-kafka": (">=", 5),
    "client, ack 1 KB one after the other, p50, ours less confluent-kafka, ms": ("<=", 0.3),
    "import strandline.client, ms": ("<=", 150),
}
"""What this project aims at on two quiet cores, in plaintext; a figure that misses is shown as such."""


def measure(make: Callable[..., Cluster], groups: set[str], scale: float, say: Callable[[str], None]) -> Results:
    """Start one cluster, measure, and stop it."""
    results = Results()
    say("cold start")
    cluster = cold_start(make, results)
    try:
        if "produce" in groups:
            say("produce and consume")
            throughput(cluster, results, {100: int(3_000_000 * scale), 1000: int(500_000 * scale)})
            say("half of that load")
            half_load(cluster, results, HALF_LOAD_S * scale)
        if "latency" in groups:
            say("ack latency")
            latency(cluster, results, 15 * scale)
        if "tenants" in groups:
            say("tenants")
            tenants(cluster, results, 15 * scale)
        for group, whats in SPARK_GROUPS.items():
            if group in groups:
                spark_figures(cluster, results, scale, whats, say)
        if "failover" in groups:
            say("kill -9 of a leader")
            failover(cluster, results)
    finally:
        cluster.stop()
    if "losses" in groups:
        say("what each acks level loses")
        losses(make, results)
    if "groups" in groups:
        group_figures(make, results, scale, say)
    if "peaks" in groups:
        peak_figures(make, results, scale, say)
    if "storage" in groups:
        storage(make, results, scale, say)
    if "transactions" in groups:
        transaction_figures(make, results, scale, say)
    if "client" in groups:
        client_figures(make, results, scale, say)
    return results


def import_time_ms() -> float:
    """The best of five `import strandline.client` in fresh interpreters, less the interpreter's own start."""

    def once(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - began) * 1000

    return min(once("import strandline.client") for _ in range(5)) - min(once("pass") for _ in range(5))


Say = Callable[[str], None]
Contend = Callable[[set[str], float, Say], Results]
"""From groups, scale and a place for progress to figures; raises Unavailable."""


def _speaks_kafka(make: Callable[..., Cluster]) -> Contend:
    return lambda groups, scale, say: measure(make, groups, scale, say)


def contenders_of(peers: list[str], security: str, groups: set[str], say: Say) -> dict[str, Contend]:
    """The columns of the table. Raises BadParameter."""
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(PEERS)}", param_hint="--peers")
    if security == "none":
        ours: dict[str, Contend] = {StrandlineCluster.name: _speaks_kafka(StrandlineCluster)}
        return ours | {column: contend for peer in peers for column, contend in PEERS[peer].items()}
    if groups & SPARK_GROUPS.keys():
        raise click.BadParameter("Spark is measured without it alone", param_hint="--security")
    found = {StrandlineCluster.name: _speaks_kafka(partial(StrandlineCluster, security=security))}
    for peer in peers:
        if (peer, security) == ("kafka", "sasl"):
            found[KafkaCluster.name] = _speaks_kafka(partial(KafkaCluster, sasl=True))
        else:
            levels = "none or sasl" if peer == "kafka" else "none alone"
            say(f"{peer}: left out: it is measured with --security {levels}")
    return found


def _driven(make: Callable[[], DrivenCluster]) -> Contend:
    return lambda groups, scale, say: measure_driven(make, groups, scale, say)


PEERS: dict[str, dict[str, Contend]] = {
    "kafka": {KafkaCluster.name: _speaks_kafka(KafkaCluster)},
    "nats": {nats_name(sync_always=sync): _driven(partial(NatsCluster, sync_always=sync)) for sync in (True, False)},
    "rabbitmq": {RabbitCluster.name: _driven(RabbitCluster)},
    "floor": {name: partial(floor_figures, way) for name, way in WAYS.items()},
}
"""Each peer's columns of the table."""

SYSTEMS = [peer for peer in PEERS if peer != "floor"]
"""Measured unless others are named: the floor is no system, and has five columns."""


def median(values: Iterable[float]) -> float:
    """The upper one of an even number."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


@click.command(help=__doc__)
@click.option(
    "--peers",
    default=",".join(SYSTEMS),
    show_default=True,
    help="Measured in the same run; floor: the least for a lone record; or none.",
)
@click.option("--only", multiple=True, type=click.Choice(GROUPS), help="Measure these groups alone.")
@click.option("--scale", default=1.0, show_default=True, help="Multiplies the length of every load.")
@click.option("--security", type=click.Choice(LEVELS), default="none", show_default=True,
              help="TLS everywhere and certificates of clients (tls), or logins by SCRAM instead (sasl).")  # fmt: skip
@click.option("--repeat", default=1, show_default=True, help="Runs of each cluster, in turn; the median is shown.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(*, peers: str, only: tuple[str, ...], scale: float, security: str, repeat: int, output: str) -> None:
    groups = set(only) or set(GROUPS) - ONLY_BY_NAME
    console = Console(stderr=True)
    named = [] if peers == "none" else peers.split(",")
    contenders = contenders_of(named, security, groups, console.print)
    end_as_asked()
    runs: dict[str, list[dict[str, float]]] = {}
    for number in range(repeat):
        for name, contend in contenders.items():
            try:
                results = contend(groups, scale, partial(console.print, f"{name}:"))
            except Unavailable as reason:
                if number == 0:
                    console.print(f"{name}: left out: {reason}")
                continue
            if name == StrandlineCluster.name:
                results.add("import strandline.client, ms", import_time_ms())
                codec_rates(results)
            runs.setdefault(name, []).append(results.figures)
    medians = {
        name: {key: median(run[key] for run in figures if key in run) for key in figures[0]}
        for name, figures in runs.items()
    }
    document = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cores": psutil.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "security": security,
        "median": medians,
        "runs": runs,
    }
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps(document, indent=2))
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        show(medians, runs, security)
        console.print(f"written to {path}")


def show(medians: dict[str, dict[str, float]], runs: dict[str, list[dict[str, float]]], security: str) -> None:
    """The table: a row a figure, a column a cluster with the median of its runs and their spread, the ratio to the
    first peer, the aim."""
    names = list(medians)
    how = "" if security == "none" else f", --security {security}"
    table = Table(title=f"Strandline and its peers, one machine, one run{how}")
    table.add_column("figure", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    if len(names) > 1:
        table.add_column(f"ratio to {names[1]}", justify="right")
    targets = TARGETS if security == "none" else {}
    if targets:
        table.add_column("aim", justify="right")
        table.add_column("kept")
    for key in dict.fromkeys(key for name in names for key in medians[name]):
        value = medians[names[0]].get(key)
        row = [key, *(with_spread([run[key] for run in runs[name] if key in run]) for name in names)]
        if len(names) > 1:
            theirs = medians[names[1]].get(key)
            row.append(f"{value / theirs:.2f}" if theirs and value is not None else "")
        if key in targets and value is not None:
            sign, bound = targets[key]
            kept = value <= bound if sign == "<=" else value >= bound
            row += [f"{sign} {bound:,g}", "yes" if kept else "NO"]
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 96 + 28 * len(names))
    console.print(table)


def with_spread(values: list[float]) -> str:
    """The median, and from where to where it went."""
    if not values:
        return ""
    spread = f" ({shown(min(values))}-{shown(max(values))})" if len(values) > 1 else ""
    return shown(median(values)) + spread


def shown(value: float) -> str:
    """As many digits as say something."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
