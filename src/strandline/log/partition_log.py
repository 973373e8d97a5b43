"""One partition's log: segments, indexes, leader epochs, producer state. No network, no locks; it runs on the loop's
thread.

Reading is in `reader.py`; opening a directory after a stop is `recovery.open_log`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandline.log import retention, truncation
from strandline.log.batch import (
    OVERHEAD,
    BatchHeader,
    parse_header,
    patch_base_offset_and_epoch,
    patch_log_append_time,
)
from strandline.log.config import LOG_APPEND_TIME
from strandline.log.disk import DiskError, DiskFull
from strandline.log.log_state import LogParts, LogState
from strandline.log.producer_state import ProducerBatch
from strandline.log.reader import BatchPart, LogRead, LogReader, TimestampedOffset
from strandline.log.recompression import recompressed
from strandline.log.retention import Cleanable, find_cleanable
from strandline.log.rot import Rot
from strandline.log.segment import Segment
from strandline.log.snapshots import SNAPSHOT_INTERVAL_BYTES
from strandline.log.validation import check_client_batches, check_replicated_batches, gap_from
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft
from strandline.proto.ids import LeaderEpoch, Offset
from strandline.proto.marks import mark

ANY_SIZE = 1 << 62
"""Of a batch that is read: however large it is."""


class AppendResult(NamedTuple):
    """What an append did."""

    base_offset: Offset
    next_offset: Offset
    log_append_time_ms: int
    """The leader's time, where `message.timestamp.type` is LogAppendTime; else -1."""
    log_start_offset: Offset
    duplicate: bool
    """Nothing was written: these are the offsets of the original."""
    data: memoryview
    """The bytes as written; valid as long as the buffer that was passed in, of which they need not be a part."""


class PartitionLog(LogState):
    """An append-only sequence of record batches on one node.

    Invariants, beside those of `LogState`:
    - segments follow on each other without a gap; the last one is the only one written to;
    - indexes, epochs and producer state change only after the write they describe has succeeded (KAFKA-6683).
    """

    __slots__ = ("_reader", "rot")

    def __init__(self, parts: LogParts) -> None:
        super().__init__(parts)
        self.rot = Rot(self)
        self._reader = LogReader(self, parts.cache)

    # ------------------------------------------------------------------ appending

    def append_as_leader(
        self, batches: memoryview, leader_epoch: int, now_ms: int, *, has_room: bool = True
    ) -> AppendResult:
        """Judge a client's batches, give them offsets in place, and write them: all of them or none.

        `batches` is a writable view of the receive buffer; `now_ms` is wall time, for stamps. A batch that is among the
        producer's last five is not written again (rule C1). Without `has_room` only such a batch is taken.

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
        original = self._find_duplicate(headers)
        if original is not None:
            return original
        if not has_room:
            raise NoSpaceLeft(f"but log.dir.reserve.bytes in {self.directory}; the same may be sent again")
        if config.stored_codec is not None:  # rule B16/the-topics-codec-is-ignored
            batches = recompressed(batches, headers, config)
        append_time_ms = now_ms if config.message_timestamp_type == LOG_APPEND_TIME else -1
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
        """Write one batch that this node built itself and that has no producer; its base offset and epoch are set in
        place.

        Raises KafkaError and StorageError as `append_as_leader`.
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

    def append_as_follower(self, batches: memoryview) -> Offset:
        """Write batches as the leader has them, offsets and epochs included; returns the new log end offset.

        Sequences are not checked (the leader did), CRC and contiguity are: whole batches only, all or none of them.
        Compaction takes records, and leaves a gap batch for offsets that have none: so a batch that was lost shows on
        a compacted topic too. A gap that began before the log end is taken from there on (schedule 74). An empty log
        may begin inside its first batch: where records were deleted up to the middle of a batch, the leader has the
        whole of it, and so will this log, from the same log start on (KAFKA-6975, schedule 55).

        Raises:
            KafkaError: CORRUPT_MESSAGE for bytes that are no batches or do not hold their CRC, OFFSET_OUT_OF_RANGE when
                they do not begin at the log end; KAFKA_STORAGE_ERROR. Nothing was written.
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
            self._cut(lambda now_ms: truncation.begin_earlier(self, first.base_offset, now_ms))
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

    def _now_ms(self) -> int:
        """For ages that this process alone knows, of producers and of the active segment: no clock that is set moves
        them (rule B32)."""
        return int(self._clock.monotonic_ms())  # rule B32/producers-expire-by-the-wall-clock

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch < self.epochs.latest:  # rule B1/older-leader-writes
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                "the log has heard of a newer leader",
                leader_epoch=leader_epoch,
                latest_epoch=self.epochs.latest,
            )

    def _find_duplicate(self, headers: list[BatchHeader]) -> AppendResult | None:
        """The answer for batches that are all in the log already; None if they may be written. Raises KafkaError."""
        originals: list[ProducerBatch] = []
        previous: dict[int, BatchHeader] = {}
        now_ms = self._clock.monotonic_ms() if self.producers.refusals else 0.0
        for header in headers:
            if header[9] < 0:
                continue
            original = self.producers.check(header, previous.get(header[9]), now_ms)
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
        append_time_ms = originals[0].timestamp_ms if self.config.message_timestamp_type == LOG_APPEND_TIME else -1
        return AppendResult(
            Offset(originals[0].first_offset),
            Offset(originals[-1].last_offset + 1),
            append_time_ms,
            self.log_start_offset,
            True,
            memoryview(b""),
        )

    def _write(self, data: memoryview, headers: list[BatchHeader], leader_epoch: int | None, now_ms: int) -> None:
        """The one place that adds bytes. `headers` are those of `data`, but for the base offset and, unless
        `leader_epoch` is None, the epoch, which the leader gave them since.
        """
        config = self.config
        offset: int = self.log_end_offset
        segment = self.segments[-1]
        try:
            end_offset = offset + sum([header[6] + 1 for header in headers])
            if segment.must_roll(len(data), end_offset, now_ms, config):
                self._roll(now_ms)
                segment = self.segments[-1]
            position = segment.append(data, config)
        except DiskError as error:
            raise self.disk_failed(error) from error
        self.unsynced.add(segment.file)
        interval = config.index_interval_bytes
        latest: int = self.epochs.latest
        for header in headers:
            size = header[1] + OVERHEAD
            last_offset = offset + header[6]
            segment.noted(position, size, last_offset, header[8], interval)
            epoch = header[2] if leader_epoch is None else leader_epoch
            if epoch > latest:
                self.epochs.assign(epoch, offset)
                latest = epoch
            if header[9] >= 0:  # rule C2/followers-forget-producers
                self.producers.update(header, offset, now_ms)
            offset = last_offset + 1
            position += size
        self.log_end_offset = Offset(offset)  # rule C1/index-before-the-end-moves
        self.size_bytes += len(data)
        self._snapshot_bytes += len(data)
        if segment.indexes_wait or self._snapshot_bytes > SNAPSHOT_INTERVAL_BYTES:
            self._write_shortcuts(segment)

    def roll(self) -> None:
        """Close the active segment and begin a new one at the log end; nothing to do while it is empty.

        Raises KafkaError and StorageError as `append_as_leader`.
        """
        self._check_usable()
        if self.segments[-1].size:
            try:
                self._roll(self._now_ms())
            except DiskError as error:
                raise self.disk_failed(error) from error

    def _roll(self, now_ms: int) -> None:
        mark("segment-rolled")
        old = self.segments[-1]
        self.unsynced.add_and_close(old.seal())
        self.unsynced.add(old.file)
        # Without producers too: a start must know that there are none without walking the whole log.
        # rule C2/no-snapshot-at-the-roll, rule C2/snapshot-at-the-roll-not-forced
        self.unsynced.add_and_close([self.snapshots.write(self.log_end_offset, self.producers)])
        self._snapshot_bytes = 0
        self.begin_segment(self.log_end_offset, now_ms)
        self.cache.touch(old)

    def _write_shortcuts(self, segment: Segment) -> None:
        """Index entries, and a producer snapshot that bounds a later replay: not synced, and nothing depends on them.

        The append is in the log whatever becomes of them, and its offsets are taken (KAFKA-7866, schedule 19):
        therefore after the end has moved. A full disk is no reason to fail; any other failure fences the log. Raises
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

    # ------------------------------------------------------------------ reading

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, *, one_batch_bytes: int = ANY_SIZE
    ) -> LogRead | None:
        """Whole batches from the one that holds `offset` on: at most `max_bytes` (but one batch at least, if it has at
        most `one_batch_bytes`), none that reaches `limit_offset`. Empty at the limit; None where the disk would have to
        be waited for (then `read_cold`).

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE outside of [log start, log end]; CORRUPT_MESSAGE where the first batch is
                not the one that was written (rule B19); KAFKA_STORAGE_ERROR when the disk fails.
        """
        return self._reader.read(offset, max_bytes, limit_offset, one_batch_bytes)

    async def read_cold(
        self, offset: int, max_bytes: int, limit_offset: int, *, one_batch_bytes: int = ANY_SIZE
    ) -> LogRead:
        """`read` for bytes that are not in memory; the waiting is done off the loop."""
        return await self._reader.read_cold(offset, max_bytes, limit_offset, one_batch_bytes)

    def read_part(self, offset: int, position: int, max_bytes: int, crc: int) -> BatchPart | None:
        """At most `max_bytes` of the batch that holds `offset` (below the log end), from its byte `position` on; None
        where the disk would have to be waited for (then `read_part_cold`). For a batch that is too large to be sent at
        once. `crc`: of the parts before (`BatchPart.crc`), 0 at the beginning.

        Raises KafkaError as `read`: for a batch that does not hold instead of its last part, so that it is never whole.
        """
        return self._reader.read_part(offset, position, max_bytes, crc)

    async def read_part_cold(self, offset: int, position: int, max_bytes: int, crc: int) -> BatchPart:
        """`read_part` for bytes that are not in memory; the waiting is done off the loop."""
        return await self._reader.read_part_cold(offset, position, max_bytes, crc)

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampedOffset | None:
        """The first record below the limit that is as young as `timestamp_ms` or younger; None if there is none.

        Raises KafkaError as `read`.
        """
        return self._reader.offset_for_timestamp(timestamp_ms, limit_offset)

    def max_timestamp(self, limit_offset: int) -> TimestampedOffset | None:
        """The first record below the limit that has the largest timestamp there (KIP-734); None in an empty range."""
        return self._reader.max_timestamp(limit_offset)

    # ------------------------------------------------------------------ leader epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `epoch` and where it ends; (-1, -1) if there is none (KIP-279)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Epoch of the record at `offset`; -1 if not known."""
        return self.epochs.epoch_at(offset)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """This node leads `epoch` from `offset` on: known before any record of it exists, so that followers can be
        answered (schedule 3). Durable with the next sync of this log or `flush_epochs`; recovery has it from the first
        durable batch of the epoch anyway.
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
        """What age and size take from the front, below `limit_offset` (the high watermark); None: nothing. It holds
        when this returns; `delete_records_before` is the caller's.

        Raises KafkaError as `read`.
        """
        while self.failure is None:
            try:
                return await self._reader.cold(
                    lambda pread: retention.find_expired(self, now, limit_offset, keep, pread)
                )
            except retention.Unproven as unproven:
                await retention.prove_newest(self, unproven.segment, self._reader.cold)
        return None

    async def find_cleanable(self, now: Now, limit_offset: int) -> Cleanable:
        """What compaction would find below `limit_offset` (the high watermark). Raises KafkaError as `read`."""
        return await self._reader.cold(lambda pread: find_cleanable(self, now, limit_offset, pread))

    # ------------------------------------------------------------------ cutting

    def truncate_to(self, offset: int) -> Offset:
        """Drop every batch that reaches `offset` or lies after it; returns the new log end, below `offset` if that was
        in the middle of a batch. At or above the log end only epochs without records go (schedule 5: they may conflict
        with the leader's).

        Producer state is rolled back before the offsets move (KAFKA-12153).

        Raises KafkaError and StorageError as `append_as_leader`.
        """
        self._check_usable()
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)  # rule B8/empty-epochs-stay/2
            return self.log_end_offset
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return self.log_end_offset
        self._cut(lambda now_ms: truncation.cut_end(self, offset, now_ms))
        return self.log_end_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log is empty and begins at `offset` (the leader has nothing older, or a snapshot is
        loaded).

        Raises KafkaError and StorageError as `append_as_leader`.
        """
        self._check_usable()
        self._cut(lambda now_ms: truncation.cut_whole(self, offset, now_ms))

    def _cut(self, cut: Callable[[int], None]) -> None:
        try:
            cut(self._now_ms())
        except DiskError as error:
            raise self._fence(error) from error

    def delete_records_before(self, offset: int, *, keep_active: bool = False) -> None:
        """Raise the log start to `offset` (the caller has clamped it at the high watermark, schedule 16). Segments that
        lie wholly below leave the log at once, and the disk by `delete_oldest_removed` once the new log start is
        durable. At the log end a new segment is begun, so that the active one goes as well, unless `keep_active`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE beyond the log end.
            StorageError: the disk failed; the log is fenced from now on.
        """
        if offset > self.log_end_offset:
            raise self.out_of_range(offset)  # rule B15/start-beyond-the-end
        if offset > self.log_start_offset:
            try:
                if offset == self.log_end_offset and self.segments[-1].size and not keep_active:
                    self._begin_anew()
                truncation.cut_start(self, offset)
            except DiskError as error:
                raise self._fence(error) from error

    def _begin_anew(self) -> None:
        try:
            self._roll(self._now_ms())
        except DiskFull:
            mark("no-room-to-begin-anew")  # the active segment stays until there is

    async def delete_oldest_removed(self) -> None:
        """The oldest segment of `removed`, with its snapshot; that their names are gone is not durable yet."""
        segment = self.removed.pop(0)
        self.snapshots.delete_below((self.removed or self.segments)[0].base_offset)
        await segment.delete_slowly()

    # ------------------------------------------------------------------ the end

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that were silent for `producer.id.expiration.ms`; how many."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    def seal(self) -> None:
        """Write what a clean stop leaves behind (indexes, producer snapshot); `sync_now` and `close_files` follow.

        Raises KafkaError and StorageError as `append_as_leader`.
        """
        self._check_usable()
        try:
            active = self.segments[-1]
            self.unsynced.add_and_close(active.seal())
            self.unsynced.add(active.file)
            # An empty one that begins behind what was deleted may know producers too.
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
        """Give every descriptor back; the log refuses everything from now on."""
        self.failure = self.failure or "closed"
        self.unsynced.abandon()
        for segment in self.segments:
            self.cache.forget(segment)
            segment.close()

    def close(self) -> None:
        """A clean stop: everything written, synced and closed. Raises KafkaError, StorageError; the files are closed
        anyway.
        """
        if self.failure == "closed":
            return
        try:
            self.seal()
            self.sync_now()
        finally:
            self.close_files()
