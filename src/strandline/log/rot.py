"""Rot: parts of a log on the disk that are not what was written (schedule 80).

`SegmentScrub` finds them: it reads a whole segment of a log in use, off the event loop and in small steps. `Rot` keeps
the holes that were found, and mends them with the batches of another replica. Only the useless bytes of a hole are
overwritten. So a log loses nothing if mending is interrupted: its end, its epochs and all its other batches stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from strandline.log.batch import HEADER_SIZE, parse_header
from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.disk import DiskError
from strandline.log.epochs import intact_end
from strandline.log.log_state import LogState
from strandline.log.segment import Hole, Holes, Segment, pread_blocking
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.marks import mark

STEP_BYTES = 256 << 10
"""Bytes read and checked at once: a fraction of a millisecond of the event loop, whatever the batches are."""

Pace = Callable[[int], Awaitable[None]]
"""Function that is awaited before a number of bytes is read; it returns when they may be read."""


class Rot:
    """Damage of one log: segments in which a read met some, and the holes of scrubbed segments."""

    __slots__ = ("_log", "_rotten", "suspects", "unsynced")

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._rotten: dict[Segment, None] = {}
        self.suspects: dict[Segment, None] = {}
        """Segments that must be scrubbed."""
        self.unsynced: dict[Segment, None] = {}
        """Segments with mended holes that are not known to be durable."""

    def __bool__(self) -> bool:
        """True if some of the log's records may be damaged, or mended but not durable."""
        return bool(self.suspects or self.unsynced) or (bool(self._rotten) and any(True for _ in self.holes()))

    def suspect(self, path: str, position: int) -> None:
        """Record that a read met damage in this file, at this position."""
        for segment in self._log.segments:
            known = any(hole.position <= position < hole.end for hole in segment.holes)
            if segment.file.path == path and not known:
                self.suspects[segment] = None

    def scrubbed(self, segment: Segment, holes: list[Hole]) -> None:
        """Set all the holes of a segment, as a scrub found them."""
        self.suspects.pop(segment, None)
        segment.holes = Holes(holes)
        if holes:
            self._rotten[segment] = None

    def forget(self, segment: Segment) -> None:
        """Forget a segment that is no longer part of the log."""
        self.suspects.pop(segment, None)
        self.unsynced.pop(segment, None)
        self._rotten.pop(segment, None)

    def holes(self) -> Iterator[tuple[Segment, Hole]]:
        """Yield the holes in the present log, oldest first."""
        log = self._log
        for segment in sorted(self._rotten, key=lambda segment: segment.base_offset):
            if segment not in log.segments:
                self.forget(segment)
                continue
            for hole in segment.holes:
                if hole.next_offset > log.log_start_offset:  # rule B19/holes-outlive-their-records
                    yield segment, hole

    def before_cut(self, offset: int) -> tuple[Segment, Hole] | None:
        """Return a hole that has records before `offset`, or None. It must be healed before the log is cut there
        (schedule 88): no cut may land inside of it, and the producers that remain after a cut are read from the log.
        """
        # schedule 88/producers-in-a-hole-are-forgotten
        return next((found for found in self.holes() if found[1].offset < offset), None)

    def mend(self, segment: Segment, hole: Hole, batches: memoryview) -> Hole | None:
        """Overwrite a hole, from its beginning on, with batches of another replica of the same leader epochs. Batches
        after the hole are ignored. Return the rest of the hole, or None.

        Raises:
            KafkaError: CORRUPT_MESSAGE for batches that do not belong there or do not fit; nothing was written.
                KAFKA_STORAGE_ERROR.
            StorageError: the disk failed; the log is fenced from now on.
        """
        log = self._log
        # rule B19/whatever-comes-fills-the-hole
        size, offset = intact_end(batches, hole.offset, log.epochs, log.log_start_offset, hole.next_offset)
        room = hole.end - hole.position
        fits = 0 < size <= room and (offset == hole.next_offset) == (size == room)
        # rule B19/holes-of-former-segments-are-filled
        if not fits or hole not in segment.holes or segment not in log.segments:  # its name may be another's by now
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                "the leader's batches do not fit where these have rotted",
                offset=hole.offset,
                next_offset=hole.next_offset,
                bytes_there=room,
                bytes_come=size,
            )
        mark("rot-mended")
        try:
            segment.file.pwrite(batches[:size], hole.position)
        except DiskError as error:
            raise log.disk_failed(error) from error
        log.unsynced.add(segment.file)
        self.unsynced[segment] = None
        left = None if size == room else Hole(hole.position + size, hole.end, offset, hole.next_offset)
        kept = tuple(left if one == hole else one for one in segment.holes)
        segment.holes = Holes(one for one in kept if one is not None)
        return left


class Gone(Exception):
    """The segment was deleted, cut or replaced meanwhile."""


class SegmentScrub:
    """Reads one segment, up to its size when the scrub began, and finds bytes that are not those that were written."""

    def __init__(self, log: LogState, segment: Segment, pace: Pace) -> None:
        self._log = log
        self._segment = segment
        self._pace = pace
        self._end = segment.size
        self._end_offset = self._following_offset()

    def _following_offset(self) -> int:
        later = [base for base in self._log.bases if base > self._segment.base_offset]
        return min(later) if later else int(self._log.log_end_offset)

    async def holes(self) -> list[Hole]:
        """Return the holes of the segment; read again if one was mended meanwhile. Raises DiskError; Gone if the
        segment has changed."""
        while True:
            known = self._segment.holes
            found = await self._pass()
            if self._segment.holes is known:  # rule B19/holes-mended-meanwhile-are-found
                return found

    async def _pass(self) -> list[Hole]:
        holes: list[Hole] = []
        position, offset = 0, self._segment.base_offset
        while position < self._end:
            data = await self._read(STEP_BYTES, position)
            size, following = self._intact(data, offset)
            if not size and self._announced(data) > len(data):
                size, following = self._intact(await self._read(self._announced(data), position), offset)
            if size:
                position, offset = position + size, following
                continue
            hole = await self._hole(position, offset, data)
            holes.append(hole)
            position, offset = hole.end, hole.next_offset
        return holes

    def _intact(self, data: bytes, offset: int) -> tuple[int, int]:
        log = self._log
        return intact_end(data, offset, log.epochs, log.log_start_offset, self._end_offset)

    @staticmethod
    def _announced(data: bytes) -> int:
        """Return the size of the batch that begins here, by its header; 0 if the header is invalid."""
        try:
            size = parse_header(data).size
        except KafkaError:
            return 0
        return size if size <= BATCH_BYTES_MAX else 0

    async def _hole(self, position: int, offset: int, data: bytes) -> Hole:
        """Find the end of the damage: the batch after the damaged one, if its header gives that position; else the next
        batch that the index names; else the end. Other bytes that look like a batch are not believed, as a record's
        value may hold batches."""
        size = self._announced(data)
        if size and position + size < self._end:
            following = parse_header(data).next_offset
            if following < self._end_offset and await self._stands(position + size, following):
                return Hole(position, position + size, offset, following)
        for entry_position, last_offset in self._entries(position):
            header = await self._read(HEADER_SIZE, entry_position)
            try:
                found = parse_header(header)
            except KafkaError:
                continue
            named = found.last_offset == last_offset and found.base_offset > offset
            if named and await self._stands(entry_position, found.base_offset):
                return Hole(position, entry_position, offset, found.base_offset)
        return Hole(position, self._end, offset, self._end_offset)

    def _entries(self, position: int) -> list[tuple[int, int]]:
        """Return (position, last offset) of the batches after `position` that the index names."""
        segment = self._segment
        try:
            index, _ = segment.load_indexes(pread_blocking)
        except KafkaError:  # the indexes had to be built anew, which met the damage
            return []
        self._log.cache.touch(segment)
        pairs = zip(index.positions, index.offsets, strict=True)
        return [(at, segment.base_offset + last) for at, last in pairs if position < at < self._end]

    async def _stands(self, position: int, offset: int) -> bool:
        """True if a whole batch with this base offset is at the position."""
        data = await self._read(HEADER_SIZE, position)
        size = self._announced(data)
        return bool(size) and bool(self._intact(await self._read(size, position), offset)[0])

    async def _read(self, size: int, position: int) -> bytes:
        size = min(size, self._end - position)
        await self._pace(size)
        self._check()
        data = await self._log.disk.pread_cold(self._segment.file, size, position)
        self._check()
        return data

    def _check(self) -> None:
        segment, log = self._segment, self._log
        cut = segment.size < self._end or log.log_end_offset < self._end_offset
        if log.failure is not None or cut or segment not in log.segments:
            raise Gone
