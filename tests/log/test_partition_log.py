"""Appending and what it refuses; rolling; time; reading outside."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from strandline.log.batch import build_batch, decode_records, iter_batches, parse_header, verify_crc
from strandline.log.compression import Codec
from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from tests.log.helpers import (
    NO_STEPS,
    TOPIC_ID,
    TP,
    FailingDisk,
    JumpingClock,
    ManualClock,
    all_records,
    client_batch,
    fill,
    open_test_log,
    records,
)


def test_append_gives_offsets_in_place(disk: FailingDisk, tmp_path: Path) -> None:
    """The view of the receive buffer is what is written and what followers get."""
    log = open_test_log(disk, tmp_path / "t-0")
    fill(log, 1, count=3)
    batch = client_batch(2, first=3)
    result = log.append_as_leader(batch, 7, 1000)
    assert (result.base_offset, result.next_offset, result.duplicate, result.log_append_time_ms) == (3, 5, False, -1)
    assert result.data is batch
    header = parse_header(batch)
    assert (header.base_offset, header.leader_epoch) == (3, 7)
    assert bytes(batch) in (tmp_path / "t-0" / "00000000000000000000.log").read_bytes()
    assert log.log_end_offset == 5
    assert log.durable_offset == 0, "nothing is durable before a sync"
    assert log.latest_epoch == 7
    assert [record.offset for record in all_records(log)] == [0, 1, 2, 3, 4]


def test_several_batches_in_one_append(disk: FailingDisk, tmp_path: Path) -> None:
    """Each gets its offsets; all of them or none are written."""
    log = open_test_log(disk, tmp_path)
    both = bytearray(client_batch(2)) + bytearray(client_batch(3, first=2))
    assert log.append_as_leader(memoryview(both), 0, 0).next_offset == 5
    assert [header.base_offset for header, _ in iter_batches(both)] == [0, 2]
    broken = bytearray(client_batch(1)) + bytearray(client_batch(1))
    broken[-1] ^= 1
    with pytest.raises(KafkaError):
        log.append_as_leader(memoryview(broken), 0, 0)
    assert log.log_end_offset == 5


def damaged(kind: str) -> memoryview:
    """A client's batch that must not be taken."""
    batch = bytearray(client_batch(2))
    edits = {
        "magic 1": (16, ">b", 1),
        "count": (57, ">i", 3),
        "base offset": (0, ">q", 1),
        "length beyond": (8, ">i", len(batch)),
        "control": (21, ">h", 0x20),
        "transactional": (21, ">h", 0x10),
        "codec 6": (21, ">h", 6),
        "sequence without id": (53, ">i", 4),
        "epoch without id": (51, ">h", 4),
        "id without epoch": (43, ">q", 4),
    }
    if kind == "crc":
        batch[-1] ^= 1
        return memoryview(batch)
    if kind == "cut":
        return memoryview(batch)[:-1]
    if kind == "nothing":
        return memoryview(bytearray())
    position, format_, value = edits[kind]
    struct.pack_into(format_, batch, position, value)
    if position >= 21:
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return memoryview(batch)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("magic 1", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ("crc", ErrorCode.CORRUPT_MESSAGE),
        ("cut", ErrorCode.CORRUPT_MESSAGE),
        ("length beyond", ErrorCode.CORRUPT_MESSAGE),
        ("nothing", ErrorCode.INVALID_RECORD),
        ("count", ErrorCode.INVALID_RECORD),
        ("base offset", ErrorCode.INVALID_RECORD),
        ("control", ErrorCode.INVALID_RECORD),
        ("id without epoch", ErrorCode.INVALID_RECORD),
        ("transactional", ErrorCode.INVALID_TXN_STATE),
        ("codec 6", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_what_a_leader_refuses(disk: FailingDisk, tmp_path: Path, kind: str, code: ErrorCode) -> None:
    """Bad input gets Kafka's error, and nothing is written."""
    log = open_test_log(disk, tmp_path)
    fill(log, 1)
    size = log.size_bytes
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(damaged(kind), 0, 0)
    assert caught.value.code is code
    assert (log.log_end_offset, log.size_bytes, log.segments[0].file.size()) == (1, size, size)


@pytest.mark.parametrize("kind", ["sequence without id", "epoch without id"])
def test_leftovers_of_a_producer_without_id(disk: FailingDisk, tmp_path: Path, kind: str) -> None:
    """franz-go and aiokafka, not idempotent, leave 0 in the epoch's or the sequence's place: taken, as Kafka does."""
    log = open_test_log(disk, tmp_path)
    for _ in range(2):
        log.append_as_leader(damaged(kind), 0, 0)
    assert log.log_end_offset == 4
    assert not log.producers.entries()


def test_size_limits(disk: FailingDisk, tmp_path: Path) -> None:
    """Row S80: above max.message.bytes MESSAGE_TOO_LARGE with its figures; above segment.bytes
    RECORD_LIST_TOO_LARGE."""
    log = open_test_log(disk, tmp_path, config=LogConfig(max_message_bytes=1000, segment_bytes=1500))
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(client_batch(1, size=1000), 0, 0)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert caught.value.figures["max_message_bytes"] == 1000
    assert "max.message.bytes of the topic is 1000" in caught.value.message, "clients get the message alone"
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(memoryview(bytearray(client_batch(1, size=800)) * 2), 0, 0)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    log.config = LogConfig(max_message_bytes=2000, segment_bytes=5000)
    assert log.append_as_leader(client_batch(1, size=1000), 0, 0).next_offset == 1


def test_duplicates_are_answered_with_the_original(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule C1: an exact match among the last five is success with the original offsets, and nothing is written."""
    log = open_test_log(disk, tmp_path)
    for i in range(6):
        log.append_as_leader(client_batch(2, producer_id=9, producer_epoch=0, sequence=2 * i), 0, 0)
    size = log.size_bytes
    for i in range(1, 6):
        again = log.append_as_leader(client_batch(2, producer_id=9, producer_epoch=0, sequence=2 * i), 0, 0)
        assert (again.base_offset, again.next_offset, again.duplicate) == (2 * i, 2 * i + 2, True)
    for sequence, count in ((0, 2), (10, 1), (13, 1), (11, 2)):
        with pytest.raises(KafkaError) as caught:
            log.append_as_leader(client_batch(count, producer_id=9, producer_epoch=0, sequence=sequence), 0, 0)
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.size_bytes == size
    log.append_as_leader(client_batch(1, producer_id=9, producer_epoch=1, sequence=0), 0, 0)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(client_batch(1, producer_id=9, producer_epoch=0, sequence=12), 0, 0)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_half_duplicate_appends_are_refused(disk: FailingDisk, tmp_path: Path) -> None:
    """Of several batches all are duplicates or none is."""
    log = open_test_log(disk, tmp_path)
    first = bytearray(client_batch(1, producer_id=1, producer_epoch=0, sequence=0))
    second = bytearray(client_batch(1, producer_id=1, producer_epoch=0, sequence=1))
    log.append_as_leader(memoryview(bytearray(first)), 0, 0)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(memoryview(first + second), 0, 0)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append_as_leader(memoryview(bytearray(second)), 0, 0)
    both = log.append_as_leader(memoryview(first + second), 0, 0)
    assert (both.base_offset, both.next_offset, both.duplicate) == (0, 2, True)


def test_state_changes_only_after_the_write(disk: FailingDisk, tmp_path: Path) -> None:
    """KAFKA-6683: an append that failed must not count as the producer's last."""
    log = open_test_log(disk, tmp_path)
    disk.bytes_left = 10
    with pytest.raises(KafkaError):
        log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=0), 3, 0)
    assert len(log.producers) == 0
    assert log.latest_epoch == -1
    disk.bytes_left = None
    assert not log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=0), 3, 0).duplicate


def test_log_append_time(disk: FailingDisk, tmp_path: Path) -> None:
    """message.timestamp.type=LogAppendTime: the leader's clock, in the batch and in the answer, of duplicates too."""
    log = open_test_log(disk, tmp_path, config=LogConfig(message_timestamp_type="LogAppendTime", preallocate_bytes=0))
    batch = client_batch(2, producer_id=1, producer_epoch=0, sequence=0)
    again = memoryview(bytearray(batch))
    assert log.append_as_leader(batch, 0, 123_456).log_append_time_ms == 123_456
    verify_crc(batch)
    assert [record.timestamp_ms for record in decode_records(batch)] == [123_456] * 2
    assert log.append_as_leader(again, 0, 200_000).log_append_time_ms == 123_456
    assert log.offset_for_timestamp(123_456, 2) == (0, 123_456, 0)


def test_a_stale_leader_cannot_write(disk: FailingDisk, tmp_path: Path) -> None:
    """Epochs never go back in a log: the batches of an older leader are refused."""
    log = open_test_log(disk, tmp_path)
    log.assign_epoch_start(5, 0)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(client_batch(1), 4, 0)
    assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(KafkaError):
        log.append_batch(build_batch(records(1)), 4)


def test_append_batch(disk: FailingDisk, tmp_path: Path) -> None:
    """The metadata log's own batches, control batches included."""
    log = open_test_log(disk, tmp_path)
    result = log.append_batch(build_batch(records(2), control=True), 3)
    assert (result.base_offset, result.next_offset) == (0, 2)
    assert parse_header(result.data).leader_epoch == 3
    with pytest.raises(ValueError, match="one batch"):
        log.append_batch(build_batch(records(1)) + build_batch(records(1)), 3)


def test_followers_keep_what_the_leader_wrote(disk: FailingDisk, tmp_path: Path) -> None:
    """Row S36: the files are byte for byte the same, epochs and producer state too; sequences are not judged again."""
    leader = open_test_log(disk, tmp_path / "leader")
    follower = open_test_log(disk, tmp_path / "follower")
    frame = bytearray()
    for i in range(4):
        batch = client_batch(2, producer_id=1, producer_epoch=0, sequence=2 * i, codec=Codec(i))
        leader.append_as_leader(batch, i // 2, 0)
        frame += batch
    assert follower.append_as_follower(memoryview(bytes(frame))) == 8
    name = "00000000000000000000.log"
    assert (tmp_path / "leader" / name).read_bytes() == (tmp_path / "follower" / name).read_bytes()
    assert follower.epochs.entries() == leader.epochs.entries() == [(0, 0), (1, 4)]
    assert follower.append_as_leader(client_batch(2, producer_id=1, producer_epoch=0, sequence=6), 1, 0).duplicate, (
        "dedupe works over failover"
    )


def test_a_follower_does_not_judge_sequences(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule C1: the leader had forgotten the producer (it expires by each node's own clock) and took any sequence; the
    follower, which has not, takes what the leader took, and judges from there on."""
    log = open_test_log(disk, tmp_path)
    for offset, sequence in ((0, 0), (1, 500), (2, 3)):
        batch = build_batch(
            records(1), base_offset=offset, leader_epoch=0, producer_id=9, producer_epoch=0, base_sequence=sequence
        )
        assert log.append_as_follower(memoryview(batch)) == offset + 1
    assert not log.append_as_leader(client_batch(1, producer_id=9, producer_epoch=0, sequence=4), 0, 0).duplicate


def test_what_a_follower_refuses(disk: FailingDisk, tmp_path: Path) -> None:
    """A gap, an overlap, a broken CRC, an epoch that goes back, half a batch: nothing is written."""
    log = open_test_log(disk, tmp_path)
    good = build_batch(records(1), base_offset=0, leader_epoch=4)
    log.append_as_follower(memoryview(good))
    for batch, code in (
        (build_batch(records(1), base_offset=2, leader_epoch=4), ErrorCode.OFFSET_OUT_OF_RANGE),
        (build_batch(records(1), base_offset=0, leader_epoch=4), ErrorCode.OFFSET_OUT_OF_RANGE),
        (build_batch(records(1), base_offset=1, leader_epoch=3), ErrorCode.CORRUPT_MESSAGE),
        (build_batch(records(1), base_offset=1, leader_epoch=4)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (bytearray(), ErrorCode.CORRUPT_MESSAGE),
    ):
        with pytest.raises(KafkaError) as caught:
            log.append_as_follower(memoryview(batch))
        assert caught.value.code is code
    flipped = build_batch(records(1), base_offset=1, leader_epoch=4)
    flipped[-1] ^= 1
    with pytest.raises(KafkaError):
        log.append_as_follower(memoryview(flipped))
    assert log.log_end_offset == 1


def test_segments_roll_by_size_age_and_index(disk: FailingDisk, tmp_path: Path) -> None:
    """Row S72: segments are named by base offset, 20 digits, and none is larger than segment.bytes."""
    clock = ManualClock(0)
    config = LogConfig(segment_bytes=1000, segment_ms=100, index_interval_bytes=0, preallocate_bytes=0)
    log = open_test_log(disk, tmp_path, config=config, clock=clock)
    for i in range(10):
        log.append_as_leader(client_batch(1, first=i, size=300), 0, 0)
    assert log.bases == [0, 2, 4, 6, 8]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert "00000000000000000004.log" in names
    assert "00000000000000000004.timeindex" in names
    assert all(path.stat().st_size <= 1000 for path in tmp_path.glob("*.log"))
    clock.now_ms = 101
    log.append_as_leader(client_batch(1, first=10), 0, 101)
    assert log.bases[-1] == 10, "older than segment.ms"
    log.config = LogConfig(segment_index_bytes=16, index_interval_bytes=0, preallocate_bytes=0)
    for i in range(11, 16):
        log.append_as_leader(client_batch(1, first=i), 0, 101)
    assert len(log.bases) == 7, "two index entries are all that 16 bytes hold"
    log.roll()
    log.roll()
    assert log.bases[-1] == 16
    assert len(log.bases) == 8, "an empty segment is not rolled"
    assert [record.offset for record in all_records(log)] == list(range(16))


def test_a_follower_rolls_as_its_leader_does(disk: FailingDisk, tmp_path: Path) -> None:
    """A frame of many batches does not make an oversized segment."""
    log = open_test_log(disk, tmp_path, config=LogConfig(segment_bytes=1000, preallocate_bytes=0))
    frame = b"".join(build_batch(records(1, first=i, size=300), base_offset=i, leader_epoch=0) for i in range(10))
    assert log.append_as_follower(memoryview(frame)) == 10
    assert log.bases == [0, 2, 4, 6, 8]


def test_time_look_ups(disk: FailingDisk, tmp_path: Path) -> None:
    """ListOffsets by timestamp and by the largest one (KIP-734), across segments, below a limit, inside a batch."""
    log = open_test_log(
        disk, tmp_path, config=LogConfig(segment_bytes=700, index_interval_bytes=0, preallocate_bytes=0)
    )
    times = [100, 200, 150, 400, 300, 400, 500, 50, 600, 10]
    for i, timestamp in enumerate(times):
        log.append_as_leader(client_batch(2, first=2 * i, size=100, timestamp_ms=timestamp * 10), 3, 0)
    found = {record.offset: record.timestamp_ms for record in all_records(log)}
    assert len(log.segments) > 2
    for limit in range(21):
        for wanted in range(0, 6100, 37):
            expected = next((o for o, t in found.items() if t >= wanted and o < limit), None)
            result = log.offset_for_timestamp(wanted, limit)
            assert (result.offset if result else None) == expected, (wanted, limit)
            assert result is None or (result.timestamp_ms, result.leader_epoch) == (found[result.offset], 3)
        whole = {o: t for o, t in found.items() if o < limit // 2 * 2}
        newest = log.max_timestamp(limit)
        if whole:
            assert newest is not None
            assert newest[:2] == max(whole.items(), key=lambda item: (item[1], -item[0]))
        else:
            assert newest is None


def test_read_outside(disk: FailingDisk, tmp_path: Path) -> None:
    """OFFSET_OUT_OF_RANGE carries what is there; the log end itself is an empty read."""
    log = open_test_log(disk, tmp_path, config=LogConfig(segment_bytes=300, preallocate_bytes=0))
    fill(log, 10, size=100)
    log.delete_records_before(4)
    for offset in (-1, 3, 11):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 1000, 10)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert caught.value.figures["log_start_offset"] == 4
        assert caught.value.figures["log_end_offset"] == 10
    assert log.read(10, 1000, 10) == (b"", 10, 10)
    assert log.read(7, 1000, 5) == (b"", 7, 7), "above the high watermark but within the log: nothing to see yet"


def test_a_flipped_length_is_an_error_of_its_place(disk: FailingDisk, tmp_path: Path) -> None:
    """Row S78: a reader gets CORRUPT_MESSAGE with file and byte, never wrong bytes for right ones."""
    log = open_test_log(disk, tmp_path)
    fill(log, 3)
    size = log.size_bytes // 3
    log.segments[0].file.pwrite(b"\xff\xff", size + 8)
    with pytest.raises(KafkaError) as caught:
        log.read(2, 1000, 3)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert caught.value.figures["position"] == size


def test_preallocation_grows_in_steps_and_goes_at_close(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule P6: steps double with the data, nothing of them is left after a clean stop."""
    config = LogConfig(preallocate_bytes=1 << 20, max_message_bytes=1 << 20)
    log = open_test_log(disk, tmp_path, config=config)
    path = tmp_path / "00000000000000000000.log"
    assert path.stat().st_size == 0, "an idle partition reserves nothing"
    sizes = []
    for _ in range(8):
        log.append_as_leader(client_batch(1, size=500_000), 0, 0)
        sizes.append(path.stat().st_size)
    assert sizes[0] == 500_074 + (256 << 10)
    assert len(set(sizes)) < len(sizes), "not every append allocates"
    assert max(b - a for a, b in pairwise(sizes)) <= (1 << 20) + 500_074
    assert sizes[-1] >= log.size_bytes
    log.close()
    assert path.stat().st_size == log.size_bytes
    assert NO_STEPS.preallocate_bytes == 0


def test_expiry(disk: FailingDisk, tmp_path: Path) -> None:
    """producer.id.expiration.ms: a silent producer is forgotten, and may then begin anywhere."""
    clock = ManualClock(1000)
    log = open_test_log(disk, tmp_path, clock=clock)
    log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=0), 0, clock.now_ms)
    assert log.expire_producers(1000 + 86_399_999) == 0
    assert log.expire_producers(1000 + 86_400_000) == 1
    assert not log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=77), 0, 0).duplicate


def test_100_a_wall_clock_set_ahead_forgets_no_producer(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 100: eight days ahead for eight seconds. The retry of a batch that is in the log is known for one."""
    clock = JumpingClock()
    format_log_dir(disk, f"{tmp_path}/data", "cluster", NodeId(1), UUID(int=1))
    log_dir = LogDir.open(disk, f"{tmp_path}/data", clock, LogConfig(preallocate_bytes=0))
    log = log_dir.create(TP, TOPIC_ID)

    def send() -> bool:
        batch = client_batch(1, producer_id=1, producer_epoch=0, sequence=0)
        return log.append_as_leader(batch, 0, clock.wall_ms()).duplicate

    assert not send()
    clock.jump(8 * 24 * 3_600_000)
    log_dir.sweep()
    clock.now_ms += 8_000
    clock.jump(-8 * 24 * 3_600_000)
    log_dir.sweep()
    assert send(), "the batch is in the log twice"
    clock.now_ms += log.config.producer_id_expiration_ms
    log_dir.sweep()
    assert not send(), "its time is over"
    log_dir.close(1)


def test_a_closed_log_refuses(disk: FailingDisk, tmp_path: Path) -> None:
    """Nothing writes behind a clean stop; closing twice is fine."""
    log = open_test_log(disk, tmp_path)
    fill(log, 1)
    log.close()
    log.close()
    with pytest.raises(KafkaError) as caught:
        fill(log, 1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
