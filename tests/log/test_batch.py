"""Record batches v2: byte vectors of other encoders, headers that lie, fields patched in place."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from strandline.log.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    decode_records,
    iter_batches,
    parse_header,
    patch_base_offset_and_epoch,
    patch_log_append_time,
    verify_crc,
)
from strandline.log.compression import Codec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import records


def aiokafka_batch(items: list[Record], *, codec: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """The same batch by aiokafka's encoder."""
    builder = DefaultRecordBatchBuilder(2, codec, False, *producer, 1 << 30)
    for i, record in enumerate(items):
        builder.append(
            i, timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=list(record.headers)
        )
    return bytes(builder.build())


def test_equals_another_encoder_byte_for_byte() -> None:
    """Format of KIP-98: aiokafka's encoder gives the same bytes (its leader epoch is 0, ours is unknown: -1)."""
    items = [
        Record(0, 1_700_000_000_000, b"key", b"value", (("a", b"1"), ("empty", b""))),
        Record(1, 1_699_999_999_000, None, b"x" * 3000),
        Record(2, 1_700_000_100_000, b"", None, (("null", None), ("ü", b"\x00"))),
    ]
    theirs = aiokafka_batch(items, producer=(7, 2, 40))
    epoch = parse_header(theirs).leader_epoch
    ours = build_batch(items, leader_epoch=epoch, producer_id=7, producer_epoch=2, base_sequence=40)
    assert bytes(ours) == theirs


def test_header_fields() -> None:
    """Every field of the header comes back."""
    batch = build_batch(
        records(3), base_offset=100, leader_epoch=4, producer_id=9, producer_epoch=1, base_sequence=0x7FFFFFFF - 1
    )
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)
    assert (header.leader_epoch, header.magic, header.count, header.size) == (4, 2, 3, len(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 0x7FFFFFFF - 1)
    assert header.last_sequence == 0, "sequences wrap to 0 after 2^31-1"
    assert header.max_timestamp == header.base_timestamp + 2
    assert not header.is_transactional
    assert not header.is_control


def test_attributes() -> None:
    """Codec, timestamp type, transactional and control bits."""
    batch = build_batch(records(1), codec=Codec.ZSTD, transactional=True, control=True, timestamp_type=1)
    header = parse_header(batch)
    assert header.codec is Codec.ZSTD
    assert header.timestamp_type == 1
    assert header.is_transactional
    assert header.is_control
    with pytest.raises(KafkaError) as caught:
        _ = header._replace(attributes=5).codec
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("position", "format_", "value", "code"),
    [
        (16, ">b", 1, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (16, ">b", 3, ErrorCode.CORRUPT_MESSAGE),
        (16, ">b", -1, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", 48, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", -5, ErrorCode.CORRUPT_MESSAGE),
        (0, ">q", -1, ErrorCode.CORRUPT_MESSAGE),
        (23, ">i", -1, ErrorCode.CORRUPT_MESSAGE),
        (57, ">i", -1, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_impossible_headers(position: int, format_: str, value: int, code: ErrorCode) -> None:
    """Bad input: a lying length, count, offset or magic is refused with Kafka's error."""
    batch = build_batch(records(1))
    struct.pack_into(format_, batch, position, value)
    with pytest.raises(KafkaError) as caught:
        parse_header(batch)
    assert caught.value.code is code


def test_every_truncation_is_refused() -> None:
    """Bad input: a frame cut anywhere is never taken for whole."""
    batch = build_batch(records(2))
    for size in range(1, len(batch)):
        with pytest.raises(KafkaError) as caught:
            list(iter_batches(batch[:size]))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert list(iter_batches(b"")) == []


def test_every_flipped_bit_under_the_crc_is_found() -> None:
    """Row S78: the CRC covers everything from the attributes on."""
    batch = build_batch(records(1))
    verify_crc(batch)
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        with pytest.raises(KafkaError) as caught:
            verify_crc(damaged)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_patching_leaves_the_crc_alone() -> None:
    """Rule P1: base offset and leader epoch are set in the receive buffer, outside of the CRC."""
    buffer = bytearray(b"??") + build_batch(records(2))
    patch_base_offset_and_epoch(buffer, 2, 12345678901, 77)
    view = memoryview(buffer)[2:]
    verify_crc(view)
    header = parse_header(view)
    assert (header.base_offset, header.leader_epoch) == (12345678901, 77)
    assert [record.offset for record in decode_records(view)] == [12345678901, 12345678902]


def test_log_append_time() -> None:
    """message.timestamp.type=LogAppendTime: every record reads with the leader's time, and the CRC is renewed."""
    batch = build_batch(records(2))
    patch_log_append_time(batch, parse_header(batch), 5_000)
    verify_crc(batch)
    assert parse_header(batch).timestamp_type == 1
    assert [record.timestamp_ms for record in decode_records(batch)] == [5_000, 5_000]


def test_iteration_gives_views() -> None:
    """Nothing is copied: the views share the buffer."""
    first, second = build_batch(records(1)), build_batch(records(2), base_offset=1)
    buffer = first + second
    found = list(iter_batches(buffer))
    assert [header.base_offset for header, _ in found] == [0, 1]
    buffer[len(first)] = 1
    assert found[1][1][0] == 1


def test_header_size() -> None:
    """The header is 61 bytes; an empty batch does not exist."""
    assert HEADER_SIZE == 61
    assert len(BatchHeader._fields) == 13
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])
