"""`strandline produce`: lines from standard input or a file become records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, BinaryIO, NamedTuple

import click

from strandline.cli.common import (
    CommandFailed,
    Target,
    check_reachable,
    dry_run_option,
    output_option,
    plain_errors,
    plural,
    print_json,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import echo
from strandline.client.config import ProducerConfig
from strandline.client.types import Ack
from strandline.proto.json_text import read_json


class _Line(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class _Tally:
    """Acks as they come; runs on the producer's thread."""

    def __init__(self) -> None:
        self.acked = 0
        self.offsets: dict[int, tuple[int, int]] = {}
        self.failed = 0
        self.first_error: BaseException | None = None

    def __call__(self, future: Future[Ack]) -> None:
        error = future.exception()
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or error
            return
        ack = future.result()
        self.acked += 1
        first, last = self.offsets.get(ack.partition, (ack.offset, ack.offset))
        self.offsets[ack.partition] = (min(first, ack.offset), max(last, ack.offset))


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "-f", "--file", "source", type=click.File("rb"), default="-", help="Read this file instead of standard input."
)
@click.option("-K", "--key-separator", default=None, metavar="TEXT", help="Each line is a key, this text and a value.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='Each line is {"value": ..., "key": ..., "headers": {...}, "partition": ..., "timestamp_ms": ...}.',
)
@click.option("-p", "--partition", type=click.IntRange(0), help="Send everything to this partition.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header for every record.")
@click.option("-q", "--quiet", is_flag=True, help="No summary at the end.")
@dry_run_option
@output_option
@target_options
def produce(
    *,
    topic: str,
    source: BinaryIO,
    key_separator: str | None,
    as_json: bool,
    partition: int | None,
    headers: tuple[str, ...],
    quiet: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Send each line of the input as one record; acks=all and idempotent unless -X says otherwise.

    \b
    strandline produce orders < orders.jsonl
    echo 'table-7:soup' | strandline produce orders -K:
    tail -F app.log | strandline produce logs -X linger.ms=50 -X compression.type=zstd
    """
    if as_json and key_separator is not None:
        raise click.UsageError("--json lines have their own keys: leave --key-separator out")
    fixed = tuple(_header(text) for text in headers)
    lines = _lines(source, key_separator, as_json)
    target = Target(**where)
    tally = _Tally()
    from strandline.client.producer import Producer

    with plain_errors(target):
        settings = target.settings_for(ProducerConfig)
        check_reachable(target)
        with Producer(target.bootstrap, **settings) as producer:
            partitions = producer.partitions_for(topic)
            if dry_run:
                count = sum(1 for _ in lines)
                if output == "json":
                    print_json({"topic": topic, "records": count, "partitions": partitions, "dry_run": True})
                else:
                    echo(f"would send {plural(count, 'record')} to {topic} ({plural(partitions, 'partition')})")
                return
            for line in lines:
                future = producer.send(
                    topic,
                    line.value,
                    key=line.key,
                    headers=fixed + line.headers,
                    partition=partition if line.partition is None else line.partition,
                    timestamp_ms=line.timestamp_ms,
                )
                future.add_done_callback(tally)
                if tally.failed:
                    break
    if output == "json":
        print_json(
            {
                "topic": topic,
                "acknowledged": tally.acked,
                "failed": tally.failed,
                "partitions": [
                    {"partition": number, "first_offset": first, "last_offset": last}
                    for number, (first, last) in sorted(tally.offsets.items())
                ],
                "dry_run": False,
            }
        )
    _report(topic, tally, quiet or output == "json")


def _report(topic: str, tally: _Tally, quiet: bool) -> None:
    if not quiet:
        places = ", ".join(
            f"partition {number}: {first}-{last}" if last >= 0 else f"partition {number}"
            for number, (first, last) in sorted(tally.offsets.items())
        )
        echo(f"{plural(tally.acked, 'record')} acknowledged in {topic}" + (f" ({places})" if places else ""), err=True)
    if tally.failed:
        raise CommandFailed(f"{plural(tally.failed, 'record')} failed: {tally.first_error}")


def _lines(source: BinaryIO, separator: str | None, as_json: bool) -> Iterator[_Line]:
    if source.isatty():
        echo("one record a line; end with Ctrl-D", err=True)
    cut = None if separator is None else separator.encode()
    for number, raw in enumerate(source, 1):
        text = raw.removesuffix(b"\n").removesuffix(b"\r")
        if as_json:
            yield _from_json(text, number)
        elif cut is None:
            yield _Line(text)
        else:
            key, found, value = text.partition(cut)
            if not found:
                raise CommandFailed(f"line {number} has no key separator {separator!r}: {text[:60]!r}")
            yield _Line(value, key)


def _from_json(text: bytes, number: int) -> _Line:
    try:
        fields = read_json(text)
    except ValueError as error:
        raise CommandFailed(f"line {number} is not JSON: {error}") from error
    known = {"value", "key", "headers", "partition", "timestamp_ms"}
    if not isinstance(fields, dict) or not fields.keys() <= known:
        raise CommandFailed(f"line {number} must be an object with no other names than {', '.join(sorted(known))}")
    for name in ("partition", "timestamp_ms"):
        if not isinstance(fields.get(name), int | None):
            raise CommandFailed(f"line {number}: {name} must be a whole number")
    headers = fields.get("headers") or {}
    if not isinstance(headers, dict):
        raise CommandFailed(f"line {number}: headers must be an object")
    return _Line(
        _encoded(fields.get("value")),
        _encoded(fields.get("key")),
        tuple((name, _encoded(content)) for name, content in headers.items()),
        fields.get("partition"),
        fields.get("timestamp_ms"),
    )


def _encoded(content: Any) -> bytes | None:
    """Text as it is; numbers, lists and objects as JSON."""
    if content is None:
        return None
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def _header(text: str) -> tuple[str, bytes]:
    name, equals, content = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not name=value", param_hint="--header")
    return name, content.encode()
