"""What a stop of any kind leaves: every cut, every flipped byte, lost pages of a small log (rule E5: no torn tail)."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.batch import build_batch, iter_batches
from strandline.log.config import LogConfig
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import CorruptLogError
from tests.log.helpers import NO_STEPS, FailingDisk, all_records, client_batch, fill, open_test_log, records

LOG = "00000000000000000000.log"
KILLED = LastLife(same_boot=True)
POWER_CUT = LastLife(same_boot=False)


def left_by_a_crash(disk: RealDisk, directory: Path, batches: int = 4, config: LogConfig = NO_STEPS) -> list[int]:
    """A log of `batches` batches whose process died; the positions where they begin, and the end."""
    log = open_test_log(disk, directory, config=config)
    for i in range(batches):
        log.append_as_leader(client_batch(2, producer_id=1, producer_epoch=0, sequence=2 * i), i // 2, 0)
    log.sync_now()
    log.close_files()
    raw = (directory / LOG).read_bytes()[: log.segments[0].size]
    positions = [0]
    for header, _ in iter_batches(raw):
        positions.append(positions[-1] + header.size)
    return positions


def check_whole(log: PartitionLog, batches: int) -> None:
    """`batches` batches are there, and everything that is derived from them; and it goes on."""
    assert log.log_end_offset == log.durable_offset == 2 * batches
    assert [record.offset for record in all_records(log)] == list(range(2 * batches))
    assert log.epochs.entries() == [(0, 0), (1, 4)][: (batches + 1) // 2]
    entry = log.producers.get(1)
    assert (entry is None) == (batches == 0)
    assert entry is None or [b.first_offset for b in entry.batches] == [2 * i for i in range(batches)]
    batch = client_batch(2, producer_id=1, producer_epoch=0, sequence=2 * batches)
    assert log.append_as_leader(batch, 1, 0).base_offset == 2 * batches


def test_cut_at_every_byte(disk: FailingDisk, tmp_path: Path) -> None:
    """Row S79: a torn tail is cut back to the last whole batch, wherever the tear is, after a kill or a power cut."""
    positions = left_by_a_crash(disk, tmp_path / "log", 3)
    raw = (tmp_path / "log" / LOG).read_bytes()
    for size in range(len(raw) + 1):
        whole = sum(1 for position in positions[1:] if position <= size)
        for last_life in (KILLED, POWER_CUT):
            (tmp_path / "log" / LOG).write_bytes(raw[:size])
            log = open_test_log(disk, tmp_path / "log", last_life=last_life)
            check_whole(log, whole)
            log.close_files()


def test_zeros_of_preallocation_end_a_log(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule P6: zeros behind the last batch are no damage, whole or torn as it is."""
    positions = left_by_a_crash(disk, tmp_path / "log")
    raw = (tmp_path / "log" / LOG).read_bytes()
    for size in (*positions, positions[2] + 5, positions[2] + 61, positions[3] - 2):
        (tmp_path / "log" / LOG).write_bytes(raw[:size] + bytes(5000))
        log = open_test_log(disk, tmp_path / "log", last_life=KILLED)
        whole = sum(1 for position in positions[1:] if position <= size)
        assert log.log_end_offset == 2 * whole
        assert (tmp_path / "log" / LOG).stat().st_size == positions[whole]
        log.close_files()


def test_a_flip_of_every_byte(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule E5: a damaged byte in front of a good batch is refused with file, byte and offset, and nothing is changed;
    in the last batch it cannot be told from a torn tail. Base offset and epoch are outside the CRC and judged by order.
    """
    positions = left_by_a_crash(disk, tmp_path / "log")
    path = tmp_path / "log" / LOG
    raw = path.read_bytes()
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0x81
        path.write_bytes(damaged)
        batch = max(i for i, position in enumerate(positions) if position <= at)
        in_epoch = 12 <= at - positions[batch] < 16
        if batch == 3 and not in_epoch:
            log = open_test_log(disk, tmp_path / "log", last_life=KILLED)
            assert log.log_end_offset == 6
            log.close_files()
            continue
        if in_epoch:
            continue
        with pytest.raises(CorruptLogError) as caught:
            open_test_log(disk, tmp_path / "log", last_life=KILLED)
        assert (caught.value.path, caught.value.position) == (str(path), positions[batch])
        assert caught.value.offset == 2 * batch
        assert "no torn tail" in caught.value.reason
        assert "move its directory away" in caught.value.advice
        assert path.read_bytes() == damaged, "nothing was changed"


def test_epochs_that_go_back_end_a_log(disk: FailingDisk, tmp_path: Path) -> None:
    """After a cut and a power cut, batches of an older epoch may stand behind a new one: they are not of this log."""
    log = open_test_log(disk, tmp_path / "log")
    for offset, epoch in ((0, 5), (1, 5)):
        log.append_as_follower(memoryview(build_batch(records(1), base_offset=offset, leader_epoch=epoch)))
    log.close_files()
    stale = build_batch(records(1), base_offset=2, leader_epoch=4)
    with (tmp_path / "log" / LOG).open("ab") as file:
        file.write(stale)
    log = open_test_log(disk, tmp_path / "log", last_life=POWER_CUT)
    assert log.log_end_offset == 2


def test_a_hole_after_a_power_cut(disk: FailingDisk, tmp_path: Path) -> None:
    """Unsynced pages may be lost in any order: above the recovery point a hole is legal and cut; below it is damage."""
    positions = left_by_a_crash(disk, tmp_path / "log")
    path = tmp_path / "log" / LOG
    raw = bytearray(path.read_bytes())
    raw[positions[2] : positions[3]] = bytes(positions[3] - positions[2])
    path.write_bytes(raw)
    with pytest.raises(CorruptLogError, match="below offset 5 was durable"):
        open_test_log(disk, tmp_path / "log", last_life=LastLife(recovery_point=5))
    with pytest.raises(CorruptLogError, match="no torn tail"):
        open_test_log(disk, tmp_path / "log", last_life=KILLED)
    log = open_test_log(disk, tmp_path / "log", last_life=LastLife(recovery_point=4))
    check_whole(log, 2)


def test_a_tail_lost_below_the_recovery_point(disk: FailingDisk, tmp_path: Path) -> None:
    """A file that is shorter than what was durable is damage too, though nothing follows."""
    positions = left_by_a_crash(disk, tmp_path / "log")
    path = tmp_path / "log" / LOG
    path.write_bytes(path.read_bytes()[: positions[2]])
    with pytest.raises(CorruptLogError) as caught:
        open_test_log(disk, tmp_path / "log", last_life=LastLife(recovery_point=8))
    assert (caught.value.position, caught.value.offset) == (positions[2], 4)
    assert open_test_log(disk, tmp_path / "log", last_life=LastLife(recovery_point=4)).log_end_offset == 4


SEGMENTED = LogConfig(segment_bytes=1000, index_interval_bytes=200, preallocate_bytes=0)


def segmented(disk: RealDisk, directory: Path) -> list[int]:
    """A log of some segments whose process died; their base offsets."""
    log = open_test_log(disk, directory, config=SEGMENTED)
    for i in range(20):
        log.append_as_leader(client_batch(1, first=i, size=150, producer_id=1, producer_epoch=0, sequence=i), i // 5, 0)
    log.sync_now()
    log.close_files()
    assert len(log.bases) >= 4
    return list(log.bases)


def test_damage_in_an_earlier_segment(disk: FailingDisk, tmp_path: Path) -> None:
    """A torn end of a segment that is not the last is no torn tail; after a power cut, above the recovery point, it
    is: later segments go with it.
    """
    bases = segmented(disk, tmp_path / "log")
    path = tmp_path / "log" / f"{bases[1]:020d}.log"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptLogError, match="follows"):
        open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=KILLED)
    for point in (bases[2], bases[3], 20):
        for clean in (True, False):
            with pytest.raises(CorruptLogError, match=r"was durable|stopped cleanly") as caught:
                open_test_log(
                    disk, tmp_path / "log", config=SEGMENTED, last_life=LastLife(recovery_point=point, clean=clean)
                )
            assert caught.value.path == str(path)
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=POWER_CUT)
    assert log.bases == bases[:2]
    assert log.log_end_offset == bases[2] - 1
    assert log.epochs.entries()[-1][1] < log.log_end_offset
    assert sorted(p.name for p in (tmp_path / "log").glob("*.log")) == [f"{base:020d}.log" for base in bases[:2]]
    assert not any(int(p.name[:20]) > log.log_end_offset for p in (tmp_path / "log").glob("*.snapshot"))
    entry = log.producers.get(1)
    assert entry is not None
    assert entry.batches[-1].last_offset == log.log_end_offset - 1


def test_a_missing_segment(disk: FailingDisk, tmp_path: Path) -> None:
    """A gap between segments is refused; what is before it is whole."""
    bases = segmented(disk, tmp_path / "log")
    (tmp_path / "log" / f"{bases[2]:020d}.log").unlink()
    with pytest.raises(CorruptLogError) as caught:
        open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=KILLED)
    assert f"begins at offset {bases[3]}" in caught.value.reason
    assert caught.value.offset == bases[2]
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=POWER_CUT)
    assert log.log_end_offset == bases[2]


def test_damage_below_the_scan_is_left_to_the_reader(disk: FailingDisk, tmp_path: Path) -> None:
    """Segments wholly below the recovery point are not read at start (start time stays flat); reading tells."""
    bases = segmented(disk, tmp_path / "log")
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=LastLife(recovery_point=20))
    assert log.log_end_offset == 20
    assert [record.offset for record in all_records(log)] == list(range(20))
    assert log.bases == bases


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "garbage", "zeros"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_files_that_can_be_rebuilt(disk: FailingDisk, tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    """Missing, half-written or corrupt index and snapshot files cost time and nothing else."""
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED)
    for i in range(20):
        log.append_as_leader(client_batch(1, first=i, size=150, producer_id=1, producer_epoch=0, sequence=i), i // 5, i)
    if clean:
        log.close()
    else:
        log.sync_now()
        log.close_files()
    found = sorted((tmp_path / "log").glob("*" + suffix))
    assert found
    for path in found:
        size = path.stat().st_size
        if damage == "missing":
            path.unlink()
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "half":
            path.write_bytes(path.read_bytes()[: size // 2 + 1])
        elif damage == "garbage":
            path.write_bytes(b"\xff" * 48)
        else:
            path.write_bytes(bytes(max(size, 24)))
    log = open_test_log(
        disk, tmp_path / "log", config=SEGMENTED, last_life=LastLife(clean=clean, recovery_point=0 if clean else 12)
    )
    assert log.log_end_offset == 20
    assert [record.offset for record in all_records(log, max_bytes=300)] == list(range(20))
    newest = log.max_timestamp(20)
    assert newest is not None
    assert newest.offset == 19
    assert log.append_as_leader(client_batch(1, size=150, producer_id=1, producer_epoch=0, sequence=18), 3, 0).duplicate
    assert log.epochs.entries() == [(0, 0), (1, 5), (2, 10), (3, 15)]


@pytest.mark.parametrize("content", [None, b"", b"0\n", b"0\n2\n0 0\n", b"7\n0\n", b"0\n1\n0 zero\n", b"0\n1\n0 0"])
def test_epochs_are_rebuilt_from_the_batches(disk: FailingDisk, tmp_path: Path, content: bytes | None) -> None:
    """KAFKA-16541: a missing or half-written epoch checkpoint; every batch says its epoch."""
    segmented(disk, tmp_path / "log")
    path = tmp_path / "log" / "leader-epoch-checkpoint"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=LastLife(recovery_point=20))
    assert log.epochs.entries() == [(0, 0), (1, 5), (2, 10), (3, 15)]
    log.sync_now()
    assert path.read_bytes() == b"0\n4\n0 0\n1 5\n2 10\n3 15\n"


def test_a_stale_epoch_checkpoint_is_put_right(disk: FailingDisk, tmp_path: Path) -> None:
    """The checkpoint lags behind the data by one sync; the batches above the recovery point decide."""
    segmented(disk, tmp_path / "log")
    (tmp_path / "log" / "leader-epoch-checkpoint").write_bytes(b"0\n3\n0 0\n1 3\n7 18\n")
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED)
    assert log.epochs.entries() == [(0, 0), (1, 5), (2, 10), (3, 15)]
    log.close_files()
    (tmp_path / "log" / "leader-epoch-checkpoint").write_bytes(b"0\n5\n0 0\n1 5\n2 10\n3 15\n9 20\n")
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED)
    assert log.epochs.entries()[-1] == (3, 15), "an epoch from beyond the log end has no records here"


@pytest.mark.parametrize("last_life", [LastLife(clean=True), LastLife(recovery_point=20), KILLED])
def test_70_a_bit_rots_in_the_epoch_checkpoint(disk: FailingDisk, tmp_path: Path, last_life: LastLife) -> None:
    """Each bit of the file: it has no checksum, and the batches know better (schedule 70)."""
    segmented(disk, tmp_path / "log")
    path = tmp_path / "log" / "leader-epoch-checkpoint"
    whole = b"0\n4\n0 0\n1 5\n2 10\n3 15\n"
    assert path.read_bytes() == whole
    for bit in range(8 * len(whole)):
        rotten = bytearray(whole)
        rotten[bit // 8] ^= 1 << bit % 8
        path.write_bytes(rotten)
        log = open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=last_life)
        assert log.epochs.entries() == [(0, 0), (1, 5), (2, 10), (3, 15)], bytes(rotten)
        log.close_files()


def test_leftovers_are_tidied(disk: FailingDisk, tmp_path: Path) -> None:
    """Temporary and deleted files of a life that ended in between; indexes without a segment."""
    segmented(disk, tmp_path / "log")
    for name in ("x.tmp", f"{0:020d}.log.deleted", f"{77:020d}.index", f"{77:020d}.timeindex", f"{99:020d}.snapshot"):
        (tmp_path / "log" / name).write_bytes(b"junk")
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED)
    assert log.log_end_offset == 20
    names = {path.name for path in (tmp_path / "log").iterdir()}
    assert not {name for name in names if name.startswith(f"{77:020d}") or name.endswith((".tmp", ".deleted"))}
    assert f"{99:020d}.snapshot" not in names, "a snapshot of records that are not there"


def test_clean_start_goes_on_where_it_stopped(disk: FailingDisk, tmp_path: Path) -> None:
    """Offsets, epochs, producers, indexes as before; index entries go on in the same rhythm."""
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED)
    fill(log, 33, size=100, epoch=2)
    before = [segment.active_indexes()[0].tail_bytes() for segment in log.segments[:-1]]
    log.close()
    log = open_test_log(disk, tmp_path / "log", config=SEGMENTED, last_life=LastLife(clean=True))
    assert (log.log_end_offset, log.durable_offset, log.latest_epoch) == (33, 33, 2)
    fill(log, 5, size=100, epoch=2)
    assert len(all_records(log)) == 38
    assert len(before) == len(log.bases) - 1 or len(log.bases) > len(before)


def test_damage_after_a_clean_stop(disk: FailingDisk, tmp_path: Path) -> None:
    """What a clean stop left was durable to the last byte: a tail that does not parse is damage and not torn."""
    log = open_test_log(disk, tmp_path / "log")
    fill(log, 3)
    log.close()
    path = tmp_path / "log" / LOG
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptLogError, match="stopped cleanly"):
        open_test_log(disk, tmp_path / "log", last_life=LastLife(clean=True))


def test_log_of_zeros_and_empty_directory(disk: FailingDisk, tmp_path: Path) -> None:
    """Made and preallocated, never written; or not even made."""
    (tmp_path / "zeros").mkdir()
    (tmp_path / "zeros" / LOG).write_bytes(bytes(100_000))
    assert open_test_log(disk, tmp_path / "zeros").log_end_offset == 0
    log = open_test_log(disk, tmp_path / "new", last_life=LastLife(log_start_offset=70))
    assert (log.log_start_offset, log.log_end_offset) == (70, 70)
    fill(log, 1)
    assert log.log_end_offset == 71


def test_a_torn_batch_with_a_crazy_length(disk: FailingDisk, tmp_path: Path) -> None:
    """A length of two gigabytes in a torn header must not be believed."""
    positions = left_by_a_crash(disk, tmp_path / "log")
    with (tmp_path / "log" / LOG).open("r+b") as file:
        file.seek(positions[3] + 8)
        file.write(struct.pack(">i", 0x7FFFFFF0))
    log = open_test_log(disk, tmp_path / "log", last_life=KILLED)
    assert log.log_end_offset == 6


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any damage at any place: the log opens with the batches before it, or is refused with its place."""
    directory = tmp_path_factory.mktemp("random")
    disk = RealDisk()
    try:
        positions = left_by_a_crash(disk, directory, 6)
        path = directory / LOG
        raw = bytearray(path.read_bytes())
        start = data.draw(st.integers(0, len(raw) - 1))
        length = data.draw(st.integers(1, 80))
        junk = data.draw(st.binary(min_size=length, max_size=length))
        raw[start : start + length] = junk
        path.write_bytes(raw[: data.draw(st.integers(start, len(raw)))])
        same_boot = data.draw(st.booleans())
        try:
            log = open_test_log(disk, directory, last_life=LastLife(same_boot=same_boot))
        except CorruptLogError as error:
            place = error.position
        else:
            place = -1
            offsets = [record.offset for record in all_records(log)]
            assert offsets == list(range(len(offsets)))
            assert 2 * sum(1 for position in positions[1:] if position <= start) <= len(offsets) or any(
                12 <= at - position < 16 for at in range(start, start + length) for position in positions
            )
            log.close_files()
        assert place == -1 or (same_boot and place in positions)
    finally:
        disk.close()
        shutil.rmtree(directory)
