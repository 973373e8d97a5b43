"""Helpers of the tests of compaction: a pass over a log, and what a log holds by key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from strandline.log.batch import BatchHeader, Record, build_batch, iter_batches
from strandline.log.compaction import Compacted, Compaction
from strandline.log.config import LogConfig
from strandline.log.partition_log import PartitionLog
from strandline.log.retention import Cleanable
from strandline.proto.believed import Now
from tests.log.helpers import all_records

NOW_MS = 1_700_000_000_000
COMPACTED = LogConfig(
    segment_bytes=400, compacted=True, preallocate_bytes=0, index_interval_bytes=100, delete_retention_ms=1_000
)


T = TypeVar("T")


class Pauses:
    """As fast as it goes, but for what a test does at each turn of the loop that a pass leaves to others."""

    def __init__(self, turn: Callable[[int], Awaitable[None]] | None = None) -> None:
        self._turn = turn

    async def __call__(self, size_bytes: int, /) -> None:
        """A turn."""
        if self._turn is not None:
            await self._turn(size_bytes)

    async def during(self, wait: Awaitable[T], /) -> T:
        """No turn of its own."""
        return await wait


def compact(
    log: PartitionLog,
    *,
    now_ms: int = NOW_MS,
    latest_ms: int = 0,
    limit: int | None = None,
    buffer_bytes: int = 1 << 20,
    turn: Callable[[int], Awaitable[None]] | None = None,
) -> Compacted:
    """One pass, whatever the ratio; the files that made way are unlinked at once."""

    def unlink(paths: list[str]) -> None:
        for path in paths:
            log.disk.unlink(path)

    async def run() -> Compacted:
        found = await log.find_cleanable(
            Now(now_ms, latest_ms or now_ms, now_ms), int(log.log_end_offset) if limit is None else limit
        )
        times = {"now_ms": now_ms, "latest_ms": latest_ms or now_ms}
        return await Compaction(log, found, buffer_bytes=buffer_bytes, **times, pace=Pauses(turn), unlink=unlink).run()

    return asyncio.run(run())


def cleanable(log: PartitionLog, now_ms: int, limit: int) -> Cleanable:
    """What a pass would find."""
    return asyncio.run(log.find_cleanable(Now(now_ms, now_ms, now_ms), limit))


def put(
    log: PartitionLog,
    *pairs: tuple[str, str | None],
    epoch: int = 0,
    producer_id: int = -1,
    sequence: int = -1,
    time_ms: int = NOW_MS,
) -> None:
    """Append one batch of these keys and values; None: a tombstone."""
    items = [Record(0, time_ms, key.encode(), None if value is None else value.encode()) for key, value in pairs]
    batch = build_batch(
        items, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1, base_sequence=sequence
    )
    log.append_as_leader(memoryview(batch), epoch, time_ms)


def table(log: PartitionLog) -> dict[str, str | None]:
    """The last value of each key; None: a tombstone."""
    return {
        (record.key or b"").decode(): None if record.value is None else record.value.decode()
        for record in all_records(log)
    }


def stored(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of every record."""
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for record in all_records(log)
    ]


def headers(log: PartitionLog) -> list[BatchHeader]:
    """Of all batches, as they lie in the files."""
    found = []
    for segment in log.segments:
        found += [header for header, _ in iter_batches(segment.file.pread(segment.size, 0))]
    return found


def assert_no_hole(log: PartitionLog) -> None:
    """Each batch follows on the one before, and each segment too."""
    offset = log.bases[0]
    for header in headers(log):
        assert header.base_offset == offset
        offset = header.next_offset
    assert offset == log.log_end_offset
    assert [segment.end_offset() for segment in log.segments[:-1]] == log.bases[1:]
