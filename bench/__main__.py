"""Run the measurements and show them: a table, ratios against the peers, and a JSON file."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.table import Table

from bench.clusters import Cluster, KafkaCluster, StrandlineCluster, Unavailable
from bench.codec import codec_rates
from bench.losses import losses
from bench.measures import Results, cold_start, failover, latency, throughput

GROUPS = ("start", "produce", "latency", "failover", "losses")
TARGETS = {
    "cold start to the first ack, s": ("<=", 2.5),
    "RSS a node at rest, MB": ("<=", 70),
    "produce 100 B, records/s": (">=", 300_000),
    "produce 100 B, server CPU a node, ms/MB": ("<=", 6),
    "produce 1000 B, MB/s": (">=", 45),
    "produce 1000 B, server CPU a node, ms/MB": ("<=", 5),
    "consume 1000 B, MB/s": (">=", 110),
    "ack 1 KB at 200/s, p50 ms": ("<=", 2),
    "ack 1 KB at 200/s, p99 ms": ("<=", 8),
    "kill -9 of a leader to the next ack, s": ("<=", 1),
    "import strandline.client, ms": ("<=", 150),
}
"""What this project promises on two cores; a figure that misses is shown as such."""


def measure(make: Callable[[], Cluster], groups: set[str], scale: float, say: Callable[[str], None]) -> Results:
    """Start one cluster, measure, and stop it."""
    results = Results()
    say("cold start")
    cluster = cold_start(make, results)
    try:
        if "produce" in groups:
            say("produce and consume")
            throughput(cluster, results, {100: int(3_000_000 * scale), 1000: int(500_000 * scale)})
        if "latency" in groups:
            say("ack latency")
            latency(cluster, results, 15 * scale)
        if "failover" in groups:
            say("kill -9 of a leader")
            failover(cluster, results)
    finally:
        cluster.stop()
    if "losses" in groups:
        say("what each acks level loses")
        losses(make, results)
    return results


def import_time_ms() -> float:
    """The best of five `import strandline.client` in fresh interpreters, less the interpreter's own start."""

    def once(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - began) * 1000

    return min(once("import strandline.client") for _ in range(5)) - min(once("pass") for _ in range(5))


@click.command(help=__doc__)
@click.option("--peers", default="kafka", show_default=True, help="Peers to measure in the same run: kafka or none.")
@click.option("--only", multiple=True, type=click.Choice(GROUPS), help="Measure these groups alone.")
@click.option("--scale", default=1.0, show_default=True, help="Multiplies the length of every load.")
@click.option("--repeat", default=1, show_default=True, help="Runs of each cluster, in turn; the median is shown.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(peers: str, only: tuple[str, ...], scale: float, repeat: int, output: str) -> None:
    groups = set(only or GROUPS)
    console = Console(stderr=True)
    makers: list[Callable[[], Cluster]] = [StrandlineCluster]
    if peers == "kafka":
        makers.append(KafkaCluster)
    runs: dict[str, list[dict[str, float]]] = {}
    for number in range(repeat):
        for make in makers:
            try:
                name = str(getattr(make, "name"))  # noqa: B009
                results = measure(make, groups, scale, lambda step, name=name: console.print(f"{name}: {step}"))
            except Unavailable as reason:
                if number == 0:
                    console.print(f"left out: {reason}")
                continue
            if make is StrandlineCluster:
                results.add("import strandline.client, ms", import_time_ms())
                codec_rates(results)
            runs.setdefault(name, []).append(results.figures)
    medians = {
        name: {key: sorted(run[key] for run in figures)[len(figures) // 2] for key in figures[0]}
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
        show(medians)
        console.print(f"written to {path}")


def show(medians: dict[str, dict[str, float]]) -> None:
    """The table: a row a figure, a column a cluster, the ratio to the first peer, the promise."""
    names = list(medians)
    table = Table(title="Strandline and its peers, one machine, one run")
    table.add_column("figure")
    for name in names:
        table.add_column(name, justify="right")
    if len(names) > 1:
        table.add_column(f"ratio to {names[1]}", justify="right")
    table.add_column("promised", justify="right")
    table.add_column("kept")
    for key, value in medians[names[0]].items():
        row = [key, *(f"{medians[name][key]:,.2f}" if key in medians[name] else "" for name in names)]
        if len(names) > 1:
            row.append(f"{value / medians[names[1]][key]:.2f}" if medians[names[1]].get(key) else "")
        if key in TARGETS:
            sign, bound = TARGETS[key]
            kept = value <= bound if sign == "<=" else value >= bound
            row += [f"{sign} {bound:,g}", "yes" if kept else "NO"]
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)


if __name__ == "__main__":
    main()
