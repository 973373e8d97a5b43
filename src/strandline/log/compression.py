"""The five codecs of Kafka's record batches. Batches stay compressed end to end; only clients and lookups by time
decompress them.

Decompression is bounded: a small batch that would unpack to gigabytes is refused before that.

The codecs' libraries are imported on use: most nodes and clients never open a batch, and save 2 MB.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

_Bytes = bytes | bytearray | memoryview

MAX_DECOMPRESSED_BYTES = 256 << 20
"""Default limit on the unpacked records of one batch. The largest batches in use have some megabytes; in lz4, 1 MiB can
stand for 255 MiB of zeros.
"""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024  # the block size of snappy-java's SnappyOutputStream
_ZSTD_WINDOW_MAX = 128 << 20  # the largest window that zstd's own tools accept by default
_GZIP_MEMBERS_MAX = 64
"""Maximum members of a gzip stream. Producers write one. A megabyte can hold 50,000 empty ones, and each costs a copy
of all that follow it."""

_SNAPPY_BLOCK_BYTES_MIN = 1024
"""Smallest block that snappy-java can be configured to write; smaller ones only cost time."""

_INT32 = struct.Struct(">i")


class Codec(IntEnum):
    """Compression of a batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LZ4_FAST = 9
"""Default level of lz4 in Kafka's numbering (1 to 17): not the ninth level but the fast compressor (KIP-390). All other
levels are of the slow compressor, which packs more."""

_LZ4_LEVELS = (3, 12)
"""Lowest and highest level of the library's slow compressor."""


_ZSTD_SIZE_MAX = 8 << 20
"""Input size that zstd's tables are made for at most. At zstd's highest level, tables for 32 MiB take 385 MB, and these
130 MB."""


def compress(codec: Codec, data: _Bytes, level: int | None = None) -> bytes:
    """Compress `data` with `codec`. `level` is in Kafka's numbering (KIP-390); None: the codec's default level."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        packer = zlib.compressobj(-1 if level is None else level, wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec == Codec.LZ4:
        import cramjam

        low, high = _LZ4_LEVELS
        own = 1 if level is None or level == LZ4_FAST else min(max(level, low), high)
        packed = cramjam.lz4.Compressor(level=own, content_checksum=False, block_linked=False)
        packed.compress(bytes(data))
        return bytes(packed.finish())
    import zstandard

    if level is None:
        return zstandard.ZstdCompressor().compress(data)
    size = min(len(data), _ZSTD_SIZE_MAX)
    params = zstandard.ZstdCompressionParameters.from_level(level, source_size=size)
    return zstandard.ZstdCompressor(compression_params=params).compress(data)


def decompress(codec: Codec, data: _Bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Return the bytes that `compress` was given.

    Raises:
        KafkaError: CORRUPT_MESSAGE if the bytes are not of this codec, MESSAGE_TOO_LARGE if they unpack to more than
            `max_bytes`.
    """
    import cramjam
    import zstandard

    try:
        return _DECOMPRESS[codec](data, max_bytes)
    except (cramjam.DecompressionError, zstandard.ZstdError, zlib.error, struct.error) as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{codec.name.lower()} data does not unpack: {error}") from error


def _too_large(codec: Codec, max_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"{codec.name.lower()} data unpacks to more than is allowed", max_bytes=max_bytes
    )


def _plain(data: _Bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(Codec.NONE, max_bytes)
    return bytes(data)


def _gunzip(data: _Bytes, max_bytes: int) -> bytes:
    """Decompress all members of a gzip stream, as Java's GZIPInputStream does."""
    parts: list[bytes] = []
    room = max_bytes
    rest: _Bytes = data
    while rest:
        if len(parts) == _GZIP_MEMBERS_MAX:
            raise zlib.error(f"there are more than {_GZIP_MEMBERS_MAX} members")
        unpacker = zlib.decompressobj(wbits=31)
        part = unpacker.decompress(rest, room + 1)
        if len(part) > room:
            raise _too_large(Codec.GZIP, max_bytes)
        if not unpacker.eof:
            raise zlib.error("the stream ends early")
        parts.append(part)
        room -= len(part)
        rest = unpacker.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_xerial(data: _Bytes) -> bytes:
    """Compress in snappy-java's framing, which Kafka's Java clients use: a header, then blocks with their lengths."""
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK_BYTES])))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _unsnap(data: _Bytes, max_bytes: int) -> bytes:
    """Decompress either framing: snappy-java's, or one bare block, as librdkafka writes it."""
    packed = bytes(data)
    if not packed.startswith(_XERIAL_MAGIC):
        return _unsnap_block(packed, max_bytes, max_bytes)
    parts: list[bytes] = []
    room = max_bytes
    position = len(_XERIAL_HEADER)
    blocks_max = max_bytes // _SNAPPY_BLOCK_BYTES_MIN + 1
    while position < len(packed):
        if len(parts) == blocks_max:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "snappy data have more blocks than they may have bytes for")
        (size,) = _INT32.unpack_from(packed, position)
        position += 4
        if size < 0 or position + size > len(packed):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "snappy block is longer than the data", block_bytes=size)
        part = _unsnap_block(packed[position : position + size], room, max_bytes)
        room -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _unsnap_block(block: bytes, room: int, max_bytes: int) -> bytes:
    import cramjam

    if cramjam.snappy.decompress_raw_len(block) > room:
        raise _too_large(Codec.SNAPPY, max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _unlz4(data: _Bytes, max_bytes: int) -> bytes:
    """Decompress lz4. The library has no bounded stream, but never overruns its output buffer, which is grown
    fourfold."""
    import cramjam

    packed = bytes(data)
    size = min(max_bytes, max(65536, 4 * len(packed)))
    while True:
        buffer = bytearray(size)
        try:
            written: int = cramjam.lz4.decompress_into(packed, buffer)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if size >= max_bytes:
                raise _too_large(Codec.LZ4, max_bytes) from error
            size = min(max_bytes, 4 * size)
        else:
            return bytes(memoryview(buffer)[:written])


def _unzstd(data: _Bytes, max_bytes: int) -> bytes:
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    with unpacker.stream_reader(data, read_across_frames=True) as stream:
        unpacked: bytes = stream.read(max_bytes + 1)
    if len(unpacked) > max_bytes:
        raise _too_large(Codec.ZSTD, max_bytes)
    return unpacked


_DECOMPRESS: dict[Codec, Callable[[_Bytes, int], bytes]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnap,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
