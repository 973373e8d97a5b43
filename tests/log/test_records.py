"""The record codec: round trips with every codec, other implementations as oracle, hostile bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.batch import (
    HEADER_SIZE,
    Record,
    RecordBatchBuilder,
    build_batch,
    decode_records,
    parse_header,
    verify_crc,
)
from strandline.log.compression import Codec
from strandline.log.records_python import decode_varint, encode_varint
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import records

TIMESTAMPS = st.integers(0, 1 << 45)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
RECORD = st.builds(
    Record, st.just(0), TIMESTAMPS, st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=200), HEADERS
)


@given(st.lists(RECORD, min_size=1, max_size=20), st.sampled_from(Codec), st.integers(0, 1 << 60))
@settings(max_examples=80, deadline=None)
def test_round_trip(items: list[Record], codec: Codec, base_offset: int) -> None:
    """What is built decodes to the same records, with every codec."""
    batch = build_batch(items, base_offset=base_offset, codec=codec)
    verify_crc(batch)
    expected = [record._replace(offset=base_offset + i) for i, record in enumerate(items)]
    assert decode_records(batch) == expected
    assert parse_header(batch).max_timestamp == max(record.timestamp_ms for record in items)


@given(st.lists(RECORD, min_size=1, max_size=10), st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]))
@settings(max_examples=40, deadline=None)
def test_another_decoder_reads_ours(items: list[Record], codec: Codec) -> None:
    """aiokafka reads what we write: xerial snappy and lz4 frames included."""
    theirs: list[Any] = list(MemoryRecords(bytes(build_batch(items, codec=codec))).next_batch())
    assert [(r.timestamp, r.key, r.value) for r in theirs] == [(r.timestamp_ms, r.key, r.value) for r in items]


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints(value: int) -> None:
    """Zigzag varints of 64 bits."""
    encoded = encode_varint(value)
    assert decode_varint(encoded, 0) == (value, len(encoded))
    assert len(encoded) <= 10


def test_varint_bounds() -> None:
    """A varint that does not end is refused."""
    with pytest.raises(ValueError, match="64 bits"):
        decode_varint(b"\x80" * 11, 0)
    with pytest.raises(IndexError):
        decode_varint(b"\x80", 0)


@given(st.lists(RECORD, min_size=1, max_size=10))
@settings(max_examples=30)
def test_builder_knows_its_size(items: list[Record]) -> None:
    """batch.size is judged by the builder's own count, which is exact without compression."""
    builder = RecordBatchBuilder()
    for record in items:
        builder.append(record.timestamp_ms, record.key, record.value, record.headers)
    assert builder.count == len(items)
    assert builder.size_bytes == len(builder.build())


def test_wide_offsets_and_lengths() -> None:
    """Varints of two and three bytes: more than 64 records, values of more than 8 KiB."""
    items = records(5000)
    items[17] = items[17]._replace(value=b"y" * 70_000, timestamp_ms=items[0].timestamp_ms - 86_400_000)
    assert decode_records(build_batch(items)) == items


@given(st.binary(max_size=60), st.integers(0, 3))
@settings(max_examples=150)
def test_hostile_bodies(body: bytes, count: int) -> None:
    """Bad input: any bytes under a valid CRC either decode or raise Kafka's error, and nothing else."""
    try:
        refused, found = None, len(decode_records(_with_body(body, count)))
    except KafkaError as error:
        refused, found = error.code, count
    assert refused in (None, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert found == count


@given(st.data())
@settings(max_examples=150)
def test_mutated_bodies(data: st.DataObject) -> None:
    """Bad input: one byte changed inside the records, CRC renewed."""
    good = build_batch([Record(0, 5, b"key", b"value", (("h", b"x"),)), Record(1, 6, None, b"v" * 70)])
    position = data.draw(st.integers(HEADER_SIZE, len(good) - 1))
    body = bytearray(good[HEADER_SIZE:])
    body[position - HEADER_SIZE] = data.draw(st.integers(0, 255))
    try:
        refused, found = None, len(decode_records(_with_body(bytes(body), 2)))
    except KafkaError as error:
        refused, found = error.code, 2
    assert refused in (None, ErrorCode.INVALID_RECORD)
    assert found == 2


def test_lying_count() -> None:
    """Bad input: a count beyond the bytes is refused before a list is made of it."""
    for count in (3, 1 << 30):
        with pytest.raises(KafkaError) as caught:
            decode_records(_with_body(bytes(build_batch(records(2))[HEADER_SIZE:]), count))
        assert caught.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(KafkaError, match="bytes left"):
        decode_records(_with_body(bytes(build_batch(records(2))[HEADER_SIZE:]), 1))


def test_a_bomb_is_not_unpacked() -> None:
    """Bounded decompression: a batch may not unpack to more than it is allowed to."""
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        batch = build_batch([Record(0, 0, None, bytes(1 << 20))], codec=codec)
        assert decode_records(batch)[0].value == bytes(1 << 20)
        with pytest.raises(KafkaError) as caught:
            decode_records(batch, max_bytes=1 << 19)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def _with_body(body: bytes, count: int) -> bytes:
    batch = bytearray(build_batch(records(1))[:HEADER_SIZE]) + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)
