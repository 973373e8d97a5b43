"""A full disk and a failing one: what is refused, what stays, what goes on (schedule 18)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.checkpoints import RECOVERY_POINTS, decode_offsets
from strandline.log.config import LogConfig
from strandline.log.disk import DiskError
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.offset_checkpoints import LastLife
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import NodeId
from tests.log.helpers import (
    TOPIC_ID,
    TP,
    FailingDisk,
    ManualClock,
    all_records,
    client_batch,
    fill,
    open_test_log,
)

ROLLING = LogConfig(segment_bytes=800, index_interval_bytes=0, preallocate_bytes=0)


def test_a_full_disk_is_the_moments_trouble(disk: FailingDisk, tmp_path: Path) -> None:
    """Nothing is written, nothing changes, reads go on; once there is room, so do appends, with the same offsets."""
    log = open_test_log(disk, tmp_path)
    fill(log, 3)
    size = log.size_bytes
    for room in range(0, 70, 7):
        disk.bytes_left = room
        with pytest.raises(KafkaError) as caught:
            fill(log, 1)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "no space left" in str(caught.value)
        assert caught.value.retriable
        assert (log.log_end_offset, log.size_bytes, log.segments[0].file.size()) == (3, size, size)
    assert len(all_records(log)) == 3
    disk.bytes_left = None
    fill(log, 2)
    assert [record.offset for record in all_records(log)] == list(range(5))
    log.close_files()
    again = open_test_log(disk, tmp_path, last_life=LastLife(same_boot=True))
    assert again.log_end_offset == 5, "no part of a refused batch is met by recovery"


def test_what_is_stored_is_acknowledged_on_a_full_disk(disk: FailingDisk, tmp_path: Path) -> None:
    """A batch that is sent again because its ack was lost is no write; another one is, and is refused."""
    log = open_test_log(disk, tmp_path)
    stored = log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=0), 0, 0)
    again = client_batch(1, producer_id=1, producer_epoch=0, sequence=0)
    answer = log.append_as_leader(again, 0, 0, has_room=False)
    assert (answer.duplicate, answer.base_offset) == (True, stored.base_offset)
    with pytest.raises(NoSpaceLeft, match=r"log\.dir\.reserve\.bytes"):
        log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=1), 0, 0, has_room=False)
    assert log.log_end_offset == 1
    log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=1), 0, 0)


@given(st.lists(st.integers(0, 400), max_size=12))
@settings(max_examples=30, deadline=None)
def test_full_at_any_write(tmp_path_factory: pytest.TempPathFactory, rooms: list[int]) -> None:
    """Rolling included: segment, index, producer snapshot may each find no room, and the log goes on afterwards."""
    directory = tmp_path_factory.mktemp("full")
    disk = FailingDisk()
    log = open_test_log(disk, directory, config=ROLLING)
    sequence = 0
    for room in rooms:
        disk.bytes_left = room
        for _ in range(4):
            batch = client_batch(1, size=150, producer_id=1, producer_epoch=0, sequence=sequence)
            try:
                log.append_as_leader(batch, 0, 0)
            except KafkaError as error:
                code = error.code
            else:
                code = ErrorCode.NONE
                sequence += 1
            assert code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
        disk.bytes_left = None
        log.append_as_leader(client_batch(1, size=150, producer_id=1, producer_epoch=0, sequence=sequence), 0, 0)
        sequence += 1
    assert [record.offset for record in all_records(log)] == list(range(sequence))
    log.sync_now()
    log.close_files()
    again = open_test_log(disk, directory, config=ROLLING, last_life=LastLife(same_boot=True))
    assert again.log_end_offset == sequence
    entry = again.producers.get(1)
    assert entry is None or entry.batches[-1].last_sequence == sequence - 1
    disk.close()


def test_a_failed_write_fences(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 18: after an I/O error nothing is appended any more; a restart recovers what was written."""
    log = open_test_log(disk, tmp_path)
    fill(log, 2)
    disk.write_error = DiskError(5, "Input/output error", "x")
    with pytest.raises(StorageError, match="Nothing more is written"):
        fill(log, 1)
    disk.write_error = None
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            fill(log, 1)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "its disk failed" in str(caught.value)
    assert log.failure is not None
    assert len(all_records(log)) == 2
    log.close_files()
    assert open_test_log(disk, tmp_path).log_end_offset == 2


def test_a_follower_on_a_full_disk(disk: FailingDisk, tmp_path: Path) -> None:
    """It keeps its place and takes the same bytes later."""
    leader = open_test_log(disk, tmp_path / "leader")
    follower = open_test_log(disk, tmp_path / "follower")
    batch = client_batch(3)
    leader.append_as_leader(batch, 0, 0)
    disk.bytes_left = 20
    with pytest.raises(KafkaError) as caught:
        follower.append_as_follower(batch)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.bytes_left = None
    assert follower.append_as_follower(batch) == 3


def test_preallocation_wants_no_last_byte(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserving ahead stops while space is short, and a failed reservation is no failed append."""
    config = LogConfig(preallocate_bytes=1 << 20)
    log = open_test_log(disk, tmp_path / "short", config=config)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 500_000)
    fill(log, 1)
    assert log.segments[0].file.size() == log.size_bytes
    monkeypatch.undo()
    log = open_test_log(disk, tmp_path / "enough", config=config)
    fill(log, 1)
    assert log.segments[0].file.size() > log.size_bytes


def test_a_cut_without_room_is_tried_again(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 57: what the checkpoints promise above the cut is lowered first, and that takes room. Without any the
    log stays as it is, fenced by nothing, and the next attempt lowers what the files still say."""
    path = str(tmp_path / "data")
    format_log_dir(disk, path, "cluster", NodeId(1), TOPIC_ID)
    log_dir = LogDir.open(disk, path, ManualClock())
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, 5)
    log.sync_now()
    log_dir.write_checkpoints({TP: 2})
    recovery_points = Path(path, RECOVERY_POINTS)
    promised = recovery_points.read_bytes()
    disk.bytes_left = 0
    for cut in (lambda: log.truncate_to(3), lambda: log.truncate_fully_and_start_at(7), lambda: log.truncate_to(3)):
        with pytest.raises(NoSpaceLeft, match=f"to write down that {TP} is cut"):
            cut()
        assert (log.log_end_offset, log.failure) == (5, None)
        assert recovery_points.read_bytes() == promised
    disk.bytes_left = None
    assert log.truncate_to(3) == 3
    assert decode_offsets(str(recovery_points), recovery_points.read_bytes())[TP] == 3
    fill(log, 1)
    assert log.log_end_offset == 4
