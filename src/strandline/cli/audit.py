"""`strandline audit`: what the audit says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from strandline.cli.audit_sources import LINE_BYTES_MAX, AuditPair, AuditRecords, Raw, Source
from strandline.cli.common import (
    CommandFailed,
    Target,
    check_reachable,
    interrupts,
    plain_errors,
    plural,
    target_options,
)
from strandline.cli.screen import echo
from strandline.client.config import ConsumerConfig
from strandline.proto.audit import AUDIT_TOPIC, LEFT_OUT, UNKNOWN, read_audit_line
from strandline.proto.error_codes import ErrorCode
from strandline.proto.printable import printable

POLL_S = 0.2
"""Seconds until Ctrl-C, or a new line of a file, is noticed."""

DENIED, DONE, FAILED = "denied", "done", "failed"

GAP = "dropped"
"""The event of a line that tells of lines that the topic does not have. It fits every filter, as `LEFT_OUT` does."""


class Outcome(click.ParamType[str]):
    """Result of a request, as an option: success, denied, or the name of an error."""

    name = "result"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """One of the words, or an error's name."""
        text = str(value)
        if text.lower() in (DENIED, DONE, FAILED):
            return text.lower()
        if text.upper() != UNKNOWN and text.upper() not in ErrorCode.__members__:
            self.fail(f"{text!r} is neither {DENIED}, {DONE}, {FAILED}, UNKNOWN nor the name of one of Kafka's errors")
        return text.upper()


@click.group()
def audit() -> None:
    """Show who logged in, was denied, or changed something."""


@audit.command("tail")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False),
    help="A broker's file (audit.log.path) on this machine, with PATH.1, ... and PATH.attempts; not the topic of a "
    "cluster.",
)
@click.option("-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="The newest so many.")
@click.option("-f", "--follow", is_flag=True, help="Go on with lines as they come, until Ctrl-C (exit code 130).")
@click.option("--principal", "principals", multiple=True, help="Only of this one, as User:alice; repeatable.")
@click.option(
    "--action",
    "--operation",
    "actions",
    multiple=True,
    help="Only this: an API as DeleteTopics, an operation that was denied as ALTER, or login, change, denied; "
    "repeatable.",
)
@click.option(
    "--result",
    type=Outcome(),
    help="Only this: denied (by the authorizer), done, failed (an error, or not known), or an error's name.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: an object a line, as the audit has it, with the broker that wrote it where that is known.",
)
@target_options
def tail(
    *,
    path: str | None,
    lines: int,
    follow: bool,
    principals: tuple[str, ...],
    actions: tuple[str, ...],
    result: str | None,
    output: str,
    **where: Any,
) -> None:
    """Show the newest lines of the audit, the newest last.

    \b
    strandline audit tail --follow
    strandline audit tail -n 100 --result denied --principal User:alice
    strandline audit tail --action DeleteTopics --action DeleteAcls -o json
    strandline audit tail --file /var/log/strandline/audit.log -f

    The topic __audit has the lines of every broker with audit.topic.enable=true, for a week; to read it needs READ of
    the topic. A file has those of its broker. A line that cannot be read is said on standard error; with any, and
    without --follow, the exit code is 1. Filters never hide that lines are missing.
    """
    wanted = Wanted(frozenset(principals), frozenset(name.lower() for name in actions), result)
    printer = Printer(wanted, as_json=output == "json")
    with _source(path, where) as source:
        for raw in source.newest(lines, printer.fits):
            printer.show(raw)
        if not follow and source.unfinished:
            echo(source.unfinished, err=True)
        if follow:
            source.begin_at_end()
            with interrupts() as interrupted:
                while not interrupted.is_set():
                    for raw in source.poll(POLL_S):
                        printer.show(raw)
    if printer.bad:
        raise CommandFailed(f"{plural(printer.bad, 'line')} could not be read")


@contextmanager
def _source(path: str | None, where: dict[str, Any]) -> Iterator[Source]:
    if path is not None:
        with plain_errors():
            files = AuditPair(path)
            try:
                yield files
            finally:
                files.close()
        return
    from strandline.client.consumer import Consumer

    target = Target(**where)
    with plain_errors(target):
        # The age: a partition that was added is read soon, not after the usual five minutes.
        defaults = {"default_api_timeout_ms": 20_000, "auto_offset_reset": "none", "metadata_max_age_ms": 30_000}
        settings = target.settings_for(ConsumerConfig, **defaults)
        check_reachable(target)
        with Consumer(target.bootstrap, **settings) as consumer:
            yield AuditRecords(consumer)


@dataclass(frozen=True)
class Wanted:
    """Conditions on the lines to show; an empty one admits every line."""

    principals: frozenset[str]
    actions: frozenset[str]
    result: str | None

    def fits(self, line: dict[str, Any]) -> bool:
        """Whether this is one of them."""
        if line["event"] in (GAP, LEFT_OUT):
            return True
        if self.principals and line.get("principal") not in self.principals:
            return False
        names = {str(line.get(key, "")).lower() for key in ("api", "operation", "event")}
        return not (self.actions and self.actions.isdisjoint(names)) and self._has_result(line)

    def _has_result(self, line: dict[str, Any]) -> bool:
        found = result_of(line)
        if self.result is None:
            return True
        if self.result == FAILED:
            return found not in (DENIED, ErrorCode.NONE.name)
        return found == (ErrorCode.NONE.name if self.result == DONE else self.result)


def result_of(line: dict[str, Any]) -> str:
    """`denied`, NONE, or the name of an error."""
    return DENIED if line["event"] == DENIED else str(line.get("result", ""))


class Printer:
    """Prints lines that fit.

    Attributes:
        bad: lines that could not be read.
    """

    def __init__(self, wanted: Wanted, *, as_json: bool) -> None:
        self._wanted = wanted
        self._as_json = as_json
        self.bad = 0

    def fits(self, raw: Raw) -> bool:
        """True if a line matches the options. A line that cannot be read is reported, and does not match."""
        line = self._read(raw)
        return line is not None and self._wanted.fits(line)

    def show(self, raw: Raw) -> None:
        """Print a line, if it fits."""
        line = self._read(raw)
        if line is None or not self._wanted.fits(line):
            return
        if raw.broker is not None:
            line["broker"] = raw.broker
        echo(json.dumps(line) if self._as_json else as_text(line))

    def _read(self, raw: Raw) -> dict[str, Any] | None:
        try:
            if len(raw.text) > LINE_BYTES_MAX:
                raise ValueError(f"it is longer than {LINE_BYTES_MAX:,} bytes")
            return read_audit_line(raw.text)
        except ValueError as error:
            self.bad += 1
            begin = printable(raw.text[:60].decode(errors="replace"))
            echo(f"{raw.where}: no line of an audit ({error}): {begin}", err=True)
            return None


def as_text(line: dict[str, Any]) -> str:
    """One line to be read: when, who, from where, what, with which result."""
    event = line["event"]
    if event == GAP:
        who = f"broker {line['broker']}" if "broker" in line else "a broker"
        return printable(f"{line['timestamp']}  {who} could not write {line.get('lines')} lines to {AUDIT_TOPIC}")
    if event == LEFT_OUT:
        return printable(
            f"{line['timestamp']}  {line.get('lines')} {line.get('what')} have no line: they came too fast"
        )
    if event == DENIED:
        what = f"{line.get('operation')} of {line.get('resource_type')} {line.get('resource')}"
        left_out, result = line.get("suppressed"), f"{DENIED}: {line.get('because')}"
    else:
        what, left_out, result = str(line.get("what")), line.get("left_out"), result_of(line)
        result = DONE if result == ErrorCode.NONE.name else result
        if "part" in line:
            what = f"(part {line['part']}) {what}"
    words = f"{line['timestamp']}  {line.get('principal')}  {line.get('host')}  {line.get('api')}  {what}  {result}"
    return printable(f"{words}  ({left_out} more before it left out)" if left_out else words)
