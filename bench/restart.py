"""What a start in the same boot writes again, and what that costs: `python -m bench.restart`.

A process that was killed leaves its last seconds in the page cache alone, perhaps after a sync that failed. The next
one reads what lies above the recovery points, as ever, and writes it again before it vouches for it
(`log/rewriting.py`). Here a log directory is left by such a process and opened: as in the same boot, and as after a
reboot, where all of it is read and nothing written. What differs is the cost.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from uuid import UUID

import click

from strandline.log.batch import Record, build_batch
from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.real_disk import RealDisk
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.system import SystemClock

BATCH_BYTES = 16 * 1024


class Booted(RealDisk):
    """The disk of a machine that can be told that it was rebooted."""

    boot = "first"

    def boot_id(self) -> str:
        """What was told."""
        return self.boot


@dataclass(frozen=True)
class Figures:
    """Of one start."""

    partitions: int
    unsure_mb: float
    start: str
    written_again_mb: float
    names: int
    seconds: float


def _fill(log_dir: LogDir, partitions: int, settled_mb: float, unsure_mb: float) -> None:
    """Records that are durable and known to be so, and records that are neither."""
    batch = build_batch([Record(0, 0, None, bytes(BATCH_BYTES))])
    for number in range(partitions):
        log_dir.create(TopicPartition("t", number), UUID(int=9))
    for megabytes in (settled_mb, unsure_mb):
        for log in log_dir.logs.values():
            for _ in range(round(megabytes * 1e6 / partitions / len(batch)) or 1):
                log.append_batch(bytearray(batch), 0)
        if megabytes is settled_mb:
            for log in log_dir.logs.values():
                log.sync_now()
            log_dir.write_checkpoints({})


def measure(directory: str, partitions: int, settled_mb: float, unsure_mb: float) -> list[Figures]:
    """Fill a directory, leave it as a killed process does, and open it twice."""
    disk = Booted(open_files_max=1 << 16)
    format_log_dir(disk, directory, "bench", NodeId(1), UUID(int=1))
    config = LogConfig(preallocate_bytes=0)
    left = LogDir.open(disk, directory, SystemClock(), config)
    _fill(left, partitions, settled_mb, unsure_mb)
    figures = []
    for start, boot in (("same boot", "first"), ("reboot", "second")):
        disk.close()
        disk = Booted(open_files_max=1 << 16)
        disk.boot = boot
        began = time.perf_counter()
        opened = LogDir.open(disk, directory, SystemClock(), config)
        seconds = time.perf_counter() - began
        again = opened.rewriting
        figures.append(
            Figures(
                partitions,
                unsure_mb,
                start,
                round(again.content_bytes / 1e6, 1) if again is not None else 0.0,
                again.names if again is not None else 0,
                round(seconds, 3),
            )
        )
    disk.close()
    return figures


@click.command()
@click.option("--partitions", default=1000, show_default=True)
@click.option("--settled-mb", default=200.0, show_default=True, help="Below the recovery points, all logs together.")
@click.option("--unsure-mb", default=500.0, show_default=True, help="Above them: what the last seconds brought.")
@click.option("--directory", default=None, help="Where; a temporary directory is made in it and deleted.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table")
def main(partitions: int, settled_mb: float, unsure_mb: float, directory: str | None, output: str) -> None:
    """Measure one directory."""
    with tempfile.TemporaryDirectory(dir=directory) as root:
        figures = measure(f"{root}/data", partitions, settled_mb, unsure_mb)
    for each in figures:
        if output == "json":
            click.echo(json.dumps(asdict(each)))
        else:
            click.echo(
                f"{each.partitions} partitions, {each.unsure_mb:g} MB unsure, {each.start:9}: "
                f"{each.written_again_mb:7.1f} MB and {each.names:6} names written again, {each.seconds:.2f} s"
            )


if __name__ == "__main__":
    main()
