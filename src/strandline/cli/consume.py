"""`strandline consume`: records on standard output."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strandline.cli.common import Moment, Target, check_reachable, interrupts, plain_errors, plural, target_options
from strandline.cli.name_completion import group_names, topic_names
from strandline.cli.screen import echo
from strandline.client.config import ConsumerConfig
from strandline.client.types import ConsumerRecord
from strandline.proto.ids import TopicPartition
from strandline.proto.printable import printable_json, printable_lines
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.consumer import Consumer

# Which records are printed


F = TypeVar("F", bound=Callable[..., Any])

_Pattern = re.Pattern[str]


class _Expression(click.ParamType[_Pattern]):
    """A regular expression, of Python's dialect."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Pattern:
        """Compile the text. Fails if it is not valid."""
        try:
            return re.compile(str(value))
        except re.error as error:
            self.fail(f"{value!r} is no regular expression: {error}", param, ctx)


class _HeaderExpression(click.ParamType[tuple[str, _Pattern]]):
    """NAME=REGEX."""

    name = "name=regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, _Pattern]:
        """Parse the name and compile the expression. Fails if it is not valid."""
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


POLL_S = 0.2
"""Seconds until Ctrl-C is noticed where no record comes."""

COMMIT_MS = 1_000
"""Milliseconds between two commits of what a member of a group has printed."""


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--from-beginning", is_flag=True, help="From the first record that the log has.")
@click.option("--offset", type=click.IntRange(0), help="From this offset in every partition that is read.")
@click.option("--since", type=Moment(), help="From this time: 15m (ago), 2024-05-01T12:00 (UTC), or milliseconds.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
@click.option(
    "-g",
    "--group",
    shell_complete=group_names,
    help="As a member of this group: go on where it has committed, and commit what is printed.",
)
@click.option("-n", "--max", "most", type=click.IntRange(1), help="Stop after so many records that are printed.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end that the log has at the start.")
@click.option(
    "--until", type=Moment(), help="Stop at this time, as --since has it: before the first record that is not older."
)
@filter_options
@click.option("-k", "--keys", is_flag=True, help="Print the key and a tab before each value.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: values, a line each. json: an object a line, with partition, offset, time, key, headers.",
)
@target_options
def consume(
    *,
    topic: str,
    from_beginning: bool,
    offset: int | None,
    since: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    most: int | None,
    exit_at_end: bool,
    until: int | None,
    keys: bool,
    output: str,
    **others: Any,
) -> None:
    """Print records, new ones as they come, until Ctrl-C (exit code 130).

    \b
    strandline consume orders --from-beginning --exit-at-end
    strandline consume orders --since 15m --keys
    strandline consume orders -p 0 --offset 1234 -n 1 --output json
    strandline consume orders --since 2024-05-01 --until 2024-05-02 --key 4711
    strandline consume orders --from-beginning --exit-at-end --value-regex '"total": *[0-9]{4}' --header tenant=acme
    strandline consume orders --group kitchen --from-beginning

    In a group, --from-beginning is for partitions that the group has committed nothing of. What was printed is
    committed, also at Ctrl-C; so is what was read and did not fit --key, --value and --header.
    """
    if sum((from_beginning, offset is not None, since is not None)) > 1:
        raise click.UsageError("--from-beginning, --offset and --since exclude one another")
    if until is not None and not from_beginning and offset is None and since is None:
        raise click.UsageError("--until needs a begin: --from-beginning, --offset or --since")
    if keys and output == "json":
        raise click.UsageError("--output json has the keys already: leave --keys out")
    wanted = RecordFilter(**{name: others.pop(name) for name in RecordFilter.__dataclass_fields__})
    target = Target(**others)
    show = _as_json if output == "json" else _shown(_as_keyed_text if keys else _as_text)
    printing = _Printing(show, wanted)
    group = group or target.settings.get("group.id") or target.settings.get("group_id")
    if group is not None and (offset is not None or since is not None or until is not None or partitions):
        raise click.UsageError(
            "the group decides what is read, from where it has committed; to move it: strandline group reset-offsets"
        )
    from strandline.client.consumer import Consumer

    with plain_errors(target):
        defaults: dict[str, object] = {"default_api_timeout_ms": 20_000, "auto_offset_reset": "none"}
        if group is not None:
            defaults |= {
                "group_id": group,
                "auto_offset_reset": "earliest" if from_beginning else "latest",
                "enable_auto_commit": False,  # what is printed is committed, and nothing else
            }
        settings = target.settings_for(ConsumerConfig, **defaults)
        check_reachable(target)
        with Consumer(target.bootstrap, **settings) as consumer:
            if group is not None:
                read = _print_as_member(consumer, topic, exit_at_end, most, printing)
                summary = f"{printing.words(read)}, committed for group {group}"
            else:
                places = [TopicPartition(topic, number) for number in partitions or consumer.partitions_for(topic)]
                consumer.assign(places)
                ends = consumer.end_offsets(places)
                _seek(consumer, ends, from_beginning=from_beginning, offset=offset, since=since)
                ends = ends if until is None else _before(consumer, ends, until)
                bounded = exit_at_end or until is not None
                read = _print_all(consumer, ends if bounded else None, most, printing)
                goal = "the end" if until is None else "that time"
                summary = f"{printing.words(read)} up to {goal}" if bounded else ""
    if summary:
        echo(summary, err=True)


def _seek(
    consumer: Consumer,
    ends: dict[TopicPartition, int],
    *,
    from_beginning: bool,
    offset: int | None,
    since: int | None,
) -> None:
    if from_beginning:
        consumer.seek_to_beginning()
    elif since is not None:
        consumer.seek_to_timestamp(dict.fromkeys(ends, since))
    else:
        for partition, end in ends.items():
            consumer.seek(partition, end if offset is None else offset)


def _before(consumer: Consumer, ends: dict[TopicPartition, int], until_ms: int) -> dict[TopicPartition, int]:
    """For each partition, the offset of the first record with a timestamp of at least `until_ms`; the partition's end
    if there is none."""
    found = consumer.offsets_for_times(dict.fromkeys(ends, until_ms))
    return {place: end if (at := found[place]) is None else min(end, at.offset) for place, end in ends.items()}


class _Printing:
    """Records that fit, on standard output. `count`: how many were printed."""

    def __init__(self, show: _Show, wanted: RecordFilter) -> None:
        self.count = 0
        self._show = show
        self._wanted = wanted
        self._out = sys.stdout.buffer

    def take(self, record: ConsumerRecord) -> None:
        """Print the record, if it fits."""
        if self._wanted.fits(record):
            self._out.write(self._show(record))
            self.count += 1

    def flush(self) -> None:
        """Flush standard output, so that every printed record can be seen."""
        self._out.flush()

    def room(self, most: int | None) -> int:
        """Records to ask for: no more than are still to be printed, where every one read is printed."""
        return 500 if most is None or self._wanted.asks else min(most - self.count, 500)

    def words(self, read: int) -> str:
        """Records printed, of those read, as words."""
        printed = plural(self.count, "record")
        return f"{printed} of {read:,}" if self._wanted.asks else printed


def _print_all(
    consumer: Consumer, ends: dict[TopicPartition, int] | None, most: int | None, printing: _Printing
) -> int:
    """Print until `most` records, or until every partition has reached its end; the number read."""
    read = 0
    with interrupts() as interrupted:
        while not interrupted.is_set() and (most is None or printing.count < most):
            if ends is not None and all(consumer.position(item) >= end for item, end in ends.items()):
                break
            for record in consumer.poll(POLL_S, printing.room(most)):
                end = None if ends is None else ends[TopicPartition(record.topic, record.partition)]
                if (end is None or record.offset < end) and (most is None or printing.count < most):
                    printing.take(record)
                    read += 1
            printing.flush()
    return read


def _print_as_member(consumer: Consumer, topic: str, exit_at_end: bool, most: int | None, printing: _Printing) -> int:
    """Print what the group gives, and commit what was printed or did not fit; the number read."""
    ends = consumer.end_offsets([(topic, number) for number in consumer.partitions_for(topic)]) if exit_at_end else {}
    printed = _Printed(consumer)
    consumer.subscribe([topic], on_revoked=printed.commit, on_lost=printed.forget)
    read = 0
    with interrupts() as interrupted:
        try:
            while not interrupted.is_set() and (most is None or printing.count < most):
                records = consumer.poll(POLL_S, printing.room(most))
                for record in records:
                    if most is not None and printing.count >= most:
                        break
                    printing.take(record)
                    printed.offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
                    read += 1
                printing.flush()
                printed.commit_now_and_then()
                mine = consumer.assignment()
                waiting = records or consumer.state.name != "stable"
                if exit_at_end and not waiting and all(consumer.position(item) >= ends.get(item, 0) for item in mine):
                    break
        finally:
            printing.flush()
            if consumer.state.name in ("stable", "rebalancing"):
                printed.commit(consumer.assignment())
    return read


class _Printed:
    """Offsets printed and not yet committed, by partition."""

    def __init__(self, consumer: Consumer) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self._consumer = consumer
        self._clock = SystemClock()
        self._committed_ms = self._clock.monotonic_ms()

    def commit_now_and_then(self) -> None:
        """Commit, if that was not done for a while."""
        if self.offsets and self._clock.monotonic_ms() - self._committed_ms >= COMMIT_MS:
            self.commit(list(self.offsets))

    def commit(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit these partitions."""
        offsets = {place: self.offsets[place] for place in partitions if place in self.offsets}
        if offsets:
            self._consumer.commit(offsets)
            self.forget(offsets)
        self._committed_ms = self._clock.monotonic_ms()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are committed, or now belong to another member."""
        for place in partitions:
            self.offsets.pop(place, None)


_Show = Callable[[ConsumerRecord], bytes]
"""A record as it is printed."""


def _shown(show: _Show) -> _Show:
    """Printer that keeps records as they are for a pipe, and escapes control characters for a terminal."""
    if not sys.stdout.isatty():
        return show
    return lambda record: printable_lines(show(record).decode(errors="backslashreplace")).encode()


def _as_text(record: ConsumerRecord) -> bytes:
    return (b"" if record.value is None else record.value) + b"\n"


def _as_keyed_text(record: ConsumerRecord) -> bytes:
    return (record.key or b"") + b"\t" + _as_text(record)


def _as_json(record: ConsumerRecord) -> bytes:
    document = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(content)] for name, content in record.headers],
    }
    return printable_json(json.dumps(document, ensure_ascii=False)).encode() + b"\n"


def _text(content: bytes | None) -> str | dict[str, str] | None:
    """UTF-8 as text; other bytes as {"base64": ...}, so that nothing is lost."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(content).decode()}
