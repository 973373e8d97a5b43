"""One segment: a `.log` file of whole batches, two sparse indexes to find records in it, the index of its aborted
transactions (`strandline.log.transactions`), and its known holes.

The index files have Kafka's formats:
`.index`: 8-byte entries (last offset of a batch minus base offset, position of that batch), both unsigned 32 bits.
`.timeindex`: 12-byte entries (largest timestamp so far, offset minus base offset of the last record of its batch).

Indexes are hints that can be rebuilt from the log, so they are written lazily, loaded on first use, checked when
loaded, and rebuilt when they are missing or wrong.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import lt
from typing import NamedTuple

from strandline.log.batch import HEADER_SIZE, OVERHEAD, BatchHeader, sized_header
from strandline.log.config import LogConfig
from strandline.log.disk import Disk, DiskError, DiskFull, File
from strandline.log.transactions import AbortedIndex
from strandline.proto.ensure import present
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
ABORTED_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
PARTS = (ABORTED_INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX)
"""Suffixes of a segment's files. The log is renamed last: its name shows whether the other files are complete."""

ALLOCATE_FIRST_BYTES = 256 << 10
"""First step of preallocation; each next one doubles the segment, up to `preallocate_bytes`."""

RELATIVE_OFFSET_MAX = 0x7FFFFFFF
"""Index entries hold offsets relative to the segment's base in 31 bits (Kafka's signed int)."""

INDEX_FLUSH_ENTRIES = 512
"""Number of index entries that are written together; index entries can be rebuilt. They are also written when a segment
is closed."""

ENTRY_BYTES = 8
"""Size of an entry of an offset index, in memory and on disk."""
TIME_ENTRY_BYTES = 12
"""Size of an entry of a time index."""

_ABORTED_MEMORY_BYTES = 250
"""Approximate memory of an aborted transaction, in bytes."""

_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
_MUST_SWAP = sys.byteorder == "little"
_WALK_BYTES = 8 << 10

Pread = Callable[[File, int, int], bytes]
"""Reads (file, size, position): blocking, or raising ColdRead if it would block."""


class ColdRead(Exception):
    """The bytes are not in memory: read them off the loop, then try again.

    `lent`: the file was opened for this read only; the reader closes it.
    """

    def __init__(self, file: File, size: int, position: int, *, lent: bool = False) -> None:
        super().__init__(file.path, size, position)
        self.file = file
        self.size = size
        self.position = position
        self.lent = lent


def pread_blocking(file: File, size: int, position: int) -> bytes:
    """Read, waiting for the disk."""
    return file.pread(size, position)


def pread_nowait(file: File, size: int, position: int) -> bytes:
    """Read from memory; raises ColdRead if reading would block."""
    data = file.pread_nowait(size, position)
    if data is None:
        raise ColdRead(file, size, position)
    return data


def segment_name(base_offset: int, suffix: str) -> str:
    """Return the file name in Kafka's format: the base offset in 20 digits, and the suffix."""
    return f"{base_offset:020d}{suffix}"


class Segment:
    """Part of the log from `base_offset` on.

    Invariants:
    - bytes [0, size) are whole batches; bytes after them, up to `allocated`, are zeros of preallocation;
    - index entries name batch boundaries below `size`;
    - only the log's last segment is appended to.
    """

    __slots__ = (
        "_aborted",
        "_bytes_since_entry",
        "_disk",
        "_index",
        "_path",
        "_seen",
        "_suffix",
        "_time_index",
        "allocate_at",
        "allocated",
        "base_offset",
        "created_ms",
        "file",
        "holes",
        "max_timestamp",
        "max_timestamp_offset",
        "proven_to",
        "size",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        created_ms: int,
        create: bool = False,
        suffix: str = "",
    ) -> None:
        """`suffix`: suffix of its files' names while it is not part of the log yet (`strandline.log.swap`)."""
        self._disk = disk
        self._path = f"{directory}/{base_offset:020d}"
        self._suffix = suffix
        self.base_offset = base_offset
        self.created_ms = created_ms
        """Monotonic time, in milliseconds, at which this process made or loaded it; its age for `segment.ms`."""
        self._seen = (-1, 0.0)
        """(size, monotonic time since which this process knows it to have that size): see `unchanged_since`."""
        self.file = disk.open(self.path(LOG_SUFFIX), create=create)
        self.allocated = self.file.size()
        if create and self.allocated:  # left by an append that a crash cut short before it could be acknowledged
            self.file.truncate(0)
            self.allocated = 0
        self.size = self.allocated
        self.allocate_at = self.size
        self._index: OffsetIndex | None = OffsetIndex() if create else None
        self._time_index: TimeIndex | None = TimeIndex() if create else None
        self._aborted: AbortedIndex | None = AbortedIndex() if create else None
        self._bytes_since_entry = 0
        self.holes = Holes()
        """Rotten ranges that are known, in order; readers skip them."""
        self.max_timestamp = -1
        """Largest timestamp of the batches that this process appended or scanned; `newest` includes older ones."""
        self.max_timestamp_offset = base_offset
        self.proven_to = self.size if create else 0
        """Position up to which `max_timestamp` is known from the batches themselves (`prove_newest`)."""

    def path(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return self._path + suffix + self._suffix

    def unchanged_since(self, monotonic_ms: float) -> float:
        """Return the monotonic time in milliseconds since which calls of this have seen no append. The first call of a
        process, and the first after an append, return `monotonic_ms`."""
        if self._seen[0] != self.size:
            self._seen = (self.size, monotonic_ms)
        return self._seen[1]

    # ------------------------------------------------------------------ writing

    def must_roll(self, size: int, end_offset: int, now_ms: int, config: LogConfig) -> bool:
        """True if `size` more bytes, up to `end_offset`, belong into a new segment."""
        if not self.size:
            return False
        return (
            self.size + size > config.segment_bytes
            or now_ms - self.created_ms > config.segment_ms - self._jitter_ms(config)
            or end_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or ENTRY_BYTES * len(self.active_indexes()[0]) >= config.segment_index_bytes
        )

    def _jitter_ms(self, config: LogConfig) -> int:
        """Return the milliseconds by which the segment is closed earlier: drawn from its name, so that each replica and
        each start draw the same."""
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        return zlib.crc32(self._path.encode()) % jitter_ms if jitter_ms else 0

    def append(self, data: memoryview, headers: Sequence[BatchHeader], offset: int, config: LogConfig) -> None:
        """Write whole batches at the end, and index them. `headers` are those of `data`; the first batch begins at
        `offset`, and each other one at the end of the one before.

        Raises DiskFull with nothing changed; DiskError if it is not known what the file holds.
        """
        position = self.size
        end = position + len(data)
        if end > self.allocate_at:
            self._allocate(end, config)
        try:
            self.file.pwrite(data, position)
        except DiskFull:
            # rule C1/half-a-batch-on-a-full-disk
            self.file.truncate(position)  # the written part must not stay beyond the end: recovery would meet it
            self.allocated = self.allocate_at = position
            raise
        self.allocated = max(self.allocated, end)
        self.size = end
        interval = config.index_interval_bytes
        for header in headers:
            size = header[1] + OVERHEAD
            last_offset = offset + header[6]
            self.noted(position, size, last_offset, header[8], interval)
            position += size
            offset = last_offset + 1

    def _allocate(self, end: int, config: LogConfig) -> None:
        """Allocate the next step, so that syncs need not write a new size each time. Lack of space is no failure here:
        the write itself shows whether the disk is full.
        """
        step = min(config.preallocate_bytes, max(ALLOCATE_FIRST_BYTES, self.size))
        target = min(end + step, max(config.segment_bytes, end))
        self.allocate_at = target
        if step == 0 or target <= self.allocated:
            return
        if self._disk.free_bytes(self._path.rpartition("/")[0]) < 4 * step:
            return
        try:
            self.file.allocate(self.allocated, target - self.allocated)
        except DiskFull:
            self.file.truncate(self.allocated)
        else:
            self.allocated = target

    def noted(self, position: int, size: int, last_offset: int, max_timestamp: int, interval_bytes: int) -> None:
        """Take note of the batch that was written at `position`: index it if an entry is due."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > interval_bytes:
            self._bytes_since_entry = 0
            index, time_index = self.active_indexes()
            index.append(last_offset - self.base_offset, position)
            time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self._bytes_since_entry += size

    @property
    def indexes_wait(self) -> bool:
        """True if enough index entries are only in memory to write them, see `write_indexes`."""
        index = self._index
        return index is not None and len(index) - index.written >= INDEX_FLUSH_ENTRIES

    def write_indexes(self) -> list[File]:
        """Bring the index files up to date (not synced); return them, to be closed by the caller once synced.

        Raises DiskError; entries that were not written are written the next time.
        """
        index, time_index = self.active_indexes()
        waiting: list[tuple[OffsetIndex | TimeIndex | AbortedIndex, str]] = [
            (index, INDEX_SUFFIX),
            (time_index, TIME_INDEX_SUFFIX),
        ]
        if self._aborted is not None and self._aborted.waits:  # most segments have none, and no file
            waiting.append((self._aborted, ABORTED_INDEX_SUFFIX))
        files: list[File] = []
        try:
            for entries, suffix in waiting:
                position, data = entries.tail_bytes()
                file = self._disk.open(self.path(suffix), create=True)
                files.append(file)
                file.truncate(position)
                if data:
                    file.pwrite(data, position)
                entries.written = len(entries)
            if self._aborted is not None:
                self._aborted.stale = False
        except DiskError:
            for file in files:
                file.close()
            raise
        return files

    def seal(self) -> list[File]:
        """End the segment: cut the preallocation, note the newest timestamp, write the indexes.

        Return the files to sync besides the `.log`; the caller closes them then.
        """
        if self.allocated != self.size:
            self.file.truncate(self.size)
            self.allocated = self.allocate_at = self.size
        _, time_index = self.active_indexes()
        if self.size:
            time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        return self.write_indexes()

    def truncate(self, position: int, relative_offset: int) -> None:
        """Cut at a batch boundary; `relative_offset` is that of the first batch cut. The indexes must be loaded,
        including that of aborted transactions."""
        index, time_index = self.active_indexes()
        # rule C10/a-cut-keeps-what-was-aborted
        present(self._aborted, "AbortedIndexIsLoaded").truncate(self.base_offset + relative_offset)
        self.file.truncate(position)
        self.size = self.allocated = self.allocate_at = position
        self.proven_to = 0
        self.holes = Holes(hole for hole in self.holes if hole.position < position)
        index.truncate(position)
        time_index.truncate(relative_offset)
        last = time_index.last()
        self.max_timestamp, relative = last or (-1, 0)
        self.max_timestamp_offset = self.base_offset + relative
        self._bytes_since_entry = 0
        for header_position, header in self.headers(index.positions[-1] if len(index) else 0, pread_blocking):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
            self._bytes_since_entry = position - header_position

    def close(self) -> None:
        """Close the descriptor."""
        self.file.close()

    async def delete_slowly(self) -> None:
        """Delete the files of this segment, which is out of the log and closed, off the loop.

        They are renamed first, as the log may begin a new segment at the same offset meanwhile.
        """
        for path in self.set_aside():
            await self._disk.unlink_slowly(path)

    def set_aside(self) -> list[str]:
        """Rename the files of this segment to names that are not used; return those. Raises DiskError,
        FileNotFoundError."""
        aside: list[str] = []
        for suffix in reversed(PARTS):
            if self._disk.exists(self.path(suffix)):
                aside.append(self._path + suffix + DELETED_SUFFIX)
                self._disk.rename(self.path(suffix), aside[-1])
        return aside

    def rename(self, suffix: str) -> None:
        """Rename the files, so that their names end with `suffix`. Raises DiskError, FileNotFoundError."""
        for part in PARTS:
            if self._disk.exists(self.path(part)):
                self._disk.rename(self.path(part), self._path + part + suffix)
        self._suffix = suffix
        self.file.close()
        self.file = self._disk.open(self.path(LOG_SUFFIX))

    # ------------------------------------------------------------------ indexes

    def active_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return both indexes; load them, blocking, if they are not in memory."""
        return self.load_indexes(pread_blocking)

    def load_indexes(self, pread: Pread) -> tuple[OffsetIndex, TimeIndex]:
        """Return the indexes from memory, or from their files; rebuild them from the log if missing or wrong. Raises
        ColdRead."""
        if self._index is not None and self._time_index is not None:
            return self._index, self._time_index
        try:
            index = OffsetIndex.parse(self._read_whole(INDEX_SUFFIX, pread), self.size)
            time_index = TimeIndex.parse(self._read_whole(TIME_INDEX_SUFFIX, pread))
            last = time_index.last()
            if last is None and self.size:
                raise IndexDamaged("a closed segment notes its newest timestamp at least")
        except (FileNotFoundError, IndexDamaged):
            return self.rebuild_indexes()
        self._index, self._time_index = index, time_index
        if last is not None and last[0] > self.max_timestamp:
            self.max_timestamp = last[0]
            self.max_timestamp_offset = self.base_offset + last[1]
        return index, time_index

    def load_aborted(self, pread: Pread) -> AbortedIndex:
        """Return transactions whose abort marker lies here, from memory or from the file. Raises ColdRead,
        IndexDamaged."""
        if self._aborted is None:
            try:
                self._aborted = AbortedIndex.parse(self._read_whole(ABORTED_INDEX_SUFFIX, pread), self.base_offset)
            except FileNotFoundError:
                self._aborted = AbortedIndex()
            except ValueError as error:
                raise IndexDamaged(str(error)) from error
        return self._aborted

    def reset_aborted(self) -> AbortedIndex:
        """Empty the index of aborted transactions, for a scan to fill. The file is written with the other indexes."""
        self._aborted = AbortedIndex(stale=self._disk.exists(self.path(ABORTED_INDEX_SUFFIX)))
        return self._aborted

    def _read_whole(self, suffix: str, pread: Pread) -> bytes:
        file = self._disk.open(self.path(suffix))
        size = file.size()
        try:
            data = pread(file, size, 0)
        except ColdRead:
            raise ColdRead(file, size, 0, lent=True) from None
        file.close()
        return data

    def resume(self, last_entry_position: int) -> None:
        """Prepare for appends after a clean stop; `last_entry_position` is that of the last indexed batch."""
        self._bytes_since_entry = self.size - last_entry_position

    def drop_indexes(self) -> None:
        """Free the memory of the indexes, which are loaded again on use."""
        self._index = None
        self._time_index = None
        if self._aborted is not None and not self._aborted.waits:
            self._aborted = None

    @property
    def index_bytes(self) -> int:
        """Approximate memory of the loaded indexes, in bytes."""
        aborted = 0 if self._aborted is None else _ABORTED_MEMORY_BYTES * len(self._aborted)
        if self._index is None or self._time_index is None:
            return aborted
        return 8 * len(self._index) + 12 * len(self._time_index) + aborted

    def reset_indexes(self) -> None:
        """Empty the indexes, for a scan of the log to fill."""
        self._index = OffsetIndex()
        self._time_index = TimeIndex()
        self._bytes_since_entry = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset

    def rebuild_indexes(self, interval_bytes: int = 4096) -> tuple[OffsetIndex, TimeIndex]:
        """Rebuild the indexes from the batches' headers, blocking, and write them. The batches' CRCs are not
        checked."""
        before = self._index, self._time_index, self._bytes_since_entry, self.max_timestamp, self.max_timestamp_offset
        self.reset_indexes()
        try:
            for position, header in self.headers(0, pread_blocking):
                self.noted(position, header.size, header.last_offset, header.max_timestamp, interval_bytes)
        except KafkaError:  # the log itself is damaged: the old indexes still show where its batches were
            self._index, self._time_index, self._bytes_since_entry, self.max_timestamp, self.max_timestamp_offset = (
                before
            )
            raise
        index, time_index = self.active_indexes()
        if self.size:
            time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        for file in self.write_indexes():
            file.close()
        return index, time_index

    # ------------------------------------------------------------------ reading

    def headers(self, position: int, pread: Pread) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from `position` on, which is a boundary or in a hole; holes are
        skipped.

        Raises KafkaError (CORRUPT_MESSAGE) with file and byte if there is no batch.
        """
        size = self.size
        chunk = b""
        start = position = self.holes.out_of(position)
        step = _WALK_BYTES
        holes = {hole.position: hole.end for hole in self.holes}
        while position < size:
            if position in holes:
                position = holes[position]
                continue
            if position + HEADER_SIZE > start + len(chunk):
                chunk = pread(self.file, min(step, size - position), position)
                start = position
            try:
                header = sized_header(chunk, position - start, size - position)
            except KafkaError as error:
                raise self.damaged(position, error.message) from error
            following = position + header.size
            yield position, header
            step = _WALK_BYTES if following - position < _WALK_BYTES else HEADER_SIZE
            position = following

    def damaged(self, position: int, reason: str, **figures: int) -> KafkaError:
        """Return the error for bytes that are no batch, or not the one that was written there."""
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason, file=self.file.path, position=position, **figures)

    def find(self, offset: int, pread: Pread) -> tuple[int, BatchHeader] | None:
        """Return the first batch that ends at or after `offset`, or None. An index that points to no batch is
        rebuilt."""
        index, _ = self.load_indexes(pread)
        start, end = index.entry_before(offset - self.base_offset)
        try:
            return self._find_from(start, end, offset, pread)
        except KafkaError:
            if start == 0:
                raise
        index, _ = self.rebuild_indexes()
        return self._find_from(*index.entry_before(offset - self.base_offset), offset, pread)

    def _find_from(self, start: int, end: int, offset: int, pread: Pread) -> tuple[int, BatchHeader] | None:
        """Search from `start`, the position of a batch whose last relative offset is `end` (0 and -1: the segment's
        first).

        The CRC does not cover base offset and length, so each batch is checked to begin where the one before it ended.
        """
        following = self.base_offset if end < 0 else -1
        for position, header in self.headers(start, pread):
            if self.holes.ending_at(position) is not None:
                pass  # the scrub that found the hole has checked this batch
            elif following < 0:
                if header.last_offset != self.base_offset + end:
                    raise self.damaged(position, "the index names another batch than the one that stands there")
            elif header.base_offset != following:  # rule B19/base-offsets-are-believed
                found = f"a batch of offset {header.base_offset} stands where {following} must follow"
                raise self.damaged(position, found, offset=following)
            if header.last_offset >= offset:
                return position, header
            following = header.next_offset
        return None

    def end_within(self, start: int, end_max: int, limit_offset: int, pread: Pread) -> tuple[int, int]:
        """Find the end of the whole batches that begin at `start`, end by `end_max` and lie below `limit_offset`.
        Return (position, next offset); (start, -1) if the first does not fit.
        """
        index, _ = self.load_indexes(pread)
        position = max(start, index.position_at_most(end_max, limit_offset - self.base_offset))
        next_offset = -1
        end = start
        for batch_position, header in self.headers(position, pread):
            if header.last_offset >= limit_offset or batch_position + header.size > end_max:
                if next_offset < 0 and batch_position > start:
                    return batch_position, header.base_offset
                break
            end = batch_position + header.size
            next_offset = header.next_offset
        return end, next_offset

    def end_offset(self) -> int:
        """Return the offset after the last batch, blocking: by the index file's last entry and the few batches after
        it.

        Raises KafkaError (CORRUPT_MESSAGE) if the segment does not end with a whole batch.
        """
        position = 0
        if self._disk.exists(self.path(INDEX_SUFFIX)):
            file = self._disk.open(self.path(INDEX_SUFFIX))
            size = file.size()
            if size >= ENTRY_BYTES:
                position = int.from_bytes(file.pread(4, size - size % ENTRY_BYTES - 4), "big")
            file.close()
        try:
            return self._end_offset_from(position)
        except KafkaError:
            if position == 0:
                raise
        return self._end_offset_from(0)

    def _end_offset_from(self, position: int) -> int:
        if position >= self.size > 0:
            raise self.damaged(position, "the index names a batch beyond the end")
        end = self.base_offset
        for _, header in self.headers(position, pread_blocking):
            end = header.next_offset
        return end

    def newest(self, pread: Pread) -> tuple[int, int]:
        """Return (largest timestamp, last offset of the first batch that has it); (-1, base offset) if empty."""
        self.load_indexes(pread)
        return self.max_timestamp, self.max_timestamp_offset

    def prove_newest(self, batches_max: int, pread: Pread) -> bool:
        """Check `newest` against the headers of the next few batches, from `proven_to` on; False if one of them is
        newer.

        A time index has no checksum: if it is damaged, cut or an older copy, records look older than they are. A newer
        time in a header is adopted, and a newer time in the index stays: a record expires only by both.

        Raises ColdRead, after which a call goes on at the same place, and KafkaError as `headers` does.
        """
        holds = True
        for number, (position, header) in enumerate(self.headers(self.proven_to, pread)):
            if number == batches_max:
                self.proven_to = position
                return holds
            if header.max_timestamp > self.max_timestamp:
                holds = False
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
            self.proven_to = position + header.size
        self.proven_to = self.size
        return holds


def delete_files(disk: Disk, directory: str, base_offset: int) -> None:
    """Unlink a segment's files now, log first: without it the others are useless."""
    for suffix in reversed(PARTS):
        path = f"{directory}/{segment_name(base_offset, suffix)}"
        if disk.exists(path):
            disk.unlink(path)


class IndexDamaged(Exception):
    """The bytes of the index file cannot be an index of this segment; rebuild it from the log."""


class OffsetIndex:
    """Offset index of one segment; entries rise strictly in offset and position."""

    __slots__ = ("offsets", "positions", "written")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self.written = 0
        """Number of entries that are in the file."""

    @classmethod
    def parse(cls, data: bytes, segment_bytes: int) -> OffsetIndex:
        """Parse an index file; `segment_bytes` bounds the positions. Raises IndexDamaged."""
        if len(data) % ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes are not whole entries of {ENTRY_BYTES}")
        both = array("I")
        both.frombytes(data)
        if _MUST_SWAP:
            both.byteswap()
        index = cls()
        index.offsets = both[0::2]
        index.positions = both[1::2]
        for column, name in ((index.offsets, "offset"), (index.positions, "position")):
            if not all(map(lt, column, islice(column, 1, None))):
                raise IndexDamaged(f"the {name}s do not rise")
        if index.positions and index.positions[-1] >= segment_bytes:
            raise IndexDamaged(f"position {index.positions[-1]} lies beyond the segment's {segment_bytes} bytes")
        index.written = len(index.offsets)
        return index

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        """Add an entry: the batch at `position` ends with `relative_offset`."""
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def entry_before(self, relative_offset: int) -> tuple[int, int]:
        """Return the position of an indexed batch at or before the one that holds `relative_offset`, and its last
        relative
        offset: (0, -1) for the segment's first batch."""
        i = bisect_right(self.offsets, relative_offset) - 1
        return (self.positions[i], self.offsets[i]) if i >= 0 else (0, -1)

    def position_at_most(self, position: int, relative_offset: int) -> int:
        """Return a batch boundary up to `position`, with no offset before it at or after `relative_offset`."""
        i = min(bisect_right(self.positions, position), bisect_left(self.offsets, relative_offset)) - 1
        return self.positions[i] if i >= 0 else 0

    def truncate(self, segment_bytes: int) -> None:
        """Remove entries of batches at or after this position."""
        keep = bisect_left(self.positions, segment_bytes)
        del self.offsets[keep:]
        del self.positions[keep:]
        self.written = min(self.written, keep)

    def tail_bytes(self) -> tuple[int, bytes]:
        """Position at which the file ends, and the bytes that must be written there."""
        start = self.written
        parts = [_ENTRY.pack(self.offsets[i], self.positions[i]) for i in range(start, len(self.offsets))]
        return start * ENTRY_BYTES, b"".join(parts)


class TimeIndex:
    """Time index of one segment; entries rise strictly in timestamp, and rise in offset."""

    __slots__ = ("offsets", "timestamps", "written")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("I")
        self.written = 0

    @classmethod
    def parse(cls, data: bytes) -> TimeIndex:
        """Parse a time index file. Raises IndexDamaged."""
        if len(data) % TIME_ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes are not whole entries of {TIME_ENTRY_BYTES}")
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            if index.timestamps and (timestamp <= index.timestamps[-1] or offset < index.offsets[-1]):
                raise IndexDamaged("the timestamps do not rise")
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        index.written = len(index.offsets)
        return index

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry for the batch that ends with `relative_offset`, if `timestamp` is a new largest one."""
        if not self.timestamps or timestamp > self.timestamps[-1]:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def last(self) -> tuple[int, int] | None:
        """Return the newest entry (timestamp, relative offset), or None."""
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def offset_before(self, timestamp: int) -> int:
        """Return a relative offset before which every record is older than `timestamp`."""
        i = bisect_left(self.timestamps, timestamp) - 1
        return self.offsets[i] if i >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Remove entries of records at or after this relative offset."""
        keep = bisect_left(self.offsets, relative_offset)
        del self.offsets[keep:]
        del self.timestamps[keep:]
        self.written = min(self.written, keep)

    def tail_bytes(self) -> tuple[int, bytes]:
        """Position at which the file ends, and the bytes that must be written there."""
        start = self.written
        parts = [_TIME_ENTRY.pack(self.timestamps[i], self.offsets[i]) for i in range(start, len(self.offsets))]
        return start * TIME_ENTRY_BYTES, b"".join(parts)


class Hole(NamedTuple):
    """A range of a segment that is not what was written, between intact batches."""

    position: int
    end: int
    """Position after the hole."""
    offset: int
    """First missing offset."""
    next_offset: int


class Holes(tuple[Hole, ...]):
    """Holes of one segment, in order."""

    __slots__ = ()

    def ending_at(self, position: int) -> Hole | None:
        """Return the hole that ends at `position`, or None."""
        return next((hole for hole in self if hole.end == position), None)

    def out_of(self, position: int) -> int:
        """Return the end of the hole that contains `position`, as an index entry may point there; else `position`."""
        # rule B19/what-stands-in-a-hole-is-a-batch
        return next((hole.end for hole in self if hole.position <= position < hole.end), position)

    def around(self, offset: int) -> Hole | None:
        """Return the hole in which the record at `offset` was, or None."""
        return next((hole for hole in self if hole.offset <= offset < hole.next_offset), None)

    def offset_after(self, offset: int) -> int:
        """Return the start offset of the next hole from `offset` on; a number beyond all offsets if there is none."""
        return next((hole.offset for hole in self if hole.offset >= offset), 1 << 63)
