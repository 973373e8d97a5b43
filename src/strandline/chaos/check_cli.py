"""Command `strandline check FILE`: prints the table of anomalies in a recorded history."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict

import click

from strandline.cli.screen import echo, say


@click.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--lag-max-ms", type=float, default=None, help="A longer realtime lag is an anomaly too.")
@click.option("--show", type=click.IntRange(0), default=20, help="How many findings to print.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="json: one object.")
def check(*, file: str, lag_max_ms: float | None, show: int, output: str) -> None:
    """Judge a history: was anything lost, doubled, reordered, or shown that must not be?

    FILE holds one operation a line, as JSON: what producers sent and consumers saw (docs/simulator.md has the format).
    `strandline sim --history FILE` and `strandline chaos run` write such files; so can a program of yours. Exit 1 if an
    anomaly was found, 2 if the file is no history.

    \b
    strandline check history.jsonl
    strandline check history.jsonl --output json --lag-max-ms 60000
    """
    from strandline.chaos.checkers.anomalies import analyse, find_anomalies
    from strandline.chaos.checkers.journal import BadHistory, read_columns
    from strandline.chaos.checkers.order_checks import realtime_lag

    try:
        columns = read_columns(file)
    except BadHistory as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="FILE") from None
    analysis = analyse(columns)
    found = find_anomalies(analysis, lag_max_ms=lag_max_ms)
    bad = [anomaly for anomaly in found if not anomaly.legal]
    figures = {
        "sends": len(columns.sends),
        "acked": sum(flags & 1 for flags in columns.sends.flags),
        "polled": len(columns.polls.offset),
        "transactions": len(columns.transactions),
        "partitions": len(columns.partitions),
        "realtime_lag_ms": round(realtime_lag(analysis)[0]),
    }
    if output == "json":
        entries = [asdict(anomaly) | {"partition": str(anomaly.partition)} for anomaly in bad[:show]]
        legal = dict(Counter(anomaly.name for anomaly in found if anomaly.legal))
        counts = dict(Counter(anomaly.name for anomaly in bad))
        echo(json.dumps({**figures, "anomalies": counts, "legal": legal, "first": entries}))
    else:
        echo(", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in figures.items()))
        for name, number in Counter((one.name, one.legal) for one in found).items():
            echo(f"  {number:>8,} {name[0]}{f' (legal: {name[1]})' if name[1] else ''}")
        for anomaly in bad[:show]:
            say(f"  {anomaly}", fg="red")
        if len(bad) > show:
            echo(f"  ... and {len(bad) - show:,} more: see --show")
        echo("no anomalies" if not bad else f"{len(bad):,} anomalies")
    sys.exit(1 if bad else 0)
