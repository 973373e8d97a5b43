"""`strandline user`: who may log in by SCRAM."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from strandline.cli.common import (
    CommandFailed,
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.screen import echo
from strandline.client.types import SCRAM_ITERATIONS, ScramChange, ScramDescription
from strandline.proto.scram import SCRAM_BY_TITLE

_MECHANISMS = tuple(SCRAM_BY_TITLE)

_mechanism = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(_MECHANISMS),
    multiple=True,
    help="One of the user's mechanisms; repeatable. Left out: both.",
)


@click.group()
def user() -> None:
    """List users of SCRAM, set their passwords, delete them.

    Users of PLAIN stand in the nodes' own files.
    """


@user.command("list")
@output_option
@target_options
def list_users(output: str, **where: Any) -> None:
    """List the users and their mechanisms.

    \b
    strandline user list
    strandline user list --output json
    """
    with admin_for(Target(**where)) as admin:
        found = admin.describe_scram_credentials()
    rows = [(name, one.mechanism, one.iterations) for name, each in found.items() for one in each]
    if output == "json":
        print_json([{"user": name, "mechanism": title, "iterations": count} for name, title, count in rows])
    elif not rows:
        echo("no users of SCRAM yet; make one with: strandline user set NAME")
    else:
        print_table(("user", "mechanism", "iterations"), rows)


@user.command("set")
@click.argument("name")
@_mechanism
@click.option(
    "--iterations",
    type=int,
    default=SCRAM_ITERATIONS,
    show_default=True,
    help="Of PBKDF2, from 4096 to 16384: more make a stolen credential harder to guess, and each login slower.",
)
@click.option(
    "--password-file", type=click.Path(dir_okay=False, path_type=Path), help="The first line is the password."
)
@click.option("--password-env", metavar="NAME", help="The environment variable that holds the password.")
@dry_run_option
@target_options
def set_password(
    name: str,
    *,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: Path | None,
    password_env: str | None,
    dry_run: bool,
    **where: Any,
) -> None:
    """Set a user's password: a new user, or a new password of an old one, for logins from now on.

    The password is asked for, or comes from a file or the environment; it stands on no command line. Open connections
    stay until they authenticate anew (connections.max.reauth.ms).

    \b
    strandline user set alice
    strandline user set alice --password-env ALICE_PASSWORD --mechanism SCRAM-SHA-512
    """
    password = _password(name, password_file, password_env)
    changes = [ScramChange(title, password, iterations) for title in mechanisms or _MECHANISMS]
    by = " and ".join(mechanisms or _MECHANISMS)
    with admin_for(Target(**where)) as admin:
        if dry_run:
            known = name in admin.describe_scram_credentials()
            echo(f"{name}, {'a user already' if known else 'a new user'}, would have a new password, by {by}")
            return
        admin.alter_scram_credentials({name: changes})
    echo(f"{name} has a new password, by {by}")


@user.command("delete")
@click.argument("name")
@_mechanism
@dry_run_option
@target_options
def delete(name: str, mechanisms: tuple[str, ...], dry_run: bool, **where: Any) -> None:
    """Delete a user, or single mechanisms of one.

    It cannot log in any more. Its open connections stay until they authenticate anew (connections.max.reauth.ms).

    \b
    strandline user delete alice
    strandline user delete alice --mechanism SCRAM-SHA-256
    """
    with admin_for(Target(**where)) as admin:
        has: tuple[ScramDescription, ...] = admin.describe_scram_credentials([name])[name]
        there = tuple(one.mechanism for one in has)
        titles = mechanisms or there
        if dry_run:
            missing = [title for title in titles if title not in there]
            if missing:
                raise CommandFailed(f"{name} has no {missing[0]}: its mechanisms are {', '.join(there)}")
            echo(f"{name} could not log in any more by {' and '.join(titles)}")
            return
        admin.alter_scram_credentials({name: [ScramChange(title, None) for title in titles]})
    echo(f"{name} cannot log in any more by {' and '.join(titles)}")


def _password(name: str, file: Path | None, variable: str | None) -> str:
    if file is not None and variable is not None:
        raise click.UsageError("--password-file or --password-env, not both")
    if variable is not None:
        password = os.environ.get(variable, "")
        if not password:
            raise CommandWrong(f"the environment variable {variable} is not set")
        return password
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandWrong(f"{file} cannot be read: {error}") from None
        if not lines or not lines[0]:
            raise CommandWrong(f"{file} has no password in its first line")
        return lines[0]
    if not sys.stdin.isatty():
        raise CommandWrong("no terminal to ask for the password: give --password-file or --password-env")
    answer: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
    return answer
