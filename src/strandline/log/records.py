"""The records inside a batch: Kafka's v2 encoding, in pure Python and as fast as that goes.

A record is: length, attributes (0), timestamp delta, offset delta, key, value, headers; lengths and deltas are zigzag
varints, a length of -1 stands for null. Both directions are hot in clients, hence the local names and the one-byte
path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.log.batch import CREATE_TIME, HEADER_SIZE, LOG_APPEND_TIME, Buffer, assemble_batch, parse_header
from strandline.log.compression import MAX_DECOMPRESSED_BYTES, Codec, decompress
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

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


def encode_varint(value: int) -> bytes:
    """Zigzag varint of a signed integer of up to 64 bits."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    if rest < 0x80:
        return rest.to_bytes(1, "little")
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """The signed integer at `position` and the position after it. Raises IndexError at the end, ValueError beyond 64
    bits.
    """
    rest = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 64 bits")


_SMALL_MAX = 2048
_SMALL = [encode_varint(value) for value in range(_SMALL_MAX)]
_NULL = encode_varint(-1)


class RecordBatchBuilder:
    """Collects records into one batch. `size_bytes` is the size of that batch before compression, header included."""

    __slots__ = ("_base_timestamp", "_codec", "_max_timestamp", "_parts", "count", "size_bytes")

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self._codec = codec
        self._parts: list[bytes] = []
        self._base_timestamp = 0
        self._max_timestamp = -1
        self.count = 0
        self.size_bytes = HEADER_SIZE

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Add one record after the others."""
        count = self.count
        if count == 0:
            self._base_timestamp = self._max_timestamp = timestamp_ms
            delta = 0
        else:
            delta = timestamp_ms - self._base_timestamp
            self._max_timestamp = max(self._max_timestamp, timestamp_ms)
        small = _SMALL
        limit = _SMALL_MAX
        body = b"\0" + (small[delta] if 0 <= delta < limit else encode_varint(delta))
        body += small[count] if count < limit else encode_varint(count)
        if key is None:
            body += _NULL
        else:
            size = len(key)
            body += (small[size] if size < limit else encode_varint(size)) + key
        if value is None:
            body += _NULL
        else:
            size = len(value)
            body += (small[size] if size < limit else encode_varint(size)) + value
        body += _encode_headers(headers) if headers else b"\0"
        size = len(body)
        length = small[size] if size < limit else encode_varint(size)
        parts = self._parts
        parts.append(length)
        parts.append(body)
        self.count = count + 1
        self.size_bytes += size + len(length)

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
            b"".join(self._parts),
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


def _encode_headers(headers: Headers) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_varint(len(encoded)), encoded)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (encode_varint(len(value)), value)
    return b"".join(parts)


def decode_records(batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """Every record of this one whole batch. The CRC is not checked (`verify_crc` does that).

    Raises:
        KafkaError: CORRUPT_MESSAGE or INVALID_RECORD for records that do not parse, a count that is not theirs, or data
            that unpacks to more than `max_bytes`; UNSUPPORTED_COMPRESSION_TYPE.
    """
    header = parse_header(batch)
    packed = memoryview(batch)[HEADER_SIZE : header.size]
    codec = header.codec
    data = decompress(codec, packed, max_bytes) if codec else bytes(packed)
    if header.count * 7 > len(data):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            "more records announced than fit in the batch",
            count=header.count,
            bytes=len(data),
        )
    fixed_timestamp = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    try:
        records, position = _decode(data, header.count, header.base_offset, header.base_timestamp, fixed_timestamp)
    except (IndexError, ValueError) as error:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"a record does not parse: {error}", base_offset=header.base_offset
        ) from error
    if position != len(data):
        raise KafkaError(ErrorCode.INVALID_RECORD, "bytes left after the last record", bytes_left=len(data) - position)
    return records


def _decode(  # noqa: PLR0915 - unrolled on purpose
    data: bytes, count: int, base_offset: int, base_timestamp: int, fixed_timestamp: int | None
) -> tuple[list[Record], int]:
    """The hot loop: about 1 us a record. Each varint has its cases of one and two bytes written out."""
    records: list[Record] = []
    add = records.append
    new = tuple.__new__
    kind = Record
    varint = decode_varint
    position = 0
    total = len(data)
    for _ in range(count):
        if (byte := data[position]) < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            byte = byte & 0x7F | high << 7
            position += 2
        else:
            length, position = varint(data, position)
            byte = length << 1 if length >= 0 else 1
        end = position + (byte >> 1)
        if byte & 1 or end > total:
            raise ValueError(f"a record's length that cannot be, before byte {position}")
        position += 1  # attributes: none are in use
        if (byte := data[position]) < 0x80:
            timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            position += 1
        elif (high := data[position + 1]) < 0x80:
            byte = byte & 0x7F | high << 7
            timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            position += 2
        else:
            delta, position = varint(data, position)
            timestamp = base_timestamp + delta
        if (byte := data[position]) < 0x80:
            offset = base_offset + (byte >> 1)
            position += 1
        elif (high := data[position + 1]) < 0x80:
            offset = base_offset + ((byte & 0x7F | high << 7) >> 1)
            position += 2
        else:
            delta, position = varint(data, position)
            offset = base_offset + delta
        if (byte := data[position]) & 1:  # negative: the sign of a zigzag varint is its first bit
            if byte != 1:
                raise ValueError(f"a key of negative length at byte {position}")
            key = None
            position += 1
        else:
            if byte < 0x80:
                size = byte >> 1
                position += 1
            else:
                size, position = varint(data, position)
            key = data[position : position + size]
            position += size
        if (byte := data[position]) & 1:  # negative: the sign of a zigzag varint is its first bit
            if byte != 1:
                raise ValueError(f"a value of negative length at byte {position}")
            value = None
            position += 1
        else:
            if byte < 0x80:
                size = byte >> 1
                position += 1
            elif (high := data[position + 1]) < 0x80:
                size = (byte & 0x7F | high << 7) >> 1
                position += 2
            else:
                size, position = varint(data, position)
            value = data[position : position + size]
            position += size
        if data[position] == 0:
            headers: tuple[tuple[str, bytes | None], ...] = ()
            position += 1
        else:
            headers, position = _decode_headers(data, position, end)
        if position != end:
            raise ValueError(f"record length is not that of its fields, which end at byte {position}")
        add(new(kind, (offset, timestamp if fixed_timestamp is None else fixed_timestamp, key, value, headers)))
    return records, position


def _decode_headers(data: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = decode_varint(data, position)
    if count < 0 or count * 2 > end - position:
        raise ValueError(f"{count} record headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = decode_varint(data, position)
        if size < 0 or position + size > end:
            raise ValueError(f"header key of {size} bytes")
        name = data[position : position + size].decode()
        size, position = decode_varint(data, position + size)
        if size < 0:
            headers.append((name, None))
            continue
        if position + size > end:
            raise ValueError(f"header value of {size} bytes")
        headers.append((name, data[position : position + size]))
        position += size
    return tuple(headers), position
