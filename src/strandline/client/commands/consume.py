"""`strandline consume`: records on standard output."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from strandline.client.commands.common import Moment, Target, check_reachable, plural, target_options, told_plainly
from strandline.client.config import ConsumerConfig
from strandline.client.types import ConsumerRecord
from strandline.proto.ids import TopicPartition

if TYPE_CHECKING:
    from strandline.client.consumer import Consumer


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="From the first record that the log has.")
@click.option("--offset", type=click.IntRange(0), help="From this offset in every partition that is read.")
@click.option("--since", type=Moment(), help="From this time: 15m (ago), 2024-05-01T12:00 (UTC), or milliseconds.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
@click.option(
    "-g", "--group", help="As a member of this group: go on where it has committed, and commit what is printed."
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
    group: str | None,
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
    strandline consume orders --group kitchen --from-beginning

    In a group, --from-beginning is for partitions that the group has committed nothing of.
    """
    if sum((from_beginning, offset is not None, since is not None)) > 1:
        raise click.UsageError("--from-beginning, --offset and --since exclude one another")
    target = Target(**where)
    group = group or target.settings.get("group.id") or target.settings.get("group_id")
    if group is not None and (offset is not None or since is not None or partitions):
        raise click.UsageError(
            "the group decides what is read, from where it has committed; to move it: strandline group reset-offsets"
        )
    from strandline.client.consumer import Consumer

    with told_plainly(target):
        defaults: dict[str, object] = {"default_api_timeout_ms": 20_000, "auto_offset_reset": "none"}
        if group is not None:
            defaults |= {"group_id": group, "auto_offset_reset": "earliest" if from_beginning else "latest"}
        settings = target.settings_for(ConsumerConfig, **defaults)
        check_reachable(target)
        with Consumer(target.bootstrap, **settings) as consumer:
            if group is not None:
                count = _print_as_member(consumer, topic, exit_at_end, most, keys=keys, as_json=as_json)
                click.echo(f"{plural(count, 'record')}, committed for group {group}", err=True)
                return
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


def _print_as_member(
    consumer: Consumer, topic: str, exit_at_end: bool, most: int | None, *, keys: bool, as_json: bool
) -> int:
    """Print what the group gives, and commit what was printed; the number printed."""
    out = sys.stdout.buffer
    ends = consumer.end_offsets([(topic, number) for number in consumer.partitions_for(topic)]) if exit_at_end else {}
    consumer.subscribe([topic])
    count = 0
    try:
        while most is None or count < most:
            room = 500 if most is None else min(most - count, 500)
            records = consumer.poll(1.0, room)
            for record in records:
                out.write(_as_json(record) if as_json else _as_text(record, keys))
            out.flush()
            count += len(records)
            mine = consumer.assignment()
            waiting = records or consumer.state.name != "stable"
            if exit_at_end and not waiting and all(consumer.position(item) >= ends.get(item, 0) for item in mine):
                break
    finally:
        out.flush()
        if consumer.state.name in ("stable", "rebalancing"):
            consumer.commit()
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
