"""Reading a log: by offset, by time, bounded, and never waiting for a cold disk on the loop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from strandline.log.batch import CRC_START, BatchHeader, decode_records
from strandline.log.disk import DiskError
from strandline.log.epochs import intact_end, why_not_intact
from strandline.log.log_state import IndexCache, LogState
from strandline.log.segment import ColdRead, Pread, Segment, pread_blocking, pread_nowait
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, Offset
from strandline.proto.marks import mark

T = TypeVar("T")

_COLD_ATTEMPTS = 8
"""Reads off the loop before a read gives in and waits: the cache may be so short that it loses what was just read."""


class LogRead(NamedTuple):
    """Whole batches, as they are on disk. The first may begin before the offset asked for; readers skip its records."""

    data: bytes
    first_offset: Offset
    """Base offset of the first batch; the offset asked for when `data` is empty."""
    next_offset: Offset
    """Offset after the last batch: where to read on."""


class BatchPart(NamedTuple):
    """Consecutive bytes of one batch, which is too large to be read at once."""

    data: bytes
    position: int
    """Where they stand in the batch."""
    batch_size: int
    first_offset: Offset
    """Base offset of the batch."""
    next_offset: Offset
    """Offset after the batch."""
    crc: int
    """The CRC-32C of the batch up to the end of this part, for the reading of the next one."""


class TimestampedOffset(NamedTuple):
    """A record found by time."""

    offset: Offset
    timestamp_ms: int
    leader_epoch: LeaderEpoch


class LogReader:
    """The reading half of a PartitionLog."""

    __slots__ = ("_cache", "_log")

    def __init__(self, log: LogState, cache: IndexCache) -> None:
        self._log = log
        self._cache = cache

    def read(self, offset: int, max_bytes: int, limit_offset: int, one_batch_bytes: int) -> LogRead | None:
        """See `PartitionLog.read`."""
        try:
            return self._read(offset, max_bytes, limit_offset, one_batch_bytes, pread_nowait)
        except ColdRead as cold:
            if cold.lent:
                cold.file.close()
            return None

    async def read_cold(self, offset: int, max_bytes: int, limit_offset: int, one_batch_bytes: int) -> LogRead:
        """See `PartitionLog.read_cold`."""
        # rule B14/bounds-taken-anew-in-mid-read
        return await self.cold(lambda pread: self._read(offset, max_bytes, limit_offset, one_batch_bytes, pread))

    def read_part(self, offset: int, position: int, max_bytes: int, crc: int) -> BatchPart | None:
        """See `PartitionLog.read_part`."""
        try:
            return self._read_part(offset, position, max_bytes, crc, pread_nowait)
        except ColdRead as cold:
            if cold.lent:
                cold.file.close()
            return None

    async def read_part_cold(self, offset: int, position: int, max_bytes: int, crc: int) -> BatchPart:
        """See `PartitionLog.read_part_cold`."""
        return await self.cold(lambda pread: self._read_part(offset, position, max_bytes, crc, pread))

    async def cold(self, read: Callable[[Pread], T]) -> T:
        """What `read` finds, without waiting for a cold disk on the loop. It is called anew after each wait, for
        the log may change meanwhile. Raises what it raises, and KafkaError."""
        for _ in range(_COLD_ATTEMPTS):
            try:
                return read(pread_nowait)
            except ColdRead as cold:
                await self._warm(cold)
        return read(pread_blocking)

    async def _warm(self, cold: ColdRead) -> None:
        try:
            await self._log.disk.pread_cold(cold.file, cold.size, cold.position)
        except FileNotFoundError:
            pass  # its segment was deleted meanwhile: the next attempt looks for the offset anew
        except DiskError as error:
            raise _unreadable(error) from error
        finally:
            if cold.lent:
                cold.file.close()

    def _read(self, offset: int, max_bytes: int, limit_offset: int, one_batch_bytes: int, pread: Pread) -> LogRead:
        log = self._log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise log.out_of_range(offset)
        limit = min(limit_offset, log.log_end_offset)
        if offset >= limit:
            return LogRead(b"", Offset(offset), Offset(offset))
        try:
            return self._read_batches(offset, max_bytes, limit, one_batch_bytes, pread)
        except (DiskError, FileNotFoundError) as error:
            raise _unreadable(error) from error

    def _find(self, offset: int, pread: Pread) -> tuple[Segment, int, BatchHeader, int]:
        """The batch that holds `offset`: its segment, position and header, and the offset after the segment."""
        log = self._log
        i = bisect_right(log.bases, offset) - 1
        segment = log.segments[i]
        following: int = log.log_end_offset
        hole = segment.holes.around(offset) if segment.holes else None
        if hole is not None:
            raise self._rotten(segment, hole.position, hole.offset, "a part of the log that has rotted")
        found = segment.find(offset, pread)
        if i + 1 < len(log.segments):
            self._cache.touch(segment)
            following = log.bases[i + 1]
        if found is None:
            raise segment.damaged(segment.size, f"offset {offset} is missing: the segment ends before it")
        position, header = found
        return segment, position, header, following

    def _read_part(self, offset: int, position: int, max_bytes: int, crc: int, pread: Pread) -> BatchPart:
        log = self._log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise log.out_of_range(offset)
        if offset == log.log_end_offset:
            raise ValueError(f"no batch stands at the log end, {offset}")
        try:
            segment, start, header, _ = self._find(offset, pread)
            size = min(max_bytes, header.size - position)
            data = pread(segment.file, size, start + position)
            if len(data) != size:
                raise segment.damaged(start + position + len(data), "the file is shorter than the log")
        except DiskError as error:
            raise _unreadable(error) from error
        crc = crc32c(memoryview(data)[max(0, CRC_START - position) :], crc)
        epoch = log.epochs.epoch_at(offset)
        # rule B19/last-piece-goes-anyway
        if (epoch >= 0 and header.leader_epoch != epoch) or (position + size == header.size and crc != header.crc):
            raise self._rotten(segment, start, header.base_offset, "the CRC or the leader epoch of a batch is wrong")
        return BatchPart(data, position, header.size, Offset(header.base_offset), Offset(header.next_offset), crc)

    def _read_batches(self, offset: int, max_bytes: int, limit: int, one_batch_bytes: int, pread: Pread) -> LogRead:
        """What does not hold ends what is read, or is an error where it stands first."""
        segment, position, header, following = self._find(offset, pread)
        if segment.holes:
            limit = min(limit, segment.holes.offset_after(offset))
        end, next_offset = position, -1
        if header.last_offset < limit:
            end_max = position + (max(max_bytes, header.size) if header.size <= one_batch_bytes else max_bytes)
            if segment.size <= end_max and following <= limit:
                end, next_offset = segment.size, following
            else:
                try:
                    end, next_offset = segment.end_within(position, end_max, limit, pread)
                except KafkaError:  # damage on the way is nothing to the batch that was asked for
                    if position + header.size <= end_max:
                        end, next_offset = position + header.size, header.next_offset
        else:  # it reaches the limit, if its header is right: else who waits for the rest would wait for ever
            self._whole_batch(segment, position, header, pread)  # rule B19/rotten-end-is-waited-for
        if next_offset < 0:
            return LogRead(b"", Offset(offset), Offset(offset))
        data = pread(segment.file, end - position, position)
        if len(data) != end - position:
            raise segment.damaged(position + len(data), "the file is shorter than the log")
        log = self._log
        # rule A14/rotten-batch-is-sent-on
        size, intact_offset = intact_end(data, header.base_offset, log.epochs, log.log_start_offset)
        if size == len(data) and intact_offset == next_offset:  # rule B19/rot-is-served
            return LogRead(data, Offset(header.base_offset), Offset(next_offset))
        if not size:
            why = why_not_intact(data, header.base_offset, log.epochs.epoch_at(max(offset, header.base_offset)))
            raise self._rotten(segment, position, header.base_offset, why)
        return LogRead(data[:size], Offset(header.base_offset), Offset(intact_offset))

    def _rotten(self, segment: Segment, position: int, offset: int, reason: str) -> KafkaError:
        """Bytes that are not those that were written, and go to nobody (rule B19)."""
        mark("rot-found")
        return segment.damaged(position, reason, offset=offset)

    # ------------------------------------------------------------------ by time

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampedOffset | None:
        """See `PartitionLog.offset_for_timestamp`."""
        try:
            return self._offset_for_timestamp(timestamp_ms, limit_offset)
        except DiskError as error:
            raise _unreadable(error) from error

    def _offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampedOffset | None:
        log = self._log
        limit = min(limit_offset, log.log_end_offset)
        for segment in list(log.segments):
            if segment.base_offset >= limit:
                break
            if segment.newest(pread_blocking)[0] < timestamp_ms:
                continue
            _, time_index = segment.active_indexes()
            start = segment.base_offset + time_index.offset_before(timestamp_ms)
            found = segment.find(max(start, log.log_start_offset), pread_blocking)
            if found is None:
                continue
            for position, header in segment.headers(found[0], pread_blocking):
                if header.base_offset >= limit:
                    return None
                hole = segment.holes.ending_at(position)
                if hole is not None and position != found[0]:
                    raise self._rotten(segment, hole.position, hole.offset, "a part of the log that has rotted")
                batch = self._whole_batch(segment, position, header, pread_blocking)
                if header.max_timestamp < timestamp_ms:
                    continue
                for record in decode_records(batch):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= log.log_start_offset:
                        if record.offset >= limit:
                            return None
                        return TimestampedOffset(
                            Offset(record.offset), record.timestamp_ms, LeaderEpoch(header.leader_epoch)
                        )
        return None

    def _whole_batch(self, segment: Segment, position: int, header: BatchHeader, pread: Pread) -> bytes:
        """The batch at `position`, which holds."""
        log = self._log
        data = pread(segment.file, header.size, position)
        # rule B19/time-is-looked-up-in-rot
        if not intact_end(data, header.base_offset, log.epochs, log.log_start_offset)[0]:
            why = why_not_intact(data, header.base_offset, log.epochs.epoch_at(header.last_offset))
            raise self._rotten(segment, position, header.base_offset, why)
        return data

    def max_timestamp(self, limit_offset: int) -> TimestampedOffset | None:
        """See `PartitionLog.max_timestamp`."""
        try:
            return self._max_timestamp(limit_offset)
        except DiskError as error:
            raise _unreadable(error) from error

    def _max_timestamp(self, limit_offset: int) -> TimestampedOffset | None:
        log = self._log
        limit = min(limit_offset, log.log_end_offset)
        best: tuple[int, int, Segment] | None = None
        for segment in list(log.segments):
            if segment.base_offset >= limit:
                break
            timestamp, last_offset = segment.newest(pread_blocking)
            if best is not None and timestamp <= best[0]:
                continue
            if not log.log_start_offset <= last_offset < limit:
                timestamp, last_offset = self._newest_within(segment, limit)
            if timestamp >= 0 and (best is None or timestamp > best[0]):
                best = (timestamp, last_offset, segment)
        if best is None:
            return None
        timestamp, last_offset, segment = best
        found = segment.find(last_offset, pread_blocking)
        if found is None:
            raise segment.damaged(segment.size, f"offset {last_offset} is noted in the time index and not in the log")
        position, header = found
        for record in decode_records(self._whole_batch(segment, position, header, pread_blocking)):
            if record.timestamp_ms == timestamp and log.log_start_offset <= record.offset < limit:
                return TimestampedOffset(Offset(record.offset), timestamp, LeaderEpoch(header.leader_epoch))
        return TimestampedOffset(Offset(last_offset), timestamp, LeaderEpoch(header.leader_epoch))

    def _newest_within(self, segment: Segment, limit: int) -> tuple[int, int]:
        """The largest timestamp of the whole batches between log start and `limit`, and where its batch ends."""
        best = (-1, -1)
        for _, header in segment.headers(0, pread_blocking):
            if header.last_offset >= limit:
                break
            if header.last_offset >= self._log.log_start_offset and header.max_timestamp > best[0]:
                best = (header.max_timestamp, header.last_offset)
        return best


def _unreadable(error: OSError) -> KafkaError:
    mark("read-failed")
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read: {error}")
