"""Reading a segment whose content is not trusted: batch after batch with every check, until it stops making sense."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from strandline.log.batch import HEADER_SIZE, BatchHeader, parse_header, verify_crc
from strandline.log.disk import File
from strandline.proto.errors import KafkaError

_CHUNK_BYTES = 1 << 20


class ScannedBatch(NamedTuple):
    """A batch that holds."""

    position: int
    header: BatchHeader
    data: memoryview
    """The bytes that were verified."""


class Damage(NamedTuple):
    """Where a log stops making sense; everything before holds."""

    position: int
    offset: int
    """The offset that should have come next."""
    reason: str


def scan_batches(file: File, offset: int, epoch: int) -> Iterator[ScannedBatch | Damage]:
    """The batches from `offset` on, of epochs not below `epoch`; ends with a Damage if anything but zeros follows them.

    Zeros to the end are preallocation. Raises DiskError.
    """
    size = file.size()
    window = Window(file)
    position = 0
    while position < size:
        try:
            header = parse_header(window.get(position, HEADER_SIZE))
        except KafkaError as error:
            if not only_zeros(file, position, size):
                yield Damage(position, offset, f"there is no batch ({error.message})")
            return
        reason = ""
        if position + header.size > size:
            reason = f"a batch of {header.size} bytes reaches beyond the file's end"
        elif header.base_offset != offset:  # rule E5/recovery-skips-offsets
            reason = f"a batch of offset {header.base_offset} stands where {offset} must follow"
        elif header.leader_epoch < epoch:  # rule E5/recovery-takes-older-epochs
            reason = f"the leader epoch goes back from {epoch} to {header.leader_epoch}"
        else:
            data = window.get(position, header.size)
            try:
                verify_crc(data)  # rule E5/recovery-believes-every-byte
            except KafkaError as error:
                reason = error.message
        if reason:
            yield Damage(position, offset, reason)
            return
        yield ScannedBatch(position, header, data)
        offset = header.next_offset
        epoch = header.leader_epoch
        position += header.size


class Window:
    """A file read forward in large steps."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = memoryview(b"")

    def get(self, position: int, size: int) -> memoryview:
        """`size` bytes at `position`, fewer at the end of the file."""
        start = position - self._start
        if start < 0 or start + size > len(self._data):
            self._data = memoryview(self._file.pread(max(size, _CHUNK_BYTES), position))
            self._start = position
            start = 0
        return self._data[start : start + size]


def only_zeros(file: File, position: int, size: int) -> bool:
    """Whether nothing was ever written from `position` on."""
    while position < size:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        if not chunk or chunk.count(0) != len(chunk):
            return not chunk
        position += len(chunk)
    return True


def written_end(file: File, position: int) -> int:
    """The position after the last byte from `position` on that is not zero; `position` if there is none."""
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
    """(position, base offset) of a batch beyond `position` that holds its CRC and is later than `offset`; None if none.

    Boundaries may be lost with the damage, so every byte may begin a batch; candidates are found by what a header must
    look like: the upper half of the offset, a length below 256 MiB, the magic.
    """
    size = file.size()
    pattern = re.compile(
        b"(?=" + re.escape((offset >> 32).to_bytes(4, "big")) + rb"[\s\S]{4}[\x00-\x0f][\s\S]{3}[\s\S]{4}\x02)"
    )
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
        header = parse_header(file.pread(HEADER_SIZE, position))
        if header.base_offset <= offset or position + header.size > size:
            return None
        verify_crc(file.pread(header.size, position))
    except KafkaError:
        return None
    return header.base_offset
