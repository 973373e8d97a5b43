"""`strandline trace`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from strandline.cli.common import output_option, plain_errors, print_json, print_table
from strandline.cli.http_listener import TIMEOUT_S, ask_json, cacert_option
from strandline.cli.screen import echo


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="HOST:PORT...")
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=10.0, show_default=True, help="So long.")
@click.option(
    "--requests",
    type=click.IntRange(1, 100_000),
    default=20_000,
    show_default=True,
    help="At most so many at each node; it holds them in memory meanwhile.",
)
@cacert_option
@output_option
def trace(nodes: tuple[str, ...], seconds: float, requests: int, cacert: str | None, output: str) -> None:
    """Show where produce requests (acks=all) spend their time: each stage at the leader and at its followers.

    The arguments are the HTTP listeners of brokers (HTTP:// in `listeners`; `strandline dev` prints them). Each node
    notes stages for a while, by its own clock, and forgets them at the next trace. "slowest" is the mean of a stage in
    the slowest hundredth of the requests: what those waited for.

    \b
    strandline trace 127.0.0.1:9194 127.0.0.1:9195 127.0.0.1:9196
    strandline trace --seconds 30 -o json 10.0.0.1:9194
    strandline trace --cacert ca.pem https://10.0.0.1:9194
    """
    with plain_errors():
        for node in nodes:
            _ask(node, {"seconds": seconds + TIMEOUT_S, "requests": requests}, cacert)
        asyncio.run(asyncio.sleep(seconds))
        answers = {node: _ask(node, None, cacert) for node in nodes}
    if output == "json":
        print_json(answers)
        return
    for node, answer in answers.items():
        for role in ("leader", "follower"):
            _show(node, answer, role)


def _ask(node: str, command: dict[str, Any] | None, cacert: str | None) -> dict[str, Any]:
    return ask_json(node, "/trace", cacert, None if command is None else json.dumps(command).encode())


def _show(node: str, answer: dict[str, Any], role: str) -> None:
    part = answer[role]
    if not part["requests"]:
        echo(f"{node}, node {answer['node_id']} as {role}: no requests with acks=all in that time")
        return
    columns = ("p50", "p90", "p99", "max", "slowest")
    rows = [(stage, *(f"{times[column]:.2f}" for column in columns)) for stage, times in part["stages_ms"].items()]
    title = f"{node}, node {answer['node_id']} as {role}: {part['requests']} requests, ms"
    print_table(("stage", *columns), rows, title=title)
