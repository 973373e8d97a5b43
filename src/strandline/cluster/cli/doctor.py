"""`strandline doctor`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from strandline.client.commands.common import Target, admin_for, output_option, print_json, target_options
from strandline.client.config import ConsumerConfig, ProducerConfig
from strandline.client.types import ConfigResource
from strandline.cluster.cli.options import told_plainly
from strandline.cluster.doctor import (
    Finding,
    judge_cluster,
    judge_config,
    judge_consumer,
    judge_producer,
    judge_settings,
    judge_topic,
)

FOUND = 1


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--producer", is_flag=True, help="Judge a producer's settings instead, given by -X (any client's: Kafka's names)."
)
@click.option("--consumer", is_flag=True, help="Judge a consumer's settings instead, in the same way.")
@output_option
@target_options
def doctor(files: tuple[str, ...], producer: bool, consumer: bool, output: str, **where: Any) -> None:
    """Name every setting that can lose data, and what it would lose.

    Judges configuration files, or without any the live cluster at --bootstrap: settings, topics, and who is in sync.
    Exits 1 when something is found, 0 when all is well.

    \b
    strandline doctor
    strandline doctor node-1.properties node-2.properties
    strandline doctor --output json -b 10.0.0.1:9092
    strandline doctor --producer -X enable.idempotence=false -X max.in.flight.requests.per.connection=5
    strandline doctor --consumer -X enable.auto.commit=false -X auto.offset.reset=earliest
    """
    if producer or consumer:
        with told_plainly():
            findings = list(_of_client(Target(**where), consumer=consumer))
    elif files:
        with told_plainly():
            findings = [finding for path in files for finding in _of_file(path)]
    else:
        findings = list(_of_cluster(Target(**where)))
    if output == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if findings:
        raise SystemExit(FOUND)


def _of_client(target: Target, *, consumer: bool) -> Iterator[Finding]:
    if consumer:
        yield from judge_consumer(ConsumerConfig.of(target.settings_for(ConsumerConfig)))
    else:
        yield from judge_producer(ProducerConfig.of(target.settings_for(ProducerConfig)))


def _of_file(path: str) -> Iterator[Finding]:
    from strandline.cluster.config import NodeConfig

    yield from judge_config(NodeConfig.load(path, {}, os.environ))


def _of_cluster(target: Target) -> Iterator[Finding]:
    with admin_for(target) as admin:
        described = admin.describe_cluster()
        topics = admin.describe_topics(admin.list_topics(include_internal=True))
        brokers = [ConfigResource("broker", str(node.node_id)) for node in described.nodes]
        resources = brokers + [ConfigResource("topic", topic.name) for topic in topics]
        configs = {
            resource: {entry.name: entry.value for entry in entries if entry.value is not None}
            for resource, entries in admin.describe_configs(resources).items()
        }
        quorum = admin.describe_quorum()
    replicas = Counter(node for topic in topics for part in topic.partitions for node in part.replicas)
    yield from judge_cluster(len(brokers), replicas, len(quorum.voters))
    for broker in brokers:
        yield from judge_settings(f"broker {broker.name}", configs[broker], brokers=len(brokers))
    for topic in topics:
        yield from judge_topic(topic, configs[ConfigResource("topic", topic.name)])


def _show(findings: list[Finding]) -> None:
    if not findings:
        click.echo("Nothing found that could lose data.")
        return
    for finding in findings:
        click.echo(f"! {finding.where}: {finding.setting}")
        click.echo(f"    would lose: {finding.loses}")
        click.echo(f"    instead:    {finding.remedy}")
    click.echo(f"{len(findings)} found.")
