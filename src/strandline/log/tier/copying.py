"""Copying of a closed segment of a log to the object store.

The segment is read twice. First each batch is checked against its CRC, its offsets and its leader epoch, so that rot is
never copied. Then it is sent, and its last bytes are sent only if all of them are those that were checked. So whatever
happens to the segment meanwhile (retention deletes it, compaction replaces it), no object differs from its sidecar.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

from crc32c import crc32c

from strandline.log.batch import BatchHeader, iter_batches, parse_header
from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.disk import Disk, DiskError, File
from strandline.log.epochs import intact_end, why_not_intact
from strandline.log.object_store import ObjectStore
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import SnapshotDamaged, decode_snapshot
from strandline.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, OffsetIndex, Segment, TimeIndex, segment_name
from strandline.log.swap import LogChanged
from strandline.log.tier.names import log_key, sidecar_key
from strandline.log.tier.sidecar import SidecarHeader, encode_sidecar
from strandline.proto.believed import BelievedClock
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, Offset
from strandline.proto.tier import EpochStart, TieredSegment

Limiter = Callable[[int], Awaitable[None]]
"""Function that is awaited before a number of bytes is sent; it returns when they may be sent."""

CHUNK_BYTES = 1 << 20
"""Bytes of a segment read at a time for sending."""

_LOOK_BYTES = 256 << 10
"""Bytes of a segment read at a time for checking: a few milliseconds of the event loop, however small the batches
are."""


async def unlimited(n_bytes: int) -> None:
    """Limiter without a limit."""


async def copy_segment(
    store: ObjectStore,
    prefix: str,
    plog: PartitionLog,
    segment: Segment,
    segment_id: UUID,
    *,
    cluster_id: str,
    leader_epoch: int,
    believed: BelievedClock,
    limiter: Limiter = unlimited,
    start_offset: int = -1,
) -> TieredSegment:
    """Write the two objects of a closed segment, the sidecar first; return the segment to add to the metadata.

    The copy begins at `start_offset` if that is inside the segment: replicas do not all close segments at the same
    offsets, and the tier may end in the middle of one. Whole batches before it are left out. `prefix` is
    `names.partition_prefix` of the partition; `segment_id` is used for this attempt only. The caller ensures that the
    whole segment is committed and durable, and no transaction in it undecided.

    Raises:
        KafkaError: CORRUPT_MESSAGE if the segment is rotten; KAFKA_STORAGE_ERROR if the disk fails.
        LogChanged: the log lost the segment meanwhile.
        StoreError: the store did not accept it. Objects of the attempt may exist.
    """
    reading = _Reading(plog, segment)
    try:
        scanned = await reading.scan(start_offset)
        producers = await _producers(plog, reading.end_offset)
        base_offset = max(scanned.base_offset, start_offset)
        tiered = TieredSegment(
            segment_id=segment_id,
            base_offset=Offset(base_offset),
            end_offset=Offset(reading.end_offset),
            size_bytes=scanned.size_bytes,
            max_timestamp_ms=scanned.max_timestamp_ms,
            epochs=tuple(
                EpochStart(LeaderEpoch(epoch), Offset(max(start, base_offset))) for epoch, start in scanned.epochs
            ),
            copied_ms=believed.latest_ms(),
        )
        header = SidecarHeader(
            cluster_id=cluster_id,
            topic=plog.topic_partition.topic,
            topic_id=plog.topic_id,
            partition=plog.topic_partition.partition,
            base_offset=scanned.base_offset,
            end_offset=reading.end_offset,
            size_bytes=scanned.size_bytes,
            max_timestamp_ms=scanned.max_timestamp_ms,
            epochs=tuple(scanned.epochs),
            log_crc=scanned.crc,
            leader_epoch=leader_epoch,
        )
        aborted = await plog.aborted_transactions_cold(base_offset, reading.end_offset)
        sidecar = encode_sidecar(header, scanned.index, scanned.time_index, producers, aborted)
        await store.put(sidecar_key(prefix, tiered), _sliced(sidecar, limiter), len(sidecar))
        await store.put(log_key(prefix, tiered), reading.chunks(scanned, limiter), scanned.size_bytes)
    finally:
        reading.close()
    return tiered


@dataclass(slots=True)
class _Scanned:
    """Results of checking a segment from its byte `position` on."""

    position: int = 0
    size_bytes: int = 0
    base_offset: int = -1
    max_timestamp_ms: int = -1
    crc: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    index: OffsetIndex = field(default_factory=OffsetIndex)
    time_index: TimeIndex = field(default_factory=TimeIndex)
    _newest_offset: int = 0
    _bytes_since_entry: int = 0

    def take(self, header: BatchHeader, interval_bytes: int) -> None:
        """Add the next batch. Index entries are made at the same batches as by `Segment.noted`."""
        if self.base_offset < 0:
            self.base_offset = self._newest_offset = header.base_offset
        if not self.epochs or self.epochs[-1][0] != header.leader_epoch:
            self.epochs.append((header.leader_epoch, header.base_offset))
        if header.max_timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms, self._newest_offset = header.max_timestamp, header.last_offset
        if self._bytes_since_entry > interval_bytes:
            self._bytes_since_entry = 0
            self.index.append(header.last_offset - self.base_offset, self.size_bytes)
            self.time_index.append(self.max_timestamp_ms, self._newest_offset - self.base_offset)
        self._bytes_since_entry += header.size
        self.size_bytes += header.size

    def end(self) -> None:
        """Complete the time index after the last batch."""
        self.time_index.append(self.max_timestamp_ms, self._newest_offset - self.base_offset)


class _Reading:
    """Reads a segment's file through a descriptor of its own."""

    def __init__(self, plog: PartitionLog, segment: Segment) -> None:
        if segment is plog.segments[-1]:
            raise ValueError(f"{plog.topic_partition}: the active segment, {segment.base_offset}, is not copied")
        self._log = plog
        self._segment = segment
        self._size = segment.size
        self.end_offset = self._following()
        try:
            self._file = plog.disk.open(segment.path(LOG_SUFFIX))
        except FileNotFoundError as error:
            raise self._changed() from error
        except DiskError as error:
            raise _unreadable(error) from error

    def close(self) -> None:
        """Close the descriptor."""
        self._file.close()

    async def scan(self, start_offset: int) -> _Scanned:
        """Check every batch. Raises KafkaError, LogChanged."""
        if start_offset >= self.end_offset:
            raise ValueError(f"offset {start_offset} lies beyond the segment, which ends at {self.end_offset}")
        log, scanned = self._log, _Scanned()
        position, offset = 0, self._segment.base_offset
        interval_bytes = log.config.index_interval_bytes
        while position < self._size:
            data = await self._batches(position, offset)
            # rule B23/rot-goes-to-the-store
            end, following = intact_end(data, offset, log.epochs, log.log_start_offset, self.end_offset)
            if not end:
                raise self._rotten(position, offset, data)
            taken_from = 0
            for header, _ in iter_batches(memoryview(data)[:end]):
                if header.last_offset < start_offset:
                    taken_from += header.size
                else:
                    scanned.take(header, interval_bytes)
            scanned.position += taken_from
            scanned.crc = crc32c(memoryview(data)[taken_from:end], scanned.crc)
            position, offset = position + end, following
        if offset != self.end_offset:
            raise self._segment.damaged(position, f"the segment ends at offset {offset} instead of {self.end_offset}")
        self._check()
        scanned.end()
        return scanned

    async def _batches(self, position: int, offset: int) -> bytes:
        """Read from a batch boundary on: at least one whole batch, if there is one."""
        data = await self._read(position, _LOOK_BYTES)
        try:
            size = parse_header(data).size
        except KafkaError:
            raise self._rotten(position, offset, data) from None
        return data if size <= len(data) else await self._read(position, min(size, BATCH_BYTES_MAX))

    async def chunks(self, scanned: _Scanned, limiter: Limiter) -> AsyncIterator[bytes]:
        """Yield the same bytes again. If they differ, raise KafkaError or LogChanged before the last chunk."""
        position, crc = scanned.position, 0
        while position < self._size:
            data = await self._read(position, CHUNK_BYTES)
            crc = crc32c(data, crc)
            position += len(data)
            if position == self._size and crc != scanned.crc:  # rule B23/other-bytes-than-were-looked-at-are-sent
                self._check()
                raise self._segment.damaged(position, "what stands there is not what was read before")
            await limiter(len(data))
            yield data

    async def _read(self, position: int, size: int) -> bytes:
        size = min(size, self._size - position)
        try:
            data = await self._log.disk.pread_cold(self._file, size, position)
        except FileNotFoundError as error:
            raise self._changed() from error
        except DiskError as error:
            raise _unreadable(error) from error
        if len(data) != size:
            self._check()
            raise self._segment.damaged(position + len(data), "the file is shorter than the log")
        return data

    def _rotten(self, position: int, offset: int, data: bytes) -> Exception:
        """Return the error for a position at which there is no batch as it was written."""
        self._check()
        epoch = self._log.epochs.epoch_at(max(offset, self._log.log_start_offset))
        return self._segment.damaged(position, why_not_intact(data, offset, epoch), offset=offset)

    def _check(self) -> None:
        # rule B23/segments-that-went-are-copied
        if self._following() != self.end_offset or self._segment.size != self._size:
            raise self._changed()

    def _following(self) -> int:
        """Return the offset at which the next segment begins."""
        segments = self._log.segments
        if self._segment not in segments or self._segment is segments[-1]:
            raise self._changed()
        return segments[segments.index(self._segment) + 1].base_offset

    def _changed(self) -> LogChanged:
        return LogChanged(f"{self._log.topic_partition} has lost its segment {self._segment.base_offset}")


async def _producers(plog: PartitionLog, offset: int) -> bytes:
    """Return the producer snapshot at `offset`; b"" if there is none, or it is damaged."""
    disk: Disk = plog.disk
    try:
        file: File = disk.open(f"{plog.directory}/{segment_name(offset, SNAPSHOT_SUFFIX)}")
        try:
            data = await disk.pread_cold(file, file.size(), 0)
        finally:
            file.close()
        decode_snapshot(data)
    except (FileNotFoundError, SnapshotDamaged):
        return b""
    except DiskError as error:
        raise _unreadable(error) from error
    return data


async def _sliced(data: bytes, limiter: Limiter) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]
        await limiter(len(chunk))
        yield chunk


def _unreadable(error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read: {error}")
