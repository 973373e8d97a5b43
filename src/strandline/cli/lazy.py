"""A click group whose commands are imported when they are used: `strandline topic list` must not pay for the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

import click

from strandline.proto.errors import MissingExtra
from strandline.proto.extras import extra_of
from strandline.proto.printable import printable_lines

ENTRY_POINTS = "strandline.commands"
"""Entry points by which packages above this one, and other people's, add commands: name = module:click_command."""


INTERRUPTED = 130
"""128 and the number of SIGINT."""


class LazyGroup(click.Group):
    """Commands of two kinds: `lazy` ones, name -> module:command, and those of entry points."""

    def __init__(self, *, lazy: Mapping[str, str], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*self._lazy, *_plugins()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find one, importing as little as possible."""
        if cmd_name in self._lazy:
            module, _, attribute = self._lazy[cmd_name].partition(":")
            command = getattr(import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        plugin = _plugins().get(cmd_name)
        return None if plugin is None else _load(plugin)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command as click does; Ctrl-C ends the program without a word, as a shell expects of SIGINT.

        An error may have words of others in it: they are made printable here, for every command. A library that is not
        installed is told with the extra that brings it.
        """
        log_to_stderr()
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = printable_lines(error.message)  # rule A29/errors-as-they-come
            raise
        except ModuleNotFoundError as error:
            command = ctx.invoked_subcommand or ""
            extra = extra_of(error.name or "", command)
            if extra is None:
                raise
            raise click.ClickException(str(MissingExtra.of(f"strandline {command}", extra, error))) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does, with a hint at the name that was perhaps meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error


def log_to_stderr() -> None:
    """Send the lines that code of servers logs in a command to stderr, for stdout is the command's answer.

    The logging library would write them to stdout. It is not imported for this, since that takes longer than many a
    command: it is set up at the moment when something imports it.
    """
    if "structlog" in sys.modules:
        _set_up(sys.modules["structlog"])
    elif not any(isinstance(finder, _SetUpWhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SetUpWhenImported())


def _set_up(structlog: ModuleType) -> None:
    if not structlog.is_configured():
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


class _SetUpWhenImported(MetaPathFinder, Loader):
    """Finds the logging library as Python does, and sets it up behind its import."""

    def __init__(self) -> None:
        self._loader: Loader

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Describe the module, loaded by this loader; None is every other module."""
        spec = PathFinder.find_spec(name, path, target) if name == "structlog" else None
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as Python does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, and set it up. From then on the module is as if Python had loaded it."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _set_up(module)


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(plugin: EntryPoint) -> click.Command:
    command = plugin.load()
    if not isinstance(command, click.Command):
        raise click.ClickException(f"the entry point {plugin.name!r} ({plugin.value}) is no click command")
    return command
