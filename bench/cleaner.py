"""What the log cleaner takes by itself: `python -m bench.cleaner`.

One process writes a log and compacts it, beside a ticker that asks for the event loop every 5 ms, and another that
writes a record to a file of its own and syncs it: what they wait is what a client would have waited. A round is a log
of its own, in the page cache as it is after a load; bounded by the size of the log.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass

import click

from strandline.log.batch import Record, build_batch
from strandline.log.compaction import Compacted, Compaction
from strandline.log.compression import Codec
from strandline.log.config import LogConfig
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.log.recovery import open_log
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock
from strandline.replica.compaction import Pace

TICK_S = 0.005
BUFFER_BYTES = 128 << 20
CONFIG = LogConfig(segment_bytes=128 << 20, compacted=True, retention_ms=-1)


@dataclass(frozen=True)
class Load:
    """What the log holds: its size, keys in an order that is none, so many records of each."""

    megabytes: int
    value_bytes: int
    batch_records: int
    writes_a_key: int
    codec: Codec


@dataclass(frozen=True)
class Round:
    """One pass: seconds of the clock and of the processor; how late the loop was and how long a sync took, in
    milliseconds."""

    megabytes: float
    wall_s: float
    user_s: float
    system_s: float
    late_p99_ms: float
    late_max_ms: float
    sync_p99_ms: float
    sync_max_ms: float

    def __str__(self) -> str:
        per_mb = 1000 / self.megabytes
        return (
            f"{self.megabytes / self.wall_s:6.0f} MB/s   user {self.user_s * per_mb:5.2f}  system "
            f"{self.system_s * per_mb:5.2f} ms/MB   the loop late p99 {self.late_p99_ms:5.2f}  most "
            f"{self.late_max_ms:6.2f}   a sync p99 {self.sync_p99_ms:5.1f}  most {self.sync_max_ms:5.1f} ms"
        )


def fill(log: PartitionLog, load: Load) -> int:
    """Write the log; how many bytes."""
    value = os.urandom(load.value_bytes)
    count = load.megabytes * 1_000_000 // (load.value_bytes + 25)
    keys = max(1, count // load.writes_a_key)
    now_ms = time.time_ns() // 1_000_000
    for first in range(0, count, load.batch_records):
        numbers = range(first, min(first + load.batch_records, count))
        records = [Record(0, now_ms, b"key-%012d" % (number * 7919 % keys), value) for number in numbers]
        log.append_as_leader(memoryview(build_batch(records, codec=load.codec)), 0, now_ms)
    log.sync_now()
    return log.size_bytes


async def measured(log: PartitionLog) -> tuple[Compacted, Round]:
    """One pass over it."""
    clock = SystemClock()
    found = await log.find_cleanable(clock.wall_ms(), clock.wall_ms(), log.log_end_offset)
    late: list[float] = []
    syncs: list[float] = []
    replaced: list[str] = []
    beside = [asyncio.create_task(_tick(late)), asyncio.create_task(_sync(log, syncs))]
    await asyncio.sleep(0.1)
    late.clear()
    syncs.clear()
    one = Compaction(
        log,
        found,
        buffer_bytes=BUFFER_BYTES,
        now_ms=clock.wall_ms(),
        wall_ms=clock.wall_ms(),
        pace=Pace(clock, float("inf")),
        unlink=replaced.extend,
    )
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    done = await one.run()
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    for task in beside:
        task.cancel()
    late.sort()
    syncs.sort()
    return done, Round(
        found.dirty_bytes / 1e6,
        took,
        after.ru_utime - before.ru_utime,
        after.ru_stime - before.ru_stime,
        late[len(late) * 99 // 100],
        late[-1],
        syncs[len(syncs) * 99 // 100],
        syncs[-1],
    )


async def _tick(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        late.append((time.perf_counter() - due) * 1000)


async def _sync(log: PartitionLog, times: list[float]) -> None:
    file = log.disk.open(f"{log.directory}/../beside", create=True)
    position = 0
    while True:
        file.pwrite(bytes(1000), position)
        position += 1000
        began = time.perf_counter()
        await log.disk.sync([file])
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(TICK_S)


def one_round(load: Load) -> Round:
    """A new log, and a pass over it."""
    with tempfile.TemporaryDirectory(prefix="strandline-cleaner-") as root:
        disk = RealDisk()
        try:
            log = open_log(disk, f"{root}/keyed-0", TopicPartition("keyed", 0), clock=SystemClock(), config=CONFIG)
            fill(log, load)
            done, figures = asyncio.run(measured(log))
            if not done.removed:
                raise RuntimeError("nothing went: the log has one segment alone")
            return figures
        finally:
            disk.close()


@click.command(help=__doc__)
@click.option("--megabytes", default=1000, show_default=True)
@click.option("--value-bytes", default=1000, show_default=True)
@click.option("--batch-records", default=500, show_default=True)
@click.option("--writes-a-key", default=10, show_default=True)
@click.option("--codec", type=click.Choice([codec.name.lower() for codec in Codec]), default="none", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--core", type=int, help="Run on this processor alone.")
def main(
    megabytes: int, value_bytes: int, batch_records: int, writes_a_key: int, codec: str, rounds: int, core: int | None
) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    load = Load(megabytes, value_bytes, batch_records, writes_a_key, Codec[codec.upper()])
    passed = [one_round(load) for _ in range(rounds)]
    for figures in passed:
        click.echo(str(figures))
    rate = statistics.median(figures.megabytes / figures.wall_s for figures in passed)
    click.echo(f"median {rate:.0f} MB/s")


if __name__ == "__main__":
    main()
