"""Indexes of aborted transactions as files: dumped, verified, repaired, moved (rule C10)."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from strandline.chaos.sim.handles import ProcessKilled
from strandline.chaos.sim.ports import Ports
from strandline.log.dump import AbortedEntry, DumpedBatch, Problem, dump_file
from strandline.log.future import FutureLog
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import ProducerStates, replay
from strandline.log.real_disk import RealDisk
from strandline.log.verify.flaws import AtStart, Kind
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, ManualClock, all_records
from tests.log.striking import OneStrike
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


class CutShort(OneStrike):
    """Transactions, rolls, syncs and a cut, up to somewhere; then a start."""

    def open_dir(self, ports: Ports) -> LogDir:
        """A process opens its directory."""
        if not ports.disk.exists("/data/meta.properties"):
            format_log_dir(ports.disk, "/data", "c", NodeId(1), UUID(int=1))
        return LogDir.open(ports.disk, "/data", ports.clock, SMALL)

    async def first_life(self, ports: Ports) -> None:
        log_dir = self.open_dir(ports)
        log = log_dir.create(TP, TOPIC_ID, SMALL)
        log.sync_now()
        self.aim()
        for _ in range(2):
            one, other = TransactionalProducer(log, 1, version=1), TransactionalProducer(log, 2, version=1)
            for producer in (one, other):
                entry = log.producers.get(producer.producer_id)
                producer.sequence = 0 if entry is None or not entry.batches else entry.batches[-1].last_sequence + 1
            for number in range(4):
                one.send(1, size=200)
                other.send(1, size=200)
                one.end(commit=number % 2 == 0)
                log.sync_now()
                log_dir.write_checkpoints({TP: int(log.log_end_offset)})
            other.end(commit=False)
            other.send(1, size=200)
            log.truncate_to(int(log.log_end_offset) - 2)
        log_dir.close(5)
        self.ended = True

    async def second_life(self, ports: Ports) -> None:
        assert self.error is None or isinstance(self.error, ProcessKilled), self.error
        log = self.open_dir(ports).logs[TP]
        states, known = ProducerStates(), []
        end = int(log.log_end_offset)
        replay(states, log.segments, 0, end, 0, aborted=known.append)
        assert await log.aborted_transactions_cold(0, end) == known
        assert log.producers.open == states.open
        for high_watermark in range(end + 1):
            fresh, loaded = ProducerStates(), ProducerStates()
            replay(fresh, log.segments, 0, end, 0)
            loaded.load_snapshot(log.producers.encode_snapshot(), 0)
            assert loaded.first_unstable(high_watermark) == fresh.first_unstable(high_watermark)
        assert log.last_stable_offset(end) == min([end, *states.open.values()])


@pytest.mark.parametrize("power", [False, True])
def test_a_stop_anywhere_forgets_no_abort(power: bool) -> None:
    """After each third operation of the disk; and no marker counts before it is committed (schedule 114)."""
    operations = 1
    while not CutShort(5, operations, power=power).run():
        operations += 3
    assert operations > 60
