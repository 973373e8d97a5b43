"""Parts that the commands share: where the cluster is, how answers are shown, and how an error reads.

Exit codes: 0 done, 1 the cluster refused or failed, 2 the command line is wrong, 3 no broker answers, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strandline.cli.profile_store import BOOTSTRAP, DEFAULT_BOOTSTRAP, Profiles
from strandline.cli.screen import draw, echo
from strandline.client.errors import BrokerUnreachable, ClientTimeout, ManyErrors
from strandline.proto.errors import ConfigError, KafkaError, StrandlineError
from strandline.proto.printable import printable
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.admin import Admin
    from strandline.client.config import CommonConfig
    from strandline.cluster.node.config import NodeConfig

F = TypeVar("F", bound=Callable[..., Any])

PIPE_WIDTH = 200
"""Columns of a table that no terminal shows."""

FOLDED_CELL = 20
"""Longer cells of a table are folded where the terminal is narrow; shorter ones never."""

WIDE_GAP, NARROW_GAP = 3, 2
"""Spaces between the columns of a table, on a wide and on a narrow terminal."""


PROGRESS_MS = 2_000
"""Milliseconds between two lines of progress where no terminal shows a bar."""


class CommandFailed(click.ClickException):
    """The cluster refused or failed: one sentence and where to go on."""

    exit_code = 1


class CommandWrong(CommandFailed):
    """The command line asks for what cannot be."""

    exit_code = 2


class Unreachable(CommandFailed):
    """Failure of a command because no broker answers."""

    exit_code = 3


_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Moment(click.ParamType[int]):
    """A point in time; the command gets milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds since 1970 of ``15m`` (ago), ``2024-05-01T12:00`` or a number of milliseconds."""
        text = str(value)
        ago = re.fullmatch(r"(\d+)([smhd])", text)
        if ago:
            return max(0, SystemClock().wall_ms() - int(ago.group(1)) * _UNITS_MS[ago.group(2)])
        if text.isdecimal():
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r} is neither 15m (s, m, h, d ago), a date as 2024-05-01T12:00, nor milliseconds", param, ctx
            )
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)  # noqa: UP017  # Python 3.11's datetime.UTC reads worse
        return int(moment.timestamp() * 1000)


@dataclass(frozen=True)
class Target:
    """Cluster that a command is sent to: the bootstrap list and the ``-X`` settings."""

    bootstrap: str
    settings: Mapping[str, str] = field(repr=False)

    def settings_for(self, kind: type[CommonConfig], **defaults: object) -> dict[str, Any]:
        """The settings for one kind of client: the command's `defaults`, overridden by ``-X``."""
        merged: dict[str, Any] = dict(defaults)
        merged |= {key.replace(".", "_"): value for key, value in self.settings.items()}
        kind(merged)
        return merged


_FILE = f"{__name__}.command_config"
_PROFILE = f"{__name__}.profile"
_ONE_OF_THEM = "--profile and --command-config: one or the other"


def _target(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    kept = context.meta.get(_FILE, {})
    return {**{key: value for key, value in kept.items() if key != BOOTSTRAP}, **parse_pairs(pairs, "-X")}


def _bootstrap(context: click.Context, parameter: click.Parameter, given: str | None) -> str:
    return given or context.meta.get(_FILE, {}).get(BOOTSTRAP) or DEFAULT_BOOTSTRAP


def _profile(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Keep the settings of the profile for `_target` and `_bootstrap`, unless there is a file of settings."""
    if _FILE in context.meta:
        if name is not None:
            raise click.BadParameter(_ONE_OF_THEM, param=parameter)
        return
    profiles = Profiles()
    name = name or profiles.current
    if name is not None:
        try:
            context.meta[_FILE] = profiles.load(name)
        except ConfigError as error:
            raise click.BadParameter(str(error), param=parameter) from error
        context.meta[_PROFILE] = name


def _command_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Keep the settings of the file for `_target` and `_bootstrap`, which click calls later."""
    if path is not None:
        if _PROFILE in context.meta:
            raise click.BadParameter(_ONE_OF_THEM, param=parameter)
        from strandline.cluster.node.config_values import parse_properties

        try:
            with open(path, encoding="utf-8") as file:
                context.meta[_FILE] = parse_properties(file.read(), path)
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise click.BadParameter(str(error), param=parameter) from error


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """``key=value`` texts as a mapping.

    Raises:
        click.BadParameter: one of them has no ``=``.
    """
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not key=value", param_hint=option)
        settings[key.strip()] = value
    return settings


def target_options(command: F) -> F:
    """``--bootstrap``, ``--profile``, ``--command-config`` and ``-X``; the command takes them as `bootstrap` and
    `settings`."""
    bootstrap = click.option(
        "-b", "--bootstrap", envvar="STRANDLINE_BOOTSTRAP", callback=_bootstrap, show_envvar=True,
        show_default=f"bootstrap.servers of the profile or file, else {DEFAULT_BOOTSTRAP}", metavar="HOST:PORT,...",
        help="One or more brokers; they tell of the others.",
    )  # fmt: skip
    profile = click.option(
        "--profile", envvar="STRANDLINE_PROFILE", show_envvar=True, metavar="NAME", expose_value=False,
        is_eager=True, callback=_profile, help="A cluster by its name (`strandline profile`), not the one in use.",
    )  # fmt: skip
    extra = click.option(
        "-X", "settings", multiple=True, callback=_target, metavar="KEY=VALUE",
        help="Any client setting under Kafka's name, as -X request.timeout.ms=5000.",
    )  # fmt: skip
    config = click.option(
        "--command-config", envvar="STRANDLINE_COMMAND_CONFIG", show_envvar=True, metavar="FILE", expose_value=False,
        is_eager=True, callback=_command_config,
        help="Client settings, as Kafka's tools read them: a file of key=value lines. -X wins over it.",
    )  # fmt: skip
    return bootstrap(config(profile(extra(command))))


def output_option(command: F) -> F:
    """``--output table|json``; the command takes it as `output`."""
    option = click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True,
        help="json is for programs: one document, stable names.",
    )  # fmt: skip
    return option(command)


def dry_run_option(command: F) -> F:
    """``--dry-run``; the command takes it as `dry_run`."""
    return click.option("--dry-run", is_flag=True, help="Check everything, say what would happen, change nothing.")(
        command
    )


def settings_option(command: F) -> F:
    """``-X key=value`` of a node; the command takes the parsed pairs as `overrides`."""
    return click.option(
        "-X",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        callback=lambda _context, _parameter, pairs: _parse_overrides(pairs),
        help="Any setting of a node under Kafka's name, as -X node.id=1; wins over file and environment.",
    )(command)


def config_option(command: F) -> F:
    """``--config FILE`` of a node; the command takes it as `config_path`."""
    return click.option(
        "-c",
        "--config",
        "config_path",
        type=click.Path(dir_okay=False),
        help="The node's settings: Java properties, or TOML where the name ends in .toml.",
    )(command)


def load_config(config_path: str | None, overrides: dict[str, str]) -> NodeConfig:
    """A node's settings from file, environment and options. Raises ConfigError."""
    from strandline.cluster.node.config import NodeConfig

    return NodeConfig.load(config_path, overrides, os.environ)


def _parse_overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    from strandline.cluster.node.config_values import parse_overrides

    try:
        return parse_overrides(pairs)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="-X") from error


@contextmanager
def plain_errors(target: Target | None = None) -> Iterator[None]:
    """Turn errors into one sentence with the next step and an exit code.

    Args:
        target: where the command goes, if it goes to brokers: named when none of them answers.
    """
    try:
        yield
    except BrokerUnreachable as error:
        raise Unreachable(str(error) if target is None else _unreachable(target.bootstrap, error)) from error
    except ClientTimeout as error:
        kind = Unreachable if isinstance(error.last_error, BrokerUnreachable) else CommandFailed
        raise kind(str(error)) from error
    except ConfigError as error:
        raise CommandWrong(str(error)) from error
    except StrandlineError as error:
        hint = _RIGHTS if _is_denied(error) else ""
        raise CommandFailed(f"{error}{hint}") from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output has gone: click ends the program silently
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise CommandFailed(f"{where}{error.strerror or error}") from error


_RIGHTS = ". Why it is so: strandline acl explain; to allow it, as one who may: strandline acl add"
"""Advice where a right is missing."""


def _is_denied(error: StrandlineError) -> bool:
    from strandline.client.rights import DENIED

    errors = error.errors.values() if isinstance(error, ManyErrors) else (error,)
    return any(isinstance(one, KafkaError) and one.code in DENIED and " may not " in one.message for one in errors)


def _unreachable(bootstrap: str, error: BrokerUnreachable) -> str:
    """Advice when no broker answers."""
    context = click.get_current_context(silent=True)
    profile = context.meta.get(_PROFILE) if context is not None else None
    by = f" (profile {profile})" if profile else ""
    return (
        f"no broker answers at {bootstrap}{by}: {error.reason}. Start a cluster with `strandline dev`, or name another "
        "with --bootstrap or STRANDLINE_BOOTSTRAP."
    )


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Set by Ctrl-C, so that it comes between no two things that belong together; KeyboardInterrupt is raised at the
    end. A second Ctrl-C raises it wherever the program is (it may wait for who reads its output)."""
    interrupted = threading.Event()

    def on_interrupt(number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(number, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted.is_set():
        raise KeyboardInterrupt


def check_reachable(target: Target) -> None:
    """Fail at once, not after a minute of retries, when nobody listens at the bootstrap addresses.

    Raises:
        BrokerUnreachable: with each address and its reason.
    """

    from strandline.client.config import AdminConfig
    from strandline.client.session import Session

    async def knock() -> None:
        config = AdminConfig({key: value for key, value in target.settings.items() if _is_common(key)})
        session = Session(target.bootstrap, config)
        try:
            await session.network.to_any([])
        finally:
            await session.close()

    asyncio.run(knock())


def _is_common(key: str) -> bool:
    from strandline.client.config import CommonConfig

    return key.replace(".", "_") in CommonConfig.attributes


@contextmanager
def admin_for(target: Target) -> Iterator[Admin]:
    """An admin client for one command, its errors in one sentence."""
    from strandline.client.admin import Admin
    from strandline.client.config import AdminConfig

    with plain_errors(target):
        settings = target.settings_for(AdminConfig, default_api_timeout_ms=20_000)
        check_reachable(target)
        with Admin(target.bootstrap, **settings) as admin:
            yield admin


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    echo(json.dumps(document, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print an aligned table: numbers to the right, problems marked by words, never by colour alone."""
    draw(drawn_table(columns, rows, title=title, width=_screen_width(), colour=sys.stdout.isatty()))


def drawn_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None, width: int, colour: bool
) -> str:
    """The table as text.

    Where it is wider than `width` the gaps become narrower and headers take several lines. Then only cells longer than
    `FOLDED_CELL` (ids, addresses) are folded: a table that is too wide even so keeps its cells, for words cut in two
    are harder to read than lines that the terminal wraps.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = [printable(name) for name in columns]
    cells = [[printable(str(cell)) for cell in row] for row in rows]  # rule A29/cells-as-they-come
    needs = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    is_narrow = sum(needs) + WIDE_GAP * len(needs) > width
    headers = [
        name.replace(" ", "\n") if is_narrow and all(len(name) > len(cell) for cell in column) else name
        for name, *column in zip(columns, *cells, strict=True)
    ]
    leasts = [
        max(*(len(line) for line in header.split("\n")), *(min(len(cell), FOLDED_CELL) for cell in column), 0)
        for header, *column in zip(headers, *cells, strict=True)
    ]
    least = sum(leasts) + (NARROW_GAP if is_narrow else WIDE_GAP) * len(leasts)
    console = Console(width=max(width, least), highlight=False, force_terminal=colour, soft_wrap=False)
    # rule A29/titles-are-markup
    table = Table(
        box=SIMPLE_HEAD, title=None if title is None else Text(printable(title)), title_justify="left",
        title_style="bold", pad_edge=False,
        collapse_padding=is_narrow,
    )  # fmt: skip
    for place, header in enumerate(headers):
        numeric = bool(rows) and all(isinstance(row[place], int) for row in rows)
        table.add_column(
            Text(header), justify="right" if numeric else "left", header_style="bold", overflow="fold",
            no_wrap=needs[place] <= FOLDED_CELL,
        )  # fmt: skip
    for row in cells:
        # bright_yellow and blue stay apart for every kind of colour vision; red and green do not.
        table.add_row(*(Text(cell, style="bright_yellow" if cell.startswith("! ") else "") for cell in row))
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _screen_width() -> int:
    """Columns of the terminal; who reads a pipe wants whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def numbers(items: Sequence[int] | None) -> str:
    """``1,2,3``, or a dash for none."""
    return ",".join(str(item) for item in items) if items else "-"


def shown_time(at_ms: int) -> str:
    """``2026-11-23 10:00:00 UTC`` of milliseconds since 1970; what is no time of ours stays a number."""
    if not 0 <= at_ms < 253_402_300_800_000:
        return f"{at_ms} ms"
    moment = datetime.fromtimestamp(at_ms / 1000, timezone.utc)  # noqa: UP017  # Python 3.11's datetime.UTC reads worse
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


@contextmanager
def progress(verb: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Takes how much is done and all there is; on a terminal a bar, elsewhere a line on standard error now and then.

    Args:
        verb: what is being done, before the bar.
        unit: of what, in the plural; bytes are shown as megabytes and the like.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        counter = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), counter, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(verb, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    clock = SystemClock()
    said_ms = clock.monotonic_ms()

    def report(done: int, total: int) -> None:
        nonlocal said_ms
        now_ms = clock.monotonic_ms()
        if now_ms - said_ms >= PROGRESS_MS:
            said_ms = now_ms
            echo(f"{done:,} of {total:,} {unit}", err=True)

    yield report
