"""Indexes of aborted transactions as files: dumped, verified, repaired, moved (rule C10)."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from strandline.log.dump import AbortedEntry, DumpedBatch, Problem, dump_file
from strandline.log.future import FutureLog
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.log.verify.flaws import AtStart, Kind
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, ManualClock, all_records
from tests.log.test_repair import repaired
from tests.log.test_transactions import SMALL, two_aborted
from tests.log.transacting import TransactionalProducer, aborted, committed_records
from tests.log.verifying import start, verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with committed, aborted and open transactions, left by a clean stop."""
    disk = RealDisk()
    root = tmp_path / "data"
    format_log_dir(disk, str(root), "cluster-1", NodeId(3), UUID(int=7))
    log_dir = LogDir.open(disk, str(root), ManualClock(), SMALL)
    log = log_dir.create(TP, TOPIC_ID, SMALL)
    two_aborted(log)
    TransactionalProducer(log, 3).send(2)
    log.sync_now()
    log_dir.write_checkpoints({TP: int(log.log_end_offset)})
    log_dir.close(5)
    disk.close()
    return root


def indexes(root: Path) -> list[Path]:
    """Files of aborted transactions."""
    return sorted((root / str(TP)).glob("*.txnindex"))


def test_what_dump_shows(root: Path) -> None:
    """Markers as what they are, no records; entries of the index, and what is no entry."""
    disk = RealDisk()
    found = [
        item for path in sorted((root / str(TP)).glob("*.log")) for item in dump_file(disk, str(path), decode=True)
    ]
    batches = [item for item in found if isinstance(item, DumpedBatch)]
    markers = [item for item in batches if item.marker is not None]
    assert len(markers) == 8
    assert all(item.records is None for item in markers)
    assert all(item.records for item in batches if item.marker is None)
    entries = [item for path in indexes(root) for item in dump_file(disk, str(path))]
    aborts = [item.header.base_offset for item in markers if item.marker is not None and not item.marker.commit]
    assert [item.last_offset for item in entries if isinstance(item, AbortedEntry)] == aborts
    path = indexes(root)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert isinstance(list(dump_file(disk, str(path)))[-1], Problem)


def test_verify_counts_no_markers_as_records(root: Path) -> None:
    """And finds nothing wrong."""
    found = verify(root)
    assert found.flaws == []
    assert found.counted.records == 6 * 2 + 6 + 2


@pytest.mark.parametrize("damage", ["missing", "cut", "half", "producer", "first"])
def test_verify_finds_a_wrong_index_and_repair_builds_it_anew(root: Path, damage: str) -> None:
    """Held against the markers in the log. The index has no checksum, so that a start believes what can be."""
    path = indexes(root)[0]
    data = path.read_bytes()
    wrong = {
        "cut": data[:-34],
        "half": data[:-3],
        "producer": data[:9] + bytes([data[9] ^ 64]) + data[10:],
        "first": data[:17] + bytes([data[17] + 1]) + data[18:],
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(wrong[damage])
    [flaw] = verify(root).flaws
    assert (flaw.kind, flaw.at_start) == (
        Kind.ABORTED_INDEX,
        AtStart.HEAL if damage == "half" else AtStart.BELIEVE,
    )
    repaired(root)
    assert path.read_bytes() == data
    assert verify(root).flaws == []
    start(root, lambda log_dir: None)


def test_a_log_moves_with_its_transactions(tmp_path: Path) -> None:
    """To another directory of the node (KIP-113), in the middle of one, its front deleted."""
    disk, clock = RealDisk(), ManualClock()
    dirs = []
    for number in (1, 2):
        path = str(tmp_path / str(number))
        format_log_dir(disk, path, "c", NodeId(1), UUID(int=number))
        dirs.append(LogDir.open(disk, path, clock, SMALL))
    current = dirs[0].create(TP, TOPIC_ID, SMALL)
    one = TransactionalProducer(current, 3)
    one.send(2)
    two_aborted(current)
    current.delete_records_before(current.bases[1] + 1)
    asked = current.begin_verification(9, 0, 0, begins_at_0=True)
    future = FutureLog(dirs[1], current, clock, 1)
    while future.lag:
        found = current.read(future.log.log_end_offset, 1 << 20, current.log_end_offset)
        assert found is not None
        future.append(found.data)
    moved = future.finish()
    assert_same(moved, current)
    assert asked is moved.begin_verification(9, 0, 0, begins_at_0=True)
    one.log = moved
    one.end(commit=False)
    assert aborted(moved, 0, int(moved.log_end_offset))[-1].first_offset == 0
    assert moved.open_transactions() == []


def assert_same(log: PartitionLog, other: PartitionLog) -> None:
    """One reads as the other."""
    end = int(other.log_end_offset)
    assert log.open_transactions() == other.open_transactions()
    assert log.last_stable_offset(end) == other.last_stable_offset(end)
    start = int(other.log_start_offset)
    assert aborted(log, start, end) == aborted(other, start, end)
    assert committed_records(log) == committed_records(other)
    assert all_records(log) == all_records(other)
