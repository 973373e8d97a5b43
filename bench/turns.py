"""What differs between interpreters, settings or versions, on a machine that is not quiet: a cluster of each, all
running at once, loaded in short bursts, in turns.

    python -m bench.turns now newer:python=.venv-python3.13/bin/python
    python -m bench.turns now lazy:flush.policy=replicate then:source=../before/src --load lone --load 200

A variant is NAME, or NAME:KEY=VALUE,...; KEY is `python` (the interpreter of its nodes), `source` (the folder of their
package) or a setting of the nodes. Three nodes each, plaintext. Loads: `lone` (one 1 KB record after the other), a
number (so many 1 KB records a second), `full-100` and `full-1000` (full batches of such records).

Whatever slows a machine down for a minute slows neighbouring bursts alike. So the result is the ratio of each burst to
the first variant's in the same round: its median, and the middle half of the rounds. Name the first variant twice
(`now again`) to see what the ratio of two equal ones is.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median, quantiles
from unittest import mock

import click
from rich.console import Console
from rich.table import Table

from bench.clusters import StrandlineCluster, cpu_seconds, end_as_asked, rss_mb, wait_ready
from bench.measures import PARTITIONS, ack_latency, create_topic, one_after_the_other, produce_load

WARM_UP_S = 0.5
FULL_RECORDS_PER_S = {100: 300_000, 1000: 60_000}
"""How many records make a burst of about the length asked for."""
TOPIC = "turns"

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Variant:
    """A cluster to be: its name, the interpreter and the package of its nodes where they are others, its settings."""

    name: str
    python: str
    source: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Ratio:
    """A figure of one variant over all rounds: its median, and that of its ratios to the first variant's."""

    load: str
    figure: str
    variant: str
    value: float
    ratio: float
    lower: float
    upper: float


def read_variant(text: str) -> Variant:
    """NAME:KEY=VALUE,... Raises BadParameter."""
    name, _, given = text.partition(":")
    settings: dict[str, str] = {}
    for item in filter(None, given.split(",")):
        key, found, value = item.partition("=")
        if not found:
            raise click.BadParameter(f"{item!r} of variant {name!r}: KEY=VALUE")
        settings[key] = value
    python, source = settings.pop("python", sys.executable), settings.pop("source", "")
    return Variant(name, os.path.abspath(python), os.path.abspath(source) if source else "", settings)


@contextmanager
def cluster_of(variant: Variant) -> Iterator[StrandlineCluster]:
    """Three nodes, ready, with a topic."""
    cluster = StrandlineCluster(dict(variant.settings))
    path = {"PYTHONPATH": variant.source} if variant.source else {}
    try:
        # The nodes are children of this process: they inherit both.
        with mock.patch.object(sys, "executable", variant.python), mock.patch.dict(os.environ, path):
            cluster.start()
        wait_ready(cluster.bootstrap)
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        yield cluster
    finally:
        cluster.stop()


def _acks(times: list[float], cpu_s: float, count: float, nodes: int) -> Figures:
    return {
        "p50 ms": times[len(times) // 2],
        "p99 ms": times[int(len(times) * 0.99)],
        "CPU a node, ms a record": cpu_s * 1000 / nodes / count,
    }


def burst(cluster: StrandlineCluster, load: str, seconds: float) -> Figures:
    """One load of one cluster."""
    pids = cluster.pids()
    before = cpu_seconds(pids)
    if load == "lone":
        times, count = one_after_the_other(cluster.bootstrap, TOPIC, seconds, warm_up_s=WARM_UP_S)
        return _acks(times, cpu_seconds(pids) - before, count, len(pids))
    if load.startswith("full-"):
        size = int(load.removeprefix("full-"))
        records = int(FULL_RECORDS_PER_S[size] * seconds)
        took = produce_load(cluster.bootstrap, TOPIC, size, records)
        megabytes = records * size / 1e6
        spent = (cpu_seconds(pids) - before) * 1000 / len(pids) / megabytes
        return {"MB/s": megabytes / took, "CPU a node, ms/MB": spent}
    rate = int(load)
    times = ack_latency(cluster.bootstrap, TOPIC, rate, seconds, warm_up_s=WARM_UP_S)
    return _acks(times, cpu_seconds(pids) - before, rate * (seconds + WARM_UP_S), len(pids))


def in_turns(
    bursts: Mapping[str, Callable[[str], Figures]], loads: tuple[str, ...], rounds: int, say: Callable[[str], None]
) -> list[Ratio]:
    """Each load of each variant, once a round; who comes first changes from round to round."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names = list(bursts)
    for turn in range(rounds):
        say(f"round {turn + 1} of {rounds}")
        first = turn % len(names)
        for load in loads:
            for name in names[first:] + names[:first]:
                for figure, value in bursts[name](load).items():
                    found[load, figure][name].append(value)
    ratios: list[Ratio] = []
    for (load, figure), by_name in found.items():
        for name in names:
            compared = [value / base for value, base in zip(by_name[name], by_name[names[0]], strict=True)]
            lower, _, upper = quantiles(compared, n=4, method="inclusive") if rounds > 1 else compared * 3
            ratios.append(Ratio(load, figure, name, median(by_name[name]), median(compared), lower, upper))
    return ratios


def show(ratios: list[Ratio], memory: Mapping[str, float]) -> None:
    table = Table(title="Medians, and the ratio to the first variant (the middle half of the rounds)")
    table.add_column("figure")
    for name in memory:
        table.add_column(name, justify="right")
    first, rows = next(iter(memory)), defaultdict[str, list[str]](list)
    for ratio in ratios:
        spread = "" if ratio.variant == first else f"  x{ratio.ratio:.2f} ({ratio.lower:.2f} to {ratio.upper:.2f})"
        rows[f"{ratio.load}, {ratio.figure}"].append(f"{ratio.value:,.2f}{spread}")
    for figure, values in rows.items():
        table.add_row(figure, *values)
    table.add_row("RSS a node at rest, MB", *(f"{value:,.1f}" for value in memory.values()))
    Console().print(table)


@click.command(help=__doc__)
@click.argument("variants", nargs=-1, required=True, metavar="VARIANT...")
@click.option("--load", "loads", multiple=True, default=("lone", "200", "1000", "full-100", "full-1000"))
@click.option("--rounds", type=click.IntRange(1, 200), default=12, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5, 60), default=1.2, show_default=True, help="Of a burst.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(variants: tuple[str, ...], loads: tuple[str, ...], rounds: int, seconds: float, output: str) -> None:
    for load in loads:
        if load not in ("lone", *(f"full-{size}" for size in FULL_RECORDS_PER_S)) and not load.isdecimal():
            raise click.BadParameter(f"{load!r}: lone, full-100, full-1000 or records a second", param_hint="--load")
    chosen = [read_variant(text) for text in variants]
    if len({variant.name for variant in chosen}) < len(chosen):
        raise click.BadParameter("two variants of one name")
    end_as_asked()
    with ExitStack() as running:
        clusters = {variant.name: running.enter_context(cluster_of(variant)) for variant in chosen}
        memory = {name: rss_mb(cluster.pids()) for name, cluster in clusters.items()}
        bursts = {name: partial(burst, cluster, seconds=seconds) for name, cluster in clusters.items()}
        ratios = in_turns(bursts, loads, rounds, lambda line: click.echo(f"... {line}", err=True))
    if output == "json":
        click.echo(json.dumps({"ratios": [asdict(ratio) for ratio in ratios], "rss_mb": memory}))
    else:
        show(ratios, memory)


if __name__ == "__main__":
    main()
