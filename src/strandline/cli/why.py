"""Command `strandline why`: shows everything that is known of one record."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    Target,
    admin_for,
    output_option,
    plain_errors,
    plural,
    print_json,
    print_table,
    shown_time,
    target_options,
)
from strandline.cli.http_listener import cacert_option, http_option, metrics_of
from strandline.cli.name_completion import topic_names
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.tools.why import Explanation, LogEnds

_KEY_SHOWN = 200

ANSWER_MS = 10_000
"""Milliseconds to retry the read of a batch: a leader whose copy is damaged may be about to be replaced."""


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@click.option(
    "--look-ahead",
    type=click.IntRange(0),
    default=100_000,
    show_default=True,
    help="Of a compacted topic: so many offsets behind are read for a later value of the key.",
)
@http_option
@cacert_option
@output_option
@target_options
def why(
    *,
    topic: str,
    partition: int,
    offset: int,
    look_ahead: int,
    http: tuple[str, ...],
    cacert: str | None,
    output: str,
    **where: Any,
) -> None:
    """Show what is known of one record: who wrote it, when, under which leader, who has it, and how long it stays.

    The brokers are asked over Kafka's protocol. Give a broker's HTTP listener (--http) to see where its log ends. The
    segment is shown if a broker's directory is on this machine. Unknown facts are listed as unknown, never guessed.

    \b
    strandline why orders 0 41873
    strandline why orders 0 41873 --http 10.0.0.1:8092 --http 10.0.0.2:8092 --output json
    """
    from strandline.client.config import ConsumerConfig
    from strandline.client.range_reader import RangeReader
    from strandline.tools.why import Why

    target = Target(**where)
    tp = TopicPartition(topic, partition)
    ends = _log_ends(tp, http, cacert)
    now_ms = SystemClock().wall_ms()
    with admin_for(target) as admin, plain_errors(target):
        settings = target.settings_for(ConsumerConfig, default_api_timeout_ms=ANSWER_MS)
        with RangeReader(target.bootstrap, **settings) as reader:
            found = Why(admin, reader, tp, offset, ends=ends, now_ms=now_ms, look_ahead=look_ahead).answer()
    if output == "json":
        print_json(_document(found))
    else:
        _show(found)


def _log_ends(tp: TopicPartition, http: tuple[str, ...], cacert: str | None) -> dict[int, LogEnds]:
    from strandline.tools.why import LogEnds

    names = ("kafka_log_log_logendoffset", "kafka_cluster_partition_highwatermark")
    wanted = {"topic": tp.topic, "partition": str(tp.partition)}
    found: dict[int, LogEnds] = {}
    for listener in http:
        node_id, samples = metrics_of(listener, cacert)
        values = {sample.name: int(sample.value) for sample in samples if sample.labels == wanted}
        if all(name in values for name in names):
            found[node_id] = LogEnds(*(values[name] for name in names))
    return found


def _document(found: Explanation) -> dict[str, Any]:
    batch, record = found.batch, found.record
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "state": found.state,
        "committed": found.offset < found.high_watermark,
        "log_start_offset": found.log_start_offset,
        "high_watermark": found.high_watermark,
        "leader": found.leader,
        "leader_epoch": found.leader_epoch,
        "producer": None
        if batch is None or batch.producer_id < 0
        else {"id": batch.producer_id, "epoch": batch.producer_epoch, "sequence": _sequence(found)},
        "written_in_epoch": None if batch is None else batch.leader_epoch,
        "led_by": found.led_by,
        "record": None
        if record is None
        else {
            "timestamp_ms": record.timestamp_ms,
            "timestamp_type": _timestamp_type(found),
            "key": None if record.key is None else record.key.decode("utf-8", "backslashreplace"),
            "value_bytes": None if record.value is None else len(record.value),
            "headers": len(record.headers),
        },
        "batch": None
        if batch is None
        else {
            "base_offset": batch.base_offset,
            "last_offset": batch.last_offset,
            "bytes": batch.size,
            "codec": batch.codec.name.lower(),
            "is_transactional": batch.is_transactional,
        },
        "synced": found.synced,
        "replicas": [asdict(replica) for replica in found.replicas],
        "segment": None if found.segment is None else asdict(found.segment),
        "tier": found.tier,
        "retention": found.retention,
        "compaction": found.compaction,
        "not_before_ms": found.not_before_ms,
        "superseded_by": found.superseded_by,
        "unknown": found.unknown,
    }


def _sequence(found: Explanation) -> int | None:
    batch = found.batch
    if batch is None or batch.base_sequence < 0:
        return None
    return (batch.base_sequence + found.offset - batch.base_offset) & 0x7FFFFFFF


def _timestamp_type(found: Explanation) -> str:
    is_appended = found.batch is not None and found.batch.timestamp_type
    return "LogAppendTime" if is_appended else "CreateTime"


_STATES = {
    "record": "a record",
    "deleted": "! nothing any more",
    "not-committed": "! nothing that is committed",
    "compacted": "! nothing any more: compaction took it",
    "nothing": "! no record",
    "rotten": "! a damaged batch",
}


def _show(found: Explanation) -> None:
    rows: list[tuple[str, str]] = [("at this offset", _STATES[found.state])]
    record, batch = found.record, found.batch
    if record is not None:
        key = "none" if record.key is None else repr(record.key)[1:][:_KEY_SHOWN]
        value = "none (a tombstone)" if record.value is None else plural(len(record.value), "byte")
        rows.append(("record", f"key {key}, value {value}, {plural(len(record.headers), 'header')}"))
        rows.append(("time", f"{shown_time(record.timestamp_ms)} ({_timestamp_type(found)})"))
    if batch is not None:
        producer = f"id {batch.producer_id}, epoch {batch.producer_epoch}, sequence {_sequence(found)}"
        rows.append(("producer", producer if batch.producer_id >= 0 else "one without an id (not idempotent)"))
        rows.append(
            (
                "batch",
                f"offsets {batch.base_offset} to {batch.last_offset}, {batch.size:,} bytes, "
                f"codec {batch.codec.name.lower()}",
            )
        )
        led = f"broker {found.led_by}, which leads still" if found.led_by is not None else "unknown who"
        rows.append(("leader then", f"{led}; epoch {batch.leader_epoch}"))
    committed = found.offset < found.high_watermark
    rows.append(("committed", f"{'yes' if committed else 'no'}: the high watermark is {found.high_watermark}"))
    for replica in found.replicas:
        has = {True: "has it", False: "has it not", None: "unknown"}[replica.has_it]
        rows.append((f"broker {replica.node}", f"{replica.role}; {has}: {replica.why}"))
    if found.synced:
        rows.append(("synced", "by every replica in sync: flush.policy=ack counts nothing else"))
    if found.segment is not None:
        active = ", which is written to" if found.segment.is_active else ""
        rows.append(("segment", f"{found.segment.path} (broker {found.segment.node}){active}"))
    if found.tier:
        rows.append(("tier", found.tier))
    if found.retention:
        rows.append(("retention", found.retention))
    if found.compaction:
        rows.append(("compaction", found.compaction))
    if found.not_before_ms is not None:
        rows.append(("not before", shown_time(found.not_before_ms)))
    rows += [("unknown", sentence) for sentence in found.unknown]
    print_table(("", ""), rows, title=f"{found.topic}-{found.partition}, offset {found.offset}")
