"""`strandline topic backup` and `strandline topic restore`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.common import (
    Target,
    admin_for,
    dry_run_option,
    output_option,
    plain_errors,
    plural,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.name_completion import topic_names
from strandline.cli.screen import echo
from strandline.client.config import CommonConfig
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.tools.backup.files import Manifest

PROGRESS_MS = 2_000


@click.command("backup")
@click.argument("name", shell_complete=topic_names)
@click.option("--to", "directory", required=True, type=click.Path(path_type=Path),
              help="The directory to make; what is there already is not touched.")  # fmt: skip
@click.option("--segment-bytes", type=click.IntRange(1), default=1 << 30, show_default=True,
              help="A file ends before it grows beyond this.")  # fmt: skip
@dry_run_option
@output_option
@target_options
def backup(*, name: str, directory: Path, segment_bytes: int, dry_run: bool, output: str, **where: Any) -> None:
    """Copy a topic's committed records into files, from each log's start to its high watermark of this moment.

    The directory appears when everything is in it and synced. Its files are segments in Kafka's format; manifest.json
    has the topic's settings, offsets and checksums. See docs/operations.md for what is not in it.

    \b
    strandline topic backup orders --to /backups/orders-2024-05-01
    strandline log dump /backups/orders-2024-05-01/orders-0
    """
    from strandline.client.range_reader import RangeReader
    from strandline.tools.backup.take import refuse_unless_free, survey, take

    target = Target(**where)
    with admin_for(target) as admin:
        refuse_unless_free(directory)
        manifest = survey(admin, name, SystemClock().wall_ms())
        if not dry_run:
            with (
                RangeReader(target.bootstrap, **target.settings_for(CommonConfig)) as reader,
                _progress("copied") as copied,
            ):
                manifest = take(reader, manifest, directory, segment_bytes=segment_bytes, copied=copied)
    _show(manifest, output, {"topic": name, "directory": str(directory), "dry_run": dry_run})
    if output != "json":
        verb = "would copy" if dry_run else "copied"
        echo(f"{verb} {plural(manifest.records, 'record')} of {name} to {directory}")


@click.command("restore")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", "name", help="The topic's name; left out: the one it had.")
@click.option("-r", "--replication", type=click.IntRange(1), help="Replicas; left out: as many as it had.")
@dry_run_option
@output_option
@target_options
def restore(
    *, directory: Path, name: str | None, replication: int | None, dry_run: bool, output: str, **where: Any
) -> None:
    """Write a backup back as a topic, each record under the offset that it had.

    The backup is read and checked whole before anything is created. The topic must not exist, or be empty. In the end
    all of it is read back and compared. Until the command has ended, nobody should use the topic.

    \b
    strandline topic restore /backups/orders-2024-05-01 --dry-run
    strandline topic restore /backups/orders-2024-05-01 --to orders-restored
    """
    from strandline.client.range_reader import RangeReader
    from strandline.tools.backup.files import read_manifest, verify
    from strandline.tools.backup.restore import (
        compare,
        cut_starts,
        finish_settings,
        prepare,
        write_back,
    )

    target = Target(**where)
    with plain_errors(target):
        manifest = read_manifest(directory)
        with _progress("checked") as checked:
            largest = verify(directory, manifest, checked)
    name = name or manifest.topic
    with admin_for(target) as admin:
        prepare(admin, manifest, name, replication=replication, largest_bytes=largest, dry_run=dry_run)
        if not dry_run:
            settings = target.settings_for(CommonConfig)
            with _half_done(name):
                with _progress("written") as sent:
                    write_back(
                        target.bootstrap, directory, manifest, name,
                        largest_bytes=largest, settings=settings, sent=sent,
                    )  # fmt: skip
                cut_starts(admin, manifest, name)
                with RangeReader(target.bootstrap, **settings) as reader, _progress("compared") as compared:
                    compare(admin, reader, directory, manifest, name, read=compared)
                finish_settings(admin, manifest, name)
    _show(manifest, output, {"topic": name, "directory": str(directory), "dry_run": dry_run})
    if output != "json":
        taken = datetime.fromtimestamp(manifest.taken_ms / 1000, timezone.utc)  # noqa: UP017  # as in common.py
        verb = "would restore" if dry_run else "restored, read back and compared"
        echo(f"{verb} {plural(manifest.records, 'record')} as topic {name}; the backup is of {taken:%F %T} UTC")


@contextmanager
def _half_done(name: str) -> Iterator[None]:
    """Context of a restore: if it is interrupted, tell the user that the topic is incomplete."""
    try:
        yield
    except BaseException:
        echo(
            f"topic {name} is there and not whole: strandline topic delete {name} --yes, before you restore it again",
            err=True,
        )
        raise


@contextmanager
def _progress(verb: str) -> Iterator[Callable[[int], None]]:
    """Takes bytes done; says how many, now and then, on standard error."""
    clock = SystemClock()
    done, said_ms = 0, clock.monotonic_ms()

    def more(size: int) -> None:
        nonlocal done, said_ms
        done += size
        now_ms = clock.monotonic_ms()
        if now_ms - said_ms >= PROGRESS_MS:
            said_ms = now_ms
            echo(f"{verb} {done / 1e6:,.1f} MB", err=True)

    yield more


def _show(manifest: Manifest, output: str, about: dict[str, Any]) -> None:
    rows = [
        (part.partition, part.log_start, part.end, part.records, len(part.segments), part.size_bytes)
        for part in manifest.partitions
    ]
    if output == "json":
        names = ("partition", "log_start_offset", "high_watermark", "records", "files", "bytes")
        print_json({**about, "partitions": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        print_table(("partition", "log start", "high watermark", "records", "files", "bytes"), rows)
