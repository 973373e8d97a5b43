"""`strandline topic size`: bytes, growth, and when the disks are full."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    CommandFailed,
    Target,
    admin_for,
    output_option,
    plural,
    print_json,
    print_table,
    shown_time,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import echo
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.tools.sizes import Sizes

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_HOW = (
    "A day's growth: offsets whose timestamps lie in the last day, times the bytes that an offset takes on average. "
    "Full: less than log.dir.reserve.bytes is left, if every replica of the disk grows so, up to what its retention "
    "leaves."
)


@click.command("size")
@click.argument("names", nargs=-1, shell_complete=topic_names)
@output_option
@target_options
def size(names: tuple[str, ...], output: str, **where: Any) -> None:
    """Show how large topics are by partition and replica, how much they grow a day, and when the disks are full.

    Records are the offsets between the start of what is on the disks and the high watermark: a compacted topic has
    fewer records. For a tiered topic, the records in the object store are shown too; some of them may be on the disks
    as well. Growth is the number of offsets of the last day, by the records' timestamps (ListOffsets), times the bytes
    that an offset takes on average now. A log younger than a day counts from its first record. The growth of a log
    younger than an hour is not known; the output says when it will be. Days until full assume that each replica on a
    disk, of whatever topic, grows at this rate up to what its retention leaves. Where the growth of some replicas is
    not known, the disk is full then or sooner. Without a name: all topics.

    \b
    strandline topic size
    strandline topic size orders --output json
    """
    from strandline.tools.sizes import measure

    with admin_for(Target(**where)) as admin:
        if names:
            admin.describe_topics(names)  # a name that is none is an error
        sizes = measure(admin, SystemClock().wall_ms())
    if output == "json":
        print_json(_document(sizes, names))
    else:
        _show(sizes, names)
    if sizes.silent:
        said = "; ".join(f"broker {node}: {why}" for node, why in sorted(sizes.silent.items()))
        raise CommandFailed(f"not everything is known. {said}")


def _document(sizes: Sizes, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "partitions": [
            asdict(part) | {"records": part.records, "tiered_records": part.tiered_records}
            for part in sizes.partitions
            if not names or part.topic in names
        ],
        "disks": [asdict(disk) for disk in sizes.disks],
        "silent": {str(node): why for node, why in sizes.silent.items()},
    }


def _show(sizes: Sizes, names: tuple[str, ...]) -> None:
    rows = [
        (
            f"{part.topic}-{part.partition}",
            replica.node,
            replica.role,
            "?" if part.local_records is None else max(0, part.local_records - replica.lag_records),
            shown_bytes(replica.bytes),
            "?" if part.tiered_records is None else part.tiered_records,
            "?" if replica.bytes_a_day is None else shown_bytes(replica.bytes_a_day),
        )
        for part in sizes.partitions
        if not names or part.topic in names
        for replica in part.replicas
    ]
    print_table(("partition", "broker", "role", "records", "bytes", "records in the store", "bytes a day"), rows)
    disks = [
        (
            disk.node,
            disk.path,
            "?" if disk.total_bytes is None else shown_bytes(disk.total_bytes),
            "?" if disk.usable_bytes is None else shown_bytes(disk.usable_bytes),
            "?" if disk.unknown and not disk.bytes_a_day else shown_bytes(disk.bytes_a_day),
            disk.why or f"{disk.days_until_full:,.1f} days" + (" or sooner" if disk.unknown else ""),
        )
        for disk in sizes.disks
    ]
    print_table(("broker", "directory", "disk", "usable", "bytes a day", "full in"), disks)
    _show_unknown(sizes)
    echo(_HOW)


def _show_unknown(sizes: Sizes) -> None:
    """Print how many replicas have an unknown growth, and when it will be known."""
    replicas = [one for part in sizes.partitions for one in part.replicas if one.bytes_a_day is None]
    young = [one.known_at_ms for one in replicas if one.known_at_ms is not None]
    if young:
        until = shown_time(max(young))
        echo(f"! The growth of {plural(len(young), 'replica')} is not known yet: younger than an hour.")
        echo(f"! It is known from {until} on.")
    if len(replicas) > len(young):
        echo(
            f"! The growth of {plural(len(replicas) - len(young), 'replica')} is not known: no record has a time, no "
            "leader tells of it, or the replica has nothing yet."
        )


def shown_bytes(number: float) -> str:
    """A size as people read it: ``512 B``, ``1.5 GiB``."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.0f} B" if not unit else f"{number:,.1f} {_UNITS[unit]}"
