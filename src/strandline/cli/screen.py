"""Output of commands: the one place through which text reaches a terminal, made printable (rule A29)."""

from __future__ import annotations

from typing import IO, Any

import click

from strandline.proto.printable import printable_lines


def echo(text: object = "", *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Print a line, or several, made printable: names in it may be anybody's. Names in it may be anybody's."""
    click.echo(printable_lines(str(text)), err=err, nl=nl, file=file)  # rule A29/lines-as-they-come


def say(text: object, **style: Any) -> None:
    """`echo` in a style of click's: colour repeats what the words say."""
    click.secho(printable_lines(str(text)), **style)


def draw(text: str) -> None:
    """Print text that this program has drawn itself, colours and all; the caller has made each piece printable."""
    click.echo(text, nl=False)


def confirm(question: str, **options: Any) -> bool:
    """Ask a question, made printable, for it may name what others named."""
    return click.confirm(printable_lines(question), **options)
