"""Recompression of batches into their topic's codec (`compression.type`), by the leader.

As in Kafka's LogValidator, a batch that has the codec already stays as it is, whatever its level. The records of
another one are the same bytes, compressed anew; offsets, timestamps, producer and sequence are in the header and stay.
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
"""Value of `cost_ms` above which a batch is compressed in a thread, before it is appended."""

_MIB_MS = {Codec.NONE: 0.5, Codec.GZIP: 30.0, Codec.SNAPPY: 2.0, Codec.LZ4: 5.0, Codec.ZSTD: 10.0}
"""Approximate milliseconds for compressing a mebibyte at the usual levels, on a slow core."""

_SLOW_MIB_MS = {Codec.LZ4: 60.0, Codec.ZSTD: 600.0}
"""The same at the slow levels: zstd's level 19 compresses 2 MB a second."""

_ZSTD_SLOW_LEVEL = 4


def needs_packing(attributes: int, stored: StoredCodec | None) -> bool:
    """True if a batch with these attributes (their low byte is enough) must be recompressed."""
    return stored is not None and attributes & CODEC_MASK != stored.codec


def is_slow_to_pack(batch: memoryview, config: LogConfig) -> bool:
    """True if this batch (at least its header) must be recompressed, and in a thread.

    A compressed batch always needs a thread, as a kilobyte may unpack to 32 MiB.
    """
    stored, attributes = config.stored_codec, batch[ATTRIBUTES_LOW_POSITION]
    if stored is None or not needs_packing(attributes, stored):
        return False
    # rule B16/what-may-unpack-to-much-is-packed-in-the-loop
    return bool(attributes & CODEC_MASK) or cost_ms(len(batch), stored) > AT_ONCE_MS


def cost_ms(size: int, stored: StoredCodec) -> float:
    """Return the approximate milliseconds for compressing `size` bytes."""
    codec, level = stored
    slow = (codec is Codec.LZ4 and level not in (None, LZ4_FAST)) or (
        codec is Codec.ZSTD and level is not None and level >= _ZSTD_SLOW_LEVEL
    )
    return size / (1 << 20) * (_SLOW_MIB_MS if slow else _MIB_MS)[codec]


def recompressed(batches: memoryview, headers: list[BatchHeader], config: LogConfig) -> memoryview:
    """Return the batches as they are to be stored; `headers` are replaced by those of the result. If nothing needs
    recompression the same bytes are returned.

    Memory: the records of one batch at a time, and the result.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE if a batch is now larger than max.message.bytes, RECORD_LIST_TOO_LARGE.
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
    """Return one batch of a client in its topic's codec, or the error that prevents it; for use in a thread. Errors of
    the batch itself are left to the append, which reports them."""
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
    """Return one batch, with the header `header`, in its topic's codec.

    Raises KafkaError: MESSAGE_TOO_LARGE, and those of decompression.
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
