"""Compaction of one log: the last record of each key stays (Kafka's log cleaner; KIP-58, KIP-354, KIP-534).

A pass reads the records that came since the last one and notes the offset of each key's last record (`OffsetMap`). Then
it writes the log's closed segments anew without superseded records, a few segments into one, and swaps them in
(`strandline.log.swap`). Each replica does it for itself. What stays is unchanged: a batch keeps its offsets, epoch,
producer and sequence, and a batch that loses nothing keeps every byte.

Only these are removed:
- a record whose key has a later record in the log that is below the last stable offset and durable here (schedule 73);
- a tombstone (a record without a value), `delete.retention.ms` after the first pass that met it. The batch has the
  time: the delete horizon, in place of its base timestamp (KIP-534). It goes to other replicas with the batch, so a
  time that is too early removes the tombstone everywhere. So the later of the believed time and the wall clock's counts
  (schedule 83).

- a record of an aborted transaction, at once; it supersedes nothing. The outcomes of transactions are known, as a pass
  ends at the last stable offset;
- a marker, `delete.retention.ms` after a pass that met it and no batch of its transaction (schedule 116). Its key,
  which is its type, supersedes nothing.

These stay, although they are not the last of a key:
- of each producer, the batches with its last sequences, emptied (rule C2), or else its last marker, for its epoch;
- records without a key, which older settings admitted: nothing supersedes them. (Kafka drops them.)

Offsets whose batches were removed are filled with one empty batch of 61 bytes (`gap_batch`). Kafka leaves a hole there.
With holes, a lost segment file or batch, or a rotten base offset (the CRC does not cover it), would look like the work
of compaction. Every reader of Kafka handles empty batches: Kafka's own cleaner leaves them for producers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from crc32c import crc32c

from strandline.log.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    BatchJudge,
    Buffer,
    assemble_batch,
    check_content,
    gap_batch,
    left_over,
    parse_header,
    shift_timestamps,
    unpacked,
    unreadable,
)
from strandline.log.compression import MAX_DECOMPRESSED_BYTES, Codec
from strandline.log.log_state import LogState
from strandline.log.offset_map import OffsetMap, new_offset_map
from strandline.log.partition_log import PartitionLog
from strandline.log.retention import Cleanable
from strandline.log.segment import ENTRY_BYTES, RELATIVE_OFFSET_MAX, Segment, pread_blocking
from strandline.log.swap import CLEANED_SUFFIX, LogChanged, Swap, remove
from strandline.log.transactions import AbortedTransaction, Outcomes, read_marker
from strandline.proto.ensure import ensure
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import Offset
from strandline.proto.marks import mark

T = TypeVar("T")

CHUNK_BYTES = 2 << 20
"""Bytes read at once, off the loop."""

STEP_BYTES = 512 << 10
"""Bytes of batches handled between two turns of the loop, which takes a fraction of a millisecond."""

STEP_RECORDS = 1_000
"""Maximum records handled between two turns of the loop, even within a large batch: 0.2 ms, or 4 ms without the
compiled map."""

WRITE_BYTES = 64 << 10
"""Bytes of remaining batches above which they are written."""

SYNC_BYTES = 2 << 20
"""Bytes after which the new segment is synced: one sync of a whole gigabyte would delay all others."""

Run = Callable[[memoryview, int, int], tuple[int, int]]
"""Handles plain batches from a position of the data, where an offset begins; returns the position and offset after
them: at a batch that it does not handle, or after a step."""


@dataclass(slots=True)
class Compacted:
    """Outcome of one pass."""

    end: int = 0
    """Offset up to which the log is compacted."""
    read_bytes: int = 0
    written_bytes: int = 0
    records: int = 0
    removed: int = 0
    tombstones_removed: int = 0
    markers_removed: int = 0
    keys: int = 0


class Compaction:
    """One pass over one log."""

    def __init__(
        self,
        log: PartitionLog,
        cleanable: Cleanable,
        *,
        buffer_bytes: int,
        now_ms: int,
        latest_ms: int,
        pace: Pace,
        unlink: Callable[[list[str]], None],
    ) -> None:
        """`now_ms`, `latest_ms`: earliest and latest believed wall time (`BelievedClock`); `unlink` takes the files of
        the replaced segments."""
        self._log = log
        self._first_dirty = cleanable.first_dirty
        self._end = cleanable.end
        self._buffer_bytes = buffer_bytes
        self._map = new_offset_map(buffer_bytes)
        self._now_ms = now_ms
        self._latest_ms = latest_ms  # schedule 83/tombstones-go-by-a-time-that-is-behind
        self._pace = pace
        self._unlink = unlink
        self._step_bytes = self._step_offsets = 0
        self._writer: CleanedSegment | None = None
        self._outcomes = Outcomes(())
        self.done = Compacted()

    async def run(self) -> Compacted:
        """Run the pass.

        Raises:
            LogChanged: segments left the log, or it was closed; segments that were swapped in stay.
            KafkaError: CORRUPT_MESSAGE or INVALID_RECORD for batches that cannot be read.
            ConfigError: the buffer has no room for the keys of one batch.
            StorageError, DiskError: the disk failed.
        """
        log, done = self._log, self.done
        end = done.end = await self._fill_the_map()
        done.keys = len(self._map)
        try:
            waiting = [segment for segment in log.segments[:-1] if segment.base_offset < end]
            if waiting:
                # rule C11/aborted-transactions-beyond-the-keys-are-not-known
                self._outcomes = await self._read_outcomes(
                    waiting[0].base_offset, waiting[-1].base_offset + self._span(waiting[-1])
                )
            while waiting:
                waiting = waiting[await self._compact(waiting) :]
        except FileNotFoundError as error:  # its directory was renamed, to be deleted
            raise LogChanged(str(error)) from error
        log.cleaned_to = Offset(min(end, log.log_end_offset))
        return done

    # ------------------------------------------------------------------ the last record of each key

    async def _fill_the_map(self) -> int:
        """Fill the map; return the offset at which it ends: the end of what may be compacted, or a batch that does not
        fit."""
        latest = self._map
        self._outcomes = await self._read_outcomes(self._first_dirty, self._end)
        segments = [segment for segment in self._log.segments if segment.base_offset < self._end]
        for segment in segments:
            if segment.base_offset + self._span(segment) <= self._first_dirty:
                continue
            async for header, batch in self._batches(segment, self._note_batches):
                if header.next_offset <= self._first_dirty or not self._counts(segment, header, batch):
                    continue
                if not latest.has_room(header.count):
                    if header.base_offset <= self._first_dirty:
                        what = f"more: {header.count} keys of one batch of {self._log.topic_partition} do not fit"
                        raise ConfigError("log.cleaner.dedupe.buffer.size", self._buffer_bytes, what)
                    return header.base_offset
                await self._over_records(header, batch, partial(self._note, header))
        return self._end

    async def _read_outcomes(self, start: int, end: int) -> Outcomes:
        """Return the outcomes of the transactions in [`start`, `end`), from the indexes."""
        return Outcomes(await self._pace.during(self._log.aborted_transactions_cold(start, end)))

    def _counts(self, segment: Segment, header: BatchHeader, batch: memoryview) -> bool:
        """True if the batch has records that supersede others. Raises KafkaError."""
        if header.is_control:
            self._ended(segment, header, batch)
            return False
        # rule C11/aborted-records-supersede
        if header.is_transactional and self._outcomes.is_aborted(header):
            return False
        return header.count > 0

    def _ended(
        self, segment: Segment, header: BatchHeader, batch: memoryview
    ) -> tuple[bool, AbortedTransaction | None] | None:
        """Apply a marker, see `Outcomes.end`; None if the batch is not a marker of a transaction."""
        try:
            marker = read_marker(batch)
            return None if marker is None else self._outcomes.end(header, marker)
        except KafkaError as error:
            raise segment.damaged(0, error.message, **error.figures) from error

    def _note_batches(self, data: memoryview, position: int, offset: int) -> tuple[int, int]:
        until = position + STEP_BYTES
        return self._map.note_batches(data, position, offset, self._first_dirty, until, STEP_RECORDS, crc32c)

    def _note(self, header: BatchHeader, records: Buffer, position: int, count: int) -> int:
        return self._map.note(records, position, count, header.base_offset, header.base_timestamp)

    def _span(self, segment: Segment) -> int:
        """Return the number of offsets from the segment's base to the next segment's. Raises LogChanged."""
        log = self._log
        self._check(segment)  # rule B20/segments-that-went-are-looked-for
        number = log.segments.index(segment)
        following = log.bases[number + 1] if number + 1 < len(log.bases) else log.log_end_offset
        return following - segment.base_offset

    # ------------------------------------------------------------------ writing anew

    async def _compact(self, segments: list[Segment]) -> int:
        """Write as many segments as now fit into one; return their number."""
        log, first = self._log, segments[0]
        group: list[Segment] = []
        new = Segment(
            log.disk, log.directory, first.base_offset, created_ms=first.created_ms, create=True, suffix=CLEANED_SUFFIX
        )
        writer = self._writer = CleanedSegment(log, new, self._pace)
        try:
            for segment in segments:
                if group and not self._fits(new, writer.waiting_bytes, segment):
                    break
                group.append(segment)
                async for header, batch in self._batches(segment, partial(self._keep_batches, writer)):
                    if header.is_control:
                        writer.take(header, self._marker_stays(segment, header, batch))
                    else:
                        writer.take(header, await self._what_stays(header, batch))
            end = group[-1].base_offset + self._span(group[-1])
            await self._pace(self._step_bytes + await writer.close(end))
            self._step_bytes = self._step_offsets = 0
        except BaseException:
            remove(log.disk, new)
            raise
        finally:
            self._writer = None
        self.done.written_bytes += new.size
        self._unlink(await Swap(log, group, new, end).carry_out())
        return len(group)

    def _fits(self, new: Segment, waiting_bytes: int, segment: Segment) -> bool:
        """True if all of another segment would still fit into the new one."""
        config = self._log.config
        size = new.size + waiting_bytes + segment.size
        entries = len(new.active_indexes()[0]) + (waiting_bytes + segment.size) // max(1, config.index_interval_bytes)
        return (
            size <= config.segment_bytes
            and ENTRY_BYTES * entries < config.segment_index_bytes
            and segment.base_offset + self._span(segment) - new.base_offset <= RELATIVE_OFFSET_MAX
        )

    def _keep_batches(self, writer: CleanedSegment, data: memoryview, position: int, offset: int) -> tuple[int, int]:
        done = self.done
        end, offset, all_stay = self._map.keep_batches(
            data, position, offset, position + STEP_BYTES, STEP_RECORDS, crc32c
        )
        for stays in all_stay:
            header = parse_header(data, position)
            batch = data[position : position + header.size]
            position += header.size
            done.records += header.count
            if stays is True:
                writer.take(header, batch)
            elif stays is not None:
                done.removed += header.count - parse_header(stays).count
                writer.take(header, stays)
            else:
                done.removed += header.count
                writer.take(header, self._emptied(header, batch))
        return end, offset

    def _emptied(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """Return the batch without its records, if a producer's state needs it, else None."""
        if not self._is_remembered(header):
            return None
        return WhatStays(header, self._map, tombstones_go=False).batch(header.base_timestamp) if header.count else batch

    async def _what_stays(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """Return what remains of the batch; None if nothing does."""
        # rule C11/aborted-records-stay
        if header.is_transactional and self._outcomes.is_aborted(header):
            mark("aborted-records-removed")
            self.done.records += header.count
            self.done.removed += header.count
            return self._emptied(header, batch)
        if header.count == 0:
            return self._emptied(header, batch)
        over = header.has_delete_horizon and self._now_ms > header.base_timestamp  # rule B20/tombstones-go-at-once
        stays = WhatStays(header, self._map, tombstones_go=over)
        await self._over_records(header, batch, stays.take)
        self.done.records += header.count
        self.done.removed += header.count - stays.count
        if stays.tombstones_gone:
            mark("tombstone-removed")
            self.done.tombstones_removed += stays.tombstones_gone
        if not stays.count:
            return self._emptied(header, batch)
        begins = not header.has_delete_horizon and stays.tombstones > 0
        if stays.count == header.count and not begins:
            return batch
        if begins:
            horizon_ms = self._latest_ms + self._log.config.delete_retention_ms
            return stays.batch(horizon_ms, delete_horizon=True)
        return stays.batch(header.base_timestamp, delete_horizon=header.has_delete_horizon)

    def _marker_stays(self, segment: Segment, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """Return what remains of a control batch; None if nothing does."""
        ended = self._ended(segment, header, batch)
        if ended is None:
            return batch
        is_met, aborted = ended
        # rule C11/markers-go-before-their-data
        if is_met:
            if aborted is not None and self._writer is not None:  # rule C11/cleaned-segments-forget-what-was-aborted
                self._writer.new.load_aborted(pread_blocking).append(aborted)
            return batch
        if self._is_last_marker(header):  # rule C11/the-last-marker-goes
            return batch
        if not header.has_delete_horizon:
            horizon_ms = self._latest_ms + self._log.config.delete_retention_ms
            records = shift_timestamps(batch[HEADER_SIZE:], header.count, horizon_ms - header.base_timestamp)
            return renewed(header, records, header.count, header.max_timestamp, horizon_ms, delete_horizon=True)
        if self._now_ms <= header.base_timestamp:  # rule C11/markers-go-at-once
            return batch
        mark("marker-removed")
        self.done.markers_removed += 1
        return None

    def _is_last_marker(self, header: BatchHeader) -> bool:
        """True if the producer's epoch is known by this marker only."""
        entry = self._log.producers.get(header.producer_id)
        if entry is None or entry.batches or entry.epoch != header.producer_epoch:
            return False
        return entry.marker_offset in (-1, header.base_offset)

    async def _over_records(
        self, header: BatchHeader, batch: memoryview, step: Callable[[Buffer, int, int], int]
    ) -> None:
        """Call `step` on a batch's records, at most STEP_RECORDS at a time: with all records, the position of the next,
        and their number; it returns the position after them. Raises KafkaError."""
        records = unpacked(header, batch, MAX_DECOMPRESSED_BYTES)
        position = 0
        for first in range(0, header.count, STEP_RECORDS):
            if first:
                await self._pace(0)
            try:
                position = step(records, position, min(STEP_RECORDS, header.count - first))
            except ValueError as error:
                raise unreadable(header, error) from error
        if position != len(records):
            raise left_over(len(records) - position)

    def _is_remembered(self, header: BatchHeader) -> bool:
        """True if the batch is among those by which a producer's retries are recognised."""
        entry = self._log.producers.get(header.producer_id) if header.producer_id >= 0 else None
        # rule C2/producers-are-compacted-away
        return entry is not None and any(batch.last_offset == header.last_offset for batch in entry.batches)

    # ------------------------------------------------------------------ reading

    async def _batches(self, segment: Segment, run: Run) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches of a segment that `run` does not handle, after checking that each follows on the one before
        and matches its CRC.

        Raises LogChanged; KafkaError; DiskError.
        """
        position, offset = 0, segment.base_offset
        start, data = 0, memoryview(b"")
        need = HEADER_SIZE
        while position < segment.size:
            at = position - start
            if len(data) - at < need:
                start, data = position, memoryview(await self._read(segment, max(need, CHUNK_BYTES), position))
                at = 0
            begin = offset
            end, offset = run(data, at, offset)
            if end == at:
                judge = BatchJudge(offset)
                try:
                    header = judge.header(data, at, segment.size - position)
                    if header.size > len(data) - at:
                        need = header.size
                        continue
                    batch = data[at : at + header.size]
                    check_content(header, batch)  # rule B20/rot-is-copied
                    judge.check_place(header)
                except KafkaError as error:
                    raise segment.damaged(position, error.message) from error
                yield header, batch
                end, offset = at + header.size, header.next_offset
            self.done.read_bytes += end - at
            position, need = start + end, HEADER_SIZE
            await self._turn(end - at, offset - begin)

    async def _turn(self, size: int, offsets: int) -> None:
        """Note progress of `size` bytes and `offsets`; flush output that is due, and yield to other tasks after each
        step."""
        self._step_bytes += size
        self._step_offsets += offsets
        if self._writer is not None and self._writer.waiting_bytes >= WRITE_BYTES:
            self._step_bytes += await self._writer.write()
        if self._step_bytes >= STEP_BYTES or self._step_offsets >= STEP_RECORDS:
            size = self._step_bytes
            self._step_bytes = self._step_offsets = 0
            await self._pace(size)

    async def _read(self, segment: Segment, size: int, position: int) -> bytes:
        size = min(size, segment.size - position)
        try:
            self._check(segment)
            data = await self._pace.during(self._log.disk.pread_cold(segment.file, size, position))
        except FileNotFoundError as error:
            raise LogChanged(str(error)) from error
        self._check(segment)
        if len(data) != size:
            raise segment.damaged(position + len(data), "the file is shorter than the log")
        return data

    def _check(self, segment: Segment) -> None:
        """Raise LogChanged if the segment is no longer in the log."""
        if self._log.failure is not None or segment not in self._log.segments:
            raise LogChanged(f"{self._log.topic_partition} lost a segment while it was compacted")


class Pace(Protocol):
    """Rule by which compaction shares the event loop."""

    async def __call__(self, size_bytes: int, /) -> None:
        """Wait, after `size_bytes` were read or written, as long as the rate limit asks, and yield to other tasks."""

    async def during(self, wait: Awaitable[T], /) -> T:
        """Wait for `wait`, while other tasks use the loop."""


class WhatStays:
    """The remaining records of one batch, copied byte by byte, with their counts.

    Attributes:
        count: number of records that stay.
        tombstones: number of those without a value.
        tombstones_gone: number of tombstones removed because their time is over.
    """

    def __init__(self, header: BatchHeader, latest: OffsetMap, *, tombstones_go: bool) -> None:
        self._header = header
        self._latest = latest
        self._tombstones_go = tombstones_go
        self._records = bytearray()
        self.newest_ms = -1
        self.count = self.tombstones = self.tombstones_gone = 0

    def take(self, records: Buffer, position: int, count: int) -> int:
        """Filter the next `count` records. Returns the ones that stay, and the position after the last. Raises
        ValueError."""
        header = self._header
        position, kept, tombstones, gone, newest_ms = self._latest.keep(
            self._records, records, position, count, header.base_offset, header.base_timestamp, self._tombstones_go
        )
        if kept:
            self.newest_ms = max(self.newest_ms, newest_ms) if self.count else newest_ms
        self.count += kept
        self.tombstones += tombstones
        self.tombstones_gone += gone
        return position

    def batch(self, base_timestamp: int, *, delete_horizon: bool = False) -> bytearray:
        """Return the batch with the remaining records, at their timestamps. Raises KafkaError."""
        header, records = self._header, self._records
        if self.count and base_timestamp != header.base_timestamp:
            try:
                records = shift_timestamps(records, self.count, base_timestamp - header.base_timestamp)
            except OverflowError as error:
                raise unreadable(header, error) from error
        newest_ms = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else self.newest_ms
        return renewed(header, records, self.count, newest_ms, base_timestamp, delete_horizon=delete_horizon)


def renewed(
    header: BatchHeader,
    records: bytes | bytearray,
    count: int,
    newest_ms: int,
    base_timestamp: int,
    *,
    delete_horizon: bool,
) -> bytearray:
    """Return the batch with `records`, the newest of which is of `newest_ms`; offsets, producer and kind stay."""
    return assemble_batch(
        records,
        count=count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=newest_ms if count else -1,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        codec=header.codec if count else Codec.NONE,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        timestamp_type=header.timestamp_type,
        delete_horizon=delete_horizon,
    )


class CleanedSegment:
    """The new segment: remaining batches in order, and gap batches between them."""

    def __init__(self, log: LogState, new: Segment, pace: Pace) -> None:
        self._log = log
        self._pace = pace
        self.new = new
        self._config = replace(log.config, preallocate_bytes=0)
        self._gap: tuple[int, int, int] | None = None
        """First offset, last offset and leader epoch of what was removed since the last batch; None if nothing was."""
        self._batches = bytearray()
        self._headers: list[BatchHeader] = []
        self._unsynced_bytes = 0
        self._end = new.base_offset

    @property
    def waiting_bytes(self) -> int:
        """Bytes of batches that are not written yet."""
        return len(self._batches)

    def take(self, header: BatchHeader, stays: Buffer | None) -> None:
        """Add the part of the next batch that stays; None if nothing does."""
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
        """Write the waiting batches; return their size in bytes. Raises DiskError."""
        new, size = self.new, len(self._batches)
        if size:
            new.append(memoryview(self._batches), self._headers, self._headers[0].base_offset, self._config)
            self._end = self._headers[-1].next_offset
            self._batches, self._headers = bytearray(), []
        self._unsynced_bytes += size
        if self._unsynced_bytes >= SYNC_BYTES:
            self._unsynced_bytes = 0
            await self._pace.during(self._log.disk.sync([new.file]))
        return size

    async def close(self, end: int) -> int:
        """Write the remaining batches, up to offset `end`, and make the whole segment durable. Raises DiskError."""
        self._end_gap()
        size = await self.write()
        files = self.new.seal()
        try:
            # schedule 75/swap-of-what-is-not-synced
            await self._pace.during(self._log.disk.sync([self.new.file, *files]))
        finally:
            for file in files:
                file.close()
        ensure(self._end == end, "NoGap", partition=self._log.topic_partition, end=self._end, following=end)
        return size
