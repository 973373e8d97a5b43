"""Record codec in pure Python, for installations without the compiled one. Its docstrings describe both.

A record is: length, attributes (0), timestamp delta, offset delta, key, value, headers; lengths and deltas are zigzag
varints, a length of -1 stands for null. All three functions are hot, hence the local names and the one-byte paths.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

_START = struct.Struct(">qiibI2xi")
_BATCH_BYTES_MIN = 61
_SUMMED_FROM = 21

T = TypeVar("T", bound=tuple[object, ...])

INT32_MAX = 2**31 - 1
INT64 = range(-(2**63), 2**63)
RECORD_BYTES_MIN = 7


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
    """Decode the zigzag varint at `position`. Returns (value, position after it).

    Raises:
        IndexError: the data ends within the varint.
        ValueError: the value has more than 64 bits.
    """
    rest = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            raise ValueError("a varint of more than 64 bits")
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), position
        shift += 7


_SMALL_MAX = 2048
_SMALL = [encode_varint(value) for value in range(_SMALL_MAX)]
_NULL = encode_varint(-1)


def append(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, Buffer | None]],
) -> int:
    """Append one record to `out`. Returns its size in bytes."""
    small = _SMALL
    limit = _SMALL_MAX
    body = bytearray(1)
    body += small[timestamp_delta] if 0 <= timestamp_delta < limit else encode_varint(timestamp_delta)
    body += small[offset_delta] if 0 <= offset_delta < limit else encode_varint(offset_delta)
    for field in (key, value):
        if field is None:
            body += _NULL
        else:
            size = memoryview(field).nbytes
            body += small[size] if size < limit else encode_varint(size)
            body += field
    body += _encode_headers(headers) if headers else b"\0"
    size = len(body)
    length = small[size] if size < limit else encode_varint(size)
    out += length
    out += body
    return size + len(length)


def _encode_headers(headers: Sequence[tuple[str, Buffer | None]]) -> bytes:
    parts: list[Buffer] = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_varint(len(encoded)), encoded)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (encode_varint(memoryview(value).nbytes), value)
    return b"".join(parts)


def check(data: Buffer, count: int) -> int:
    """Check that `data` starts with `count` records with the offset deltas 0, 1, 2... Returns the position after them.

    Raises:
        ValueError: a record does not parse, or has another offset delta.
    """
    records, position = _walk(data, count, 0, 0, None, tuple)
    for number, record in enumerate(records):
        if record[0] != number:
            raise ValueError(f"an offset delta that does not follow: {record[0]}, not {number}")
    return position


def decode(
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    kind: type[T],
    template: tuple[object, ...],
    slots: tuple[int, ...],
) -> tuple[list[T], int]:
    """Decode `count` records. Returns (records as instances of `kind`, position after the last one).

    Args:
        fixed_timestamp: timestamp of every record (LogAppendTime); None to use the records' own.
        kind: class of the records, a named tuple.
        template: items of an instance of `kind`.
        slots: indexes of the items of `template` that offset, timestamp, key, value and headers replace.

    Raises:
        ValueError: a record does not parse.
    """
    if slots == (0, 1, 2, 3, 4) and len(template) == len(slots):
        return _walk(data, count, base_offset, base_timestamp, fixed_timestamp, kind)
    plain, position = _walk(data, count, base_offset, base_timestamp, fixed_timestamp, tuple)
    new = tuple.__new__
    records = []
    row = list(template)
    one, two, three, four, five = slots
    for offset, timestamp, key, value, headers in plain:
        row[one] = offset
        row[two] = timestamp
        row[three] = key
        row[four] = value
        row[five] = headers
        records.append(new(kind, row))
    return records, position


def columns(
    arrays: tuple[bytearray, ...],
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    low: int,
    high: int,
    with_headers: bool,
) -> tuple[int, int]:
    """Append the records with offsets in [low, high) to columns. Returns (number of records appended, position after
    the last of the `count` records).

    Args:
        arrays: the buffers of `strandline.log.columns.RecordColumns`, in the order of its fields.

    Raises:
        ValueError: a record does not parse, inside or outside of the range; the columns are unchanged.
        OverflowError: a column would exceed 2 GB.
    """
    walked, position = _walk(data, count, base_offset, base_timestamp, fixed_timestamp, tuple)
    rows = [row for row in walked if low <= row[0] < high]
    offsets, timestamps, lists, list_ends = arrays[0], arrays[1], arrays[8], arrays[9]
    number, headers = len(offsets) // 8, len(arrays[10]) // 4 - 1
    for offset, timestamp, key, value, fields in rows:
        offsets += offset.to_bytes(8, sys.byteorder, signed=True)
        timestamps += timestamp.to_bytes(8, sys.byteorder, signed=True)
        _append_field(arrays[2:5], number, key)
        _append_field(arrays[5:8], number, value)
        if with_headers:
            _append_bit(lists, number, bool(fields))
            for name, content in fields:
                arrays[11].extend(name.encode())
                arrays[10].extend(len(arrays[11]).to_bytes(4, sys.byteorder))
                _append_field(arrays[12:15], headers, content)
                headers += 1
            list_ends += headers.to_bytes(4, sys.byteorder)
        number += 1
    return len(rows), position


def _append_bit(bits: bytearray, row: int, there: bool) -> None:
    if row % 8 == 0:
        bits.append(0)
    bits[row // 8] |= there << row % 8


def _append_field(column: tuple[bytearray, ...], row: int, content: bytes | None) -> None:
    bits, ends, data = column
    _append_bit(bits, row, content is not None)
    data += content or b""
    ends += len(data).to_bytes(4, sys.byteorder)


def _walk(  # noqa: PLR0915 - unrolled on purpose
    buffer: Buffer, count: int, base_offset: int, base_timestamp: int, fixed_timestamp: int | None, kind: type[T]
) -> tuple[list[T], int]:
    """Decode all records in one loop (about 1 us a record). Varints of one and two bytes are decoded inline."""
    data = bytes(buffer)
    total = len(data)
    if not 0 <= count <= total // RECORD_BYTES_MIN:
        raise ValueError("more records announced than fit")
    records: list[T] = []
    add = records.append
    new = tuple.__new__
    varint = decode_varint
    position = 0
    try:
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
            if byte & 1 or not byte or end > total:
                raise ValueError(f"a record's length that cannot be, before byte {position}")
            position += 1  # attributes: none are in use
            if (byte := data[position]) < 0x80:
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                position += 1
            else:
                delta, position = varint(data, position)
                timestamp = base_timestamp + delta
            if (byte := data[position]) < 0x80:
                delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                delta, position = varint(data, position)
            if not 0 <= delta <= INT32_MAX:
                raise ValueError(f"an offset delta that cannot be: {delta}")
            offset = base_offset + delta
            if timestamp not in INT64 or offset not in INT64:
                raise ValueError("a timestamp or offset of more than 64 bits")
            if (byte := data[position]) < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = varint(data, position)
            if size < 0:
                if size != -1:
                    raise ValueError(f"a key of negative length before byte {position}")
                key = None
            else:
                key = data[position : position + size]
                position += size
            if (byte := data[position]) < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = varint(data, position)
            if size < 0:
                if size != -1:
                    raise ValueError(f"a value of negative length before byte {position}")
                value = None
            else:
                value = data[position : position + size]
                position += size
            if data[position] == 0:
                headers: tuple[tuple[str, bytes | None], ...] = ()
                position += 1
            else:
                headers, position = decode_headers(data, position, end)
            if position != end:
                raise ValueError(f"a record's length is not that of its fields, which end at byte {position}")
            add(new(kind, (offset, timestamp if fixed_timestamp is None else fixed_timestamp, key, value, headers)))
    except IndexError:
        raise ValueError(f"the data end within a record, after byte {position}") from None
    return records, position


def decode_headers(data: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Decode the headers of a record that start at `position` and must end by `end`. Returns (headers, position after
    them).

    Apache Kafka stores any bytes as a header's name. Bytes that are not UTF-8 read as U+FFFD, as in Kafka's clients.

    Raises:
        IndexError: the data ends within a varint.
        ValueError: the headers do not parse.
    """
    count, position = decode_varint(data, position)
    if not 0 <= count <= (end - position) // 2:
        raise ValueError(f"{count} record headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = decode_varint(data, position)
        if size < 0 or position + size > end:
            raise ValueError(f"a header's name of {size} bytes")
        name = data[position : position + size].decode(errors="replace")
        size, position = decode_varint(data, position + size)
        if size < -1 or position + size > end:
            raise ValueError(f"a header's value of {size} bytes")
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[position : position + size]))
            position += size
    return tuple(headers), position


def intact(
    data: Buffer, position: int, offset: int, epoch: int, until: int, crc32c: Callable[[Buffer], int]
) -> tuple[int, int]:
    """Find the end of the valid batches that start at byte `position` of `data`. In a valid run the first batch begins
    at `offset` and each other one where the one before ends; each has the leader epoch `epoch` (-1: any) and a correct
    CRC, and ends at or before the offset `until`.

    Returns (position after the last valid batch, offset of the record that should follow).
    """
    view = memoryview(data)
    end = len(view)
    while end - position >= _BATCH_BYTES_MIN and offset < until:
        base, length, batch_epoch, magic, stored, last_delta = _START.unpack_from(view, position)
        size = length + 12
        if base != offset or magic != 2 or not _BATCH_BYTES_MIN <= size <= end - position:
            break
        if not 0 <= last_delta < until - offset or (epoch >= 0 and batch_epoch != epoch):
            break
        if crc32c(view[position + _SUMMED_FROM : position + size]) != stored:
            break
        offset += last_delta + 1
        position += size
    return position, offset
