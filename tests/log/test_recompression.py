"""Batches in the codec of their topic: `compression.type` and its levels, at the append of the leader."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.log.batch import (
    TIMESTAMP_TYPE_BIT,
    Record,
    build_batch,
    decode_records,
    iter_batches,
    parse_header,
    verify_crc,
)
from strandline.log.compression import Codec, compress, decompress
from strandline.log.config import LOG_APPEND_TIME, LogConfig, StoredCodec
from strandline.log.partition_log import PartitionLog
from strandline.log.recompression import cost_ms, is_slow_to_pack, packed_ahead
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import FailingDisk, open_test_log

T0 = 1_700_000_000_000
CODECS = list(Codec)
TEXT = b"records of a kind are alike and alike and alike, "


def batch(codec: Codec = Codec.NONE, count: int = 5, *, size: int = 300, sequence: int = 0) -> memoryview:
    """What an idempotent producer sends."""
    records = [
        Record(i, T0 + 7 * i, b"k%d" % i, (b"%d " % i + TEXT * size)[:size], (("h", b"x"),)) for i in range(count)
    ]
    data = build_batch(records, codec=codec, producer_id=9, producer_epoch=2, base_sequence=sequence)
    return memoryview(data)


def stored(log: PartitionLog) -> list[tuple[Codec, list[Record]]]:
    """The batches in the log, in their codecs."""
    read = log.read(0, 1 << 24, log.log_end_offset)
    assert read is not None
    found = []
    for header, data in iter_batches(read.data):
        verify_crc(data)
        found.append((header.codec, decode_records(data)))
    return found


def opened(
    disk: FailingDisk, path: Path, codec: Codec | None, level: int | None = None, **more: object
) -> PartitionLog:
    stored_codec = None if codec is None else StoredCodec(codec, level)
    config = LogConfig(preallocate_bytes=0, stored_codec=stored_codec)
    return open_test_log(disk, path, config=replace(config, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", CODECS, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("source", CODECS, ids=lambda codec: codec.name.lower())
def test_every_codec_into_every_other(disk: FailingDisk, tmp_path: Path, source: Codec, target: Codec) -> None:
    """Offsets, times, keys, headers, producer and sequence are the producer's; what is answered and replicated is what
    is stored."""
    log = opened(disk, tmp_path, target)
    first = log.append_as_leader(batch(source), 3, T0)
    second = log.append_as_leader(batch(source, sequence=5), 3, T0)
    assert (first.base_offset, second.base_offset, second.next_offset) == (0, 5, 10)
    (one, records), (two, later) = stored(log)
    assert one is two is target
    sent = decode_records(batch(source))
    assert [record[1:] for record in records] == [record[1:] for record in sent]
    assert [record.offset for record in [*records, *later]] == list(range(10))
    header = parse_header(second.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch) == (9, 2, 5, 3)
    assert (header.base_timestamp, header.max_timestamp, header.count) == (T0, T0 + 28, 5)
    follower = open_test_log(disk, tmp_path / "follower")
    assert follower.append_as_follower(first.data) == 5
    assert follower.append_as_follower(second.data) == 10
    assert log.append_as_leader(batch(source), 3, T0).duplicate, "by its sequence, whatever its codec is here"


def test_as_the_producer_sent_it(disk: FailingDisk, tmp_path: Path) -> None:
    """`producer`, and a batch that has the codec already: the same bytes, whatever its level."""
    for codec, target in ((Codec.GZIP, None), (Codec.GZIP, Codec.GZIP)):
        log = opened(disk, tmp_path / str(target), target, 9 if target else None)
        sent = batch(codec)
        result = log.append_as_leader(sent, 0, T0)
        assert result.data.obj is sent.obj


def test_levels_pack_more(disk: FailingDisk, tmp_path: Path) -> None:
    """KIP-390: as Kafka numbers them; lz4's 9 is its fast compressor."""
    random_ = random.Random(1)
    words = [bytes(random_.choices(range(97, 123), k=6)) for _ in range(300)]
    data = b" ".join(random_.choices(words, k=20_000))
    for codec, levels in (
        (Codec.GZIP, (-1, 1, 6, 9)), (Codec.LZ4, (1, 9, 12, 17)), (Codec.ZSTD, (-131_072, 1, 3, 19, 22)),
    ):  # fmt: skip
        sizes = {level: len(compress(codec, data, level)) for level in levels}
        assert all(decompress(codec, compress(codec, data, level)) == data for level in levels)
        sizes[0] = len(compress(codec, data))
        if codec is Codec.GZIP:
            assert sizes[-1] == sizes[6] == sizes[0] != sizes[1]
        elif codec is Codec.LZ4:
            assert sizes[9] == sizes[0] > sizes[1] >= sizes[12] == sizes[17]
        else:
            assert sizes[-131_072] > sizes[1]
            assert len({sizes[1], sizes[3], sizes[19], sizes[22]}) > 2
            assert sizes[3] == sizes[0]
    logs = [opened(disk, tmp_path / str(level), Codec.GZIP, level) for level in (1, 9)]
    for log in logs:
        log.append_as_leader(batch(Codec.NONE, 50), 0, T0)
    assert logs[0].size_bytes != logs[1].size_bytes


def test_the_leaders_time(disk: FailingDisk, tmp_path: Path) -> None:
    """LogAppendTime on a batch that is packed anew."""
    log = opened(disk, tmp_path, Codec.ZSTD, message_timestamp_type=LOG_APPEND_TIME)
    result = log.append_as_leader(batch(Codec.LZ4), 0, T0 + 1_000)
    header = parse_header(result.data)
    assert result.log_append_time_ms == header.max_timestamp == T0 + 1_000
    assert header.attributes & TIMESTAMP_TYPE_BIT
    [(codec, records)] = stored(log)
    assert codec is Codec.ZSTD
    assert {record.timestamp_ms for record in records} == {T0 + 1_000}


def test_the_bound_is_on_what_is_stored_and_on_what_came(disk: FailingDisk, tmp_path: Path) -> None:
    """max.message.bytes, as Kafka has it: of the batch that came, and of the one that is stored. Nothing is written."""
    small = len(batch(Codec.GZIP, 20))
    large = len(batch(Codec.NONE, 20))
    log = opened(disk, tmp_path, Codec.NONE, max_message_bytes=large - 1)
    with pytest.raises(KafkaError, match=r"once it is stored as compression\.type has it") as caught:
        log.append_as_leader(batch(Codec.GZIP, 20), 0, T0)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert (caught.value.figures["size"], log.log_end_offset) == (large, 0)
    log.config = replace(log.config, max_message_bytes=large)
    assert log.append_as_leader(batch(Codec.GZIP, 20), 0, T0).next_offset == 20
    log.config = replace(log.config, stored_codec=StoredCodec(Codec.GZIP), max_message_bytes=small + 50)
    with pytest.raises(KafkaError, match=r"takes \d+ bytes, and max\.message\.bytes of the topic is"):
        log.append_as_leader(batch(Codec.NONE, 20, sequence=20), 0, T0)
    log.config = replace(log.config, max_message_bytes=1 << 20, segment_bytes=200, stored_codec=StoredCodec(Codec.NONE))
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(batch(Codec.ZSTD, 20, sequence=20), 0, T0)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_refused_batch_is_not_packed(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A duplicate, and one out of order: no work is done for them."""
    log = opened(disk, tmp_path, Codec.ZSTD)
    log.append_as_leader(batch(), 0, T0)
    monkeypatch.setattr("strandline.log.recompression.compress", None)
    assert log.append_as_leader(batch(), 0, T0).duplicate
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(batch(sequence=77), 0, T0)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_what_is_packed_ahead_in_a_thread() -> None:
    """It is what the append would have made; what is wrong with a batch is left to the append, but for its size, which
    would cost the same work again."""
    config = LogConfig(stored_codec=StoredCodec(Codec.ZSTD, 19))
    ahead = packed_ahead(batch(Codec.GZIP), config)
    assert isinstance(ahead, memoryview)
    assert parse_header(ahead).codec is Codec.ZSTD
    assert decode_records(ahead) == decode_records(batch(Codec.GZIP))
    broken = bytearray(batch(Codec.GZIP))
    broken[-1] ^= 1
    view = memoryview(broken)
    assert packed_ahead(view, config) is view
    assert packed_ahead(view[:70], config) == view[:70]
    garbage = memoryview(bytes(100))
    assert packed_ahead(garbage, config) is garbage
    plain = LogConfig(stored_codec=StoredCodec(Codec.NONE), max_message_bytes=800)
    error = packed_ahead(batch(Codec.GZIP, 20), plain)
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_what_takes_long_is_packed_in_a_thread() -> None:
    """By codec, level and size; a lone record never, but at levels that nobody sets for such."""
    small, large = batch(size=100, count=1), batch(size=10_000, count=20)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        assert not is_slow_to_pack(small, LogConfig(stored_codec=StoredCodec(codec)))
    assert is_slow_to_pack(large, LogConfig(stored_codec=StoredCodec(Codec.GZIP)))
    assert not is_slow_to_pack(large, LogConfig(stored_codec=StoredCodec(Codec.SNAPPY)))
    assert not is_slow_to_pack(large, LogConfig(stored_codec=StoredCodec(Codec.NONE))), "it is not to be packed"
    assert not is_slow_to_pack(large, LogConfig())
    for codec, usual, slow in ((Codec.LZ4, 9, 8), (Codec.ZSTD, 3, 4)):
        assert cost_ms(1000, StoredCodec(codec, slow)) > 5 * cost_ms(1000, StoredCodec(codec, usual))
    bomb = batch(Codec.ZSTD, 1, size=1_000_000)
    assert len(bomb) < 1_000
    assert is_slow_to_pack(bomb, LogConfig(stored_codec=StoredCodec(Codec.SNAPPY)))
