"""`strandline consume`: records on standard output."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from strandline.client.commands.common import Target, check_reachable, plural, target_options, told_plainly
from strandline.client.config import ConsumerConfig
from strandline.client.types import ConsumerRecord
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.consumer import Consumer

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _Since(click.ParamType[int]):
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


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="From the first record that the log has.")
@click.option("--offset", type=click.IntRange(0), help="From this offset in every partition that is read.")
@click.option("--since", type=_Since(), help="From this time: 15m (ago), 2024-05-01T12:00 (UTC), or milliseconds.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
@click.option("-n", "--max", "most", type=click.IntRange(1), help="Stop after so many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end that the log has at the start.")
@click.option("-k", "--keys", is_flag=True, help="Print the key and a tab before each value.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line, with partition, offset, time, key, headers."
)
@target_options
def consume(
    *,
    topic: str,
    from_beginning: bool,
    offset: int | None,
    since: int | None,
    partitions: tuple[int, ...],
    most: int | None,
    exit_at_end: bool,
    keys: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Print records, new ones as they come, until Ctrl-C.

    \b
    strandline consume orders --from-beginning --exit-at-end
    strandline consume orders --since 15m --keys
    strandline consume orders -p 0 --offset 1234 -n 1 --json
    """
    if sum((from_beginning, offset is not None, since is not None)) > 1:
        raise click.UsageError("--from-beginning, --offset and --since exclude one another")
    target = Target(**where)
    from strandline.client.consumer import Consumer

    with told_plainly(target):
        settings = target.settings_for(ConsumerConfig, default_api_timeout_ms=20_000, auto_offset_reset="none")
        check_reachable(target)
        with Consumer(target.bootstrap, **settings) as consumer:
            wanted = [TopicPartition(topic, number) for number in partitions or consumer.partitions_for(topic)]
            consumer.assign(wanted)
            ends = consumer.end_offsets(wanted)
            _seek(consumer, ends, from_beginning=from_beginning, offset=offset, since=since)
            count = _print_all(consumer, ends if exit_at_end else None, most, keys=keys, as_json=as_json)
    if exit_at_end:
        click.echo(f"{plural(count, 'record')} up to the end", err=True)


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


def _print_all(
    consumer: Consumer, ends: dict[TopicPartition, int] | None, most: int | None, *, keys: bool, as_json: bool
) -> int:
    """Print until `most` records, or until every partition has reached its end; the number printed."""
    out = sys.stdout.buffer
    count = 0
    try:
        while most is None or count < most:
            if ends is not None and all(consumer.position(item) >= end for item, end in ends.items()):
                return count
            room = None if most is None else most - count
            for record in consumer.poll(1.0, min(room or 500, 500)):
                end = None if ends is None else ends[TopicPartition(record.topic, record.partition)]
                if end is None or record.offset < end:
                    out.write(_as_json(record) if as_json else _as_text(record, keys))
                    count += 1
            out.flush()
    except KeyboardInterrupt:
        out.flush()
        raise
    return count


def _as_text(record: ConsumerRecord, keys: bool) -> bytes:
    value = b"" if record.value is None else record.value
    return (record.key or b"") + b"\t" + value + b"\n" if keys else value + b"\n"


def _as_json(record: ConsumerRecord) -> bytes:
    document = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(content)] for name, content in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _text(content: bytes | None) -> str | dict[str, str] | None:
    """UTF-8 as text; other bytes as {"base64": ...}, so that nothing is lost."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(content).decode()}
