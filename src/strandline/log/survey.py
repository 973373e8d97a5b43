"""Reading a whole segment of a log in use, off the event loop and in small steps, to find what is not what was
written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from strandline.log.batch import HEADER_SIZE, parse_header
from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.epochs import intact_end
from strandline.log.partition_log import PartitionLog
from strandline.log.segment import Hole, Segment, pread_blocking
from strandline.proto.errors import KafkaError

STEP_BYTES = 256 << 10
"""Read and checked at once: a fraction of a millisecond of the event loop, whatever the batches are."""

Pace = Callable[[int], Awaitable[None]]
"""Called before so many bytes are read; returns when they may be."""


class Gone(Exception):
    """The segment was deleted, cut or replaced meanwhile."""


class Survey:
    """Of one segment, as far as it was written when the survey began."""

    def __init__(self, log: PartitionLog, segment: Segment, pace: Pace) -> None:
        self._log = log
        self._segment = segment
        self._pace = pace
        self._end = segment.size
        self._end_offset = self._following_offset()

    def _following_offset(self) -> int:
        later = [base for base in self._log.bases if base > self._segment.base_offset]
        return min(later) if later else int(self._log.log_end_offset)

    async def holes(self) -> list[Hole]:
        """What is not what was written. Raises DiskError; Gone where the segment is not what it was."""
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
        """The size of the batch that begins here, as far as it says so."""
        try:
            size = parse_header(data).size
        except KafkaError:
            return 0
        return size if size <= BATCH_BYTES_MAX else 0

    async def _hole(self, position: int, offset: int, data: bytes) -> Hole:
        """How far the damage goes: to the batch behind the one that is damaged, if its header tells where that is; else
        to the next one that the index names; else to the end. Nothing else that looks like a batch is believed: the
        value of a record may hold batches."""
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
        """(position, last offset) of the batches behind `position` that the index names."""
        segment = self._segment
        try:
            index, _ = segment.load_indexes(pread_blocking)
        except KafkaError:  # they were to be built anew, and that met the damage
            return []
        self._log.cache.touch(segment)
        pairs = zip(index.positions, index.offsets, strict=True)
        return [(at, segment.base_offset + last) for at, last in pairs if position < at < self._end]

    async def _stands(self, position: int, offset: int) -> bool:
        """A whole batch of this base offset stands here."""
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
