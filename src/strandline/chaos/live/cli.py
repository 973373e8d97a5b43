"""`strandline chaos run`: faults on real processes, under a load whose every promise is checked."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strandline.cli.common import output_option, plain_errors, print_table, settings_option
from strandline.cli.screen import echo, say

if TYPE_CHECKING:
    from strandline.chaos.live.runner import Outcome, RunOptions
    from strandline.chaos.live.target import ChaosTarget

LAYOUTS = ("combined", "split")
NODES = 3
NODES_OF_OPERATIONS = 4
"""Brokers of a run with an operator: one can be emptied while each partition keeps three replicas. As many controllers,
of which one may be without a vote."""
CUTS = ("proxy", "netns")
CLIENTS = ("own", "confluent", "aiokafka", "confluent-transactions", "java-transactions")
PLAIN = CLIENTS[:3]
"""Clients whose acknowledgements measure the cost of a fault."""

QUICK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "log.retention.check.interval.ms": "1000",
    "offsets.retention.check.interval.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
"""Node settings of a run: a silent node is noticed after 3 s instead of 9, and expiration is checked every second, so
that more faults fit into a run, and a clock that is wrong for seconds has an effect. -X overrides them."""

ROLLING = "rolling-restart"
"""Name of the fault that is also an operation: every run with an operator includes it."""

DISK_BYTES_MIN = 192 << 20
DISK_BYTES_A_MINUTE = 8 << 20


@click.group()
def chaos() -> None:
    """Break a real cluster on purpose, and check that it keeps its promises."""


@chaos.command()
@click.option("--schedule", help="Faults, separated by commas; left out: all that can be done here. See --list.")
@click.option(
    "--minutes", type=click.FloatRange(0.05, 600), default=5.0, show_default=True, help="How long faults go on."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the order of faults, victims, durations.")
@click.option("--layout", type=click.Choice(LAYOUTS), default="combined", show_default=True,
              help="Three nodes that are broker and controller, or three of each.")  # fmt: skip
@click.option("--operations", is_flag=True,
              help="An operator works meanwhile: moves, drains, elections, restarts, voters. A node more.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(3, 9), metavar="N",
              help="So many nodes, or brokers.  [default: 3; with --operations 4]")  # fmt: skip
@click.option("--cut", type=click.Choice(CUTS), default="proxy", show_default=True,
              help="What joins the nodes: a proxy before each, or a network namespace around each (root).")  # fmt: skip
@click.option("--secure", is_flag=True,
              help="TLS on every listener, certificates between nodes, and clients that log in by SCRAM.")  # fmt: skip
@click.option("--clients", help=f"Which clients make the load, of {','.join(CLIENTS)}; left out: all that can be here.")
@click.option("--gap-ms", type=click.FloatRange(5, 1000), default=60.0, show_default=True,
              help="Mean pause between two sends of one producer; smaller is more load.")  # fmt: skip
@click.option("--evidence", type=click.Path(file_okay=False), help="Where histories and logs of a failed run are kept.")
@click.option("--list", "only_list", is_flag=True, help="Say what each fault does, and do nothing.")
@settings_option
@output_option
def run(
    *,
    schedule: str | None,
    minutes: float,
    seed: int,
    layout: str,
    operations: bool,
    nodes: int | None,
    cut: str,
    secure: bool,
    clients: str | None,
    gap_ms: float,
    evidence: str | None,
    only_list: bool,
    overrides: dict[str, str],
    output: str,
) -> None:
    """Start some nodes, send and read all the while, and break one thing after the other.

    Clients are this project's own (producers with acks=all, 1 and 0, consumers), librdkafka and aiokafka, and, in
    transactions, librdkafka and Apache Kafka's Java copier, each in a process of its own. In the end everything is
    healed, fresh clients read all of it, histories are judged and the replicas compared byte by byte. Exits 1 on any
    anomaly, and says where the evidence is. See docs/chaos.md.

    \b
    strandline chaos run --schedule kill-leader,pause,partition,disk-full,kill-all --minutes 5 --seed 7
    strandline chaos run --schedule crash-all-one-rots,one-stays-dead,directory-lost,full-leader
    strandline chaos run --layout split --minutes 30
    strandline chaos run --operations --nodes 5 --schedule kill-leader,partition,disk-full
    strandline chaos run --cut netns --schedule partition,isolate
    strandline chaos run --clients own,confluent-transactions,java-transactions
    strandline chaos run --secure -X connections.max.reauth.ms=5000
    strandline chaos run --list --operations
    """
    from strandline.chaos.live.cluster import LiveCluster
    from strandline.chaos.live.faults import FAULTS
    from strandline.chaos.live.runner import RunOptions, check_schedule
    from strandline.chaos.live.target import DISK_FAULTS, STORE_FAULTS

    if only_list:
        _list(output, operations=operations)
        return
    names = _words(schedule, "fault", FAULTS) if schedule is not None else list(FAULTS)
    if operations and ROLLING not in names:
        names.append(ROLLING)
    count = nodes if nodes is not None else NODES_OF_OPERATIONS if operations else NODES
    _check_cut(cut)
    kinds = _clients(clients, secure=secure)
    with plain_errors(), _directory(evidence) as directory:
        with_store = any(name in STORE_FAULTS for name in names)
        store = {"remote.log.storage.url": f"file://{directory.absolute()}/store"} if with_store else {}
        settings = {**QUICK, **store, **overrides}
        with_disks = any(name in DISK_FAULTS for name in names)
        disk_bytes = DISK_BYTES_MIN + int(minutes * DISK_BYTES_A_MINUTE) if with_disks else None
        controllers = (count if operations else NODES) if layout == "split" else 0
        target = LiveCluster(directory / "cluster", nodes=count, controllers=controllers, settings=settings, cut=cut,
                             disk_bytes=disk_bytes, secure=secure)  # fmt: skip
        try:
            possible, without = check_schedule(names, target)
            for name, why in without.items():
                echo(f"{name} is left out: {why}", err=True)
            if not possible:
                raise click.UsageError("no fault of the schedule can be done here")
            options = RunOptions(possible, minutes, seed, kinds, gap_ms, operations=operations)
            outcome = _execute(target, options, directory)
        finally:
            target.stop()
    _show(outcome, output)
    if not outcome.held:
        sys.exit(1)


def _list(output: str, *, operations: bool) -> None:
    from strandline.chaos.live.faults import FAULTS
    from strandline.chaos.live.operations import OPERATIONS

    noun = "operation" if operations else "fault"
    sentences = OPERATIONS if operations else {fault.name: fault.sentence for fault in FAULTS.values()}
    if output == "json":
        echo(json.dumps([{noun: name, "what_it_does": sentence} for name, sentence in sentences.items()]))
        return
    print_table((noun, "what it does"), list(sentences.items()))


def _words(text: str, noun: str, known: Collection[str]) -> list[str]:
    """Words of a comma-separated option. Raises BadParameter for one that is not in `known`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        what = f"no such {noun}: {', '.join(unknown)}" if unknown else f"no {noun} is named"
        hint = "--schedule" if noun == "fault" else "--clients"
        raise click.BadParameter(f"{what}; there are {', '.join(known)}", param_hint=hint)
    return words


def _clients(text: str | None, *, secure: bool) -> list[str]:
    from strandline.chaos.live.load import why_not

    kinds = list(CLIENTS) if text is None else _words(text, "client", CLIENTS)
    without = {kind: why for kind in kinds if (why := why_not(kind, secure=secure)) is not None}
    if text is None:
        for kind, why in without.items():
            echo(f"not part of the load: {kind} {why}", err=True)
        return [kind for kind in kinds if kind not in without]
    for kind, why in without.items():
        raise click.BadParameter(f"{kind} {why}", param_hint="--clients")
    if not set(kinds) & set(PLAIN):
        raise click.BadParameter(f"one of {', '.join(PLAIN)} has to be among them", param_hint="--clients")
    return kinds


@contextmanager
def _directory(evidence: str | None) -> Iterator[Path]:
    """Directory for journals and data; deleted unless it holds evidence of a failure (`run.json`)."""
    if evidence is not None:
        Path(evidence).mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="strandline-chaos-", dir=evidence))
    try:
        yield directory
    finally:
        if not (directory / "run.json").exists():
            shutil.rmtree(directory, ignore_errors=True)


def _check_cut(cut: str) -> None:
    if cut == "netns":
        from strandline.chaos.live.namespaces import why_none

        why = why_none()
        if why is not None:
            raise click.UsageError(f"--cut netns: {why}")


def _execute(target: ChaosTarget, options: RunOptions, directory: Path) -> Outcome:
    from strandline.chaos.live.runner import LiveRun

    def tell(line: str) -> None:
        echo(line, err=True)

    # A run that is told to end cleans up as after Ctrl-C: nodes, mounts, directories.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    target.start()
    outcome = LiveRun(target, options, directory, tell).execute()
    if not outcome.held:
        logs = directory / "logs"
        logs.mkdir()
        target.save_logs(logs)
        outcome.directory = str(directory)
    return outcome


def _show(outcome: Outcome, output: str) -> None:
    if output == "json":
        echo(json.dumps({"held": outcome.held, **asdict(outcome)}))
        return
    columns = ("fault", "times", "gap, median ms", "gap, longest ms", "whole again, longest ms", "acks")
    names = ("fault", "times", "gap_median_ms", "gap_max_ms", "whole_max_ms", "acks")
    rows = [tuple(row.get(name, "-") for name in names) for row in outcome.faults]
    print_table(columns, rows, title="What faults cost (gap: time without an acks=all ack in a partition)")
    if outcome.operations:
        headings = ("operation", "ended", "failed meanwhile", "broken off", "longest, s")
        keys = ("operation", "ended", "failed", "broken_off", "longest_s")
        print_table(headings, [tuple(row[key] for key in keys) for row in outcome.operations])
    figures = outcome.figures
    echo(
        f"{figures['sent']:,} sent, {figures['acked_all']:,} acknowledged (acks=all), {figures['unknown']:,} unknown, "
        f"{figures['failed']:,} refused; {figures['read']:,} read, {figures['read_finally']:,} in the end; "
        f"{figures['faults']} faults in {figures['seconds']} s"
    )
    ended = [figures[name] for name in ("committed", "aborted", "unknown_ends")]
    if any(ended):
        echo("transactions: {:,} committed, {:,} aborted, {:,} of unknown end".format(*ended))
    for client, errors in outcome.errors.items():
        echo(f"{client} saw: " + ", ".join(f"{what} {count}" for what, count in sorted(errors.items())))
    if outcome.held:
        say("No anomaly.", bold=True)
        return
    from strandline.chaos.live.runner import SHOWN_MAX

    for violation in outcome.violations[:SHOWN_MAX]:
        say(violation, fg="red")
    say(f"{len(outcome.violations)} broken promises. Histories and logs: {outcome.directory}", bold=True)
