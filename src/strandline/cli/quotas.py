"""`strandline quota`: what clients may take of each broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from strandline.cli.common import (
    Target,
    admin_for,
    dry_run_option,
    output_option,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.screen import echo
from strandline.proto.ids import address_of
from strandline.proto.quotas import DEFAULT, QuotaEntity, QuotaKey, entity_fault, value_fault

F = TypeVar("F", bound=Callable[..., Any])

_KEYS = ", ".join(QuotaKey)


@click.group()
def quota() -> None:
    """Say what clients may take of each broker: bytes a second, of its time, partitions made, connections opened.

    The most specific quota counts (docs/security.md); a client above it waits, and loses nothing.
    """


def _entity_options(command: F) -> F:
    """Whom it is for; the command takes it as `user`, `client_id`, `ip`, and `user_defaults` and so on."""
    options = (
        click.option("--user", help="A user: the name of a principal, without `User:`."),
        click.option("--client-id", help="A client.id; with a user: this client of that user."),
        click.option("--user-defaults", is_flag=True, help="Each user that has no quota of its own."),
        click.option("--client-defaults", is_flag=True, help="Each client.id that has no quota of its own."),
        click.option("--ip", metavar="ADDRESS", help="An address: connection_creation_rate, and nothing else."),
        click.option("--ip-defaults", is_flag=True, help="Each address that has no quota of its own."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _entity(
    *,
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_defaults: bool,
    ip: str | None,
    ip_defaults: bool,
) -> QuotaEntity:
    named = (("user", user, user_defaults), ("client-id", client_id, client_defaults), ("ip", ip, ip_defaults))
    for name, value, default in named:
        if value is not None and default:
            raise click.UsageError(f"--{name} or the defaults, not both")
        if value == "":
            raise click.UsageError(f"--{name} is empty")
    whom = (DEFAULT if default else value for _, value, default in named)
    entity = QuotaEntity(*whom)
    if entity == QuotaEntity():
        raise click.UsageError("whom is it for? --user, --client-id or --ip, or --user-defaults and so on")
    if entity.ip is not None:
        entity = entity._replace(ip=address_of(entity.ip))
    fault = entity_fault(entity)
    if fault:
        raise click.UsageError(fault)
    return entity


@quota.command("list")
@output_option
@target_options
def list_(output: str, bootstrap: str, settings: dict[str, str]) -> None:
    """Show all quotas.

    \b
    strandline quota list
    strandline quota list --output json
    """
    with admin_for(Target(bootstrap, settings)) as admin:
        found = admin.describe_client_quotas()
    rows = sorted((_shown(entity), key, value) for entity, values in found.items() for key, value in values.items())
    if output == "json":
        print_json([{**_named(whom), "quota": key, "value": value} for whom, key, value in rows])
    elif not rows:
        echo("there are no quotas; set one with: strandline quota set --user NAME producer_byte_rate=BYTES")
    else:
        columns = ("user", "client-id", "ip", "quota", "value")
        print_table(columns, [(*whom, key, f"{value:.15g}") for whom, key, value in rows])


@quota.command("set")
@click.argument("quotas", metavar="KEY=VALUE...", nargs=-1, required=True)
@_entity_options
@dry_run_option
@output_option
@target_options
def set_(
    quotas: tuple[str, ...], dry_run: bool, output: str, bootstrap: str, settings: dict[str, str], **whom: Any
) -> None:
    """Set quotas. Others stay.

    A user or a client.id may have producer_byte_rate, consumer_byte_rate (bytes a second), request_percentage, and
    controller_mutation_rate (partitions created and deleted a second); an ip connection_creation_rate (a second).

    \b
    strandline quota set --user alice producer_byte_rate=10485760 consumer_byte_rate=20971520
    strandline quota set --user-defaults request_percentage=50
    strandline quota set --user alice --client-id nightly consumer_byte_rate=1048576 --dry-run
    strandline quota set --ip-defaults connection_creation_rate=20
    """
    entity = _entity(**whom)
    values: dict[str, float | None] = {}
    for pair in quotas:
        key, _, text = pair.partition("=")
        values[key] = _number(entity, key, text)
    _change(entity, values, dry_run=dry_run, output=output, target=Target(bootstrap, settings))


@quota.command("remove")
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@_entity_options
@dry_run_option
@output_option
@target_options
def remove(
    keys: tuple[str, ...], dry_run: bool, output: str, bootstrap: str, settings: dict[str, str], **whom: Any
) -> None:
    """Remove quotas of an entity: these, or all that it has.

    \b
    strandline quota remove --user alice
    strandline quota remove --user-defaults request_percentage
    strandline quota remove --ip 10.0.0.7
    """
    entity = _entity(**whom)
    wrong = [key for key in keys if key not in QuotaKey.__members__.values()]
    if wrong:
        raise click.UsageError(f"there is no quota {wrong[0]}; possible are {_KEYS}")
    target = Target(bootstrap, settings)
    with admin_for(target) as admin:
        has = admin.describe_client_quotas().get(entity, {})
    gone: dict[str, float | None] = {key: None for key in keys or sorted(has) if key in has}
    _change(entity, gone, dry_run=dry_run, output=output, target=target)


def _number(entity: QuotaEntity, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise click.UsageError(f"{key}={text}: a number is wanted, as KEY=VALUE") from None
    fault = value_fault(entity, key, value)
    if fault:
        raise click.UsageError(f"{key}={text}: {fault}")
    return value


def _change(
    entity: QuotaEntity, values: dict[str, float | None], *, dry_run: bool, output: str, target: Target
) -> None:
    if values:
        with admin_for(target) as admin:
            admin.alter_client_quotas({entity: values}, validate_only=dry_run)
    if output == "json":
        print_json({**_named(_shown(entity)), "changes": values, "dry_run": dry_run})
        return
    for key, value in values.items():
        what = f"{key} of {entity}"
        if value is None:
            echo(f"{what} {'would be' if dry_run else 'is'} removed")
        else:
            echo(f"{what} {'would be' if dry_run else 'is'} {value:.15g}")
    if not values:
        echo(f"{entity} has no such quota")


def _shown(entity: QuotaEntity) -> tuple[str, ...]:
    """User, client.id and ip, as a table shows them."""
    return tuple("" if name is None else name or "(default)" for name in entity)


def _named(shown: tuple[str, ...]) -> dict[str, str]:
    """The shown entity as a JSON object."""
    return dict(zip(QuotaEntity._fields, shown, strict=True))
