"""The filter of `strandline consume`: records are printed by key, value and headers, as text or as a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from strandline.client.types import ConsumerRecord

F = TypeVar("F", bound=Callable[..., Any])

_Pattern = re.Pattern[str]


class _Expression(click.ParamType[_Pattern]):
    """A regular expression, of Python's dialect."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Pattern:
        """Compile it. Fails where it is none."""
        try:
            return re.compile(str(value))
        except re.error as error:
            self.fail(f"{value!r} is no regular expression: {error}", param, ctx)


class _HeaderExpression(click.ParamType[tuple[str, _Pattern]]):
    """NAME=REGEX."""

    name = "name=regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, _Pattern]:
        """Name and compiled expression. Fails where it is none."""
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=REGEX", param, ctx)
        return name, _Expression().convert(text, param, ctx)


def filter_options(command: F) -> F:
    """``--key``, ``--value``, ``--header`` and their patterns; the command takes a `RecordFilter` made of them."""
    options = (
        click.option("--key", "key_texts", multiple=True, metavar="TEXT", help="Only this key; repeatable: any."),
        click.option(
            "--key-regex", "key_patterns", multiple=True, type=_Expression(), metavar="REGEX",
            help="Only keys in which the expression is found (^ and $ bind it); repeatable: any.",
        ),
        click.option("--value", "value_texts", multiple=True, metavar="TEXT", help="Only this value, as --key."),
        click.option(
            "--value-regex", "value_patterns", multiple=True, type=_Expression(), metavar="REGEX",
            help="Only values in which the expression is found, as --key-regex.",
        ),
        click.option(
            "--header", "header_texts", multiple=True, metavar="NAME[=VALUE]",
            help="Only records with this header; repeatable: all.",
        ),
        click.option(
            "--header-regex", "header_patterns", multiple=True, type=_HeaderExpression(), metavar="NAME=REGEX",
            help="Only records with a header of this name in which the expression is found; repeatable: all.",
        ),
        click.option("--null-value", is_flag=True, help="Only records without a value: tombstones."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class RecordFilter:
    """Conditions on a record. Key, value and headers must fit, each; what is not asked for fits.

    A pattern sees bytes that are no UTF-8 as lone surrogates, which only such a pattern would find.
    """

    key_texts: Sequence[str] = ()
    key_patterns: Sequence[_Pattern] = ()
    value_texts: Sequence[str] = ()
    value_patterns: Sequence[_Pattern] = ()
    header_texts: Sequence[str] = ()
    header_patterns: Sequence[tuple[str, _Pattern]] = ()
    null_value: bool = False

    @property
    def asks(self) -> bool:
        """True if something is asked for."""
        return self != RecordFilter()

    def fits(self, record: ConsumerRecord) -> bool:
        """Whether the record is like that."""
        return (
            not (self.null_value and record.value is not None)
            and _fits(record.key, self.key_texts, self.key_patterns)
            and _fits(record.value, self.value_texts, self.value_patterns)
            and all(_has_header(record, text) for text in self.header_texts)
            and all(
                any(found == name and _fits(content, (), (pattern,)) for found, content in record.headers)
                for name, pattern in self.header_patterns
            )
        )


def _fits(content: bytes | None, texts: Sequence[str], patterns: Sequence[_Pattern]) -> bool:
    if not texts and not patterns:
        return True
    if content is None:
        return False
    text = content.decode(errors="surrogateescape")
    return text in texts or any(pattern.search(text) for pattern in patterns)


def _has_header(record: ConsumerRecord, wanted: str) -> bool:
    name, equals, text = wanted.partition("=")
    return any(found == name and (not equals or _fits(content, (text,), ())) for found, content in record.headers)
