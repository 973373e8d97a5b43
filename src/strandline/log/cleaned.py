"""What compaction leaves: a batch without the records that went, and the segment that is written anew."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol, TypeVar

from strandline.log.batch import (
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    assemble_batch,
    gap_batch,
    parse_header,
    shift_timestamps,
    unreadable,
)
from strandline.log.compression import Codec
from strandline.log.log_state import LogState
from strandline.log.offset_map import OffsetMap
from strandline.log.segment import RELATIVE_OFFSET_MAX, Segment
from strandline.proto.ensure import ensure

T = TypeVar("T")

SYNC_BYTES = 2 << 20
"""The new segment is synced each time that so much was written: one sync of a gigabyte would hold up all others."""


class Pace(Protocol):
    """How compaction shares the event loop."""

    async def __call__(self, size_bytes: int, /) -> None:
        """So many bytes were read or written: others have their turn, and the rate is kept to."""

    async def during(self, wait: Awaitable[T], /) -> T:
        """What is waited for, while others have the loop."""


class WhatStays:
    """What stays of one batch: its records, byte by byte, and what its header says of them.

    Attributes:
        tombstones: how many of the `count` that stay have no value.
        tombstones_gone: how many went because their time is over.
    """

    def __init__(self, header: BatchHeader, latest: OffsetMap, *, tombstones_go: bool) -> None:
        self._header = header
        self._latest = latest
        self._tombstones_go = tombstones_go
        self._records = bytearray()
        self._newest_ms = -1
        self.count = self.tombstones = self.tombstones_gone = 0

    def take(self, records: Buffer, position: int, count: int) -> int:
        """What stays of the next ones; where they end. Raises ValueError."""
        header = self._header
        position, kept, tombstones, gone, newest_ms = self._latest.keep(
            self._records, records, position, count, header.base_offset, header.base_timestamp, self._tombstones_go
        )
        if kept:
            self._newest_ms = max(self._newest_ms, newest_ms) if self.count else newest_ms
        self.count += kept
        self.tombstones += tombstones
        self.tombstones_gone += gone
        return position

    def batch(self, base_timestamp: int, *, delete_horizon: bool = False) -> bytearray:
        """The batch with these records, all at their times. Raises KafkaError."""
        header, records = self._header, self._records
        if self.count and base_timestamp != header.base_timestamp:
            try:
                records = shift_timestamps(records, self.count, base_timestamp - header.base_timestamp)
            except OverflowError as error:
                raise unreadable(header, error) from error
        newest_ms = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else self._newest_ms
        return assemble_batch(
            records,
            count=self.count,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=newest_ms if self.count else -1,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            codec=header.codec if self.count else Codec.NONE,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            timestamp_type=header.timestamp_type,
            delete_horizon=delete_horizon,
        )


class CleanedSegment:
    """The new segment: batches in order, and gaps between them."""

    def __init__(self, log: LogState, new: Segment, pace: Pace) -> None:
        self._log = log
        self._pace = pace
        self._new = new
        self._config = replace(log.config, preallocate_bytes=0)
        self._gap: tuple[int, int, int] | None = None
        """First offset, last offset and leader epoch of what has gone since the last batch."""
        self._batches = bytearray()
        self._headers: list[BatchHeader] = []
        self._unsynced_bytes = 0
        self._end = new.base_offset

    @property
    def waiting_bytes(self) -> int:
        """Of batches that are not written yet."""
        return len(self._batches)

    def take(self, header: BatchHeader, stays: Buffer | None) -> None:
        """What stays of the next batch; None: nothing."""
        if stays is not None:
            self._end_gap()
            self._add(stays)
            return
        gap = self._gap
        # rule B20/gaps-over-epochs
        if gap is not None and gap[2] == header.leader_epoch and header.last_offset - gap[0] <= RELATIVE_OFFSET_MAX:
            self._gap = (gap[0], header.last_offset, gap[2])
            return
        self._end_gap()
        self._gap = (header.base_offset, header.last_offset, header.leader_epoch)

    def _end_gap(self) -> None:
        if self._gap is not None:
            self._add(gap_batch(*self._gap))  # rule B20/holes-in-the-log
            self._gap = None

    def _add(self, batch: Buffer) -> None:
        self._headers.append(parse_header(batch))
        self._batches += batch

    async def write(self) -> int:
        """Write what waits; how many bytes. Raises DiskError."""
        new, size = self._new, len(self._batches)
        if size:
            position = new.append(memoryview(self._batches), self._config)
            for header in self._headers:
                interval = self._config.index_interval_bytes
                new.noted(position, header.size, header.last_offset, header.max_timestamp, interval)
                position += header.size
            self._end = self._headers[-1].next_offset
            self._batches, self._headers = bytearray(), []
        self._unsynced_bytes += size
        if self._unsynced_bytes >= SYNC_BYTES:
            self._unsynced_bytes = 0
            await self._pace.during(self._log.disk.sync([new.file]))
        return size

    async def close(self, end: int) -> int:
        """Write what is left, up to offset `end`, and make all of it durable. Raises DiskError."""
        self._end_gap()
        size = await self.write()
        files = self._new.seal()
        try:
            # schedule 75/swap-of-what-is-not-synced
            await self._pace.during(self._log.disk.sync([self._new.file, *files]))
        finally:
            for file in files:
                file.close()
        ensure(self._end == end, "NoGap", partition=self._log.topic_partition, end=self._end, following=end)
        return size
