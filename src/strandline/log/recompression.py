"""Batches in the codec of their topic (`compression.type`): a leader encodes anew what its producer packed otherwise.

As in Kafka's LogValidator a batch that has the codec already stays as it is, whatever its level. Of another one the
records are the same bytes, packed anew; offsets, times, producer and sequence stand in the header and stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.log.batch import (
    ATTRIBUTES_LOW_POSITION,
    CODEC_MASK,
    HEADER_SIZE,
    BatchHeader,
    parse_header,
    unpacked,
    verify_crc,
    with_body,
)
from strandline.log.compression import LZ4_FAST, Codec, compress
from strandline.log.config import LogConfig, StoredCodec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

AT_ONCE_MS = 1.0
"""Milliseconds of `cost_ms` above which a batch is packed in a thread, before it is appended."""

_MIB_MS = {Codec.NONE: 0.5, Codec.GZIP: 30.0, Codec.SNAPPY: 2.0, Codec.LZ4: 5.0, Codec.ZSTD: 10.0}
"""Cost of packing a mebibyte at the usual levels, about, in milliseconds of a slow core."""

_SLOW_MIB_MS = {Codec.LZ4: 60.0, Codec.ZSTD: 600.0}
"""The same at the levels that take many times as long: zstd's 19 packs 2 MB a second."""

_ZSTD_SLOW_LEVEL = 4


def needs_packing(attributes: int, stored: StoredCodec | None) -> bool:
    """Whether a batch of these attributes (their low byte is enough) is to be encoded anew."""
    return stored is not None and attributes & CODEC_MASK != stored.codec


def is_slow_to_pack(batch: memoryview, config: LogConfig) -> bool:
    """Whether this batch (of a header's size at least) is to be encoded anew, and in a thread.

    What is compressed always is: a kilobyte may unpack to 32 MiB.
    """
    stored, attributes = config.stored_codec, batch[ATTRIBUTES_LOW_POSITION]
    if stored is None or not needs_packing(attributes, stored):
        return False
    # rule B16/what-may-unpack-to-much-is-packed-in-the-loop
    return bool(attributes & CODEC_MASK) or cost_ms(len(batch), stored) > AT_ONCE_MS


def cost_ms(size: int, stored: StoredCodec) -> float:
    """Rough time that packing `size` bytes takes, in milliseconds."""
    codec, level = stored
    slow = (codec is Codec.LZ4 and level not in (None, LZ4_FAST)) or (
        codec is Codec.ZSTD and level is not None and level >= _ZSTD_SLOW_LEVEL
    )
    return size / (1 << 20) * (_SLOW_MIB_MS if slow else _MIB_MS)[codec]


def recompressed(batches: memoryview, headers: list[BatchHeader], config: LogConfig) -> memoryview:
    """The batches as they are stored; `headers` become those of the result. The same bytes where nothing is to be done.

    Memory: the records of one batch at a time, and the result.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE for a batch that is larger than max.message.bytes now, RECORD_LIST_TOO_LARGE.
    """
    stored = config.stored_codec
    if stored is None or not any(needs_packing(header[5], stored) for header in headers):
        return batches
    packed: list[bytearray | memoryview] = []
    position = 0
    for i, header in enumerate(headers):
        batch = batches[position : position + header.size]
        position += header.size
        if needs_packing(header[5], stored):
            packed.append(recompress(batch, header, config, stored))
            headers[i] = parse_header(packed[-1])
        else:
            packed.append(batch)
    return memoryview(_joined(packed, config))


def packed_ahead(batch: memoryview, config: LogConfig) -> memoryview | KafkaError:
    """One batch as a client sent it, in the codec of its topic, or why it cannot be: for a thread. What is wrong with
    the batch itself is left to the append, which says so."""
    stored = config.stored_codec
    try:
        header = parse_header(batch)
        if stored is None or header.size != len(batch) or header.size > config.max_message_bytes:
            return batch
        verify_crc(batch)
    except KafkaError:
        return batch
    try:
        return memoryview(recompress(batch, header, config, stored))
    except KafkaError as error:
        return error if error.code is ErrorCode.MESSAGE_TOO_LARGE else batch


def _joined(packed: Sequence[bytearray | memoryview], config: LogConfig) -> bytearray:
    size = sum(map(len, packed))
    if size > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batches take {size} bytes as compression.type has them, and segment.bytes of the topic is "
            f"{config.segment_bytes}: raise that, or lower batch.size of the producer",
            size=size,
            segment_bytes=config.segment_bytes,
        )
    if len(packed) == 1 and isinstance(packed[0], bytearray):
        return packed[0]
    return bytearray(b"".join(packed))


def recompress(batch: memoryview, header: BatchHeader, config: LogConfig, stored: StoredCodec) -> bytearray:
    """One batch, whose header this is, in the codec of its topic.

    Raises KafkaError: MESSAGE_TOO_LARGE, or as unpacking does.
    """
    records = unpacked(header, batch, config.unpacked_bytes_max)
    size = HEADER_SIZE + len(records)
    if stored.codec is not Codec.NONE:
        records = compress(stored.codec, records, stored.level)
        size = HEADER_SIZE + len(records)
    if size > config.max_message_bytes:  # rule B16/what-is-packed-anew-may-have-any-size
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch takes {size} bytes once it is stored as compression.type has it ({stored.codec.name.lower()}), "
            f"and max.message.bytes of the topic is {config.max_message_bytes}: raise that, or send smaller batches or "
            "records",
            size=size,
            max_message_bytes=config.max_message_bytes,
        )
    return with_body(batch, header, stored.codec, records)
