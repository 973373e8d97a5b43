"""`strandline log verify`: each kind of damage is found at its place, and a real start then does what was said."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from crc32c import crc32c

from strandline.log.batch import parse_header
from strandline.log.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, encode_offsets
from strandline.log.findings import LogCondition
from strandline.log.log_dir import LogDir
from strandline.log.offset_checkpoints import CHECKPOINT_COPY
from strandline.log.real_disk import RealDisk
from strandline.log.verify.flaws import AtStart, Kind
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError
from strandline.proto.ids import TopicPartition
from tests.log.helpers import TP, ManualClock
from tests.log.verifying import flip, made, only, segments, start, verify


def test_a_whole_directory(tmp_path: Path) -> None:
    """Nothing is found after a clean stop, nor after a kill; everything is counted."""
    root = made(tmp_path)
    found = verify(root)
    assert (found.flaws, found.clean, found.meta is not None) == ([], True, True)
    counted = found.counted
    assert (counted.partitions, counted.batches, counted.records) == (1, 30, 90)
    assert counted.segments == len(segments(root)) > 3
    assert counted.bytes == sum(path.stat().st_size for path in segments(root))
    killed = verify(made(tmp_path / "killed", stop=False))
    assert (killed.flaws, killed.clean) == ([], False)


def test_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="strandline format"):
        verify(tmp_path)


def test_a_torn_tail(tmp_path: Path) -> None:
    """What no sync had covered is cut, and the controller hears of it."""
    root = made(tmp_path, stop=False)
    last = segments(root)[-1]
    (root / RECOVERY_POINTS).write_bytes(encode_offsets({TP: 60}))
    (root / "replication-offset-checkpoint").write_bytes(encode_offsets({TP: 60}))
    (root / CHECKPOINT_COPY).unlink()
    last.write_bytes(last.read_bytes()[:-5])
    flaw = only(verify(root))
    assert (flaw.kind, flaw.at_start, flaw.offset, flaw.next_offset) == (Kind.BATCH, AtStart.CUT, 87, -1)

    def look(log_dir: LogDir) -> None:
        assert log_dir.logs[TP].log_end_offset == 87
        assert log_dir.findings.all[TP].condition is LogCondition.CUT

    start(root, look)
    assert verify(root).flaws == []


def test_a_torn_tail_below_what_was_durable(tmp_path: Path) -> None:
    """It is refused, and so it is said."""
    root = made(tmp_path, stop=False)
    last = segments(root)[-1]
    last.write_bytes(last.read_bytes()[:-5])
    torn, short = verify(root).flaws
    assert (torn.kind, torn.at_start, torn.offset) == (Kind.BATCH, AtStart.REFUSE, 87)
    assert (short.kind, short.at_start) == (Kind.SHORT, AtStart.REFUSE)
    start(root, _is_refused)


def _is_refused(log_dir: LogDir) -> None:
    assert isinstance(log_dir.offline[TP], CorruptLogError)
    assert not log_dir.logs


def test_rot_that_no_start_reads(tmp_path: Path) -> None:
    """A flipped bit far behind the end: where it is, how far it goes, and that who reads it is told."""
    root = made(tmp_path)
    first = segments(root)[0]
    size = parse_header(first.read_bytes()).size
    flip(first, size + 100)
    flaw = only(verify(root))
    place = (flaw.file, flaw.position, flaw.offset, flaw.next_offset)
    assert place == (f"{TP}/{first.name}", size, 3, 6)
    assert (flaw.kind, flaw.at_start) == (Kind.BATCH, AtStart.HEAL)
    assert "CORRUPT_MESSAGE" in flaw.does

    def look(log_dir: LogDir) -> None:
        with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
            log_dir.logs[TP].read(3, 1000, 90)

    start(root, look)


@pytest.mark.parametrize("field", [0, 8, 12, 16], ids=["base-offset", "length", "leader-epoch", "magic"])
def test_fields_that_no_crc_covers(tmp_path: Path, field: int) -> None:
    """Base offset, length, leader epoch and format of a batch in the middle."""
    root = made(tmp_path)
    second = segments(root)[1]
    size = parse_header(second.read_bytes()).size
    flip(second, size + field + (3 if field in (8, 12) else 0))
    flaws = verify(root).flaws
    assert flaws
    base = int(second.stem)
    assert {flaw.kind for flaw in flaws} <= {Kind.BATCH, Kind.EPOCHS}
    assert min(flaw.offset for flaw in flaws) in (base + 3, base + 6)
    assert all(flaw.at_start in (AtStart.HEAL, AtStart.REFUSE) for flaw in flaws)


def test_a_segment_that_is_gone(tmp_path: Path) -> None:
    root = made(tmp_path)
    for path in (root / str(TP)).glob(f"{segments(root)[1].stem}.*"):
        path.unlink()
    flaw = only(verify(root))
    assert (flaw.kind, flaw.at_start) == (Kind.GAP, AtStart.REFUSE)
    start(root, _is_refused)


def test_the_first_segment_is_gone(tmp_path: Path) -> None:
    """A start after a clean stop refuses the log."""
    root = made(tmp_path)
    for path in (root / str(TP)).glob(f"{0:020d}.*"):
        path.unlink()
    flaw = only(verify(root))
    assert (flaw.kind, flaw.at_start, flaw.offset) == (Kind.GAP, AtStart.REFUSE, 0)
    start(root, _is_refused)


def test_indexes(tmp_path: Path) -> None:
    """An index that names no batch, one that is no index, one that is missing: built anew. A time index that is only
    wrong is believed, unless it is moved away as the advice says."""
    root = made(tmp_path)
    stems = [path.with_suffix("") for path in segments(root)]
    index = stems[0].with_suffix(".index")
    index.write_bytes(struct.pack(">II", 5, 77))
    stems[1].with_suffix(".index").write_bytes(b"half")
    stems[2].with_suffix(".timeindex").unlink()
    times = stems[3].with_suffix(".timeindex")
    right = times.read_bytes()
    times.write_bytes(struct.pack(">qI", 1_500_000_000_000, 2))
    flaws = {flaw.file.rpartition("/")[2]: flaw for flaw in verify(root).flaws}
    assert {name: flaw.at_start for name, flaw in flaws.items()} == {
        index.name: AtStart.HEAL,
        stems[1].name + ".index": AtStart.HEAL,
        stems[2].name + ".timeindex": AtStart.HEAL,
        times.name: AtStart.BELIEVE,
    }
    assert "where the file is moved away" in flaws[times.name].does
    times.rename(tmp_path / "away")

    def look(log_dir: LogDir) -> None:
        log = log_dir.logs[TP]
        for offset in range(0, 90, 3):
            assert log.read(offset, 1, 90) is not None

    start(root, look)
    assert times.read_bytes()[-12:] == right[-12:]
    assert [flaw.kind for flaw in verify(root).flaws] == []


def test_leader_epochs(tmp_path: Path) -> None:
    """A checkpoint that contradicts the batches, and one that does not parse, are built anew."""
    root = made(tmp_path)
    path = root / str(TP) / "leader-epoch-checkpoint"
    right = path.read_bytes()
    for content in (b"0\n3\n0 0\n1 27\n2 60\n", b"0\n2\n0 0\n"):
        path.write_bytes(content)
        flaw = only(verify(root))
        assert (flaw.kind, flaw.at_start) == (Kind.EPOCHS, AtStart.HEAL)
    start(root, lambda log_dir: None)
    assert path.read_bytes() == right


def test_producer_snapshots(tmp_path: Path) -> None:
    """One that does not hold its CRC is passed over. One that is wrong is believed, unless it is moved away."""
    root = made(tmp_path)
    newest = max((root / str(TP)).glob("*.snapshot"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    flaw = only(verify(root))
    assert (flaw.kind, flaw.at_start) == (Kind.SNAPSHOT, AtStart.HEAL)
    newest.write_bytes(with_sequence(whole, 1000))
    flaw = only(verify(root))
    assert (flaw.kind, flaw.at_start) == (Kind.SNAPSHOT, AtStart.BELIEVE)
    newest.rename(tmp_path / "away")

    def look(log_dir: LogDir) -> None:
        entry = log_dir.logs[TP].producers.get(7)
        assert entry is not None
        assert entry.batches[-1].last_sequence == 89

    start(root, look)


def with_sequence(snapshot: bytes, sequence: int) -> bytes:
    """A snapshot that holds its CRC and has another last sequence."""
    body = bytearray(snapshot[6:])
    struct.pack_into(">i", body, len(body) - 44 + 10, sequence)
    return snapshot[:2] + struct.pack(">I", crc32c(bytes(body))) + bytes(body)


def test_left_over_files(tmp_path: Path) -> None:
    """What retention, compaction and cut-short writes leave is removed by the start; strays and logs that were set
    aside are not."""
    root = made(tmp_path)
    log = root / str(TP)
    for name in (f"{9:020d}.log.deleted", f"{9:020d}.log.cleaned", "leader-epoch-checkpoint.tmp"):
        (log / name).write_bytes(b"x")
    (log / f"{5:020d}.index").write_bytes(b"")
    for name in ("gone-0.0123-delete", "gone-1.0123-stray", "gone-2.0123-rotten", "gone-3.0123-kept-stray"):
        (root / name).mkdir()
        (root / name / f"{0:020d}.log").write_bytes(b"")
    found = {flaw.file: flaw.at_start for flaw in verify(root).flaws}
    assert found == {
        "gone-0.0123-delete": AtStart.REMOVE,
        "gone-1.0123-stray": AtStart.IGNORE,
        "gone-3.0123-kept-stray": AtStart.IGNORE,
        "gone-2.0123-rotten": AtStart.IGNORE,
        f"{TP}/{9:020d}.log.deleted": AtStart.REMOVE,
        f"{TP}/{9:020d}.log.cleaned": AtStart.REMOVE,
        f"{TP}/leader-epoch-checkpoint.tmp": AtStart.REMOVE,
        f"{TP}/{5:020d}.index": AtStart.REMOVE,
    }
    start(root, lambda log_dir: None)
    assert [flaw.at_start for flaw in verify(root).flaws] == [AtStart.IGNORE] * 3


def test_checkpoints_that_prove_more(tmp_path: Path) -> None:
    """A directory that is missing, and a log that is whole and too short, are told to the controller."""
    root = made(tmp_path)
    gone = TopicPartition("gone", 1)
    (root / RECOVERY_POINTS).write_bytes(encode_offsets({TP: 100, gone: 5}))
    (root / CHECKPOINT_COPY).unlink()
    found = {flaw.file: (flaw.kind, flaw.at_start) for flaw in verify(root).flaws}
    assert found == {"gone-1": (Kind.SHORT, AtStart.HEAL), str(TP): (Kind.SHORT, AtStart.HEAL)}

    def look(log_dir: LogDir) -> None:
        assert {tp: one.condition for tp, one in log_dir.findings.all.items()} == {
            TP: LogCondition.LACKING,
            gone: LogCondition.LACKING,
        }

    start(root, look)


def test_damaged_checkpoints(tmp_path: Path) -> None:
    """What is whole of a checkpoint and its copy counts; with neither the logs count as cut."""
    root = made(tmp_path)
    names = (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS)
    for name in names:
        (root / name).write_bytes(b"0\n7\n")
    flaws = verify(root).flaws
    assert [(flaw.file, flaw.kind, flaw.at_start) for flaw in flaws] == [
        (name, Kind.CHECKPOINT, AtStart.HEAL) for name in names
    ]
    (root / CHECKPOINT_COPY).write_bytes(b"0 1\n")
    assert [flaw.file for flaw in verify(root).flaws] == [CHECKPOINT_COPY, *names]

    def look(log_dir: LogDir) -> None:
        assert {tp: one.condition for tp, one in log_dir.findings.all.items()} == {TP: LogCondition.CUT}

    start(root, look)


def test_a_checkpoint_that_differs_from_its_copy(tmp_path: Path) -> None:
    """It is told, and so is a log start that one file alone says."""
    root = made(tmp_path)
    (root / LOG_STARTS).write_bytes(encode_offsets({TP: 50}))
    found = [(flaw.file, flaw.kind, flaw.at_start) for flaw in verify(root).flaws]
    assert found == [(LOG_STARTS, Kind.CHECKPOINT, AtStart.HEAL), (str(TP), Kind.CHECKPOINT, AtStart.HEAL)]
    start(root, lambda log_dir: None)


def test_whose_directory_it_is(tmp_path: Path) -> None:
    """meta.properties and partition.metadata."""
    root = made(tmp_path)
    (root / str(TP) / "partition.metadata").write_bytes(b"version: 0\n")
    flaw = only(verify(root))
    assert (flaw.kind, flaw.at_start) == (Kind.IDENTITY, AtStart.REFUSE)
    (root / "meta.properties").write_bytes(b"version=1\n")
    first = verify(root).flaws[0]
    assert (first.file, first.at_start) == ("meta.properties", AtStart.REFUSE)


def test_a_log_start_inside_of_the_log(tmp_path: Path) -> None:
    """Segments below it are left over; the epochs of what was deleted are nobody's flaw."""
    root = made(tmp_path)
    middle = int(segments(root)[2].stem) + 1
    (root / LOG_STARTS).write_bytes(encode_offsets({TP: middle}))
    (root / CHECKPOINT_COPY).unlink()
    (root / str(TP) / "leader-epoch-checkpoint").write_bytes(
        b"0\n2\n%d %d\n2 60\n" % (1 if middle >= 30 else 0, middle)
    )
    found = verify(root).flaws
    assert {flaw.kind for flaw in found} <= {Kind.LEFT_OVER, Kind.EPOCHS}
    assert [flaw.at_start for flaw in found if flaw.kind is Kind.LEFT_OVER] == [AtStart.REMOVE, AtStart.REMOVE]


def test_memory_does_not_grow_with_the_segment(tmp_path: Path) -> None:
    """64 MiB of a segment (most of it preallocated), and a batch that claims two gigabytes."""
    root = made(tmp_path)
    last = segments(root)[-1]
    with last.open("r+b") as file:
        file.seek(0, 2)
        end = file.tell()
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(struct.pack(">qiib", 1 << 40, 0x7FFFFFF0, 1, 2) + bytes(60))
    tracemalloc.start()
    try:
        flaws = verify(root).flaws
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert flaws[0].position == end
    assert flaws[0].at_start is AtStart.REFUSE
    assert peak < 16 << 20


def test_a_real_disk_is_what_the_overlay_shows(tmp_path: Path) -> None:
    """The two disks agree on what a start leaves."""
    root = made(tmp_path, stop=False)
    assert verify(root).flaws == []
    disk = RealDisk()
    log_dir = LogDir.open(disk, str(root), ManualClock())
    assert log_dir.logs[TP].log_end_offset == 90
    log_dir.close(1)
    disk.close()
    assert verify(root).flaws == []
