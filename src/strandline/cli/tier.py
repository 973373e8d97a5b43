"""Command `strandline tier`: shows the object store of tiered storage, without a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import F, output_option, plain_errors, plural, print_json, print_table, progress
from strandline.cli.screen import echo
from strandline.cli.tier_restore import restore, store_settings

if TYPE_CHECKING:
    from strandline.log.tier.inspection import Flaw, Inspected, Report, StoredSegment

FOUND = 1


@click.group()
def tier() -> None:
    """The object store of tiered storage: what is in it, and topics restored from it."""


tier.add_command(restore)


def store_options(command: F) -> F:
    """``--store``, ``-X``, ``--timeout`` and ``--topic``; the command takes them as `where`."""
    store = click.option(
        "--store", "url", required=True, envvar="STRANDLINE_STORE", show_envvar=True, metavar="URL",
        help="As remote.log.storage.url of the nodes: s3://BUCKET/PREFIX, gs://..., az://..., file:///DIRECTORY.",
    )  # fmt: skip
    extra = click.option(
        "-X", "options", multiple=True, metavar="KEY=VALUE",
        callback=store_settings,
        help="As remote.log.storage.options: -X endpoint=http://localhost:9000. A value may be ${env:NAME}.",
    )  # fmt: skip
    timeout = click.option(
        "--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=30.0, show_default=True, metavar="SECONDS",
        help="For one request to the store.",
    )  # fmt: skip
    topic = click.option("--topic", metavar="NAME", help="This topic alone, in every cluster of the store.")
    return store(extra(timeout(topic(command))))


@tier.command("list")
@store_options
@output_option
def list_(output: str, **where: Any) -> None:
    """Show what is in the store: clusters, topics, partitions, their segments and sizes.

    By the keys of the objects and by the sidecars, of which each is read. Which of the segments count stands in the
    cluster's metadata alone: of two with the same offsets one is left over of an attempt, and the cluster deletes it.

    \b
    strandline tier list --store s3://backup/strandline
    strandline tier list --store file:///mnt/tier --topic orders --output json
    """
    with plain_errors(), progress("reading sidecars", "segments") as report:
        found = _inspected(report, every_byte=False, **where)
    if output == "json":
        print_json(_document(found))
        return
    if not found.segments:
        echo(_nothing(where))
        _show_rest(found)
        return
    rows = [
        (name.cluster_id, name.topic, name.topic_id, name.partition, *_sums(list(segments)))
        for name, segments in _by_partition(found)
    ]
    print_table(("cluster", "topic", "topic id", "partition", "segments", "bytes", "first offset", "end offset"), rows)
    if found.flaws:
        echo(f"! {plural(len(found.flaws), 'finding')}: see `strandline tier verify`.")
    _show_rest(found)


@tier.command("verify")
@store_options
@output_option
def verify(output: str, **where: Any) -> None:
    """Read every segment in the store: each batch's CRC, offsets and leader epoch, sidecars, and gaps between segments.

    Nothing is changed, and the cluster may run meanwhile. Of each object the first damage is shown. Exits 0 when all is
    well, 1 when something is found, or no segment is there to be read.

    \b
    strandline tier verify --store s3://backup/strandline --topic orders
    strandline tier verify --store file:///mnt/tier --output json | jq '.flaws[]'
    """
    with plain_errors(), progress("reading", "bytes") as report:
        found = _inspected(report, every_byte=True, **where)
    if output == "json":
        print_json(_document(found))
    else:
        for flaw in found.flaws:
            echo(f"! {flaw.object}{_place(flaw)}: {flaw.found}")
        if not found.segments:
            echo(f"! {_nothing(where)}")
        read_bytes = sum(segment.log_bytes for segment in found.segments)
        echo(f"{plural(len(found.segments), 'segment')}, {plural(read_bytes, 'byte')} read.")
        _show_rest(found)
        if found.segments or found.flaws:
            echo(f"{plural(len(found.flaws), 'finding')}." if found.flaws else "Nothing found that is wrong.")
    if found.flaws or not found.segments:
        raise SystemExit(FOUND)


def _nothing(where: dict[str, Any]) -> str:
    """A name that is mistyped must not pass for a store that is whole."""
    of = f" of a topic {where['topic']!r}" if where["topic"] else ""
    return f"There is no segment{of} in {where['url']}."


def _inspected(
    report: Report, *, every_byte: bool, url: str, options: dict[str, str], timeout_s: float, topic: str | None
) -> Inspected:
    from strandline.log.object_store import open_store
    from strandline.log.tier.inspection import inspect_store

    async def look() -> Inspected:
        store = open_store(url, options, timeout_ms=1000 * timeout_s, make=False)  # rule B23/who-looks-makes-a-store
        try:
            return await inspect_store(store, topic=topic, every_byte=every_byte, report=report)
        finally:
            await store.close()

    return asyncio.run(look())


def _by_partition(found: Inspected) -> Any:
    for _, group in groupby(found.segments, key=lambda segment: segment.name.prefix):
        segments = list(group)
        yield segments[0].name, segments


def _sums(segments: list[StoredSegment]) -> tuple[object, ...]:
    ends = [segment.header.end_offset for segment in segments if segment.header is not None]
    size_bytes = sum(segment.log_bytes for segment in segments)
    return len(segments), size_bytes, segments[0].name.base_offset, max(ends, default="! unknown")


def _document(found: Inspected) -> dict[str, Any]:
    """JSON document for programs. Positions, offsets and times are null where none is meant."""
    return {
        "partitions": [
            {
                "cluster_id": name.cluster_id,
                "topic": name.topic,
                "topic_id": str(name.topic_id),
                "partition": name.partition,
                "segments": [_segment(segment) for segment in segments],
            }
            for name, segments in _by_partition(found)
        ],
        "unfinished": found.unfinished,
        "foreign": found.foreign,
        "flaws": [
            {name: None if value == -1 else value for name, value in asdict(flaw).items()} for flaw in found.flaws
        ],
    }


def _segment(segment: StoredSegment) -> dict[str, Any]:
    header = segment.header
    return {
        "segment_id": str(segment.name.segment_id),
        "base_offset": segment.name.base_offset,
        "end_offset": None if header is None else header.end_offset,
        "size_bytes": segment.log_bytes,
        "sidecar_bytes": segment.sidecar_bytes,
        "max_timestamp_ms": None if header is None or header.max_timestamp_ms < 0 else header.max_timestamp_ms,
        "epochs": None if header is None else [list(epoch) for epoch in header.epochs],
    }


def _place(flaw: Flaw) -> str:
    places = [
        f"byte {flaw.position:,}" if flaw.position >= 0 else "",
        f"offset {flaw.offset}" if flaw.offset >= 0 else "",
    ]
    place = ", ".join(filter(None, places))
    return f" ({place})" if place else ""


def _show_rest(found: Inspected) -> None:
    if found.unfinished:
        echo(f"{plural(found.unfinished, 'attempt')} without a log: cut short, and deleted by the cluster later.")
    if found.foreign:
        echo(f"{plural(found.foreign, 'object')} that no node has written.")
