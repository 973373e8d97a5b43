"""Options that several commands share, and how their errors read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_sources import parse_overrides
from strandline.proto.errors import ConfigError, StrandlineError

F = TypeVar("F", bound=Callable[..., Any])


def settings_option(command: F) -> F:
    """``-X key=value``; the command takes the parsed pairs as `overrides`."""
    return click.option(
        "-X",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        callback=lambda _context, _parameter, pairs: _parse(pairs),
        help="Any setting of a node under Kafka's name, as -X node.id=1; wins over file and environment.",
    )(command)


def config_option(command: F) -> F:
    """``--config FILE``; the command takes it as `config_path`."""
    return click.option(
        "-c",
        "--config",
        "config_path",
        type=click.Path(dir_okay=False),
        help="The node's settings: Java properties, or TOML where the name ends in .toml.",
    )(command)


def load_config(config_path: str | None, overrides: dict[str, str]) -> NodeConfig:
    """The settings from file, environment and options. Raises ConfigError."""
    return NodeConfig.load(config_path, overrides, os.environ)


def _parse(pairs: tuple[str, ...]) -> dict[str, str]:
    try:
        return parse_overrides(pairs)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="-X") from error


class _Wrong(click.ClickException):
    exit_code = 2


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors as one sentence: exit code 2 for what the operator wrote, 1 for what went wrong."""
    try:
        yield
    except ConfigError as error:
        raise _Wrong(str(error)) from error
    except (StrandlineError, OSError) as error:
        raise click.ClickException(str(error)) from error
