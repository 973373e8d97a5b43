"""Codecs: both snappy framings, bounds, damaged data."""

from __future__ import annotations

import gzip

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.compression import Codec, compress, decompress
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

PACKED = [codec for codec in Codec if codec is not Codec.NONE]


@given(st.binary(max_size=5000), st.sampled_from(Codec))
@settings(max_examples=60, deadline=None)
def test_round_trip(data: bytes, codec: Codec) -> None:
    """Exactly `max_bytes` is allowed."""
    assert decompress(codec, compress(codec, data), len(data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_one_byte_too_many(codec: Codec) -> None:
    """The bound holds to the byte."""
    with pytest.raises(KafkaError) as caught:
        decompress(codec, compress(codec, bytes(100_000)), 99_999)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert caught.value.figures == {"max_bytes": 99_999}


@pytest.mark.parametrize("codec", PACKED)
def test_garbage(codec: Codec) -> None:
    """Bytes of no codec are Kafka's error and not the library's."""
    with pytest.raises(KafkaError) as caught:
        decompress(codec, b"\xff\xfe\xfd this is nothing" * 3)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", PACKED)
def test_every_truncation(codec: Codec) -> None:
    """Data cut anywhere is refused, or gives a beginning of the truth (zstd leaves an early end to the records)."""
    data = b"the quick brown fox jumps over the lazy dog " * 20
    packed = compress(codec, data)
    for size in range(len(packed)):
        try:
            unpacked = decompress(codec, packed[:size])
        except KafkaError as error:
            refused: ErrorCode | None = error.code
        else:
            refused = None
            assert data.startswith(unpacked)
            assert unpacked != data or codec in (Codec.ZSTD, Codec.LZ4)
        assert refused in (None, ErrorCode.CORRUPT_MESSAGE)


def test_snappy_of_librdkafka_and_of_java() -> None:
    """librdkafka writes one bare block, Java frames blocks of 32 KiB (xerial): both are read, xerial is written."""
    data = bytes(range(256)) * 600
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(Codec.SNAPPY, framed) == data
    with pytest.raises(KafkaError, match="longer than the data"):
        decompress(Codec.SNAPPY, framed[:-1])


def test_gzip_members_and_zstd_frames_in_a_row() -> None:
    """Streams of several members are one stream, as Java's readers see them."""
    assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    frames = zstandard.ZstdCompressor().compress(b"one ") + zstandard.ZstdCompressor().compress(b"two")
    assert decompress(Codec.ZSTD, frames) == b"one two"
