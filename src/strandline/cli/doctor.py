"""`strandline doctor`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from strandline.cli.common import (
    CommandFailed,
    Target,
    check_reachable,
    output_option,
    plain_errors,
    print_json,
    target_options,
)
from strandline.cli.http_listener import cacert_option, http_option, metrics_of
from strandline.cli.screen import echo
from strandline.cli.transactions import late_ones
from strandline.client import Admin
from strandline.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from strandline.cluster.node.doctor import (
    NO_EFFECT,
    OPEN,
    RISK,
    SLOW,
    SLOW_SYNC_S,
    UNCHECKED,
    Finding,
    judge_config,
    judge_consumer,
    judge_damage,
    judge_directories,
    judge_installation,
    judge_producer,
    judge_stores,
    judge_syncs,
    judge_tier,
)
from strandline.log import compiled
from strandline.proto.errors import StrandlineError
from strandline.proto.system import SystemClock

FOUND = 1


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--producer", is_flag=True, help="Judge a producer's settings instead, given by -X (any client's: Kafka's names)."
)
@click.option("--consumer", is_flag=True, help="Judge a consumer's settings instead, in the same way.")
@click.option(
    "--security",
    is_flag=True,
    help="Name each open door of the FILES instead: who comes in, and reads or changes what.",
)
@http_option
@cacert_option
@output_option
@target_options
def doctor(
    files: tuple[str, ...],
    *,
    producer: bool,
    consumer: bool,
    security: bool,
    http: tuple[str, ...],
    cacert: str | None,
    output: str,
    **where: Any,
) -> None:
    """Name every setting that can lose data, and what it would lose; every setting that has no effect; and an
    installation that lacks its compiled parts.

    Judges configuration files, or without any the live cluster at --bootstrap: settings, topics, who is in sync, and
    transactions that do not end, whose they are, and what to type;
    of brokers whose HTTP listeners are named (--http) also which have logs that are rotten, or cannot be compacted, and
    whose segments wait for an object store. The files of several nodes are also held against each other.
    With --security it names each open door of configuration files: listeners without TLS or authentication that others
    reach, what nobody is asked for, secrets that others of the machine can read, certificates that end within 30 days.
    In an outage it judges what answers within some ten seconds, and names what it could not check. Exits 1 when
    something is found or could not be checked, 0 when all is well.

    \b
    strandline doctor
    strandline doctor node-1.properties node-2.properties
    strandline doctor --security node-1.properties
    strandline doctor --output json -b 10.0.0.1:9092
    strandline doctor --http 10.0.0.1:8092 --http 10.0.0.2:8092
    strandline doctor --producer -X enable.idempotence=false -X max.in.flight.requests.per.connection=5
    strandline doctor --consumer -X enable.auto.commit=false -X auto.offset.reset=earliest
    """
    if http and (producer or consumer or files):
        raise click.UsageError("--http is about a live cluster: leave out the files, --producer and --consumer")
    if security and (not files or producer or consumer):
        raise click.UsageError("--security judges configuration files: strandline doctor --security node.properties")
    if producer or consumer:
        with plain_errors():
            findings = list(_of_client(Target(**where), consumer=consumer))
    elif files:
        with plain_errors():
            findings = list(_of_files(files, security=security))
    else:
        findings = _of_cluster(Target(**where)) + [one for node in http for one in _of_metrics(node, cacert)]
    if not security:
        findings += judge_installation("this installation", compiled.missing())
    if output == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        _show(findings, "No open door found." if security else "Nothing found that could lose data.")
    if findings:
        raise SystemExit(FOUND)


def _of_client(target: Target, *, consumer: bool) -> Iterator[Finding]:
    if consumer:
        yield from judge_consumer(ConsumerConfig(target.settings_for(ConsumerConfig)))
    else:
        yield from judge_producer(ProducerConfig(target.settings_for(ProducerConfig)))


def _of_files(paths: Sequence[str], *, security: bool) -> Iterator[Finding]:
    from strandline.cluster.node.config import NodeConfig

    configs = [NodeConfig.load(path, {}, os.environ) for path in paths]
    if security:
        from strandline.cluster.node.doctor_security import judge_security

        for config in configs:
            yield from judge_security(config, SystemClock().wall_ms() / 1000)
        return
    for config in configs:
        yield from judge_config(config)
    yield from judge_stores(configs)


def _of_cluster(target: Target) -> list[Finding]:
    from strandline.cluster.node.examination import QUESTION_MS, REQUEST_MS, examine

    with plain_errors(target):
        settings = target.settings_for(AdminConfig, request_timeout_ms=REQUEST_MS, default_api_timeout_ms=QUESTION_MS)
        check_reachable(Target(target.bootstrap, {name: str(value) for name, value in settings.items()}))
        found = asyncio.run(examine(target.bootstrap, settings))
        try:
            with Admin(target.bootstrap, **settings) as admin:
                return found + late_ones(admin)
        except (StrandlineError, CommandFailed) as error:
            reason = error.message if isinstance(error, CommandFailed) else str(error)
            says = "whether transactions hang, at which readers of committed records wait"
            return [*found, Finding("transactions", reason, says, "ask again when all partitions are led", UNCHECKED)]


def _of_metrics(node: str, cacert: str | None) -> Iterator[Finding]:
    try:
        node_id, read = metrics_of(node, cacert)
    except click.ClickException as error:
        says = "whether logs of this broker are rotten, uncompacted, or wait for an object store, or a disk is slow"
        yield Finding(node, error.message, says, "ask again when it answers", UNCHECKED)
        return
    samples = list(read)
    values = {sample.name: sample.value for sample in samples if not sample.labels}
    directories: dict[str, dict[str, int]] = {}
    for sample in samples:
        if "log_directory" in sample.labels:
            directories.setdefault(sample.name, {})[sample.labels["log_directory"]] = int(sample.value)
    free = directories.get("strandline_log_dir_free_bytes", {})
    full = {
        path: free.get(path, 0) for path, is_full in directories.get("strandline_log_dir_full", {}).items() if is_full
    }
    offline = [path for path, is_so in directories.get("kafka_log_logmanager_logdirectoryoffline", {}).items() if is_so]
    yield from judge_directories(f"broker {node_id}", offline=offline, full=full)
    by_bound = {s.labels["le"]: int(s.value) for s in samples if s.name == "strandline_sync_seconds_bucket"}
    syncs = by_bound.get("+Inf", 0)
    yield from judge_syncs(
        f"broker {node_id}",
        syncs=syncs,
        slow=syncs - by_bound.get(str(SLOW_SYNC_S), syncs),
        in_flight_s=values.get("strandline_sync_in_flight_seconds", 0.0),
    )
    if any(s.name == "strandline_sync_thread" and s.labels["kind"] == "python" and s.value for s in samples):
        without = {"strandline.log._sync": "strandline_sync_thread says so; its log names all that it lacks"}
        yield from judge_installation(f"broker {node_id}", without)
    yield from judge_damage(
        f"broker {node_id}",
        rotten=int(values.get("strandline_rotten_replicas", 0)),
        uncleanable=int(values.get("kafka_log_logcleanermanager_uncleanable_partitions_count", 0)),
    )
    yield from judge_tier(
        f"broker {node_id}",
        failing_s=values.get("strandline_tier_copies_failing_seconds", 0.0),
        waiting=int(values.get("kafka_server_brokertopicmetrics_remotecopylagsegments", 0)),
        without_store=int(values.get("strandline_tier_partitions_without_store", 0)),
    )


_MARKS = {
    RISK: ("!", "would lose: "),
    NO_EFFECT: ("!", "no effect:  "),
    OPEN: ("!", "lets in:    "),
    SLOW: ("!", "costs:      "),
    UNCHECKED: ("?", "not known:  "),
}
"""Mark before each kind of finding, and the words before its consequence."""


def _show(findings: list[Finding], nothing: str) -> None:
    for finding in findings:
        mark, label = _MARKS[finding.kind]
        echo(f"{mark} {finding.where}: {finding.setting}")
        echo(f"    {label}{finding.loses}")
        echo(f"    instead:    {finding.remedy}")
    unchecked = sum(finding.kind == UNCHECKED for finding in findings)
    counts = [f"{len(findings) - unchecked} found"] + ([f"{unchecked} not checked"] if unchecked else [])
    if findings:
        echo(", ".join(counts) + ".")
    else:
        echo(nothing)
