"""Looking into files, whole and damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from strandline.log.batch import parse_header
from strandline.log.config import LogConfig
from strandline.log.dump import (
    DumpedBatch,
    IndexEntry,
    Line,
    Padding,
    Problem,
    TimeIndexEntry,
    dump_file,
)
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import SnapshotRow
from strandline.proto.errors import ConfigError
from tests.log.helpers import FailingDisk, client_batch, open_test_log

LOG = f"{0:020d}.log"


@pytest.fixture
def log(disk: FailingDisk, tmp_path: Path) -> PartitionLog:
    """Some batches of one producer, stopped cleanly."""
    made = open_test_log(disk, tmp_path, config=LogConfig(index_interval_bytes=0, preallocate_bytes=0))
    for i in range(5):
        batch = client_batch(2, first=2 * i, producer_id=7, producer_epoch=1, sequence=2 * i, timestamp_ms=100 * i)
        made.append_as_leader(batch, 3, 0)
    made.close()
    return made


def test_batches(disk: FailingDisk, log: PartitionLog, tmp_path: Path) -> None:
    """Headers, CRCs, records on demand."""
    found = list(dump_file(disk, f"{tmp_path}/{LOG}"))
    assert [batch.header.base_offset for batch in found if isinstance(batch, DumpedBatch)] == [0, 2, 4, 6, 8]
    assert all(isinstance(batch, DumpedBatch) and batch.crc_holds and batch.records is None for batch in found)
    last = list(dump_file(disk, f"{tmp_path}/{LOG}", decode=True))[-1]
    assert isinstance(last, DumpedBatch)
    assert last.records is not None
    assert [record.offset for record in last.records] == [8, 9]


def test_the_other_files(disk: FailingDisk, log: PartitionLog, tmp_path: Path) -> None:
    """Indexes, snapshot, epochs, by their names."""
    size = log.size_bytes // 5
    index = list(dump_file(disk, f"{tmp_path}/{0:020d}.index"))
    assert index == [IndexEntry(8 * i, 2 * i + 3, size * (i + 1)) for i in range(4)]
    times = list(dump_file(disk, f"{tmp_path}/{0:020d}.timeindex"))
    assert times == [TimeIndexEntry(12 * i, 102 * (i + 1) + 1, 2 * i + 3) for i in range(4)]
    rows = list(dump_file(disk, f"{tmp_path}/{10:020d}.snapshot"))
    assert [row.last_offset for row in rows if isinstance(row, SnapshotRow)] == [1, 3, 5, 7, 9]
    assert list(dump_file(disk, f"{tmp_path}/leader-epoch-checkpoint")) == [Line(("3", "0"))]
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=4\n")
    assert list(dump_file(disk, f"{tmp_path}/meta.properties")) == [Line(("version", "1")), Line(("node.id", "4"))]
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0}')
    assert list(dump_file(disk, f"{tmp_path}/.kafka_cleanshutdown")) == [Line(('{"version":0}',))]
    with pytest.raises(ConfigError):
        dump_file(disk, f"{tmp_path}/notes.txt")
    with pytest.raises(FileNotFoundError):
        list(dump_file(disk, f"{tmp_path}/{5:020d}.log"))


def test_damage_is_located_and_walked_past(disk: FailingDisk, log: PartitionLog, tmp_path: Path) -> None:
    """A broken CRC, a broken header, a torn end, zeros: each a problem at its byte, and what follows is still shown."""
    path = tmp_path / LOG
    raw = bytearray(path.read_bytes())
    size = len(raw) // 5
    raw[size + 70] ^= 1
    struct.pack_into(">b", raw, 2 * size + 16, 9)
    path.write_bytes(raw[:-4])
    found = list(dump_file(disk, str(path), decode=True))
    assert [(type(item).__name__, getattr(item, "position", -1)) for item in found] == [
        ("DumpedBatch", 0),
        ("DumpedBatch", size),
        ("Problem", size),
        ("Problem", 2 * size),
        ("DumpedBatch", 3 * size),
        ("Problem", 4 * size),
    ]
    assert isinstance(found[1], DumpedBatch)
    assert not found[1].crc_holds
    path.write_bytes(path.read_bytes()[:size] + bytes(777))
    assert list(dump_file(disk, str(path)))[1:] == [Padding(size, 777)]
    path.write_bytes(raw[:size] * 2)
    again = list(dump_file(disk, str(path)))
    assert again[1] == Problem(size, "a batch of offset 0 stands where 2 or later must follow")
    assert parse_header(raw).base_offset == 0


def test_damaged_small_files(disk: FailingDisk, log: PartitionLog, tmp_path: Path) -> None:
    """Half entries and disorder in indexes, a broken snapshot, half a checkpoint."""
    index = tmp_path / f"{0:020d}.index"
    index.write_bytes(struct.pack(">IIII", 5, 50, 4, 60) + b"xyz")
    problems = [item.position for item in dump_file(disk, str(index)) if isinstance(item, Problem)]
    assert problems == [8, 16]
    times = tmp_path / f"{0:020d}.timeindex"
    times.write_bytes(struct.pack(">qIqI", 5, 1, 5, 2) + b"x")
    problems = [item.position for item in dump_file(disk, str(times)) if isinstance(item, Problem)]
    assert problems == [12, 24]
    snapshot = tmp_path / f"{10:020d}.snapshot"
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    assert [type(item) for item in dump_file(disk, str(snapshot))] == [Problem]
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n2\n0 0\n")
    assert [type(item) for item in dump_file(disk, f"{tmp_path}/leader-epoch-checkpoint")] == [Problem]
    misnamed = tmp_path / "x.index"
    misnamed.write_bytes(b"")
    with pytest.raises(ConfigError):
        list(dump_file(disk, str(misnamed)))
