"""One partition's log: segments, indexes, leader epochs, producer state. Appending and reading.

No network and no locks; it runs on the loop's thread. Its parts and how they become durable are in `log_state.py`, how
it is cut in `cutting.py`; `recovery.open_log` opens a directory after a stop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from strandline.log import retention
from strandline.log.batch import (
    CONTROL_BIT,
    CRC_START,
    OVERHEAD,
    BatchHeader,
    check_client_batches,
    check_replicated_batches,
    decode_records,
    gap_from,
    parse_header,
    patch_base_offset_and_epoch,
    patch_log_append_time,
)
from strandline.log.cutting import LogCutter
from strandline.log.disk import DiskError, DiskFull, write_synced
from strandline.log.epochs import intact_end, why_not_intact
from strandline.log.log_state import LogParts, LogState
from strandline.log.producer_state import SNAPSHOT_INTERVAL_BYTES, ProducerBatch, ProducerStates
from strandline.log.recompression import recompressed
from strandline.log.retention import Cleanable, find_cleanable
from strandline.log.rot import Rot
from strandline.log.segment import ColdRead, Pread, Segment, pread_blocking, pread_nowait
from strandline.log.transactions import (
    AbortedTransaction,
    Marker,
    OpenTransaction,
    Verification,
    build_marker,
    overlapping,
    read_marker,
)
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft
from strandline.proto.ids import LeaderEpoch, Offset
from strandline.proto.marks import mark

T = TypeVar("T")

ANY_SIZE = 1 << 62
"""Value of `one_batch_bytes` for reading a batch of any size."""

_BEGINNING = "beginning.tmp"
"""Name of the producer snapshot of a log's start until it is durable."""

_COLD_ATTEMPTS = 8
"""Reads off the loop before a read blocks after all: the page cache may be too small to keep what was just read."""


class LogRead(NamedTuple):
    """Whole batches, as they are on disk. The first may begin before the requested offset; readers skip those
    records."""

    data: bytes
    first_offset: Offset
    """Base offset of the first batch; the requested offset if `data` is empty."""
    next_offset: Offset
    """Offset after the last batch, at which to read on."""


class BatchPart(NamedTuple):
    """Consecutive bytes of one batch that is too large to be read at once."""

    data: bytes
    position: int
    """Position of the bytes within the batch."""
    batch_size: int
    first_offset: Offset
    """Base offset of the batch."""
    next_offset: Offset
    """Offset after the batch."""
    crc: int
    """CRC-32C of the batch up to the end of this part, for reading the next part."""


class TimestampedOffset(NamedTuple):
    """Record found by its timestamp."""

    offset: Offset
    timestamp_ms: int
    leader_epoch: LeaderEpoch


class AppendResult(NamedTuple):
    """Outcome of an append."""

    base_offset: Offset
    next_offset: Offset
    log_append_time_ms: int
    """The leader's time if `message.timestamp.type` is LogAppendTime; else -1."""
    log_start_offset: Offset
    duplicate: bool
    """True if the batch was a retry and nothing was written; the offsets are those of the original."""
    data: memoryview
    """The bytes as written; valid as long as the buffer that was passed in, which they need not be a part of."""


class LogReader(LogState):
    """The reading half of a `PartitionLog`: by offset and by time, with bounds. Reads do not block the loop on a cold
    disk."""

    __slots__ = ()

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, *, one_batch_bytes: int = ANY_SIZE
    ) -> LogRead | None:
        """Return whole batches from the one that holds `offset` on: at most `max_bytes` (but at least one batch, if it
        has at most `one_batch_bytes`), and none that reaches `limit_offset`. Empty at the limit; None if reading would
        block (then call `read_cold`).

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE outside of [log start, log end]; CORRUPT_MESSAGE if the first batch is not
                the one that was written (rule B19); KAFKA_STORAGE_ERROR if the disk fails.
        """
        try:
            return self._read(offset, max_bytes, limit_offset, one_batch_bytes, pread_nowait)
        except ColdRead as cold:
            if cold.lent:
                cold.file.close()
            return None

    async def read_cold(
        self, offset: int, max_bytes: int, limit_offset: int, *, one_batch_bytes: int = ANY_SIZE
    ) -> LogRead:
        """Do what `read` does, for bytes that are not in memory; the waiting is done off the loop."""
        # rule B14/bounds-taken-anew-in-mid-read
        return await self.cold(lambda pread: self._read(offset, max_bytes, limit_offset, one_batch_bytes, pread))

    def read_part(self, offset: int, position: int, max_bytes: int, crc: int) -> BatchPart | None:
        """Return at most `max_bytes` of the batch that holds `offset` (below the log end), from its byte `position` on;
        None if reading would block (then call `read_part_cold`). For batches too large to be sent at once. `crc`:
        `BatchPart.crc` of the part before, 0 at the beginning.

        Raises KafkaError as `read` does: for a damaged batch at its last part, so that it never arrives whole.
        """
        try:
            return self._read_part(offset, position, max_bytes, crc, pread_nowait)
        except ColdRead as cold:
            if cold.lent:
                cold.file.close()
            return None

    async def read_part_cold(self, offset: int, position: int, max_bytes: int, crc: int) -> BatchPart:
        """Do what `read_part` does, for bytes that are not in memory; the waiting is done off the loop."""
        return await self.cold(lambda pread: self._read_part(offset, position, max_bytes, crc, pread))

    async def cold(self, read: Callable[[Pread], T]) -> T:
        """Return the result of `read`, without blocking the loop on a cold disk. `read` is called again after each
        wait, as the log may change meanwhile. Raises its errors, and KafkaError."""
        for _ in range(_COLD_ATTEMPTS):
            try:
                return read(pread_nowait)
            except ColdRead as cold:
                await self._warm(cold)
        return read(pread_blocking)

    async def _warm(self, cold: ColdRead) -> None:
        try:
            await self.disk.pread_cold(cold.file, cold.size, cold.position)
        except FileNotFoundError:
            pass  # its segment was deleted meanwhile: the next attempt looks up the offset again
        except DiskError as error:
            raise _unreadable(error) from error
        finally:
            if cold.lent:
                cold.file.close()

    def _read(self, offset: int, max_bytes: int, limit_offset: int, one_batch_bytes: int, pread: Pread) -> LogRead:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self.out_of_range(offset)
        limit = min(limit_offset, self.log_end_offset)
        if offset >= limit:
            return LogRead(b"", Offset(offset), Offset(offset))
        try:
            return self._read_batches(offset, max_bytes, limit, one_batch_bytes, pread)
        except (DiskError, FileNotFoundError) as error:
            raise _unreadable(error) from error

    def _find(self, offset: int, pread: Pread) -> tuple[Segment, int, BatchHeader, int]:
        """Return segment, position and header of the batch that holds `offset`, and the offset after the segment."""
        i = bisect_right(self.bases, offset) - 1
        segment = self.segments[i]
        following: int = self.log_end_offset
        hole = segment.holes.around(offset) if segment.holes else None
        if hole is not None:
            raise self._rotten(segment, hole.position, hole.offset, "a part of the log that has rotted")
        found = segment.find(offset, pread)
        if i + 1 < len(self.segments):
            self.cache.touch(segment)
            following = self.bases[i + 1]
        if found is None:
            raise segment.damaged(segment.size, f"offset {offset} is missing: the segment ends before it")
        position, header = found
        return segment, position, header, following

    def _read_part(self, offset: int, position: int, max_bytes: int, crc: int, pread: Pread) -> BatchPart:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self.out_of_range(offset)
        if offset == self.log_end_offset:
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
        epoch = self.epochs.epoch_at(offset)
        # rule B19/last-piece-goes-anyway
        if (epoch >= 0 and header.leader_epoch != epoch) or (position + size == header.size and crc != header.crc):
            raise self._rotten(segment, start, header.base_offset, "the CRC or the leader epoch of a batch is wrong")
        return BatchPart(data, position, header.size, Offset(header.base_offset), Offset(header.next_offset), crc)

    def _read_batches(self, offset: int, max_bytes: int, limit: int, one_batch_bytes: int, pread: Pread) -> LogRead:
        """Read whole batches. A damaged batch ends the read, or is an error if it is the first."""
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
                except KafkaError:  # damage after the requested batch does not concern it
                    if position + header.size <= end_max:
                        end, next_offset = position + header.size, header.next_offset
        else:  # it reaches the limit, if its header is right: if not, a reader that waits for more would wait for ever
            self._whole_batch(segment, position, header, pread)  # rule B19/rotten-end-is-waited-for
        if next_offset < 0:
            return LogRead(b"", Offset(offset), Offset(offset))
        data = pread(segment.file, end - position, position)
        if len(data) != end - position:
            raise segment.damaged(position + len(data), "the file is shorter than the log")
        # rule A14/rotten-batch-is-sent-on
        size, intact_offset = intact_end(data, header.base_offset, self.epochs, self.log_start_offset)
        if size == len(data) and intact_offset == next_offset:  # rule B19/rot-is-served
            return LogRead(data, Offset(header.base_offset), Offset(next_offset))
        if not size:
            why = why_not_intact(data, header.base_offset, self.epochs.epoch_at(max(offset, header.base_offset)))
            raise self._rotten(segment, position, header.base_offset, why)
        return LogRead(data[:size], Offset(header.base_offset), Offset(intact_offset))

    def _rotten(self, segment: Segment, position: int, offset: int, reason: str) -> KafkaError:
        """Return the error for bytes that are not those that were written, which no reader gets (rule B19)."""
        mark("rot-found")
        return segment.damaged(position, reason, offset=offset)

    # ------------------------------------------------------------------ aborted transactions

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """Return the aborted transactions that have records in [`start`, `end`), by rising marker; None if reading
        would block (then call `aborted_transactions_cold`). Raises KafkaError as `read` does."""
        try:
            return self._aborted_transactions(start, end, pread_nowait)
        except ColdRead as cold:
            if cold.lent:
                cold.file.close()
            return None

    async def aborted_transactions_cold(self, start: int, end: int) -> list[AbortedTransaction]:
        """Do what `aborted_transactions` does, for indexes that are not in memory; the waiting is done off the loop."""
        return await self.cold(lambda pread: self._aborted_transactions(start, end, pread))

    async def read_committed_cold(
        self, offset: int, max_bytes: int, limit_offset: int, *, one_batch_bytes: int = ANY_SIZE
    ) -> tuple[LogRead, list[AbortedTransaction]]:
        """Do what `read_cold` does, and return the aborted transactions with records in the data. Both are of one state
        of the log, as compaction removes aborted records from both."""

        def read(pread: Pread) -> tuple[LogRead, list[AbortedTransaction]]:
            found = self._read(offset, max_bytes, limit_offset, one_batch_bytes, pread)
            return found, self._aborted_transactions(offset, found.next_offset, pread)

        return await self.cold(read)

    def _aborted_transactions(self, start: int, end: int, pread: Pread) -> list[AbortedTransaction]:
        first = max(0, bisect_right(self.bases, start) - 1)
        try:
            return overlapping((self.aborted_in(segment, pread) for segment in self.segments[first:]), start, end)
        except DiskError as error:
            raise _unreadable(error) from error

    # ------------------------------------------------------------------ by time

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampedOffset | None:
        """Return the first record below the limit with a timestamp of at least `timestamp_ms`; None if there is none.

        Raises KafkaError as `read` does.
        """
        try:
            return self._offset_for_timestamp(timestamp_ms, limit_offset)
        except DiskError as error:
            raise _unreadable(error) from error

    def _offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampedOffset | None:
        limit = min(limit_offset, self.log_end_offset)
        for segment in list(self.segments):
            if segment.base_offset >= limit:
                break
            if segment.newest(pread_blocking)[0] < timestamp_ms:
                continue
            _, time_index = segment.active_indexes()
            start = segment.base_offset + time_index.offset_before(timestamp_ms)
            found = segment.find(max(start, self.log_start_offset), pread_blocking)
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
                    if record.timestamp_ms >= timestamp_ms and record.offset >= self.log_start_offset:
                        if record.offset >= limit:
                            return None
                        return TimestampedOffset(
                            Offset(record.offset), record.timestamp_ms, LeaderEpoch(header.leader_epoch)
                        )
        return None

    def _whole_batch(self, segment: Segment, position: int, header: BatchHeader, pread: Pread) -> bytes:
        """Return the batch at `position` if it is intact, else raise KafkaError."""
        data = pread(segment.file, header.size, position)
        # rule B19/time-is-looked-up-in-rot
        if not intact_end(data, header.base_offset, self.epochs, self.log_start_offset)[0]:
            why = why_not_intact(data, header.base_offset, self.epochs.epoch_at(header.last_offset))
            raise self._rotten(segment, position, header.base_offset, why)
        return data

    def max_timestamp(self, limit_offset: int) -> TimestampedOffset | None:
        """Return the first record below the limit with the largest timestamp there (KIP-734); None if there is no
        record."""
        try:
            return self._max_timestamp(limit_offset)
        except DiskError as error:
            raise _unreadable(error) from error

    def _max_timestamp(self, limit_offset: int) -> TimestampedOffset | None:
        limit = min(limit_offset, self.log_end_offset)
        best: tuple[int, int, Segment] | None = None
        for segment in list(self.segments):
            if segment.base_offset >= limit:
                break
            timestamp, last_offset = segment.newest(pread_blocking)
            if best is not None and timestamp <= best[0]:
                continue
            if not self.log_start_offset <= last_offset < limit:
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
            if record.timestamp_ms == timestamp and self.log_start_offset <= record.offset < limit:
                return TimestampedOffset(Offset(record.offset), timestamp, LeaderEpoch(header.leader_epoch))
        return TimestampedOffset(Offset(last_offset), timestamp, LeaderEpoch(header.leader_epoch))

    def _newest_within(self, segment: Segment, limit: int) -> tuple[int, int]:
        """Return the largest timestamp of the whole batches between log start and `limit`, and the last offset of its
        batch."""
        best = (-1, -1)
        for _, header in segment.headers(0, pread_blocking):
            if header.last_offset >= limit:
                break
            if header.last_offset >= self.log_start_offset and header.max_timestamp > best[0]:
                best = (header.max_timestamp, header.last_offset)
        return best


class PartitionLog(LogReader, LogCutter):
    """An append-only sequence of record batches on one node.

    Invariants, beside those of `LogState`:
    - segments follow on each other without a gap; the last one is the only one written to;
    - indexes, epochs and producer state change only after the write they describe has succeeded (KAFKA-6683).
    """

    __slots__ = ("rot",)

    def __init__(self, parts: LogParts) -> None:
        super().__init__(parts)
        self.rot = Rot(self)

    # ------------------------------------------------------------------ appending

    def append_as_leader(
        self,
        batches: memoryview,
        leader_epoch: int,
        now_ms: int,
        *,
        has_room: bool = True,
        verification: Verification | None = None,
    ) -> AppendResult:
        """Check a client's batches, set their offsets in place, and write them: all of them or none.

        `batches` is a writable view of the receive buffer; `now_ms` is wall time, for timestamps. A batch that is among
        the producer's last five is not written again (rule C1). Without `has_room` only such a batch is accepted. The
        first batch of a transaction needs a current `verification`. Coordinators write into transactions without a
        sequence (-1), which is not checked then.

        Raises:
            KafkaError: the caller's mistake, see `check_client_batches` and `ProducerStates.check`; KAFKA_STORAGE_ERROR
                on a full disk or a fenced log. Nothing was written.
            StorageError: the disk failed; the log is fenced from now on.
        """
        self._check_usable()
        config = self.config
        self._check_epoch(leader_epoch)
        headers = check_client_batches(batches, config, now_ms)
        # schedule 57/full-leader-refuses-what-it-has, rule C1/duplicates-are-packed-anew
        original = self._find_duplicate(headers, verification)
        if original is not None:
            return original
        if not has_room:
            raise NoSpaceLeft(f"but log.dir.reserve.bytes in {self.directory}; the same may be sent again")
        if config.stored_codec is not None:  # rule B16/the-topics-codec-is-ignored
            batches = recompressed(batches, headers, config)
        append_time_ms = now_ms if config.log_append_time else -1
        base_offset = self.log_end_offset
        position = 0
        offset: int = base_offset
        for i, header in enumerate(headers):
            patch_base_offset_and_epoch(batches, position, offset, leader_epoch)
            if append_time_ms >= 0:
                patch_log_append_time(batches[position : position + header.size], header, append_time_ms)
                headers[i] = header._replace(max_timestamp=append_time_ms)
            offset += header[6] + 1
            position += header[1] + OVERHEAD
        self._write(batches, headers, leader_epoch, self._now_ms())  # rule C1/state-before-the-write
        return AppendResult(base_offset, self.log_end_offset, append_time_ms, self.log_start_offset, False, batches)

    def append_batch(self, batch: bytearray, leader_epoch: int) -> AppendResult:
        """Write one batch that this node built itself, without a producer; its base offset and epoch are set in place.

        Raises KafkaError and StorageError as `append_as_leader` does.
        """
        self._check_usable()
        header = parse_header(batch)
        if header.size != len(batch) or header.producer_id >= 0:
            raise ValueError("exactly one batch without a producer is appended here")
        self._check_epoch(leader_epoch)
        view = memoryview(batch)
        base_offset = self.log_end_offset
        patch_base_offset_and_epoch(view, 0, base_offset, leader_epoch)
        self._write(view, [header], leader_epoch, self._now_ms())
        return AppendResult(base_offset, self.log_end_offset, -1, self.log_start_offset, False, view)

    def append_marker(
        self, marker: Marker, leader_epoch: int, now_ms: int, *, transaction_version: int
    ) -> AppendResult:
        """Write the marker that ends a producer's transaction here; `now_ms` is wall time. It is written even if the
        producer has no open transaction, as its coordinator may send it twice.

        Raises:
            KafkaError: TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH, see `ProducerStates.check_marker`;
                FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR. Nothing was written.
            StorageError: the disk failed; the log is fenced from now on.
        """
        self._check_usable()
        self._check_epoch(leader_epoch)
        self.producers.check_marker(marker, transaction_version)
        view = memoryview(build_marker(marker, now_ms))
        base_offset = self.log_end_offset
        patch_base_offset_and_epoch(view, 0, base_offset, leader_epoch)
        self._write(view, [parse_header(view)], leader_epoch, self._now_ms())
        return AppendResult(base_offset, self.log_end_offset, -1, self.log_start_offset, False, view)

    def append_as_follower(self, batches: memoryview) -> Offset:
        """Write batches as the leader has them, offsets and epochs included; return the new log end offset.

        Sequences are not checked (the leader did that), but CRC and contiguity are. Whole batches only, all or none of
        them. Compaction leaves a gap batch for offsets whose records it removed, so a lost batch shows on a compacted
        topic, too. A gap batch that begins before the log end is taken from there on (schedule 74). An empty log may
        begin inside its first batch: if records were deleted up to the middle of a batch, the leader has the whole
        batch, and so will this log, from the same log start on (KAFKA-6975, schedule 55).

        Raises:
            KafkaError: CORRUPT_MESSAGE for bytes that are no batches or fail their CRC, OFFSET_OUT_OF_RANGE if they do
                not begin at the log end; KAFKA_STORAGE_ERROR. Nothing was written.
            StorageError: the disk failed; the log is fenced from now on.
        """
        self._check_usable()
        first = parse_header(batches)
        # schedule 74/gaps-are-taken-whole
        if first.is_gap and first.base_offset < self.log_end_offset <= first.last_offset:
            mark("gap-from-its-middle")
            batches = gap_from(batches, first, self.log_end_offset)
            first = parse_header(batches)
        # rule B16/a-log-begins-with-a-batch
        if self.size_bytes == 0 and first.base_offset < self.log_end_offset <= first.last_offset:
            mark("log-begins-inside-a-batch")
            start = self.log_start_offset
            # rule B16/a-damaged-batch-empties-the-log
            headers = check_replicated_batches(batches, first.base_offset, self.epochs.latest)
            # rule B16/a-damaged-batch-empties-the-log/2, rule B24/whole-cuts-forget-what-lies-before
            self._cut(lambda now_ms: self._begin_earlier(first.base_offset, now_ms))
            self._write_replicated(batches, headers)
            self.delete_records_before(start)  # rule B16/what-was-deleted-comes-back-with-its-batch
        else:
            self._write_replicated(batches, check_replicated_batches(batches, self.log_end_offset, self.epochs.latest))
        return self.log_end_offset

    def _write_replicated(self, batches: memoryview, headers: list[BatchHeader]) -> None:
        now_ms = self._now_ms()  # rule C1/replicated-appends-are-checked
        config = self.config
        if self.segments[-1].size + len(batches) <= config.segment_bytes or len(headers) == 1:
            self._write(batches, headers, None, now_ms)
            return
        position = 0
        for header in headers:  # about to roll: each segment is filled by batches, as on the leader
            following = position + header.size
            self._write(batches[position:following], [header], None, now_ms)
            position = following

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch < self.epochs.latest:  # rule B1/older-leader-writes
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                "the log has heard of a newer leader",
                leader_epoch=leader_epoch,
                latest_epoch=self.epochs.latest,
            )

    def _find_duplicate(self, headers: list[BatchHeader], verification: Verification | None) -> AppendResult | None:
        """Return the result for batches that are all in the log already; None if they may be written. Raises
        KafkaError."""
        originals: list[ProducerBatch] = []
        previous: dict[int, BatchHeader] = {}
        now_ms = self._clock.monotonic_ms() if self.producers.refusals else 0.0
        for header in headers:
            if header[9] < 0:
                continue
            original = self.producers.check(header, previous.get(header[9]), now_ms, verification)
            if original is not None:
                originals.append(original)
            else:
                previous[header[9]] = header
        if not originals:
            return None
        if len(originals) != len(headers):  # rule C1/half-a-duplicate-is-written
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "some of these batches are in the log, others are not"
            )
        append_time_ms = originals[0].timestamp_ms if self.config.log_append_time else -1
        return AppendResult(
            Offset(originals[0].first_offset),
            Offset(originals[-1].last_offset + 1),
            append_time_ms,
            self.log_start_offset,
            True,
            memoryview(b""),
        )

    def _write(self, data: memoryview, headers: list[BatchHeader], leader_epoch: int | None, now_ms: int) -> None:
        """Write bytes: the only place that adds any. `headers` are those of `data`, except for the base offset and,
        unless `leader_epoch` is None, the epoch, which the leader has set since.
        """
        config = self.config
        offset: int = self.log_end_offset
        segment = self.segments[-1]
        try:
            end_offset = offset + sum([header[6] + 1 for header in headers])
            if segment.must_roll(len(data), end_offset, now_ms, config):
                self._roll(now_ms)
                segment = self.segments[-1]
            segment.append(data, headers, offset, config)
        except DiskError as error:
            raise self.disk_failed(error) from error
        self.unsynced.add(segment.file)
        latest: int = self.epochs.latest
        for header in headers:
            epoch = header[2] if leader_epoch is None else leader_epoch
            if epoch > latest:
                self.epochs.assign(epoch, offset)
                latest = epoch
            if header[9] >= 0:  # rule C2/followers-forget-producers
                if header[5] & CONTROL_BIT:
                    self._end_transaction(data, headers, header, offset, now_ms)
                else:
                    self.producers.update(header, offset, now_ms)
            offset += header[6] + 1
        self.log_end_offset = Offset(offset)  # rule C1/index-before-the-end-moves
        self.size_bytes += len(data)
        self._snapshot_bytes += len(data)
        if segment.indexes_wait or self._snapshot_bytes > SNAPSHOT_INTERVAL_BYTES:
            self._write_shortcuts(segment)

    def _end_transaction(
        self, data: memoryview, headers: list[BatchHeader], header: BatchHeader, offset: int, now_ms: int
    ) -> None:
        """Update state and index for the marker with this header, one of `headers`, which was written at `offset`."""
        position = 0
        for one in headers:
            if one is header:
                break
            position += one.size
        marker = read_marker(data[position : position + header.size])
        aborted = self.producers.end(header, marker, offset, now_ms)
        if aborted is not None:
            self.aborted_in(self.segments[-1], pread_blocking).append(aborted)

    def roll(self) -> None:
        """Close the active segment and begin a new one at the log end; no effect if the active one is empty.

        Raises KafkaError and StorageError as `append_as_leader` does.
        """
        self._check_usable()
        if self.segments[-1].size:
            try:
                self._roll(self._now_ms())
            except DiskError as error:
                raise self.disk_failed(error) from error

    def _write_shortcuts(self, segment: Segment) -> None:
        """Write index entries, and a producer snapshot that bounds a later replay. Neither is synced or needed.

        The append is in the log whether this succeeds or not, and its offsets are used up (KAFKA-7866, schedule 19): so
        this comes after the log end has moved. A full disk is no failure; any other error fences the log. Raises
        StorageError.
        """
        try:
            if segment.indexes_wait:
                for file in segment.write_indexes():
                    file.close()
            if self._snapshot_bytes > SNAPSHOT_INTERVAL_BYTES:
                self._snapshot_bytes = 0
                self.snapshots.write(self.log_end_offset, self.producers).close()
                # schedule 89/snapshots-of-removed-segments-are-strays
                self.snapshots.delete_strays([segment.base_offset for segment in self.removed] + self.bases)
        except DiskFull:
            return  # indexes are written later; recovery finds a torn snapshot by its CRC and replays from an older one
        except DiskError as error:
            raise self._fence(error) from error

    # ------------------------------------------------------------------ leader epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch <= `epoch` and its end offset; (-1, -1) if there is none (KIP-279)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Return the epoch of the record at `offset`; -1 if not known."""
        return self.epochs.epoch_at(offset)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Record that this node leads `epoch` from `offset` on, before any record of it exists, so that followers can
        be answered (schedule 3). Durable with the next sync of this log or `flush_epochs`; recovery also finds it in
        the first durable batch of the epoch.
        """
        self._check_usable()
        self.epochs.assign(epoch, offset)

    def flush_epochs(self) -> None:
        """Make the epochs durable now, blocking. Raises StorageError."""
        try:
            self.unsynced.flush_epochs()
        except DiskError as error:
            raise self.disk_failed(error) from error

    # ------------------------------------------------------------------ retention

    async def find_expired(self, now: Now, limit_offset: int, keep: retention.Keep) -> retention.Expired | None:
        """Return the segments that age and size allow to delete from the front, below `limit_offset` (the high
        watermark); None if there are none. Valid when this returns; the caller calls `delete_records_before`.

        Raises KafkaError as `read` does.
        """
        while self.failure is None:
            try:
                return await self.cold(lambda pread: retention.find_expired(self, now, limit_offset, keep, pread))
            except retention.Unproven as unproven:
                await retention.prove_newest(self, unproven.segment, self.cold)
        return None

    async def find_cleanable(self, now: Now, limit_offset: int) -> Cleanable:
        """Return the work that compaction would find below `limit_offset` (the last stable offset). Raises KafkaError
        as `read` does."""
        return await self.cold(lambda pread: find_cleanable(self, now, limit_offset, pread))

    # ------------------------------------------------------------------ transactions

    def begin_verification(
        self, producer_id: int, epoch: int, first_sequence: int, *, begins_at_0: bool
    ) -> Verification | None:
        """Return the object for which to ask the coordinator about the first batch of a transaction, and which
        `append_as_leader` then needs. None: the transaction is open here with this epoch, and needs no verification.
        Calls with the same epoch share one object, with the lowest sequence (KAFKA-14884). It ends with the first
        batch, a marker, or a newer epoch.

        `begins_at_0`: the transaction has an epoch of its own (KIP-890), so that an unknown producer begins with
        sequence 0.

        Raises KafkaError (INVALID_PRODUCER_EPOCH) for an older epoch, which needs no verification either (KAFKA-18042).
        """
        return self.producers.begin_verification(
            producer_id, epoch, first_sequence, self._now_ms(), begins_at_0=begins_at_0
        )

    def end_verification(self, verification: Verification) -> None:
        """Drop a verification that the coordinator refused for good. After other failures it stays, for the batch's
        retry."""
        self.producers.end_verification(verification)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset below which every transaction has ended, with its marker below `high_watermark` (rule C6).
        Valid on any replica, for the high watermark that it knows."""
        producers = self.producers
        if not producers.open and not producers.ended:
            return high_watermark
        first = max(producers.first_unstable(high_watermark), self.log_start_offset)
        return min(high_watermark, first)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions without a marker yet, oldest first."""
        return self.producers.open_transactions()

    # ------------------------------------------------------------------ producers

    def lacks_producers(self) -> bool:
        """True if the log is empty, begins after records that it never had, and was given nothing of their producers.

        A new replica, or one that was cut whole, begins where its leader's log on the disk begins; the records before
        are in the object store only (rule B24). A producer snapshot at the log's start shows that their producers are
        known.
        """
        start = self.log_start_offset
        return 0 < start == self.log_end_offset and not self.size_bytes and not self.snapshots.has(start)

    async def begin_with(self, offset: int, producers: ProducerStates) -> bool:
        """Take in the producers of the records before `offset`, where the log begins. Durable when this returns, so
        that the log never has a record without them. False: the log begins elsewhere by now, and is unchanged.

        Raises DiskError; FileNotFoundError if the log was deleted.
        """
        path = f"{self.directory}/{_BEGINNING}"
        await write_synced(self.disk, {path: producers.encode_snapshot()})
        # rule B24/told-of-what-was-cut
        if self.failure is not None or self.log_start_offset != offset or not self.lacks_producers():
            return False
        self.snapshots.take_in(path, offset)
        self.producers = producers
        return True

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that were silent for `producer.id.expiration.ms`; return their number."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # ------------------------------------------------------------------ the end

    def seal(self) -> None:
        """Write the files of a clean stop (indexes, producer snapshot); `sync_now` and `close_files` follow.

        Raises KafkaError and StorageError as `append_as_leader` does.
        """
        self._check_usable()
        try:
            active = self.segments[-1]
            self.unsynced.add_and_close(active.seal())
            self.unsynced.add(active.file)
            # An empty segment that begins after deleted records may know producers, too.
            # rule C2/no-snapshot-at-a-clean-stop, rule B24/a-stop-answers-who-waits, rule B24/empty-logs-know-nobody
            if active.size or len(self.segments) > 1 or self.snapshots.has(self.log_end_offset):
                # rule C2/snapshot-at-a-clean-stop-not-forced
                self.unsynced.add_and_close([self.snapshots.write(self.log_end_offset, self.producers)])
                self.unsynced.add_directory(self.directory)  # rule C2/snapshots-name-not-synced
            else:
                self.snapshots.delete_above(-1)
        except DiskError as error:
            raise self.disk_failed(error) from error

    def close_files(self) -> None:
        """Close all descriptors; the log refuses everything from now on."""
        self.failure = self.failure or "closed"
        self.unsynced.abandon()
        for segment in self.segments:
            self.cache.forget(segment)
            segment.close()

    def close(self) -> None:
        """Stop cleanly: write, sync and close everything. Raises KafkaError, StorageError; the files are closed
        anyway.
        """
        if self.failure == "closed":
            return
        try:
            self.seal()
            self.sync_now()
        finally:
            self.close_files()


def _unreadable(error: OSError) -> KafkaError:
    mark("read-failed")
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read: {error}")
