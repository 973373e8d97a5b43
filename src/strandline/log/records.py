"""The records inside a batch: Kafka's v2 encoding.

The work is done by a compiled codec (`_records.c`) where the installation could build it, else by its twin in Python
(`records_python.py`), which is about ten times slower and means the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from strandline.log.batch import (
    CREATE_TIME,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    assemble_batch,
    parse_header,
)
from strandline.log.compression import MAX_DECOMPRESSED_BYTES, Codec, decompress
from strandline.log.records_python import INT64, decode_varint, encode_varint
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

try:
    from strandline.log._records import append, check, columns, decode

    COMPILED = True
except ImportError:  # there was no compiler at the installation
    from strandline.log.records_python import append, check, columns, decode

    COMPILED = False
"""Whether the compiled codec is in use."""

T = TypeVar("T", bound=tuple[object, ...])

Headers = Sequence[tuple[str, bytes | None]]

RECORD_OVERHEAD_BYTES = 21
"""The most that one record adds beside key, value and headers: five varints, attributes and the header count."""


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class RecordBatchBuilder:
    """Collects records into one batch. `size_bytes` is the size of that batch before compression, header included."""

    __slots__ = ("_base_timestamp", "_codec", "_max_timestamp", "_records", "count", "size_bytes")

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self._codec = codec
        self._records = bytearray()
        self._base_timestamp = 0
        self._max_timestamp = -1
        self.count = 0
        self.size_bytes = HEADER_SIZE

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Add one record after the others."""
        count = self.count
        if count == 0:
            self._base_timestamp = timestamp_ms
        self._max_timestamp = max(self._max_timestamp, timestamp_ms)
        self.size_bytes += append(self._records, timestamp_ms - self._base_timestamp, count, key, value, headers)
        self.count = count + 1

    def build(
        self,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        timestamp_type: int = CREATE_TIME,
    ) -> bytearray:
        """The whole batch. Raises ValueError when nothing was appended."""
        if not self.count:
            raise ValueError("a batch holds at least one record")
        return assemble_batch(
            self._records,
            count=self.count,
            last_offset_delta=self.count - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            control=control,
            timestamp_type=timestamp_type,
        )


def encode_records(records: Iterable[Record], *, base_offset: int, base_timestamp: int) -> bytearray:
    """The body of a batch that holds these records, at their own offsets: there may be gaps between them."""
    body = bytearray()
    for offset, timestamp_ms, key, value, headers in records:
        append(body, timestamp_ms - base_timestamp, offset - base_offset, key, value, headers)
    return body


_PLAIN = (None,) * 5
_IN_ORDER = (0, 1, 2, 3, 4)


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = CREATE_TIME,
) -> bytearray:
    """A batch of `records` in their order; their own offsets are not looked at (they become base_offset + 0, 1, 2...).

    Raises ValueError when there is no record.
    """
    builder = RecordBatchBuilder(codec)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value, record.headers)
    return builder.build(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        timestamp_type=timestamp_type,
    )


def decode_records(batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """Every record of this one whole batch. The CRC is not checked (`verify_crc` does that).

    Raises:
        KafkaError: CORRUPT_MESSAGE or INVALID_RECORD for records that do not parse or a count that is not theirs;
            MESSAGE_TOO_LARGE for data that unpack to more than `max_bytes`; UNSUPPORTED_COMPRESSION_TYPE.
    """
    return decode_records_as(Record, _PLAIN, _IN_ORDER, parse_header(batch), batch, max_bytes)


def decode_records_as(
    kind: type[T],
    template: tuple[object, ...],
    slots: tuple[int, ...],
    header: BatchHeader,
    batch: Buffer,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[T]:
    """The records as instances of a named tuple of one's own: `template` holds its items, and at `slots` stand offset,
    timestamp, key, value and headers of each record. Raises as `decode_records`.
    """
    data = unpacked(header, batch, max_bytes)
    fixed_timestamp = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    try:
        records, position = decode(
            data, header.count, header.base_offset, header.base_timestamp, fixed_timestamp, kind, template, slots
        )
    except ValueError as error:
        raise unreadable(header, error) from error
    if position != len(data):
        raise left_over(len(data) - position)
    return records


def decode_columns(
    arrays: tuple[bytearray, ...],
    header: BatchHeader,
    batch: Buffer,
    low: int,
    high: int,
    *,
    with_headers: bool,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> int:
    """Append a batch's records with offsets in [low, high) to columns (`strandline.log.columns`); how many they are.

    Raises as `decode_records`; the columns are then as they were.
    """
    data = unpacked(header, batch, max_bytes)
    fixed_timestamp = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    try:
        rows, position = columns(
            arrays, data, header.count, base_offset, base_timestamp, fixed_timestamp, low, high, with_headers
        )
    except ValueError as error:
        raise unreadable(header, error) from error
    if position != len(data):
        raise left_over(len(data) - position)
    return rows


def check_records(header: BatchHeader, batch: Buffer, max_bytes: int) -> None:
    """Whether every reader will be able to read this batch: its records parse, are as many as the header says, and are
    numbered without gaps, as a producer's are.

    Raises:
        KafkaError: INVALID_RECORD; MESSAGE_TOO_LARGE when the records unpack to more than `max_bytes`.
    """
    try:
        data = unpacked(header, batch, max_bytes)
    except KafkaError as error:
        if error.code is ErrorCode.CORRUPT_MESSAGE:  # the CRC held: sending it again cannot help
            raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from error
        raise
    try:
        position = check(data, header.count)
    except ValueError as error:
        raise unreadable(header, error) from error
    if position != len(data):
        raise left_over(len(data) - position)


def unpacked(header: BatchHeader, batch: Buffer, max_bytes: int) -> bytes | memoryview:
    """The records of a batch, out of their codec. Raises KafkaError as `decompress`."""
    packed = memoryview(batch)[HEADER_SIZE : header.size]
    codec = header.codec
    return decompress(codec, packed, max_bytes) if codec else packed


def shift_timestamps(records: Buffer, count: int, by_ms: int) -> bytearray:
    """The records of a batch whose base timestamp becomes later by so much: at their times, as they were.

    Raises:
        ValueError: they do not parse.
        OverflowError: a record's time is too far from the new base timestamp.
    """
    data = bytes(records)
    decode(data, count, 0, 0, None, Record, _PLAIN, _IN_ORDER)
    shifted, position = bytearray(), 0
    for _ in range(count):
        size, start = decode_varint(data, position)
        position = start + size
        delta, behind = decode_varint(data, start + 1)
        if delta - by_ms not in INT64:
            raise OverflowError(f"a time that is {delta - by_ms} ms from its batch's")
        body = data[start : start + 1] + encode_varint(delta - by_ms) + data[behind:position]
        shifted += encode_varint(len(body))
        shifted += body
    return shifted


def unreadable(header: BatchHeader, error: Exception) -> KafkaError:
    """The error for records that do not parse, by what the codec says."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"a record does not parse: {error}", base_offset=header.base_offset)


def left_over(size: int) -> KafkaError:
    """The error for bytes that are no record."""
    return KafkaError(ErrorCode.INVALID_RECORD, "bytes left after the last record", bytes_left=size)
