"""What age and size take from the front of a log, and the clock that they go by."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.retention import (
    CLOCK_FILE,
    Expired,
    Keep,
    last_time,
    note_time,
)
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, ManualClock, client_batch, open_test_log

HOUR_MS = 3_600_000
T0 = 1_700_000_000_000


def keeps(retention_ms: int = -1, retention_bytes: int = -1) -> LogConfig:
    return LogConfig(preallocate_bytes=0, retention_ms=retention_ms, retention_bytes=retention_bytes)


def filled(disk: FailingDisk, path: Path, config: LogConfig, times: list[int]) -> PartitionLog:
    """One segment for each of `times`, with one record of 100 bytes of that time."""
    log = open_test_log(disk, path, config=config)
    for number, time_ms in enumerate(times):
        if number:
            log.roll()
        log.append_as_leader(client_batch(1, size=100, timestamp_ms=time_ms), 1, T0)
    return log


def expired(
    log: PartitionLog, now_ms: int, limit: int | None = None, *, latest_ms: int | None = None
) -> Expired | None:
    keep = Keep(log.config.retention_ms, log.config.retention_bytes)
    end = log.log_end_offset if limit is None else limit
    now = Now(now_ms - T0, now_ms if latest_ms is None else latest_ms, now_ms)
    return asyncio.run(log.find_expired(now, end, keep))


def test_age_takes_whole_segments_up_to_the_first_that_is_young(disk: FailingDisk, tmp_path: Path) -> None:
    """The newest record of a segment counts; what is old behind a young segment stays."""
    log = filled(disk, tmp_path, keeps(retention_ms=HOUR_MS), [T0, T0 + 5, T0 + 10, T0 + 3])
    assert expired(log, T0 + HOUR_MS) is None
    found = expired(log, T0 + HOUR_MS + 6)
    assert found is not None
    assert (found.offset, found.segments, found.by) == (2, 2, "retention.ms")
    assert found.size_bytes == sum(segment.size for segment in log.segments[:2])
    assert expired(log, T0 + 10 * HOUR_MS, limit=3) == expired(log, T0 + HOUR_MS + 11, limit=3)


def damaged_index(data: bytes, damage: str) -> bytes:
    """What a disk makes of a time index of several entries."""
    first_ms = int.from_bytes(data[:8], "big")
    match damage:
        case "flip":  # of the newest time: still later than the one before, and long ago
            return data[:-12] + (first_ms + 1).to_bytes(8, "big") + data[-4:]
        case "cut":
            return data[:12]
        case "zeros":
            return data[:-12] + bytes(12)
    return (T0 + 1).to_bytes(8, "big") + data[8:12]  # "older": one entry, of an index that had begun


@pytest.mark.parametrize("damage", ["flip", "cut", "zeros", "older"])
@pytest.mark.parametrize("stopped", [True, False], ids=["clean stop", "killed"])
def test_98_a_time_index_alone_takes_no_record(disk: FailingDisk, tmp_path: Path, damage: str, stopped: bool) -> None:
    """Schedule 98, rule B31: a time index has no checksum, and makes records look older than they are. They go once
    their batches say the same; the index is built anew, with a line of log."""
    config = replace(keeps(retention_ms=HOUR_MS), index_interval_bytes=0)
    log = open_test_log(disk, tmp_path, config=config)
    for time_ms in (T0, T0 + 1, T0 + 30 * HOUR_MS):
        log.append_as_leader(client_batch(1, size=100, timestamp_ms=time_ms), 1, T0)
    log.roll()
    log.append_as_leader(client_batch(1, size=100, timestamp_ms=T0 + 30 * HOUR_MS + 5), 1, T0)
    log.sync_now()
    log.close() if stopped else log.close_files()
    path = tmp_path / f"{0:020d}.timeindex"
    whole = path.read_bytes()
    path.write_bytes(damaged_index(whole, damage))
    last = LastLife(clean=stopped, recovery_point=4, same_boot=True)
    log = open_test_log(disk, tmp_path, config=config, last_life=last)
    with capture_logs() as lines:
        assert expired(log, T0 + 30 * HOUR_MS + 7) is None, "seconds old"
    assert path.read_bytes()[-12:] == whole[-12:]
    if damage != "zeros":  # which no index can be: it is built anew when it is loaded
        assert any("is built anew" in line["event"] for line in lines)
    found = expired(log, T0 + 31 * HOUR_MS + 1)
    assert found is not None
    assert (found.offset, found.by) == (3, "retention.ms")


def test_nothing_goes_above_the_high_watermark(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule of schedule 16: a segment that reaches beyond it stays whole, and so does all behind it."""
    log = filled(disk, tmp_path, keeps(retention_ms=1, retention_bytes=0), [T0] * 4)
    for high_watermark in range(5):
        found = expired(log, T0 + HOUR_MS, limit=high_watermark)
        assert (0 if found is None else found.offset) == high_watermark


def test_size_takes_what_is_too_much_and_never_more(disk: FailingDisk, tmp_path: Path) -> None:
    """What is left is never less than retention.bytes."""
    log = filled(disk, tmp_path, keeps(), [T0] * 5)
    size = log.segments[0].size
    for keep, gone in ((-1, 0), (5 * size, 0), (4 * size + 1, 0), (4 * size, 1), (2 * size + 1, 2), (1, 4), (0, 5)):
        log.config = keeps(retention_bytes=keep)
        found = expired(log, T0)
        assert (0 if found is None else found.offset) == gone
        assert found is None or (found.by, log.size_bytes - found.size_bytes >= max(keep, 0)) == (
            "retention.bytes",
            True,
        )


def test_79_size_is_that_of_committed_records(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 79: the next leader may lack what is not committed. It must not have made room for itself: below the
    high watermark what retention.bytes keeps is left, wherever in a segment that lies."""
    log = filled(disk, tmp_path, keeps(), [T0] * 5)
    log.config = keeps(retention_bytes=log.segments[0].size)
    log.append_as_leader(client_batch(3), 1, T0)  # into the fifth segment, behind its record
    for high_watermark, gone in ((8, 4), (7, 4), (5, 4), (4, 3), (3, 2), (2, 1), (1, 0), (0, 0)):
        found = expired(log, T0, limit=high_watermark)
        assert (0 if found is None else found.offset) == gone, high_watermark


def test_a_quiet_topic_keeps_nothing_for_ever(disk: FailingDisk, tmp_path: Path) -> None:
    """The active segment goes too: a new one begins at the log end, offsets go on, and a start finds it so."""
    log = filled(disk, tmp_path, keeps(retention_ms=HOUR_MS), [T0, T0])
    found = expired(log, T0 + 2 * HOUR_MS)
    assert found is not None
    log.delete_records_before(found.offset)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.bases) == (2, 2, 0, [2])
    assert expired(log, T0 + 9 * HOUR_MS) is None, "an empty segment is no reason to begin another one"
    log.sync_now()

    async def delete() -> None:
        while log.removed:
            await log.delete_oldest_removed()

    asyncio.run(delete())
    assert [path.name for path in tmp_path.glob("*.log")] == ["00000000000000000002.log"]
    log.close_files()
    again = open_test_log(disk, tmp_path, last_life=LastLife(log_start_offset=2))
    assert (again.log_start_offset, again.log_end_offset) == (2, 2)
    assert again.append_as_leader(client_batch(1), 1, T0).base_offset == 2


def test_without_room_for_a_new_segment_the_active_one_stays(disk: FailingDisk, tmp_path: Path) -> None:
    """The log start moves all the same, and the log goes on where it was."""
    log = filled(disk, tmp_path, keeps(retention_ms=HOUR_MS), [T0, T0])
    disk.bytes_left = 0
    log.delete_records_before(2)
    assert (log.log_start_offset, log.bases, log.failure) == (2, [1], None)
    disk.bytes_left = None
    assert log.append_as_leader(client_batch(1), 1, T0).base_offset == 2


@pytest.mark.parametrize("time_ms", [T0 + 1_000 * HOUR_MS, -1])
def test_a_record_of_the_future_holds_nobodys_disk(disk: FailingDisk, tmp_path: Path, time_ms: int) -> None:
    """A time of the future, or none, counts from when the segment was last written. A start does not take the file's
    word for it: it counts from its first look."""
    config = keeps(retention_ms=HOUR_MS)
    log = filled(disk, tmp_path, config, [time_ms, T0])
    log.close()
    log = open_test_log(disk, tmp_path, config=config)
    os.utime(log.segments[0].path(".log"), (T0 / 1000, T0 / 1000))
    assert expired(log, T0 + HOUR_MS) is None
    assert expired(log, T0 + 2 * HOUR_MS) is None
    found = expired(log, T0 + 2 * HOUR_MS + 1)
    assert found is not None
    assert found.offset == 2


def test_a_file_of_a_clock_set_back_is_no_older_than_it_was_seen(disk: FailingDisk, tmp_path: Path) -> None:
    """One broker's clock stamped a record 400 days ahead, another's wrote its file eight days ago: it is seconds old
    (seed 18000267). What is appended begins the count anew."""
    log = filled(disk, tmp_path, keeps(retention_ms=HOUR_MS), [T0 + 400 * 24 * HOUR_MS])
    path = log.segments[0].path(".log")
    os.utime(path, (T0 / 1000 - 8 * 86_400,) * 2)
    assert expired(log, T0 + 5) is None
    assert expired(log, T0 + HOUR_MS) is None
    log.append_as_leader(client_batch(1, size=100, timestamp_ms=-1), 1, T0)
    os.utime(path, (T0 / 1000 - 8 * 86_400,) * 2)
    assert expired(log, T0 + HOUR_MS + 6) is None
    assert expired(log, T0 + 2 * HOUR_MS + 7) is not None


def test_a_record_is_none_of_the_future_by_a_clock_set_back(disk: FailingDisk, tmp_path: Path) -> None:
    """A life went by a clock eight days behind, in another one 400 days behind the file was written: the record is
    seconds old, and neither says so (seed 14000169)."""
    log = filled(disk, tmp_path, keeps(retention_ms=HOUR_MS), [T0])
    os.utime(log.segments[0].path(".log"), (T0 / 1000 - 400 * 86_400,) * 2)
    assert expired(log, T0 - 8 * 24 * HOUR_MS, latest_ms=T0 + 5) is None


def test_times_too_far_from_the_brokers_are_refused(disk: FailingDisk, tmp_path: Path) -> None:
    """message.timestamp.before.max.ms and after.max.ms, as Kafka has them; not where the leader sets the time."""
    bounds = LogConfig(timestamp_before_max_ms=1_000, timestamp_after_max_ms=10)
    log = open_test_log(disk, tmp_path, config=bounds)
    for time_ms in (T0 + 11, T0 - 1_001):
        with pytest.raises(KafkaError) as caught:
            log.append_as_leader(client_batch(1, timestamp_ms=time_ms), 1, T0)
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
        assert "message.timestamp.after.max.ms" in str(caught.value)
    for time_ms in (T0 + 10, T0 - 1_000, -1):
        log.append_as_leader(client_batch(1, timestamp_ms=time_ms), 1, T0)
    log.config = replace(bounds, message_timestamp_type="LogAppendTime")
    assert log.append_as_leader(client_batch(1, timestamp_ms=5), 1, T0).log_append_time_ms == T0


def test_segments_of_many_partitions_end_at_times_of_their_own(disk: FailingDisk, tmp_path: Path) -> None:
    """segment.jitter.ms: each ends sooner by its own share, never later, and at once for nobody."""
    config = LogConfig(preallocate_bytes=0, segment_ms=1_000, segment_jitter_ms=5_000)
    ages = set()
    for number in range(20):
        log = open_test_log(disk, tmp_path / str(number), config=config)
        log.append_as_leader(client_batch(1), 1, T0)
        [segment] = log.segments
        ages.add(next(age for age in range(1_002) if segment.must_roll(1, 2, segment.created_ms + age, config)))
    assert max(ages) <= 1_001
    assert len(ages) > 10


def test_files_stay_until_the_name_of_the_next_is_durable(disk: FailingDisk, tmp_path: Path) -> None:
    """A power cut between would leave a directory without any segment, which a start takes for a lost one."""
    path = str(tmp_path / "data")
    format_log_dir(disk, path, "cluster", NodeId(1), UUID(int=1))
    log_dir = LogDir.open(disk, path, ManualClock())
    log = log_dir.create(TP, TOPIC_ID, LogConfig(preallocate_bytes=0, file_delete_delay_ms=0))
    log.append_as_leader(client_batch(1), 1, T0)
    log.sync_now()
    log.delete_records_before(1)

    async def look() -> int:
        log_dir.write_checkpoints({TP: 1})
        log_dir.sweep()
        while log_dir._deletions:
            await asyncio.sleep(0)
        return len(list(Path(log.directory).glob("*.log")))

    assert asyncio.run(look()) == 2
    log.sync_now()
    assert asyncio.run(look()) == 1
    log_dir.close(1)


def test_85_a_topic_made_anew_loses_nothing_to_the_one_before(disk: FailingDisk, tmp_path: Path) -> None:
    """Its first segment has the name of one that retention took from the deleted topic of its name, and that was to
    stay on the disk for file.delete.delay.ms."""
    path = str(tmp_path / "data")
    format_log_dir(disk, path, "cluster", NodeId(1), UUID(int=1))
    log_dir = LogDir.open(disk, path, ManualClock())
    log = log_dir.create(TP, TOPIC_ID, LogConfig(preallocate_bytes=0, file_delete_delay_ms=50))

    async def story() -> int:
        log.append_as_leader(client_batch(1), 1, T0)
        log.delete_records_before(1)
        log.sync_now()
        log_dir.write_checkpoints({TP: 1})
        log_dir.sweep()
        assert log_dir._deletions
        await log_dir.delete(TP)
        anew = log_dir.create(TP, UUID(int=99))
        anew.append_as_leader(client_batch(1), 1, T0)
        anew.sync_now()
        while log_dir._deletions:
            await asyncio.sleep(0.01)
        return len(list(Path(anew.directory).glob("*.log")))

    assert asyncio.run(story()) == 1
    log_dir.close(1)


@pytest.mark.parametrize(
    "text", [b"", b"176000000", b"1760000000000", b"\0" * 14, b"17600000000000\n", b"-76000000000\n"]
)
def test_a_torn_time_is_none(disk: FailingDisk, tmp_path: Path, text: bytes) -> None:
    """Schedule 83: the first digits of a time are a time of 1970."""
    note_time(disk, str(tmp_path), T0)
    assert last_time(disk, str(tmp_path)) == T0
    (tmp_path / CLOCK_FILE).write_bytes(text)
    assert last_time(disk, str(tmp_path)) is None
