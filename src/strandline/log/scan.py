"""Reading a segment whose content is not trusted: batch after batch with every check, until it stops making sense."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from strandline.log.batch import HEADER_SIZE, BatchHeader, BatchJudge, check_content
from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.disk import File
from strandline.proto.errors import KafkaError

_CHUNK_BYTES = 1 << 20


class ScannedBatch(NamedTuple):
    """A valid batch."""

    position: int
    header: BatchHeader
    data: memoryview
    """Bytes that were verified."""


class Damage(NamedTuple):
    """Position at which a log stops being valid; everything before it is."""

    position: int
    offset: int
    """Offset that should have come next."""
    reason: str


def scan_batches(file: File, offset: int, epoch: int) -> Iterator[ScannedBatch | Damage]:
    """Yield the valid batches from `offset` on, of epochs not below `epoch`; then a Damage, if anything but zeros
    follows.

    Zeros up to the end are preallocation. Raises DiskError.
    """
    size = file.size()
    window = Window(file)
    judge = BatchJudge(offset, epoch)
    position = 0
    while position < size:
        header = None
        try:
            header = judge.header(window.get(position, HEADER_SIZE), 0, size - position)
            judge.check_place(header)
            data = window.get(position, header.size)
            check_content(header, data)
        except KafkaError as error:
            if header is not None or not only_zeros(file, position, size):
                yield Damage(position, judge.offset, error.message)
            return
        yield ScannedBatch(position, header, data)
        judge.follow(header)
        position += header.size


class Window:
    """A file read forward in large steps."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = memoryview(b"")

    def get(self, position: int, size: int) -> memoryview:
        """Return `size` bytes at `position`; fewer only at the end of the file."""
        start = position - self._start
        if start < 0 or start + size > len(self._data):
            self._data = memoryview(self._file.pread(max(size, _CHUNK_BYTES), position))
            self._start = position
            start = 0
        return self._data[start : start + size]


def only_zeros(file: File, position: int, size: int) -> bool:
    """True if the file has only zeros from `position` to `size`: nothing was ever written there."""
    while position < size:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        if not chunk or chunk.count(0) != len(chunk):
            return not chunk
        position += len(chunk)
    return True


def written_end(file: File, position: int) -> int:
    """Return the position after the last nonzero byte from `position` on; `position` if there is none."""
    size = file.size()
    end = position
    while position < size:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        if not chunk:
            break
        if chunk.count(0) != len(chunk):
            end = position + len(chunk.rstrip(b"\0"))
        position += len(chunk)
    return end


def find_batch_after(file: File, position: int, offset: int) -> tuple[int, int] | None:
    """Return (position, base offset) of a valid batch after `position` with an offset above `offset`; None if there is
    none.

    Batch boundaries may be lost with the damage, so a batch may begin at every byte. Candidates are found by the look
    of a
    header: the upper half of the offset, a length up to the largest batch's, the magic.
    """
    size = file.size()
    upper_half = re.escape((max(offset, 0) >> 32).to_bytes(4, "big"))
    longest = re.escape(bytes([BATCH_BYTES_MAX - 1 >> 24]))
    pattern = re.compile(b"(?=" + upper_half + rb"[\s\S]{4}[\x00-" + longest + rb"][\s\S]{3}[\s\S]{4}\x02)")
    position += 1
    while position + HEADER_SIZE <= size:
        chunk = file.pread(_CHUNK_BYTES, position)
        if chunk.count(0) != len(chunk):
            for match in pattern.finditer(chunk):
                at = position + match.start()
                base_offset = _batch_at(file, at, offset, size)
                if base_offset is not None:
                    return at, base_offset
        position += max(1, len(chunk) - HEADER_SIZE)
    return None


def _batch_at(file: File, position: int, offset: int, size: int) -> int | None:
    try:
        judge = BatchJudge(offset + 1, gaps=True)
        header = judge.header(file.pread(HEADER_SIZE, position), 0, size - position)
        judge.check_place(header)
        check_content(header, file.pread(header.size, position))
    except KafkaError:
        return None
    return header.base_offset
