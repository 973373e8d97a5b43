"""Record batches v2: Kafka's unit of writing, sending and storing. Only the 61-byte header is looked at here.

`BatchJudge` says whether bytes are the whole valid batch that must stand at a place: recovery, `log dump`,
`log verify`, followers, compaction, backups and consumers ask it, each with bounds of its own.

A batch is never encoded anew on its way: base offset and leader epoch stand outside the CRC, so a leader sets both in
the receive buffer and writes that to disk as it is (KIP-98 for the format; rule P1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from strandline.log.compression import Codec, compress
from strandline.log.config import BATCH_BYTES_MAX, INT64_MAX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
OVERHEAD = 12  # base offset and batch length, which batch_length does not count
MAGIC = 2
MAGIC_POSITION = 16
ATTRIBUTES_LOW_POSITION = 22
"""Of the byte of the attributes that holds the codec."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""Set by compaction alone: the base timestamp says when the batch's tombstones may go (KIP-534)."""

NO_TIMESTAMP = -1

CRC_START = 21
"""The CRC covers a batch from its attributes to its end."""
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
    """Bytes after this field."""
    leader_epoch: int
    magic: int
    crc: int
    """CRC-32C of everything from `attributes` on."""
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    """-1: none."""
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    """Records inside; fewer than the offsets it spans once compaction has been over it."""

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
        """How the records are compressed. Raises KafkaError (UNSUPPORTED_COMPRESSION_TYPE) for an unknown number."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {number} is not known")
        return Codec(number)

    @property
    def timestamp_type(self) -> int:
        """CREATE_TIME or LOG_APPEND_TIME."""
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def is_transactional(self) -> bool:
        """Part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Holds markers of the cluster, no records of users."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """The base timestamp is the time from which its tombstones may go (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def is_gap(self) -> bool:
        """Stands for offsets of one leader epoch whose records compaction took; nobody needs anything else of it."""
        return self.count == 0 and self.producer_id < 0 and not self.is_control

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (wraps to 0 after 2^31-1); -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the rest of the batch need not be there.

    Raises:
        KafkaError: CORRUPT_MESSAGE for what cannot be a header; UNSUPPORTED_FOR_MESSAGE_FORMAT for message formats 0
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
    """Bytes that a batch says it has, its whole header included: nothing of it is checked."""
    return int.from_bytes(batch[8:12], "big", signed=True) + OVERHEAD


def verify_crc(batch: Buffer) -> None:
    """Raises KafkaError (CORRUPT_MESSAGE) unless the CRC of this one whole batch holds."""
    (stored,) = _UINT32.unpack_from(batch, 17)
    computed = crc32c(memoryview(batch)[CRC_START:])
    if stored != computed:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not hold", stored=stored, computed=computed)


class CutOff(KafkaError):
    """Fewer bytes are there than the batch has by its header."""


def sized_header(buffer: Buffer, position: int, bytes_left: int, bytes_max: int = BATCH_BYTES_MAX) -> BatchHeader:
    """The header at `position` of a batch that fits into the `bytes_left` bytes from there on.

    Raises:
        KafkaError: as `parse_header`; CORRUPT_MESSAGE for a batch of more than `bytes_max` bytes.
        CutOff: it has more than `bytes_left`.
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
    """Raises KafkaError (CORRUPT_MESSAGE) unless this one whole batch holds its CRC and has no more records than it
    spans offsets (fewer: compaction took some)."""
    # rule B16/follower-believes-every-byte, rule E5/recovery-believes-every-byte
    verify_crc(batch)
    if header[12] > header[6] + 1:
        reason = f"a batch of {header[12]} records spans {header[6] + 1} offsets"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason, base_offset=header[0])


class BatchJudge:
    """Says whether bytes are the whole valid batch that must stand at one place of a log, batch after batch.

    Attributes:
        offset: where the next batch must begin; with `gaps`, the first offset that it may begin at.
        epoch: leader epoch that the next batch must not be below; None: any.
        gaps: offsets may be missing between two batches, as in the logs of brokers that compact without gap batches.
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
        """The header at `position`, whose batch ends within `bytes_left`. Raises as `sized_header`."""
        return sized_header(buffer, position, bytes_left, self.bytes_max)

    def check_place(self, header: BatchHeader) -> None:
        """Raises KafkaError unless a batch follows on the last one: CORRUPT_MESSAGE, or OFFSET_OUT_OF_RANGE for one of
        another offset where there are no gaps."""
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
        """Go on behind a batch that holds."""
        self.offset = header[0] + header[6] + 1
        if self.epoch is not None:
            self.epoch = header[2]

    def whole(self, data: memoryview, position: int = 0) -> tuple[BatchHeader, memoryview]:
        """The batch at `position`, with every check, and its bytes. Raises KafkaError."""
        header = self.header(data, position, len(data) - position)
        self.check_place(header)
        batch = data[position : position + header[1] + OVERHEAD]
        check_content(header, batch)
        return header, batch


def iter_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each whole batch with its bytes (a view, nothing is copied). CRCs are not looked at.

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
    """Make the leader's clock the timestamp of every record of this one batch (`LogAppendTime`); renews the CRC."""
    _INT16.pack_into(batch, 21, header.attributes | TIMESTAMP_TYPE_BIT)
    _INT64.pack_into(batch, 35, append_time_ms)
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def with_body(batch: Buffer, header: BatchHeader, codec: Codec, body: Buffer) -> bytearray:
    """This one batch, whose header that is, with its records packed as `body`; all else is as it was, but the CRC."""
    copy = bytearray(memoryview(batch)[:HEADER_SIZE])
    copy += body
    _INT32.pack_into(copy, 8, len(copy) - OVERHEAD)
    _INT16.pack_into(copy, 21, header.attributes & ~CODEC_MASK | codec)
    _UINT32.pack_into(copy, 17, crc32c(memoryview(copy)[CRC_START:]))
    return copy


def with_producer(batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
    """A copy of this one batch as that producer sends it (-1: none): base offset 0, no leader epoch, and a new CRC. Its
    records, timestamps and compression are as they were.
    """
    copy = bytearray(batch)
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
    """A batch around already encoded records (`body`, not yet compressed)."""
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
    """An empty batch for offsets whose records compaction took: so that in a log each batch still follows on the one
    before, and whoever reads it notices one that is lost."""
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
) -> bytearray:
    """A batch of records numbered 0, 1, 2..., which stand in `batch` behind HEADER_SIZE bytes of room. It becomes the
    batch itself; only compression makes another one."""
    if codec:
        packed = bytearray(HEADER_SIZE)
        packed += compress(codec, memoryview(batch)[HEADER_SIZE:])
        batch = packed
    return _headed(
        batch, codec, count - 1, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count
    )


def _headed(batch: bytearray, *fields: int, base_offset: int = 0, leader_epoch: int = -1) -> bytearray:
    """The batch with its header; `fields`: those from the attributes on."""
    HEADER.pack_into(batch, 0, base_offset, len(batch) - OVERHEAD, leader_epoch, MAGIC, 0, *fields)
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return batch
