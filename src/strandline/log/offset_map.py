"""Map from each key to the offset of its last record, in bounded memory: the state of a compaction pass over a log.

The map is compiled (`_offsets.c`) if the installation could build it. Otherwise its Python twin is used, which is about
thirty times slower, takes five times the memory for a key, and gives the same results.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from strandline.log.batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    parse_header,
)
from strandline.log.records_python import INT32_MAX, INT64, RECORD_BYTES_MIN, decode_headers, decode_varint
from strandline.proto.errors import KafkaError

SECRET_BYTES = 16
_ENTRY_BYTES = 192
"""Largest memory of one key here: its object (64 bytes), its offset (32), and its place in the dict, which exists
twice while it grows. The compiled map takes 42 bytes: a hash of 16 bytes and an offset, in an array that is never full
and exists twice, too. (Kafka's takes 27.)"""

_DIGEST_BYTES = 16

_LENGTH = struct.Struct(">i")
_MAX_TIMESTAMP = struct.Struct(">q")
_COUNT = struct.Struct(">i")
_CRC = struct.Struct(">I")

Checksum = Callable[[Buffer], int]
"""Type of a function that computes CRC-32C, which the standard library does not have."""

Stays = Literal[True] | bytes | None
"""Verdict on one batch: True: it stays unchanged; bytes: the batch that replaces it; None: it is removed."""


class OffsetMap(Protocol):
    """Map from a key to the offset of its last record.

    The map keeps a digest of 16 bytes for each key, made with a random secret. Of two keys with the same digest, one
    would be lost. Without the secret such a pair cannot be constructed, and by chance it takes some 2^64 keys.

    Attributes:
        keys_max: maximum number of keys.
    """

    @property
    def keys_max(self) -> int: ...

    def __len__(self) -> int: ...

    def has_room(self, keys: int, /) -> bool:
        """True if `keys` more keys fit, even if all of them are new."""

    def put(self, key: bytes, offset: int, /) -> None:
        """Record that the latest record of `key` is at `offset`. Raises MemoryError if the map is full."""

    def latest(self, key: bytes, /) -> int:
        """Return the offset of the key's last record; -1 if there is none."""

    def note(self, records: Buffer, position: int, count: int, base_offset: int, base_timestamp: int, /) -> int:
        """Put the keys of `count` records of one batch, the first of which begins at `position`. Return the position
        after the last one.

        Raises:
            ValueError: a record does not parse; the keys of the records before it are in the map.
        """

    def keep(
        self,
        out: bytearray,
        records: Buffer,
        position: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        tombstones_go: bool,
        /,
    ) -> tuple[int, int, int, int, int]:
        """Append to `out` those of `count` records that stay, unchanged: records without a key, and the latest of each
        key.

        Returns:
            position after the records; number of records that stay; number of those without a value; number of removed
            tombstones that were the latest of their key (0 unless `tombstones_go`); largest timestamp of the records
            that stay, -(2^63) if none does.

        Raises:
            ValueError: a record does not parse; the contents of `out` are undefined.
        """

    def note_batches(
        self,
        data: Buffer,
        position: int,
        offset: int,
        first_dirty: int,
        until: int,
        count_max: int,
        crc32c: Checksum,
        /,
    ) -> tuple[int, int]:
        """Put the keys of a run of batches, from the byte `position` on, where `offset` begins; the run takes batches
        that begin below the position `until`. Batches that end below `first_dirty` are skipped.

        The run ends before a batch that it does not handle: one that does not follow, is not whole, fails its CRC or
        does not parse; one that is compressed, a marker, or part of a transaction; one whose keys do not fit, or that
        has more records than are left of `count_max`. Some keys of that batch may be in the map already; they are put
        again with it.

        Returns:
            position and offset after the run.
        """

    def keep_batches(
        self, data: Buffer, position: int, offset: int, until: int, count_max: int, crc32c: Checksum, /
    ) -> tuple[int, int, list[Stays]]:
        """Return verdicts on the batches of a run (see `note_batches`). An empty batch does not stay.

        The run ends before any batch at which `note_batches` ends, before one with a delete horizon (KIP-534), and
        before one with a tombstone that stays, as its delete horizon has to be set.

        Returns:
            position and offset after the run, and a verdict for each of its batches.
        """


class PythonOffsetMap:
    """`OffsetMap` in Python, for installations without the compiled one."""

    __slots__ = ("_offsets", "_secret", "keys_max")

    def __init__(self, buffer_bytes: int, secret: bytes) -> None:
        self.keys_max = max(1, buffer_bytes // _ENTRY_BYTES)
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, keys: int, /) -> bool:
        return len(self._offsets) + keys <= self.keys_max  # rule B20/a-full-map-takes-more

    def put(self, key: bytes, offset: int, /) -> None:
        digest = self._digest(key)
        if digest not in self._offsets and not self.has_room(1):
            raise MemoryError("the map is full")
        self._offsets[digest] = offset

    def latest(self, key: bytes, /) -> int:
        return self._offsets.get(self._digest(key), -1)

    def note(self, records: Buffer, position: int, count: int, base_offset: int, base_timestamp: int, /) -> int:
        for found in _walk(records, position, count, base_offset, base_timestamp):
            if found.key is not None:
                self.put(found.key, found.offset)
            position = found.end
        return position

    def keep(
        self,
        out: bytearray,
        records: Buffer,
        position: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        tombstones_go: bool,
        /,
    ) -> tuple[int, int, int, int, int]:
        kept = tombstones = gone = 0
        newest = INT64.start
        for found in _walk(records, position, count, base_offset, base_timestamp):
            if found.key is None or found.offset >= self.latest(found.key):  # rule B20/the-last-record-goes
                if tombstones_go and found.is_null and found.key is not None:
                    gone += 1
                else:
                    kept += 1
                    tombstones += found.is_null
                    newest = max(newest, found.timestamp)
                    out += records[position : found.end]
            position = found.end
        return position, kept, tombstones, gone, newest

    def note_batches(
        self,
        data: Buffer,
        position: int,
        offset: int,
        first_dirty: int,
        until: int,
        count_max: int,
        crc32c: Checksum,
        /,
    ) -> tuple[int, int]:
        while position < until and (header := _whole(data, position, offset, crc32c)) is not None:
            if header.next_offset > first_dirty and is_of_a_transaction(header):
                break
            if header.next_offset > first_dirty and header.count:
                if header.attributes & CODEC_MASK or header.count > count_max or not self.has_room(header.count):
                    break
                try:
                    for found in _walk_batch(data, position, header):
                        if found.key is not None:
                            self.put(found.key, found.offset)
                except ValueError:
                    break
                count_max -= header.count
            position, offset = position + header.size, header.next_offset
        return position, offset

    def keep_batches(
        self, data: Buffer, position: int, offset: int, until: int, count_max: int, crc32c: Checksum, /
    ) -> tuple[int, int, list[Stays]]:
        all_stay: list[Stays] = []
        while position < until and (header := _whole(data, position, offset, crc32c)) is not None:
            if is_of_a_transaction(header):
                break
            if not header.count:
                all_stay.append(None)
            elif header.attributes & ~TIMESTAMP_TYPE_BIT or header.count > count_max:
                break
            else:
                try:
                    found = [*_walk_batch(data, position, header)]
                except ValueError:
                    break
                stay = [one for one in found if one.key is None or one.offset >= self.latest(one.key)]
                if any(one.is_null for one in stay):  # rule B20/a-run-begins-no-horizon
                    break
                batch = memoryview(data)[position : position + header.size]
                all_stay.append(len(stay) == header.count or _without(batch, header, stay, crc32c))
                count_max -= header.count
            position, offset = position + header.size, header.next_offset
        return position, offset, all_stay

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()


def is_of_a_transaction(header: BatchHeader) -> bool:
    """True if the batch is part of a transaction, or a marker: whether its records count depends on other batches."""
    return header.is_control or header.is_transactional


class _Found(NamedTuple):
    start: int
    offset: int
    timestamp: int
    key: bytes | None
    is_null: bool
    end: int


def _walk(records: Buffer, position: int, count: int, base_offset: int, base_timestamp: int) -> Iterator[_Found]:
    """Yield each of `count` records of a batch. Raises ValueError if one does not parse."""
    data = bytes(records)
    total = len(data)
    if not 0 <= position <= total or not 0 <= count <= (total - position) // RECORD_BYTES_MIN:
        raise ValueError("more records announced than fit")
    for _ in range(count):
        start = position
        try:
            size, position = decode_varint(data, position)
            end = position + size
            if size < 1 or end > total:
                raise ValueError(f"a record's length that cannot be, before byte {position}")
            timestamp_delta, position = decode_varint(data, position + 1)  # behind the attributes: none are in use
            offset_delta, position = decode_varint(data, position)
            key, position = _field(data, position, end)
            value, position = _field(data, position, end)
            position = decode_headers(data, position, end)[1]
        except IndexError:
            raise ValueError(f"the data end within a record, after byte {position}") from None
        offset, timestamp = base_offset + offset_delta, base_timestamp + timestamp_delta
        if not 0 <= offset_delta <= INT32_MAX or timestamp not in INT64 or offset not in INT64:
            raise ValueError(f"an offset or a timestamp that cannot be, before byte {position}")
        if position != end:
            raise ValueError(f"a record's length is not that of its fields, which end at byte {position}")
        yield _Found(start, offset, timestamp, key, value is None, end)


def _whole(data: Buffer, position: int, offset: int, crc32c: Checksum) -> BatchHeader | None:
    """Return the header of the batch at `position`; None unless it is whole, begins at `offset` and matches its CRC."""
    left = len(data) - position
    if position < 0 or left < HEADER_SIZE:
        return None
    try:
        header = parse_header(data, position)
    except KafkaError:
        return None
    # rule B20/a-run-takes-rot
    if header.base_offset != offset or header.size > left or header.next_offset not in INT64:
        return None
    return header if crc32c(memoryview(data)[position + CRC_START : position + header.size]) == header.crc else None


def _walk_batch(data: Buffer, position: int, header: BatchHeader) -> Iterator[_Found]:
    """Yield each record of a batch. Raises ValueError if one does not parse, or bytes follow the last one."""
    batch = memoryview(data)[position : position + header.size]
    end = HEADER_SIZE
    for found in _walk(batch, HEADER_SIZE, header.count, header.base_offset, header.base_timestamp):
        end = found.end
        yield found
    if end != header.size:
        raise ValueError("bytes left after the last record")


def _without(batch: memoryview, header: BatchHeader, stay: list[_Found], crc32c: Checksum) -> bytes | None:
    """Return the batch with only the records in `stay`; None if there are none."""
    if not stay:
        return None
    out = bytearray(batch[:HEADER_SIZE])
    for found in stay:
        out += batch[found.start : found.end]
    _LENGTH.pack_into(out, 8, len(out) - OVERHEAD)
    if header.timestamp_type != LOG_APPEND_TIME:
        _MAX_TIMESTAMP.pack_into(out, 35, max(found.timestamp for found in stay))
    _COUNT.pack_into(out, 57, len(stay))
    _CRC.pack_into(out, 17, crc32c(memoryview(out)[CRC_START:]))
    return bytes(out)


def _field(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = decode_varint(data, position)
    if size < -1 or position + size > end:
        raise ValueError(f"a length that cannot be, before byte {position}")
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def new_offset_map(buffer_bytes: int) -> OffsetMap:
    """Return an empty map. `buffer_bytes`: memory that it may take (Kafka's `log.cleaner.dedupe.buffer.size`)."""
    secret = secrets.token_bytes(SECRET_BYTES)
    try:
        from strandline.log._offsets import OffsetMap as CompiledOffsetMap
    except ImportError:  # there was no compiler at the installation
        return PythonOffsetMap(buffer_bytes, secret)
    return CompiledOffsetMap(buffer_bytes, secret)
