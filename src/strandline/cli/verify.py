"""`strandline log verify`: all of a stopped node's data directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import output_option, plain_errors, plural, print_json, progress
from strandline.cli.screen import echo
from strandline.proto.errors import ConfigError
from strandline.proto.json_text import read_json
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.log.verify.directory import Verified
    from strandline.log.verify.flaws import Flaw

FOUND = 1


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@output_option
def verify(directory: str, output: str) -> None:
    """Read all of a stopped node's data directory (or of a copy), and say what a start would do about what it finds.

    Every batch's CRC, offset and leader epoch; indexes against their segments; checkpoints against the logs; producer
    snapshots; the metadata log with its snapshots; files that are left over. Nothing is changed. A directory that a
    node uses is refused, and no node starts on it until this ends. What a start would do is found by the node's own
    recovery, over a disk that keeps nothing: as if it started on this machine, now.

    Exits 0 when all is well, 1 when something is found.

    \b
    strandline log verify /var/lib/strandline
    strandline log verify /var/lib/strandline --output json | jq '.flaws[] | select(.at_start == "refuse")'
    """
    with plain_errors():
        found = verified(directory)
    if output == "json":
        print_json(document(found))
    else:
        show(found)
    if found.flaws:
        raise SystemExit(FOUND)


def verified(directory: str) -> Verified:
    """Everything that is wrong in the directory, with a progress bar on standard error.

    Raises:
        ConfigError: it is no data directory, or one of a newer build.
        DirectoryInUse: a node uses it, or has begun to meanwhile.
        DiskError: it cannot be read.
    """
    path = str(Path(directory).absolute())
    with read_lock(path), quiet():
        return look_through(path)


def look_through(path: str) -> Verified:
    """Verify as `verified` does, for a caller that has the lock and keeps recovery quiet."""
    from strandline.cluster.node.inspection import QuorumInspection
    from strandline.log.formats import refuse_newer
    from strandline.log.overlay import OverlayDisk
    from strandline.log.verify.directory import Verification

    clock = SystemClock()
    with progress("reading", "bytes") as report, closing(OverlayDisk(path)) as disk:
        refuse_newer(disk, path)
        return Verification(disk, path, clock, report, QuorumInspection(clock)).run()


@contextmanager
def read_lock(path: str) -> Iterator[None]:
    """Context in which no other process writes to the directory. Raises DirectoryInUse, DiskError."""
    from strandline.log.disk import LOCK_FILE
    from strandline.log.real_disk import RealLock

    lock = RealLock.take_to_read(path)
    try:
        yield
        if lock is None and (Path(path) / LOCK_FILE).exists():
            allowed = "a node began to use it meanwhile: what was read means nothing. Stop the node and say it again"
            raise ConfigError("DIRECTORY", path, allowed)
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence recovery's lines in the log, for the findings say the same."""
    import structlog

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def document(found: Verified) -> dict[str, Any]:
    """JSON document for programs. Positions and offsets are null where none is meant."""
    return {
        "directory": found.path,
        "cluster_id": None if found.meta is None else found.meta.cluster_id,
        "node_id": None if found.meta is None else found.meta.node_id,
        "stopped_cleanly": found.clean,
        **asdict(found.counted),
        "flaws": [flaw_document(flaw) for flaw in found.flaws],
        "flaws_left_out": found.left_out,
    }


def flaw_document(flaw: Flaw) -> dict[str, Any]:
    """One finding for programs."""
    fields: dict[str, Any] = read_json(json.dumps(asdict(flaw)))
    return {name: None if value == -1 else value for name, value in fields.items()}


_LABELS = {
    "cut": "is cut",
    "heal": "is healed",
    "remove": "is removed",
    "refuse": "REFUSED",
    "ignore": "is left",
    "believe": "BELIEVED",
}
"""Effect of the next start on a flaw, in words."""


def place_of(flaw: Flaw) -> str:
    """Place of a flaw in its file, in brackets."""
    places = [
        f"byte {flaw.position:,}" if flaw.position >= 0 else "",
        f"offset {flaw.offset}" if flaw.offset >= 0 else "",
        f"whole again from offset {flaw.next_offset}" if flaw.next_offset >= 0 else "",
    ]
    place = ", ".join(filter(None, places))
    return f" ({place})" if place else ""


def show(found: Verified) -> None:
    """Print the findings for people."""
    for flaw in found.flaws:
        echo(f"! {flaw.file}{place_of(flaw)}: {flaw.found}")
        echo(f"    {_LABELS[flaw.at_start]}: {flaw.does}")
    if found.left_out:
        echo(f"{plural(found.left_out, 'more finding')} in partitions of which 1,000 are shown")
    counted = found.counted
    read = ", ".join(
        plural(number, noun)
        for number, noun in (
            (counted.partitions, "partition"),
            (counted.segments, "segment"),
            (counted.records, "record"),
            (counted.bytes, "byte"),
        )
    )
    how = "stopped cleanly" if found.clean else "did not stop cleanly: its next start recovers"
    echo(f"{read}; the node {how}.")
    echo(f"{plural(len(found.flaws), 'finding')}." if found.flaws else "Nothing found that is wrong.")
