"""Record batches v2, Kafka's unit of writing, sending and storing, and the records inside.

A batch is not encoded anew on its way: base offset and leader epoch are not covered by the CRC, so a leader sets both
in the receive buffer and writes that to disk as it is (KIP-98 for the format; rule P1).

`BatchJudge` checks that bytes are the whole valid batch that must follow at a place. Recovery, `log dump`, `log
verify`, followers, compaction, backups and consumers use it, each with its own limits. `check_client_batches` adds the
checks for a producer's batches.

Records are encoded by a compiled codec (`_records.c`) if the installation could build it, else by its Python twin
(`records_python.py`), which is about ten times slower and gives the same results.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypedDict, TypeVar, Unpack

from crc32c import crc32c

from strandline.log.compression import MAX_DECOMPRESSED_BYTES, Codec, compress, decompress
from strandline.log.config import BATCH_BYTES_MAX, INT64_MAX, LogConfig
from strandline.log.records_python import INT64, decode_varint, encode_varint
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

try:
    from strandline.log._records import append, check, columns, decode

    COMPILED = True
except ImportError:  # there was no compiler at the installation
    from strandline.log.records_python import append, check, columns, decode

    COMPILED = False
"""True if the compiled codec is in use."""

T = TypeVar("T", bound=tuple[object, ...])

Headers = Sequence[tuple[str, bytes | None]]
Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
OVERHEAD = 12  # base offset and batch length, which batch_length does not count
MAGIC = 2
MAGIC_POSITION = 16
ATTRIBUTES_LOW_POSITION = 22
"""Position of the byte of the attributes that holds the codec."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""Set by compaction only: the base timestamp is the time from which the batch's tombstones may be removed (KIP-534)."""

NO_TIMESTAMP = -1

RECORD_OVERHEAD_BYTES = 21
"""Largest size that one record adds to key, value and headers: five varints, attributes and the header count."""

CRC_START = 21
"""First byte that the CRC covers (the attributes); it covers the batch from there to its end."""
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_START = struct.Struct(">qi")
_PRODUCER = struct.Struct(">qhi")


class BatchHeader(NamedTuple):
    """The fixed fields of a record batch, in the order in which they lie on disk."""

    base_offset: int
    batch_length: int
    """Number of bytes after this field."""
    leader_epoch: int
    magic: int
    crc: int
    """CRC-32C of everything from `attributes` on."""
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    """Producer's id; -1 if there is none."""
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    """Number of records; compaction may leave fewer than the offsets that the batch spans."""

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """First offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """Bytes of the batch, header included."""
        return self.batch_length + OVERHEAD

    @property
    def codec(self) -> Codec:
        """Codec that the records are compressed with. Raises KafkaError (UNSUPPORTED_COMPRESSION_TYPE) for an unknown
        number."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {number} is not known")
        return Codec(number)

    @property
    def timestamp_type(self) -> int:
        """Type of the timestamps: CREATE_TIME or LOG_APPEND_TIME."""
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def is_transactional(self) -> bool:
        """True if the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True if the batch holds markers of the cluster instead of users' records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """True if the base timestamp is the time from which the batch's tombstones may be removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def is_gap(self) -> bool:
        """True if the batch only stands for offsets, of one leader epoch, whose records compaction removed."""
        return self.count == 0 and self.producer_id < 0 and not self.is_control

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (wraps to 0 after 2^31-1); -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Parse the header at `position`; the rest of the batch need not be in the buffer.

    Raises:
        KafkaError: CORRUPT_MESSAGE for an impossible header; UNSUPPORTED_FOR_MESSAGE_FORMAT for message formats 0
            and 1, which nothing has written by default since Kafka 0.11.
    """
    try:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    except struct.error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, "shorter than a batch header", bytes_left=len(buffer) - position
        ) from None
    if header[3] != MAGIC:
        code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if header[3] in (0, 1) else ErrorCode.CORRUPT_MESSAGE
        raise KafkaError(code, "only message format 2 is spoken here", magic=header[3])
    if header[1] < HEADER_SIZE - OVERHEAD or header[6] < 0 or header[12] < 0 or header[0] < 0:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            "a batch header with impossible numbers",
            base_offset=header[0],
            batch_length=header[1],
            last_offset_delta=header[6],
            count=header[12],
        )
    return header


def announced_size(batch: Buffer) -> int:
    """Return the size that a batch claims to have, header included; nothing is checked."""
    return int.from_bytes(batch[8:12], "big", signed=True) + OVERHEAD


def verify_crc(batch: Buffer) -> None:
    """Check the CRC of this one whole batch. Raises KafkaError (CORRUPT_MESSAGE)."""
    (stored,) = _UINT32.unpack_from(batch, 17)
    computed = crc32c(memoryview(batch)[CRC_START:])
    if stored != computed:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not hold", stored=stored, computed=computed)


class CutOff(KafkaError):
    """There are fewer bytes than the batch has by its header."""


def sized_header(buffer: Buffer, position: int, bytes_left: int, bytes_max: int = BATCH_BYTES_MAX) -> BatchHeader:
    """Parse the header at `position` of a batch that fits into the `bytes_left` bytes from there on.

    Raises:
        KafkaError: as `parse_header`; CORRUPT_MESSAGE for a batch of more than `bytes_max` bytes.
        CutOff: the batch has more than `bytes_left` bytes.
    """
    header = parse_header(buffer, position)
    size = header[1] + OVERHEAD
    if size > bytes_max:
        reason = f"a batch of {size} bytes is larger than any that is written"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason, bytes_max=bytes_max)
    if size > bytes_left:
        reason = f"a batch of {size} bytes reaches beyond the end"
        raise CutOff(ErrorCode.CORRUPT_MESSAGE, reason, bytes_left=bytes_left)
    return header


def check_content(header: BatchHeader, batch: Buffer) -> None:
    """Check that this one whole batch matches its CRC, and has no more records than it spans offsets (it may have
    fewer: compaction removes some). Raises KafkaError (CORRUPT_MESSAGE)."""
    # rule B16/follower-believes-every-byte, rule E5/recovery-believes-every-byte
    verify_crc(batch)
    if header[12] > header[6] + 1:
        reason = f"a batch of {header[12]} records spans {header[6] + 1} offsets"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason, base_offset=header[0])


class BatchJudge:
    """Checks that bytes are the whole valid batch that must follow at one place of a log, batch after batch.

    Attributes:
        offset: base offset that the next batch must have; with `gaps`, the lowest that it may have.
        epoch: lowest leader epoch that the next batch may have; None: any.
        gaps: True if offsets may be missing between two batches, as in logs of brokers that compact without gap
            batches.
        bytes_max: size of the largest batch.
    """

    __slots__ = ("bytes_max", "epoch", "gaps", "offset")

    def __init__(
        self, offset: int, epoch: int | None = None, *, gaps: bool = False, bytes_max: int = BATCH_BYTES_MAX
    ) -> None:
        self.offset = offset
        self.epoch = epoch
        self.gaps = gaps
        self.bytes_max = bytes_max

    def header(self, buffer: Buffer, position: int, bytes_left: int) -> BatchHeader:
        """Parse the header at `position` of a batch that ends within `bytes_left`. Raises as `sized_header` does."""
        return sized_header(buffer, position, bytes_left, self.bytes_max)

    def check_place(self, header: BatchHeader) -> None:
        """Check that a batch follows the last one. Raises KafkaError: CORRUPT_MESSAGE, or OFFSET_OUT_OF_RANGE for a
        batch of another offset if there are no gaps."""
        base_offset = header[0]
        # rule B16/follower-appends-over-a-gap, rule E5/recovery-skips-offsets
        if base_offset < self.offset if self.gaps else base_offset != self.offset:
            code = ErrorCode.CORRUPT_MESSAGE if self.gaps else ErrorCode.OFFSET_OUT_OF_RANGE
            what = f"{self.offset} or later" if self.gaps else f"{self.offset}"
            raise KafkaError(code, f"a batch of offset {base_offset} stands where {what} must follow")
        # rule B1/follower-epochs-go-back, rule E5/recovery-takes-older-epochs
        if self.epoch is not None and header[2] < self.epoch:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the leader epoch goes back from {self.epoch} to {header[2]}")
        if base_offset + header[6] >= INT64_MAX:
            reason = f"a batch of offset {base_offset} ends beyond the last offset that there is"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason, last_offset_delta=header[6])

    def follow(self, header: BatchHeader) -> None:
        """Go on after a valid batch."""
        self.offset = header[0] + header[6] + 1
        if self.epoch is not None:
            self.epoch = header[2]

    def whole(self, data: memoryview, position: int = 0) -> tuple[BatchHeader, memoryview]:
        """Check the batch at `position` completely; return it with its bytes. Raises KafkaError."""
        header = self.header(data, position, len(data) - position)
        self.check_place(header)
        batch = data[position : position + header[1] + OVERHEAD]
        check_content(header, batch)
        return header, batch


def iter_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each whole batch with its bytes (a view, nothing is copied). CRCs are not checked.

    Raises:
        KafkaError: as `sized_header`.
    """
    view = memoryview(buffer)
    position = 0
    end = len(view)
    while position < end:
        header = sized_header(view, position, end - position)
        following = position + header[1] + OVERHEAD
        yield header, view[position:following]
        position = following


def patch_base_offset_and_epoch(
    buffer: memoryview | bytearray, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set the two fields that the leader decides, in place; the CRC does not cover them."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + 12, leader_epoch)


def patch_log_append_time(batch: memoryview | bytearray, header: BatchHeader, append_time_ms: int) -> None:
    """Set the timestamp of every record of this one batch to the leader's time (`LogAppendTime`); renews the CRC."""
    _INT16.pack_into(batch, 21, header.attributes | TIMESTAMP_TYPE_BIT)
    _INT64.pack_into(batch, 35, append_time_ms)
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def with_body(batch: Buffer, header: BatchHeader, codec: Codec, body: Buffer) -> bytearray:
    """Return a copy of this one batch, whose header is `header`, with `body` as its records; renews the CRC."""
    copy = bytearray(memoryview(batch)[:HEADER_SIZE])
    copy += body
    _INT32.pack_into(copy, 8, len(copy) - OVERHEAD)
    _INT16.pack_into(copy, 21, header.attributes & ~CODEC_MASK | codec)
    _UINT32.pack_into(copy, 17, crc32c(memoryview(copy)[CRC_START:]))
    return copy


def with_producer(
    batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = False
) -> bytearray:
    """Return a copy of this one batch, as sent by another producer (-1: none): base offset 0, no leader epoch, a new
    CRC. Records, timestamps and compression stay. It is part of a transaction of that producer if `transactional`.
    """
    copy = bytearray(batch)
    copy[22] = copy[22] & ~TRANSACTIONAL_BIT | (TRANSACTIONAL_BIT if transactional else 0)
    patch_base_offset_and_epoch(copy, 0, 0, -1)
    _PRODUCER.pack_into(copy, 43, producer_id, producer_epoch, base_sequence)
    _UINT32.pack_into(copy, 17, crc32c(memoryview(copy)[CRC_START:]))
    return copy


def assemble_batch(
    body: bytes | bytearray,
    *,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = CREATE_TIME,
    delete_horizon: bool = False,
) -> bytearray:
    """Return a batch around already encoded records (`body`, not yet compressed)."""
    batch = bytearray(HEADER_SIZE)
    batch += compress(codec, body) if codec else body
    attributes = codec | timestamp_type << 3 | transactional << 4 | control << 5 | delete_horizon << 6
    return _headed(
        batch,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def gap_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
    """Return an empty batch for offsets whose records compaction removed. So each batch of a log still follows on the
    one before, and every reader notices a lost batch."""
    return assemble_batch(
        b"",
        count=0,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def finish_batch(
    batch: bytearray,
    *,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    codec: Codec,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool = False,
) -> bytearray:
    """Make a batch of records numbered 0, 1, 2..., which are in `batch` after HEADER_SIZE free bytes. `batch` itself
    becomes the result; only compression makes a new one."""
    if codec:
        packed = bytearray(HEADER_SIZE)
        packed += compress(codec, memoryview(batch)[HEADER_SIZE:])
        batch = packed
    attributes = codec | TRANSACTIONAL_BIT if transactional else codec
    return _headed(
        batch, attributes, count - 1, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count
    )


def _headed(batch: bytearray, *fields: int, base_offset: int = 0, leader_epoch: int = -1) -> bytearray:
    """Write the header of a batch; `fields`: those from the attributes on."""
    HEADER.pack_into(batch, 0, base_offset, len(batch) - OVERHEAD, leader_epoch, MAGIC, 0, *fields)
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return batch


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class BatchFields(TypedDict, total=False):
    """Fields of a new batch that do not follow from its records; `assemble_batch` has the defaults."""

    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    timestamp_type: int


class RecordBatchBuilder:
    """Collects records into one batch. `size_bytes` is the size of the batch before compression, header included."""

    __slots__ = ("_base_timestamp", "_codec", "_max_timestamp", "_records", "count", "size_bytes")

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self._codec = codec
        self._records = bytearray()
        self._base_timestamp = 0
        self._max_timestamp = -1
        self.count = 0
        self.size_bytes = HEADER_SIZE

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Add a record after the others."""
        count = self.count
        if count == 0:
            self._base_timestamp = timestamp_ms
        self._max_timestamp = max(self._max_timestamp, timestamp_ms)
        self.size_bytes += append(self._records, timestamp_ms - self._base_timestamp, count, key, value, headers)
        self.count = count + 1

    def build(self, **fields: Unpack[BatchFields]) -> bytearray:
        """Return the whole batch. Raises ValueError if nothing was appended."""
        if not self.count:
            raise ValueError("a batch holds at least one record")
        return assemble_batch(
            self._records,
            count=self.count,
            last_offset_delta=self.count - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            codec=self._codec,
            **fields,
        )


def encode_records(records: Iterable[Record], *, base_offset: int, base_timestamp: int) -> bytearray:
    """Return the body of a batch with these records, at their own offsets, which may have gaps."""
    body = bytearray()
    for offset, timestamp_ms, key, value, headers in records:
        append(body, timestamp_ms - base_timestamp, offset - base_offset, key, value, headers)
    return body


_PLAIN = (None,) * 5
_IN_ORDER = (0, 1, 2, 3, 4)


def build_batch(records: Iterable[Record], *, codec: Codec = Codec.NONE, **fields: Unpack[BatchFields]) -> bytearray:
    """Return a batch of `records` in their order; their own offsets are ignored (they become base_offset + 0, 1, 2...).

    Raises ValueError if there is no record.
    """
    builder = RecordBatchBuilder(codec)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value, record.headers)
    return builder.build(**fields)


def decode_records(batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """Return every record of this one whole batch. The CRC is not checked (`verify_crc` does that).

    Raises:
        KafkaError: CORRUPT_MESSAGE or INVALID_RECORD for records that do not parse or do not match the count;
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
    """Return the records as instances of the caller's named tuple: `template` holds its items, and `slots` the indexes
    of offset, timestamp, key, value and headers. Raises as `decode_records` does.
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
    """Append a batch's records with offsets in [low, high) to columns (`strandline.log.columns`); return their number.

    Raises as `decode_records` does; the columns are unchanged then.
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
    """Check that every reader can read this batch: its records parse, are as many as the header says, and are numbered
    without gaps, as a producer's are.

    Raises:
        KafkaError: INVALID_RECORD; MESSAGE_TOO_LARGE if the records unpack to more than `max_bytes`.
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
    """Return the decompressed records of a batch. Raises KafkaError as `decompress` does."""
    packed = memoryview(batch)[HEADER_SIZE : header.size]
    codec = header.codec
    return decompress(codec, packed, max_bytes) if codec else packed


def shift_timestamps(records: Buffer, count: int, by_ms: int) -> bytearray:
    """Return the records of a batch whose base timestamp is raised by `by_ms`, with their timestamps unchanged.

    Raises:
        ValueError: the records do not parse.
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
    """Return the error for records that do not parse, from the codec's error."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"a record does not parse: {error}", base_offset=header.base_offset)


def left_over(size: int) -> KafkaError:
    """Return the error for bytes after the last record."""
    return KafkaError(ErrorCode.INVALID_RECORD, "bytes left after the last record", bytes_left=size)


def check_client_batches(batches: memoryview, config: LogConfig, now_ms: int) -> list[BatchHeader]:
    """Check that a client's batches may be written at the wall time `now_ms`; return their headers.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD,
            INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, UNSUPPORTED_FOR_MESSAGE_FORMAT or INVALID_TXN_STATE.
    """
    headers: list[BatchHeader] = []
    position = 0
    end = len(batches)
    earliest_ms, latest_ms = 0, INT64_MAX
    if not config.log_append_time:  # else the leader sets its own time
        earliest_ms, latest_ms = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
    while position < end:
        header = parse_header(batches, position)
        size = header[1] + OVERHEAD
        if size > config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch takes {size} bytes, and max.message.bytes of the topic is {config.max_message_bytes}: "
                "raise that, or send smaller batches or records",
                size=size,
                max_message_bytes=config.max_message_bytes,
            )
        if size > end - position:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, "a batch is longer than its bytes", size=size, bytes_left=end - position
            )
        if header[0] != 0:
            raise _invalid("a client's batch begins at offset 0: the leader gives the offsets", base_offset=header[0])
        batch = batches[position : position + size]  # rule E5/fields-before-crc
        # rule E5/clients-crc-is-believed
        verify_crc(batch)  # first: a bit that flipped on the way must not be reported as the client's mistake
        _check_fields(header)
        # By the first record and the newest; a record without a time (-1) always passes.
        if header[8] > latest_ms or 0 <= header[7] < earliest_ms:
            raise _invalid_timestamp(header, config, now_ms)
        check_records(header, batch, config.unpacked_bytes_max)
        if config.compacted:  # rule B20/records-without-a-key
            _check_keys(header, batch, config.unpacked_bytes_max)
        headers.append(header)
        position += size
    if not headers:
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no batch to append")
    if end > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batches take {end} bytes, and segment.bytes of the topic is {config.segment_bytes}: raise that, or "
            "lower batch.size of the producer",
            size=end,
            segment_bytes=config.segment_bytes,
        )
    return headers


def check_replicated_batches(batches: memoryview, offset: int, epoch: int) -> list[BatchHeader]:
    """Check batches that a leader sent, and return their headers: whole, matching their CRC, following on `offset`, of
    epochs not below `epoch`. Sequences are checked by the leader.

    Raises KafkaError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE.
    """
    judge = BatchJudge(offset, epoch)
    headers: list[BatchHeader] = []
    position = 0
    while position < len(batches):
        header, _ = judge.whole(batches, position)
        judge.follow(header)
        headers.append(header)
        position += header.size
    if not headers:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "there is no batch to append")
    return headers


def gap_from(batches: memoryview, first: BatchHeader, offset: int) -> memoryview:
    """Return a copy of a leader's batches whose first one, a gap around `offset`, begins there. Each replica compacts
    by itself, so the leader's gap may begin before the end of a follower's log.

    Raises KafkaError (CORRUPT_MESSAGE) if that batch is not whole.
    """
    BatchJudge(first.base_offset).whole(batches)
    rest = gap_batch(offset, first.last_offset, first.leader_epoch)
    rest += batches[first.size :]
    return memoryview(rest)


def _invalid_timestamp(header: BatchHeader, config: LogConfig, now_ms: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        "the time of a record lies too far from the broker's: message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms say how far it may",
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        now_ms=now_ms,
        before_max_ms=config.timestamp_before_max_ms,
        after_max_ms=config.timestamp_after_max_ms,
    )


def _check_fields(header: BatchHeader) -> None:
    attributes = header[5]
    if header[12] != header[6] + 1:
        raise _invalid("count and last offset delta disagree", count=header[12], last_offset_delta=header[6])
    if attributes & CONTROL_BIT:
        raise _invalid("clients may not write control batches")
    if attributes & DELETE_HORIZON_BIT:
        raise _invalid("clients may not say when tombstones go: compaction does")
    if attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {attributes & CODEC_MASK} is not known")
    # Without a producer id, epoch and sequence mean nothing: franz-go and aiokafka leave 0 there.
    # Coordinators write into the transactions of producers, without a sequence.
    if header[9] >= 0 and (header[10] < 0 or (header[11] < 0 and not attributes & TRANSACTIONAL_BIT)):
        raise _invalid("a producer id without epoch or sequence", producer_epoch=header[10], base_sequence=header[11])
    if attributes & TRANSACTIONAL_BIT and header[9] < 0:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a batch of a transaction that has no producer")


def _check_keys(header: BatchHeader, batch: memoryview, unpacked_max: int) -> None:
    """Check that every record has a key: compaction would keep one without for ever, or remove it at once (KIP-467)."""
    for record in decode_records(batch, unpacked_max):
        if record.key is None:
            raise _invalid("a compacted topic takes no record without a key", record=record.offset, count=header.count)


def _invalid(message: str, **figures: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message, **figures)
