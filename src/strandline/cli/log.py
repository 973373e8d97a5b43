"""`strandline log`: looking into the files of a data directory, and moving replicas between directories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from strandline.cli.common import output_option, plain_errors, plural
from strandline.cli.move import move
from strandline.cli.repair import repair
from strandline.cli.screen import echo
from strandline.cli.verify import verify
from strandline.log.batch import Record
from strandline.log.disk import Disk
from strandline.log.dump import AbortedEntry, DumpedBatch, IndexEntry, Line, Padding, Problem, TimeIndexEntry, dump_file


@click.group()
def log() -> None:
    """The files of a data directory."""


log.add_command(verify)
log.add_command(repair)
log.add_command(move)


@log.command("dump")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--records", is_flag=True, help="Show the records inside of the batches too.")
@output_option
def dump(files: tuple[str, ...], records: bool, output: str) -> None:
    """Show what is in log files: segments, indexes, snapshots, checkpoints. Changes nothing; damaged files too.

    A directory stands for all files in it that are known. Exits 1 when something does not make sense.

    \b
    strandline log dump data/orders-0/00000000000000000000.log --records
    strandline log dump data/orders-0 --output json
    """
    from strandline.log.real_disk import RealDisk

    disk = RealDisk()
    problems = 0
    with plain_errors():
        for path in _expand(files):
            if output == "table":
                echo(path)
            for item in dump_file(disk, path, decode=records):
                problems += isinstance(item, Problem)
                _show(path, item, output)
    if problems:
        raise click.ClickException(f"{plural(problems, 'place')} where the bytes make no sense")


def _expand(files: tuple[str, ...]) -> Iterator[str]:
    """The files named, and those in the directories named."""
    from strandline.log.real_disk import RealDisk

    disk = RealDisk()
    for name in files:
        path = Path(name).absolute()
        if not path.is_dir():
            yield str(path)
            continue
        known = [str(entry) for entry in sorted(path.iterdir()) if entry.is_file() and _is_known(disk, str(entry))]
        if not known:
            echo(f"{path}: no segments, indexes, snapshots or checkpoints in it", err=True)
        yield from known


def _is_known(disk: Disk, path: str) -> bool:
    from strandline.proto.errors import ConfigError

    try:
        dump_file(disk, path)
    except ConfigError:
        return False
    return True


def _show(path: str, item: Any, output: str) -> None:
    if output == "json":
        import json

        echo(json.dumps({"file": path, "kind": type(item).__name__, **_facts(item)}, default=_plain))
        return
    echo("  " + _line(item))
    if isinstance(item, DumpedBatch):
        for record in item.records or ():
            echo("    " + _record_line(record))


def _plain(value: object) -> object:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _facts(item: Any) -> dict[str, Any]:
    if isinstance(item, DumpedBatch):
        header = item.header
        facts: dict[str, Any] = {
            "position": item.position,
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.count,
            "leader_epoch": header.leader_epoch,
            "size": header.size,
            "codec": header.codec.name,
            "max_timestamp": header.max_timestamp,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "is_control": header.is_control,
            "is_transactional": header.is_transactional,
            "crc_holds": item.crc_holds,
        }
        if item.marker is not None:
            facts["marker"] = item.marker._asdict()
        if item.records is not None:
            facts["records"] = [record._asdict() for record in item.records]
        return facts
    return asdict(item) if hasattr(item, "__dataclass_fields__") else dict(item._asdict())


def _line(item: Any) -> str:
    match item:
        case DumpedBatch(header=header):
            producer = f" producer {header.producer_id}/{header.producer_epoch} seq {header.base_sequence}"
            return (
                f"@{item.position} offsets {header.base_offset}..{header.last_offset} count {header.count} "
                f"epoch {header.leader_epoch} {header.size} bytes {header.codec.name.lower()}"
                f"{producer if header.producer_id >= 0 else ''}{_kind(item)}"
                f"{'' if item.crc_holds else '  ! the CRC does not hold'}"
            )
        case AbortedEntry():
            return (
                f"producer {item.producer_id} aborted offsets {item.first_offset}..{item.last_offset} "
                f"last stable offset {item.last_stable_offset}"
            )
        case IndexEntry():
            return f"offset {item.offset} at {item.log_position}"
        case TimeIndexEntry():
            return f"timestamp {item.timestamp_ms} at offset {item.offset}"
        case Line():
            return " ".join(item.fields)
        case Padding():
            return f"@{item.position} {item.bytes} zero bytes, reserved for what comes next"
        case Problem():
            return f"@{item.position} ! {item.reason}"
        case _:
            return " ".join(f"{name}={value}" for name, value in _facts(item).items())


def _kind(item: DumpedBatch) -> str:
    marker = item.marker
    if marker is not None:
        return f" {'commit' if marker.commit else 'abort'} by coordinator epoch {marker.coordinator_epoch}"
    return " control" if item.header.is_control else " transactional" if item.header.is_transactional else ""


def _record_line(record: Record) -> str:
    headers = "".join(f" {name}={_text(value)}" for name, value in record.headers)
    return f"{record.offset} time {record.timestamp_ms} key {_text(record.key)} value {_text(record.value)}{headers}"


def _text(value: bytes | None) -> str:
    return "null" if value is None else repr(value)[1:]
