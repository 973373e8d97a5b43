"""`strandline config`: the settings of topics, brokers and clients."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from strandline.cli.common import (
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    parse_pairs,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.effects import values_set, warn, without_effect
from strandline.cli.name_completion import resource_names
from strandline.cli.screen import echo
from strandline.cli.topics import changes_json, changes_text, config_changes
from strandline.client.config import AdminConfig, CommonConfig, ConsumerConfig, ProducerConfig, effective_settings
from strandline.client.types import ConfigEntry, ConfigResource
from strandline.proto.errors import ConfigError

_CLIENTS: dict[str, type[CommonConfig]] = {
    "producer": ProducerConfig,
    "consumer": ConsumerConfig,
    "admin": AdminConfig,
}

_KIND = click.argument("kind", type=click.Choice(["topic", "broker", "broker-logger", "client-metrics"]))


@click.group()
def config() -> None:
    """Describe and alter the settings of topics and brokers; show those of a client."""


@config.command("describe")
@_KIND
@click.argument("name", default="", shell_complete=resource_names)
@click.option("-a", "--all", "everything", is_flag=True, help="Settings at their defaults too.")
@output_option
@target_options
def describe(kind: str, name: str, everything: bool, output: str, **where: Any) -> None:
    """Show settings and where each value comes from; a broker without a number means the cluster-wide defaults.

    The settings of a broker-logger are its broker's loggers, and their values the levels that they go by.

    \b
    strandline config describe topic orders
    strandline config describe broker 1 --all
    strandline config describe broker-logger 1
    """
    resource = _resource(kind, name)
    with admin_for(Target(**where)) as admin:
        entries = admin.describe_configs([resource], documentation=True)[resource]
    shown = [entry for entry in entries if everything or not entry.is_default]
    if output == "json":
        print_json([asdict(entry) for entry in shown])
        return
    if not shown:
        echo(f"{kind} {name}: every setting is at its default; see them with --all")
        return
    print_table(("setting", "value", "from", "meaning"), [_row(entry) for entry in shown])


@config.command("alter")
@_KIND
@click.argument("name", default="", shell_complete=resource_names)
@click.option("-s", "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Set a value; repeatable.")
@click.option("-d", "--delete", "deleted", multiple=True, metavar="KEY", help="Go back to the default; repeatable.")
@dry_run_option
@output_option
@target_options
def alter(
    *, kind: str, name: str, pairs: tuple[str, ...], deleted: tuple[str, ...], dry_run: bool, output: str, **where: Any
) -> None:
    """Change settings; they take effect at once and survive restarts. Others stay as they are.

    Levels of loggers (TRACE, DEBUG, INFO, WARN, ERROR, FATAL) end with the broker's process: a restart begins with
    logging.level. One that is deleted goes by the logger above it again.

    \b
    strandline config alter topic orders --set max.message.bytes=5000000
    strandline config alter topic orders --delete max.message.bytes --dry-run
    strandline config alter broker-logger 1 --set strandline.kafka=DEBUG
    strandline config alter client-metrics all --set metrics=* --set interval.ms=30000
    """
    changes = config_changes(parse_pairs(pairs, "--set"), deleted)
    if not changes:
        raise click.UsageError("nothing to alter: give --set KEY=VALUE or --delete KEY")
    resource = _resource(kind, name)
    with admin_for(Target(**where)) as admin:
        before = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource]}
        admin.alter_configs({resource: changes}, validate_only=dry_run)
        idle = without_effect(admin, resource, values_set(changes))
    warn(values_set(changes), idle)
    if output == "json":
        document = {kind: name, "dry_run": dry_run, "configs": changes_json(changes, before), "without_effect": idle}
        print_json(document)
        return
    for line in changes_text(changes, before, "would be" if dry_run else "is now"):
        echo(line)


@config.command("client")
@click.argument("kind", type=click.Choice(sorted(_CLIENTS)))
@click.option("-X", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting, as -X batch.size=65536; repeatable.")
@output_option
def client(kind: str, pairs: tuple[str, ...], output: str) -> None:
    """Show every setting that a client of this project would run with, and check those given.

    \b
    strandline config client producer
    strandline config client producer -X acks=1 -X linger.ms=20 --output json
    """
    given = {key.replace(".", "_"): value for key, value in parse_pairs(pairs, "-X").items()}
    try:
        settings = effective_settings(_CLIENTS[kind](given))
    except ConfigError as error:
        raise CommandWrong(str(error)) from error
    if output == "json":
        print_json(
            [
                {"name": name, "value": value, "is_default": is_default, "documentation": sentence}
                for name, (value, is_default, sentence) in settings.items()
            ]
        )
        return
    rows = [
        (name, value, "default" if is_default else "given", sentence)
        for name, (value, is_default, sentence) in settings.items()
    ]
    print_table(("setting", "value", "from", "meaning"), rows)


def _resource(kind: str, name: str) -> ConfigResource:
    if kind == "topic" and not name:
        raise click.UsageError("which topic? give its name: strandline config describe topic NAME")
    if kind == "broker-logger" and not name:
        raise click.UsageError("which broker's loggers? give its number: strandline config describe broker-logger 1")
    if kind == "client-metrics" and not name:
        raise click.UsageError(
            "which subscription? give it a name: strandline config alter client-metrics NAME --set metrics=*"
        )
    return ConfigResource(kind, name)


def _row(entry: ConfigEntry) -> tuple[str, ...]:
    value = "(secret)" if entry.sensitive else "-" if entry.value is None else entry.value
    return entry.name, value, entry.source.lower().replace("_", " "), entry.documentation or ""
