"""Compaction of one log (KIP-58, KIP-354, KIP-534): what goes, what stays, and how it lies on the disk."""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.log import compaction
from strandline.log.batch import Record, build_batch
from strandline.log.compression import Codec
from strandline.log.offset_checkpoints import LastLife
from strandline.log.offset_map import new_offset_map
from strandline.log.partition_log import PartitionLog
from strandline.log.swap import LogChanged
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError
from tests.log.compacting import COMPACTED, NOW_MS, assert_no_hole, cleanable, compact, headers, put, stored, table
from tests.log.helpers import TP, FailingDisk, all_records, decode_all, open_test_log


def changes(log: PartitionLog, count: int = 60, keys: int = 5) -> dict[str, str | None]:
    """Write `count` values of a few keys; what stands in the end."""
    for i in range(count):
        put(log, (f"k{i % keys}", f"v{i}"))
    log.sync_now()
    return table(log)


def buffer_of(keys: int) -> int:
    """The memory in which so many keys have room, and no more."""
    return next(size for size in itertools.count(8, 8) if new_offset_map(size).keys_max >= keys)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_last_value_of_each_key_stays(
    disk: FailingDisk, tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one segment instead of many, at its offset; the active segment stays as it is."""
    if not compiled:
        monkeypatch.setitem(sys.modules, "strandline.log._offsets", None)
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    before = changes(log)
    segments, size, end = len(log.segments), log.size_bytes, log.log_end_offset
    active = stored(log)[-(end - log.bases[-1]) :]
    done = compact(log)
    assert table(log) == before
    assert log.log_end_offset == end
    assert len(log.segments) < segments / 2
    assert log.size_bytes < size / 2
    assert stored(log)[-len(active) :] == active
    below = [row for row in stored(log) if row[0] < log.bases[-1]]
    assert len({key for _, key, _ in below}) == len(below) == 5
    assert done.removed == done.records - 5
    assert done.end == log.cleaned_to == log.bases[-1]
    assert_no_hole(log)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]


def test_gaps_are_batches(disk: FailingDisk, tmp_path: Path) -> None:
    """What went leaves one empty batch for each run of offsets and leader epoch: no hole that a lost batch could hide
    in, and a checkpoint of epochs that still agrees with the batches."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    for epoch in range(3):
        for i in range(12):
            put(log, (f"k{i % 3}", f"{epoch}-{i}"), epoch=epoch)
    log.sync_now()
    before, epochs = table(log), log.epochs.entries()
    compact(log)
    assert table(log) == before
    assert_no_hole(log)
    gaps = [header for header in headers(log) if header.is_gap]
    assert {header.leader_epoch for header in gaps} == {0, 1, 2}
    for header in gaps:
        assert log.epochs.epoch_at(header.base_offset) == log.epochs.epoch_at(header.last_offset) == header.leader_epoch
    log.close()
    again = open_test_log(disk, tmp_path, config=COMPACTED, last_life=LastLife(recovery_point=int(log.durable_offset)))
    assert again.epochs.entries() == epochs
    assert table(again) == before


def test_reads_in_a_gap_go_on_behind_it(disk: FailingDisk, tmp_path: Path) -> None:
    """At any offset, of any size; every record that is left is found from every offset before it."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    changes(log)
    compact(log)
    left = [offset for offset, _, _ in stored(log)]
    for offset in range(int(log.log_start_offset), int(log.log_end_offset)):
        for size in (1, 200, 1 << 20):
            at, found = offset, []
            while at < log.log_end_offset:
                read = log.read(at, size, log.log_end_offset)
                assert read is not None
                assert read.data
                found += [record.offset for record in decode_all(read.data) if record.offset >= at]
                at = int(read.next_offset)
            assert found == [one for one in left if one >= offset]


def test_times_are_found_behind_gaps(disk: FailingDisk, tmp_path: Path) -> None:
    """ListOffsets by time, and by the largest time (KIP-734), among what is left."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    for i in range(60):
        put(log, (f"k{i % 5}", f"v{i}"), time_ms=NOW_MS + i)
    log.sync_now()
    compact(log)
    records = all_records(log)
    for i in range(60):
        expected = next((record for record in records if record.timestamp_ms >= NOW_MS + i), None)
        found = log.offset_for_timestamp(NOW_MS + i, int(log.log_end_offset))
        assert (found and found.offset) == (expected and expected.offset)
    newest = log.max_timestamp(int(log.log_end_offset))
    assert newest is not None
    assert (newest.offset, newest.timestamp_ms) == (59, NOW_MS + 59)


def test_a_time_that_is_behind_takes_no_tombstone_early(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 83: a broker that does not believe its clock goes by a time long ago. Others take its tombstones by
    theirs."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    put(log, ("a", "1"))
    put(log, ("a", None))
    log.roll()
    put(log, ("c", "1"))
    log.sync_now()
    compact(log, now_ms=176_000_000, latest_ms=NOW_MS)
    compact(log, now_ms=NOW_MS + 1)
    assert (1, "a", None) in stored(log)
    compact(log, now_ms=NOW_MS + COMPACTED.delete_retention_ms + 1)
    assert stored(log) == [(2, "c", "1")]


def test_a_tombstone_goes_when_its_time_is_over(disk: FailingDisk, tmp_path: Path) -> None:
    """KIP-534: the first pass that meets it writes down until when it stays; a later one takes it, and never before
    what it deletes."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("b", "2"))
    log.roll()
    put(log, ("c", "1"))
    log.sync_now()
    compact(log)
    assert stored(log)[:2] == [(2, "a", None), (3, "b", "2")]
    [marked] = [header for header in headers(log) if header.has_delete_horizon]
    assert marked.base_timestamp == NOW_MS + COMPACTED.delete_retention_ms
    assert [record.timestamp_ms for record in all_records(log)][:2] == [NOW_MS, NOW_MS]
    compact(log, now_ms=NOW_MS + 1_000)
    assert (2, "a", None) in stored(log), "not before its time is over"
    done = compact(log, now_ms=NOW_MS + 1_001)
    assert done.tombstones_removed == 1
    assert stored(log) == [(3, "b", "2"), (4, "c", "1")]
    assert_no_hole(log)


def test_producers_are_known_by_what_stays(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule C2: of the batches that a producer's retries are known by nothing goes but the records, so that a start
    without snapshots knows them too."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    for i in range(12):
        put(log, ("k", f"v{i}"), producer_id=7, sequence=i)
    for i in range(20):
        put(log, ("k", f"w{i}"))
    log.sync_now()
    before = log.producers.get(7)
    assert before is not None
    known = [batch[:4] for batch in before.batches]
    compact(log)
    kept = [header for header in headers(log) if header.producer_id == 7]
    assert [(header.base_sequence, header.count) for header in kept] == [(i, 0) for i in range(7, 12)]
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    log.close_files()
    again = open_test_log(disk, tmp_path, config=COMPACTED)
    entry = again.producers.get(7)
    assert entry is not None
    assert [batch[:4] for batch in entry.batches] == known
    with pytest.raises(KafkaError) as caught:
        put(again, ("k", "x"), producer_id=7, sequence=14)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches(disk: FailingDisk, tmp_path: Path, codec: Codec) -> None:
    """A batch of which something goes is compressed as it was."""
    log = open_test_log(disk, tmp_path, config=replace(COMPACTED, segment_bytes=2_000))
    for i in range(30):
        items = [Record(0, NOW_MS, b"k%d" % (n % 7), b"%d-%d" % (i, n) * 10, (("h", b"x"),)) for n in range(10)]
        items.append(Record(0, NOW_MS, b"once-%d" % i, b"."))
        log.append_as_leader(memoryview(build_batch(items, codec=codec)), 0, NOW_MS)
    log.roll()
    log.sync_now()
    before = table(log)
    compact(log)
    assert table(log) == before
    assert {header.codec for header in headers(log) if header.count} == {codec}
    assert any(0 < header.count < header.last_offset_delta + 1 for header in headers(log))
    assert_no_hole(log)


def test_records_without_a_key(disk: FailingDisk, tmp_path: Path) -> None:
    """A compacted topic refuses them before the append (KIP-467); those from before it was compacted stay."""
    log = open_test_log(disk, tmp_path, config=replace(COMPACTED, compacted=False))
    keyless = build_batch([Record(0, NOW_MS, b"k", b"1"), Record(0, NOW_MS, None, b"old")])
    log.append_as_leader(memoryview(keyless), 0, NOW_MS)
    log.config = COMPACTED
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(memoryview(build_batch([Record(0, NOW_MS, None, b"new")])), 0, NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert not caught.value.retriable
    put(log, ("k", "2"))
    log.roll()
    put(log, ("j", "1"))
    log.sync_now()
    compact(log)
    assert stored(log) == [(1, "", "old"), (2, "k", "2"), (3, "j", "1")]


def test_73_only_what_is_durable_supersedes(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 73: a value that is committed and not synced here (flush.policy=replicate) supersedes nothing: a power
    cut would take it, and its predecessor with it. Nor does one above the high watermark (rule of schedule 38)."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    changes(log, count=12)
    durable = log.durable_offset
    for i in range(60):
        put(log, (f"k{i % 5}", f"later{i}"))
    found = cleanable(log, NOW_MS, int(log.log_end_offset))
    assert 0 < found.end <= durable
    log.sync_now()
    found = cleanable(log, NOW_MS, 20)
    assert 0 < found.end <= 20
    compact(log, limit=20)
    assert {f"k{i}" for i in range(5)} <= {key for offset, key, _ in stored(log) if offset < 20}


def test_the_map_has_an_end(disk: FailingDisk, tmp_path: Path) -> None:
    """A pass ends where the memory does (log.cleaner.dedupe.buffer.size), and the next goes on from there."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    for i in range(80):
        put(log, (f"k{i % 40}", f"v{i}"))
    log.sync_now()
    before = table(log)
    ends = []
    while log.cleaned_to < log.bases[-1] and len(ends) < 20:
        done = compact(log, buffer_bytes=buffer_of(10))
        assert done.keys <= 10
        ends.append(done.end)
    assert ends == sorted(set(ends))
    assert log.cleaned_to == log.bases[-1]
    assert table(log) == before
    assert_no_hole(log)
    put(log, *((f"m{i}", "1") for i in range(20)))
    log.roll()
    put(log, ("n", "1"))
    log.sync_now()
    for _ in range(2):
        compact(log, buffer_bytes=buffer_of(20))
    put(log, *((f"n{i}", "1") for i in range(21)))
    log.roll()
    put(log, ("o", "1"))
    log.sync_now()
    compact(log, buffer_bytes=buffer_of(20))
    with pytest.raises(ConfigError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        compact(log, buffer_bytes=buffer_of(20))


def test_lags(disk: FailingDisk, tmp_path: Path) -> None:
    """min.compaction.lag.ms keeps what is young; max.compaction.lag.ms makes a pass due whatever the ratio."""
    log = open_test_log(disk, tmp_path, config=replace(COMPACTED, min_compaction_lag_ms=10_000))
    for i in range(30):
        put(log, (f"k{i % 5}", f"v{i}"), time_ms=NOW_MS + i * 1_000)
    log.sync_now()
    found = cleanable(log, NOW_MS + 30_000, 30)
    assert 15 <= found.end <= 20
    log.config = replace(COMPACTED, max_compaction_lag_ms=20_000)
    assert (cleanable(log, NOW_MS + 20_000, 30)).overdue_ms == 0
    found = cleanable(log, NOW_MS + 21_000, 30)
    assert found.overdue_ms == 1_000
    assert found.is_due(1.0)
    compact(log)
    found = cleanable(log, NOW_MS + 90_000, 30)
    assert (found.dirty_bytes, found.ratio, found.is_due(0.0)) == (0, 0.0, False)


def test_a_rotten_batch_ends_the_pass(disk: FailingDisk, tmp_path: Path) -> None:
    """Nothing is swapped in, nothing is left behind, and the error names file and byte."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    changes(log)
    path = tmp_path / f"{log.bases[3]:020d}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    bases = list(log.bases)
    with pytest.raises(KafkaError) as caught:
        compact(log)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert caught.value.figures["file"] == str(path)
    assert log.bases == bases
    assert log.cleaned_to == 0
    assert not list(tmp_path.glob("*.cleaned"))


def test_a_base_offset_that_rots_is_found(disk: FailingDisk, tmp_path: Path) -> None:
    """No CRC covers it, and in a log of holes nobody could tell: here a batch still follows on the one before."""
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    changes(log)
    compact(log)
    [first, *_] = log.segments
    second = next(iter([position for position, _ in first.headers(0, lambda f, s, p: f.pread(s, p))][1:]))
    log.close_files()
    path = tmp_path / f"{first.base_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[second + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLogError, match="must follow"):
        open_test_log(disk, tmp_path, config=COMPACTED, last_life=LastLife(same_boot=True))


def test_74_a_follower_goes_on_in_the_middle_of_a_gap(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 74: replicas compact by themselves. A follower that was away ends where its leader has a gap by now:
    it takes the rest of the gap. A batch that is lost on the way is noticed as ever."""
    leader = open_test_log(disk, tmp_path / "leader", config=COMPACTED)
    changes(leader)
    end = int(leader.log_end_offset)
    fetches = [*range(0, end, 7), end - 1]
    for fetched in fetches:
        follower = open_test_log(disk, tmp_path / f"follower-{fetched}", config=COMPACTED)
        while follower.log_end_offset < fetched:
            read = leader.read(int(follower.log_end_offset), 1, fetched)
            assert read is not None
            follower.append_as_follower(memoryview(read.data))
        follower.sync_now()
        if fetched > end // 2:
            compact(follower)
        follower.close()
    compact(leader)
    gaps = {offset for header in headers(leader) if header.is_gap
            for offset in range(header.base_offset + 1, header.next_offset)}  # fmt: skip
    assert gaps & set(fetches)
    for fetched in fetches:
        follower = open_test_log(disk, tmp_path / f"follower-{fetched}", config=COMPACTED)
        assert follower.log_end_offset == fetched
        while follower.log_end_offset < end:
            read = leader.read(int(follower.log_end_offset), 100, end)
            assert read is not None
            follower.append_as_follower(memoryview(read.data))
        assert table(follower) == table(leader)
        assert_no_hole(follower)
        follower.close()
    follower = open_test_log(disk, tmp_path / "follower-0-anew", config=COMPACTED)
    read = leader.read(end - 1, 1, end)
    assert read is not None
    with pytest.raises(KafkaError) as caught:
        follower.append_as_follower(memoryview(read.data))
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("step_bytes", [1 << 20, 1], ids=["as it ends", "in each step"])
def test_retention_takes_segments_while_they_are_compacted(
    disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    """compact,delete: what has left the log is not brought back."""
    monkeypatch.setattr(compaction, "STEP_BYTES", step_bytes)
    log = open_test_log(disk, tmp_path, config=COMPACTED)
    changes(log)

    async def delete(_size: int) -> None:
        log.delete_records_before(log.bases[2])
        await asyncio.sleep(0)

    with pytest.raises(LogChanged):
        compact(log, turn=delete)
    assert not list(tmp_path.glob("*.cleaned"))
    assert not list(tmp_path.glob("*.swap"))
    start = log.log_start_offset
    compact(log)
    assert log.log_start_offset == start == log.bases[0]
    assert str(TP) in repr(log)
