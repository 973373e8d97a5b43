"""A log that begins inside its first batch: records were deleted up to the middle of it (KAFKA-6975, schedule 55)."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.log.batch import build_batch
from strandline.log.config import LogConfig
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import FailingDisk, all_records, client_batch, fill, open_test_log, records

CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=100, preallocate_bytes=0)


def replicated(base: int, count: int, epoch: int = 3) -> memoryview:
    """A batch as the leader has it."""
    items = records(count, first=base, timestamp_ms=1_000)
    return memoryview(build_batch(items, base_offset=base, leader_epoch=epoch, producer_id=7, producer_epoch=0,
                                  base_sequence=base))  # fmt: skip


def empty_at(disk: FailingDisk, directory: Path, offset: int) -> PartitionLog:
    """As a follower has it that was told to start anew at the leader's log start."""
    log = open_test_log(disk, directory, config=CONFIG)
    log.truncate_fully_and_start_at(offset)
    return log


def test_an_empty_log_takes_the_batch_that_holds_its_start(disk: FailingDisk, tmp_path: Path) -> None:
    """Bytes, epochs, producers and segments as on the leader; the log start stays."""
    log = empty_at(disk, tmp_path, 15)
    assert log.append_as_follower(replicated(10, 10)) == 20
    assert log.append_as_follower(replicated(20, 5, epoch=4)) == 25
    assert (log.log_start_offset, log.log_end_offset, log.bases) == (15, 25, [10])
    assert log.epochs.entries() == [(3, 15), (4, 20)]
    producer = log.producers.get(7)
    assert producer is not None
    assert [(batch.first_offset, batch.last_offset) for batch in producer.batches] == [(10, 19), (20, 24)]
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["00000000000000000010.log"]


def test_its_reads(disk: FailingDisk, tmp_path: Path) -> None:
    """As Kafka's: the whole batch for an offset inside it; readers skip what is before it. Nothing below the start, and
    times are looked up among what is left."""
    log = empty_at(disk, tmp_path, 15)
    log.append_as_follower(replicated(10, 10))
    read = log.read(15, 1 << 20, 20)
    assert read is not None
    assert (read.first_offset, read.next_offset) == (10, 20)
    assert [record.offset for record in all_records(log)] == list(range(15, 20))
    with pytest.raises(KafkaError) as caught:
        log.read(14, 1 << 20, 20)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    found = log.offset_for_timestamp(1_000, 20)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (15, 1_015)
    newest = log.max_timestamp(20)
    assert newest is not None
    assert newest.offset == 19


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_it_is_recovered(disk: FailingDisk, tmp_path: Path, clean: bool, checkpointed: bool) -> None:
    """Without its checkpoint the start goes back to the batch's beginning, and no further."""
    log = empty_at(disk, tmp_path, 15)
    log.append_as_follower(replicated(10, 10))
    fill(log, 20, size=120, epoch=5)
    log.close()
    last_life = LastLife(clean=clean, log_start_offset=15 if checkpointed else 0)
    again = open_test_log(disk, tmp_path, config=CONFIG, last_life=last_life)
    start = 15 if checkpointed else 10
    assert (again.log_start_offset, again.log_end_offset) == (start, 40)
    assert [record.offset for record in all_records(again)] == list(range(start, 40))
    assert again.epochs.entries() == [(3, start), (5, 20)]


def test_a_cut_inside_its_first_batch_takes_the_batch(disk: FailingDisk, tmp_path: Path) -> None:
    """Records are cut by whole batches: the log is empty, where that batch began, and can go on from there."""
    log = empty_at(disk, tmp_path, 15)
    log.append_as_follower(replicated(10, 10))
    assert log.truncate_to(17) == 10
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)
    assert log.append_as_follower(replicated(10, 3, epoch=9)) == 13


@pytest.mark.parametrize(
    ("start", "batch", "code"),
    [
        (15, replicated(16, 10), ErrorCode.OFFSET_OUT_OF_RANGE),
        (15, replicated(5, 10), ErrorCode.OFFSET_OUT_OF_RANGE),
        (15, memoryview(bytes(replicated(10, 10))[:-1] + b"?"), ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["begins after it", "ends before it", "damaged"],
)
def test_other_batches_change_nothing(
    disk: FailingDisk, tmp_path: Path, start: int, batch: memoryview, code: ErrorCode
) -> None:
    """The log is as it was: empty, at its start."""
    log = empty_at(disk, tmp_path, start)
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(batch)
    assert caught.value.code is code
    assert (log.log_start_offset, log.log_end_offset, log.bases) == (start, start, [start])


def test_a_log_that_holds_something_does_not_begin_anew(disk: FailingDisk, tmp_path: Path) -> None:
    """Its end is the end of a batch, and the leader's next one begins there."""
    log = open_test_log(disk, tmp_path, config=CONFIG)
    log.append_as_leader(client_batch(10), 1, 0)
    log.delete_records_before(9)
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(replicated(5, 10))
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (log.log_start_offset, log.log_end_offset) == (9, 10)


def test_a_full_disk_leaves_an_empty_log(disk: FailingDisk, tmp_path: Path) -> None:
    """It begins where the batch would: the next fetch from there is told the leader's log start again."""
    log = empty_at(disk, tmp_path, 15)
    disk.bytes_left = 50
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(replicated(10, 10))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)
    disk.bytes_left = None
    log.truncate_fully_and_start_at(15)
    assert log.append_as_follower(replicated(10, 10)) == 20
    assert log.log_start_offset == 15
