"""Record batches (magic 2) by a parser of the checkers' own: what the product's get wrong must not hide itself.

The format is Kafka's (KIP-98). A batch that no compaction has been over holds as many records as it spans offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import cramjam
from crc32c import crc32c

HEADER_BYTES = 61
_HEADER = Struct(">qiibIhiqqqhii")
_BEFORE_THE_LENGTH_COUNTS = 12
_CRC_COVERS_FROM = 21
_MAGIC = 2
_CODEC = 0x07
_DECOMPRESS = {1: cramjam.gzip.decompress, 3: cramjam.lz4.decompress, 4: cramjam.zstd.decompress}
"""Decompressors of the codecs that simulated clients use, by the codec's number in a batch's attributes."""
_LONGEST_VARINT = 10


class NotABatch(Exception):
    """The bytes are no batch, or a part of one, or one whose bytes have changed."""


class StoredRecord(NamedTuple):
    """A record in a stored batch."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch on a disk."""

    base_offset: int
    size: int
    """Bytes of the batch, header included."""
    leader_epoch: int
    crc: int
    count: int
    """Number of its records."""
    span: int
    """Number of its offsets."""

    @property
    def is_whole(self) -> bool:
        """True if compaction took nothing of the batch."""
        return self.count == self.span

    @property
    def next_offset(self) -> int:
        """First offset after it."""
        return self.base_offset + self.span

    @property
    def last_offset(self) -> int:
        """Last offset of the batch, of which there need be no record any more."""
        return self.base_offset + self.span - 1


def parse(head: bytes) -> StoredBatch:
    """The batch that begins with these 61 bytes. Raises NotABatch."""
    if len(head) < HEADER_BYTES:
        raise NotABatch(f"{len(head)} bytes are no header")
    base, length, epoch, magic, crc, _, last_delta, *_, count = _HEADER.unpack(head[:HEADER_BYTES])
    if magic != _MAGIC or base < 0 or epoch < -1:
        raise NotABatch(f"magic {magic}, base offset {base}, leader epoch {epoch}")
    if length < HEADER_BYTES - _BEFORE_THE_LENGTH_COUNTS or not 0 <= count <= last_delta + 1:
        raise NotABatch(f"{count} records over {last_delta + 1} offsets in {length} bytes, at offset {base}")
    return StoredBatch(base, length + _BEFORE_THE_LENGTH_COUNTS, epoch, crc, count, last_delta + 1)


def verify(batch: StoredBatch, content: bytes) -> None:
    """Check that a batch is complete and unchanged since it was written. Raises NotABatch."""
    if len(content) < batch.size:
        raise NotABatch(f"{len(content)} of {batch.size} bytes are there, at offset {batch.base_offset}")
    found = crc32c(memoryview(content)[_CRC_COVERS_FROM : batch.size])
    if found != batch.crc:
        raise NotABatch(f"the CRC is {found:#010x} and should be {batch.crc:#010x}, at offset {batch.base_offset}")


def records(batch: StoredBatch, content: bytes) -> list[StoredRecord]:
    """Records of a batch, in the order of their offsets; of a whole batch each has the offset that its place says.

    Raises:
        NotABatch: other records are inside than its header says.
    """
    body = content[HEADER_BYTES : batch.size]
    codec = content[_CRC_COVERS_FROM + 1] & _CODEC
    if codec and codec not in _DECOMPRESS:
        raise NotABatch(f"codec {codec} is not one that is used here, at offset {batch.base_offset}")
    if codec:
        body = bytes(_DECOMPRESS[codec](body))
    found: list[StoredRecord] = []
    position, least = 0, 0
    for number in range(batch.count):
        length, start = _varint(body, position)
        position = start + length
        delta, key, value = _record(body, start)
        follows = delta == number if batch.is_whole else least <= delta < batch.span
        if not follows or length < 0 or position > len(body):
            raise NotABatch(f"record {number} of the batch at offset {batch.base_offset} has offset delta {delta}")
        least = delta + 1
        found.append(StoredRecord(batch.base_offset + delta, key, value))
    if position != len(body):
        raise NotABatch(f"{len(body) - position} bytes follow the records of the batch at offset {batch.base_offset}")
    return found


def _record(body: bytes, position: int) -> tuple[int, bytes | None, bytes | None]:
    """Offset delta, key and value of a record."""
    _, position = _varint(body, position + 1)  # attributes; timestamp delta
    delta, position = _varint(body, position)
    key_bytes, position = _varint(body, position)
    key = None if key_bytes < 0 else body[position : position + key_bytes]
    value_bytes, position = _varint(body, position + max(0, key_bytes))
    return delta, key, None if value_bytes < 0 else body[position : position + value_bytes]


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and where what follows it begins."""
    raw = shift = 0
    for at in range(position, min(position + _LONGEST_VARINT, len(body))):
        raw |= (body[at] & 0x7F) << shift
        shift += 7
        if body[at] < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + 1
    raise NotABatch(f"no number ends within {len(body)} bytes of records")
