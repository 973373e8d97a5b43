"""`strandline profile`: clusters by name."""

from __future__ import annotations

from typing import Any

import click

from strandline.cli.common import (
    CommandFailed,
    dry_run_option,
    output_option,
    parse_pairs,
    plain_errors,
    print_json,
    print_table,
)
from strandline.cli.profile_store import BOOTSTRAP, Profiles
from strandline.cli.screen import echo
from strandline.proto.errors import ConfigError
from strandline.proto.secrets import shown


@click.group()
def profile() -> None:
    """Keep clusters by name: where they are, and the settings to reach them.

    The profile in use counts for every command, unless it has --profile, --command-config or -b. Each is a file of
    Kafka's client settings that its owner alone can read.
    """


@profile.command("create")
@click.argument("name")
@click.option("-b", "--bootstrap", metavar="HOST:PORT,...", help="One or more brokers of the cluster.")
@click.option("-X", "pairs", multiple=True, metavar="KEY=VALUE", help="A client setting under Kafka's name.")
@click.option(
    "--from", "source", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Settings to copy."
)
@dry_run_option
def create(name: str, bootstrap: str | None, pairs: tuple[str, ...], source: str | None, dry_run: bool) -> None:
    """Make a profile, and use it from now on.

    \b
    strandline profile create staging -b broker-1.example.com:9093 -X security.protocol=SASL_SSL \\
        -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=alice -X 'sasl.password=${keyring:strandline:alice}'
    strandline profile create dev --from client.properties
    """
    with plain_errors():
        profiles = Profiles()
        if profiles.path(name).exists():
            raise CommandFailed(
                f"there is a profile {name}: change it with `strandline profile set`, or delete it first"
            )
        settings = _copied(source) | parse_pairs(pairs, "-X")
        if bootstrap is not None:
            settings[BOOTSTRAP] = bootstrap
        _check(settings)
        if not dry_run:
            profiles.save(name, settings)
            profiles.use(name)
    done = "would be created, and in use from then on" if dry_run else "created, which is in use now"
    echo(f"profile {name} {done}: {profiles.path(name)}")


@profile.command("set")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--profile", "name", metavar="NAME", help="Left out: the one in use.")
@dry_run_option
def set_(pairs: tuple[str, ...], name: str | None, dry_run: bool) -> None:
    """Change settings of a profile; KEY= takes one away.

    \b
    strandline profile set bootstrap.servers=broker-2.example.com:9093
    strandline profile set sasl.password= --profile staging
    """
    with plain_errors():
        profiles = Profiles()
        name = _named(profiles, name)
        settings = profiles.load(name) | parse_pairs(pairs, "KEY=VALUE")
        settings = {key: value for key, value in settings.items() if value}
        _check(settings)
        if not dry_run:
            profiles.save(name, settings)
    echo(f"{'would change' if dry_run else 'changed'} profile {name}")


@profile.command("list")
@output_option
def list_(output: str) -> None:
    """List the profiles and where they lead.

    \b
    strandline profile list
    """
    with plain_errors():
        profiles = Profiles()
        current = profiles.current
        rows = [(name, name == current, profiles.load(name).get(BOOTSTRAP, "")) for name in profiles.names()]
    if output == "json":
        print_json([{"profile": name, "in_use": in_use, "bootstrap": where or None} for name, in_use, where in rows])
    elif not rows:
        echo("no profiles yet; make one with: strandline profile create NAME -b HOST:PORT")
    else:
        print_table(("profile", "in use", "bootstrap"), [(name, "yes" if used else "", at) for name, used, at in rows])


@profile.command("show")
@click.argument("name", required=False)
@output_option
def show(name: str | None, output: str) -> None:
    """Show the settings of a profile (left out: of the one in use), but no secret.

    \b
    strandline profile show staging
    """
    with plain_errors():
        profiles = Profiles()
        name = _named(profiles, name)
        settings: dict[str, Any] = {key: shown(key, value) for key, value in profiles.load(name).items()}
    if output == "json":
        print_json({"profile": name, "in_use": profiles.current == name, "settings": settings})
    else:
        echo(f"{name}: {profiles.path(name)}")
        print_table(("setting", "value"), list(settings.items()))


@profile.command("use")
@click.argument("name", required=False)
@click.option("--none", "nothing", is_flag=True, help="Use no profile any more.")
@dry_run_option
def use(name: str | None, nothing: bool, dry_run: bool) -> None:
    """Go by this profile from now on.

    \b
    strandline profile use staging
    strandline profile use --none
    """
    if (name is None) is not nothing:
        raise click.UsageError("name a profile, or give --none")
    with plain_errors():
        profiles = Profiles()
        if dry_run and name is not None:
            profiles.load(name)
        elif not dry_run:
            profiles.use(name)
    state = "would be in use" if dry_run else "is in use"
    echo(f"no profile {state}" if name is None else f"profile {name} {state}")


@profile.command("delete")
@click.argument("name")
@dry_run_option
def delete(name: str, dry_run: bool) -> None:
    """Delete a profile. What its references point at stays.

    \b
    strandline profile delete staging
    """
    with plain_errors():
        profiles = Profiles()
        if dry_run:
            profiles.load(name)
        else:
            profiles.delete(name)
    echo(f"{'would delete' if dry_run else 'deleted'} profile {name}")


def _named(profiles: Profiles, name: str | None) -> str:
    name = name or profiles.current
    if name is None:
        raise ConfigError("--profile", "", "a name: no profile is in use (strandline profile use NAME)")
    return name


def _copied(source: str | None) -> dict[str, str]:
    if source is None:
        return {}
    from strandline.cluster.node.config_values import parse_properties

    with open(source, encoding="utf-8") as file:
        return parse_properties(file.read(), source)


def _check(settings: dict[str, str]) -> None:
    """Raises ConfigError for a setting that no client has, or with a value that cannot be."""
    from strandline.client.config import AdminConfig, CommonConfig, ConsumerConfig, ProducerConfig

    kinds: tuple[type[CommonConfig], ...] = (AdminConfig, ProducerConfig, ConsumerConfig)
    for key, value in settings.items():
        name = key.replace(".", "_")
        known = [kind for kind in kinds if name in kind.attributes]
        if key != BOOTSTRAP:
            for kind in known or [AdminConfig]:  # which says that there is no such setting
                kind({name: value})
