"""Producer snapshots: when they are written, that they are on the disk, which one is believed (rule C2; KAFKA-9892)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.log.batch import parse_header, patch_base_offset_and_epoch
from strandline.log.config import LogConfig
from strandline.log.disk import DiskFull
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import ProducerStates, Snapshots
from strandline.log.real_disk import RealFile
from strandline.log.recovery import open_log
from strandline.log.rewriting import Rewriting
from strandline.log.syncer import Syncer
from strandline.proto.errors import StorageError
from strandline.proto.ids import NodeId
from tests.log.helpers import NO_STEPS, TOPIC_ID, TP, FailingDisk, ManualClock, client_batch, fill, open_test_log
from tests.log.striking import OneStrike


def once(log: PartitionLog, sequence: int = 0) -> bool:
    """Append a producer's batch; whether it was found to be there already."""
    return log.append_as_leader(client_batch(2, producer_id=9, producer_epoch=0, sequence=sequence), 0, 1000).duplicate


def with_its_only_batch_deleted(disk: FailingDisk, directory: Path) -> PartitionLog:
    """The producer's records are off the disk: what is known of it stands in memory and in a snapshot."""
    log = open_test_log(disk, directory)
    assert not once(log)
    log.roll()
    fill(log, 1)
    log.sync_now()
    log.delete_records_before(2)
    assert log.bases == [2]
    asyncio.run(log.delete_oldest_removed())
    return log


def test_a_roll_leaves_a_snapshot(disk: FailingDisk, tmp_path: Path) -> None:
    """Retries are recognised after a crash though their originals were deleted by retention."""
    log = with_its_only_batch_deleted(disk, tmp_path)
    log.close_files()
    last_life = LastLife(same_boot=True, recovery_point=3, log_start_offset=2)
    assert once(open_test_log(disk, tmp_path, last_life=last_life))


def test_a_clean_stop_leaves_a_snapshot(disk: FailingDisk, tmp_path: Path) -> None:
    """And after a clean stop, which writes one of the very end."""
    log = with_its_only_batch_deleted(disk, tmp_path)
    log.close()
    assert (tmp_path / f"{3:020d}.snapshot").exists()
    assert once(open_test_log(disk, tmp_path, last_life=LastLife(clean=True, log_start_offset=2)))


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_without_producers_is_not_walked_either(disk: FailingDisk, tmp_path: Path, clean: bool) -> None:
    """That there are no producers stands in a snapshot too: what a start reads does not grow with the log (row S73)."""
    log = open_test_log(disk, tmp_path)
    for _ in range(20):
        fill(log, 50)
        log.roll()
    log.sync_now()
    if clean:
        log.close()
    else:
        log.close_files()
    disk.reads = 0
    open_test_log(disk, tmp_path, last_life=LastLife(clean=clean, same_boot=True, recovery_point=1000))
    assert disk.reads < 50, "1,000 batches stand in it; each closed segment is asked for its end"


def in_a_world(life: Callable[[World, Ports], Coroutine[Any, Any, None]], seed: int) -> None:
    """One life of a process on a machine with a simulated disk."""
    world = World(seed)
    world.add_machine("n1")

    async def scenario() -> None:
        process = world.spawn("n1", lambda ports: life(world, ports))
        assert process.main is not None
        await process.main

    world.run(scenario())


@pytest.mark.parametrize("written_at", ["roll", "clean stop"])
@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_survives_a_power_cut(seed: int, written_at: str) -> None:
    """KAFKA-9892: with the sync of its segment it is on the disk, content and name: a torn one would be found out by
    its checksum, and what it alone knew would be forgotten."""

    async def life(world: World, ports: Ports) -> None:
        log = open_log(ports.disk, "/t-0", TP, clock=ports.clock, config=NO_STEPS)
        for producer in range(100):
            batch = client_batch(1, producer_id=producer, producer_epoch=0, sequence=0)
            log.append_as_leader(batch, 0, 1000)
        ports.disk.sync_dir("/")
        if written_at == "roll":
            log.roll()
            failed: list[Any] = []
            syncer = Syncer(ports.disk, lambda logs: None, lambda *what: failed.append(what), failed.append)
            syncer.mark(log)
            await syncer.drain()
            assert not failed
        else:
            log.sync_now()
            log.close()
        disk = world.machines["n1"].disk
        before = disk.files()[f"/t-0/{100:020d}.snapshot"]
        disk.crash()
        assert disk.files()[f"/t-0/{100:020d}.snapshot"] == before
        states = ProducerStates()
        states.load_snapshot(before, 0)
        assert len(states) == 100

    in_a_world(life, seed)


def test_a_snapshot_of_more_than_there_is(disk: FailingDisk, tmp_path: Path) -> None:
    """Recovery takes the latest one up to the point asked for, whatever lies beyond."""
    log = open_test_log(disk, tmp_path)
    for sequence in (0, 2, 4):
        once(log, sequence)
    snapshots = Snapshots(disk, str(tmp_path), [])
    for offset in (2, 6):
        snapshots.write(offset, snapshots.load(log.segments, offset, 0)).close()
    entry = snapshots.load(log.segments, 4, 0).get(9)
    assert entry is not None
    assert [batch.first_offset for batch in entry.batches] == [0, 2]


def test_state_is_rolled_back_before_offsets_move() -> None:
    """KAFKA-12153: the cut fails in the middle, at the snapshot that the producers are rolled back with: the offsets
    are still those of the records and of the producers."""

    async def life(world: World, ports: Ports) -> None:
        log = open_log(ports.disk, "/t-0", TP, clock=ports.clock, config=LogConfig(preallocate_bytes=0))
        once(log)
        log.roll()
        for sequence in (2, 4):
            once(log, sequence)
        log.sync_now()
        before = log.producers.get(9)
        faults = world.machines["n1"].disk.faults
        faults.reads, faults.where = 1, ".snapshot"
        with pytest.raises(StorageError):
            log.truncate_to(4)
        assert (log.log_end_offset, log.durable_offset) == (6, 6)
        assert log.producers.get(9) is before
        assert log.failure is not None

    in_a_world(life, 1)


def test_a_snapshot_above_the_recovery_point_is_not_believed(disk: FailingDisk, tmp_path: Path) -> None:
    """After a power cut it may tell of records that are gone, while older ones, cut since, are back: the batches of
    what is scanned tell themselves."""
    log = open_test_log(disk, tmp_path)
    for sequence in (0, 2, 4):
        once(log, sequence)
    log.sync_now()
    log.close_files()
    other = ProducerStates()
    header = parse_header(client_batch(4, producer_id=77, producer_epoch=0, sequence=0))
    other.update(header, 0, 1000)
    for recovery_point, knows in ((2, [9]), (4, [9, 77])):
        Snapshots(disk, str(tmp_path), []).write(4, other).close()
        opened = open_test_log(disk, tmp_path, last_life=LastLife(recovery_point=recovery_point))
        assert [entry.producer_id for entry in opened.producers.entries()] == knows
        opened.close_files()


def test_a_cut_takes_the_snapshots_beyond_it(disk: FailingDisk, tmp_path: Path) -> None:
    """Otherwise the next cut rolls the producers back to those of records that were cut long ago."""
    log = open_test_log(disk, tmp_path)
    for sequence in (0, 2):
        once(log, sequence)
    log.roll()
    log.truncate_to(2)
    for sequence in (0, 2):
        log.append_as_leader(client_batch(2, producer_id=8, producer_epoch=0, sequence=sequence), 0, 1000)
    log.truncate_to(4)
    known = {entry.producer_id: [batch.first_offset for batch in entry.batches] for entry in log.producers.entries()}
    assert known == {8: [2], 9: [0]}


def test_86_retention_takes_the_records_of_a_producer_and_the_power_fails(disk: FailingDisk, tmp_path: Path) -> None:
    """The checkpoint of recovery points is older than that of log starts: the snapshot where the log begins is all
    that tells of what was committed before."""
    log = with_its_only_batch_deleted(disk, tmp_path)
    log.close_files()
    opened = open_test_log(disk, tmp_path, last_life=LastLife(recovery_point=0, log_start_offset=2))
    assert once(opened)
    opened.close_files()


def test_86_an_older_log_start_and_the_producers_of_deleted_records(disk: FailingDisk, tmp_path: Path) -> None:
    """An older copy of both checkpoints came back (seed 18001919): where the first segment begins the log start was
    durable once, and the snapshot there still tells of what was committed before."""
    log = with_its_only_batch_deleted(disk, tmp_path)
    log.close_files()
    opened = open_test_log(disk, tmp_path, last_life=LastLife(recovery_point=0, log_start_offset=0))
    assert once(opened)
    opened.close_files()


def test_86_a_log_start_that_was_durable_before_the_snapshot_there(disk: FailingDisk, tmp_path: Path) -> None:
    """The names of a new segment and its snapshot survive a power cut, and the snapshot's content does not: what is
    still on the disk below the log start tells of it."""
    log = open_test_log(disk, tmp_path)
    once(log)
    log.roll()
    fill(log, 1)
    log.sync_now()
    log.close_files()
    (tmp_path / f"{2:020d}.snapshot").write_bytes(bytes(100))
    last_life = LastLife(recovery_point=0, log_start_offset=2)
    for _ in range(2):
        opened = open_test_log(disk, tmp_path, last_life=last_life)
        assert opened.log_start_offset == 2
        assert once(opened)
        opened.close_files()


def test_86_recovery_leaves_a_snapshot_of_each_closed_segment(disk: FailingDisk, tmp_path: Path) -> None:
    """Those above the recovery point are not believed; but retention takes the segments before them later."""
    log = open_test_log(disk, tmp_path)
    for sequence in (0, 2, 4):
        once(log, sequence)
        log.roll()
    log.sync_now()
    log.close_files()
    for offset in (2, 4, 6):
        (tmp_path / f"{offset:020d}.snapshot").write_bytes(b"of another history")
    opened = open_test_log(disk, tmp_path, last_life=LastLife(recovery_point=0))
    assert opened.snapshots.offsets() == [2, 4, 6]
    opened.delete_records_before(6)
    opened.close_files()
    again = open_test_log(disk, tmp_path, last_life=LastLife(recovery_point=6, log_start_offset=6))
    assert [once(again, sequence) for sequence in (0, 2, 4)] == [True, True, True]
    again.close_files()


def two_deletions(disk: FailingDisk, directory: Path) -> PartitionLog:
    """The log start is durable behind the producer's records, and not yet behind the segment that follows."""
    log = with_its_only_batch_deleted(disk, directory)
    log.roll()
    fill(log, 1)
    log.sync_now()
    log.delete_records_before(3)
    assert log.bases == [3]
    return log


def test_89_the_log_start_was_raised_and_a_start_does_not_know_it(disk: FailingDisk, tmp_path: Path) -> None:
    """A segment is out of the log, and its records are back after the kill: so is what lies before them."""
    log = two_deletions(disk, tmp_path)
    log.close_files()
    opened = open_test_log(disk, tmp_path, last_life=LastLife(same_boot=True, recovery_point=0, log_start_offset=2))
    assert opened.bases == [2, 3]
    assert once(opened)
    opened.close_files()


def test_a_snapshot_leaves_the_disk_with_its_segment(
    disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before (schedule 89), whatever else takes stray ones; and not later."""
    log = two_deletions(disk, tmp_path)
    monkeypatch.setattr("strandline.log.partition_log.SNAPSHOT_INTERVAL_BYTES", 1)
    once(log, 2)
    assert log.snapshots.offsets() == [2, 3, 6]
    asyncio.run(log.delete_oldest_removed())
    assert sorted(path.name for path in tmp_path.glob("*.snapshot")) == [f"{at:020d}.snapshot" for at in (3, 6)]
    log.close_files()


class StruckAtItsStart(OneStrike):
    """A kill before the newest segment and its snapshot were synced, with a log start there that is durable. The power
    fails while the next life starts."""

    async def first_life(self, ports: Ports) -> None:
        format_log_dir(ports.disk, "/d", "c", NodeId(1), UUID(int=1))
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, NO_STEPS)
        log = log_dir.create(TP, TOPIC_ID, NO_STEPS)
        once(log)
        log.sync_now()
        log.roll()
        fill(log, 2)
        log.delete_records_before(2)
        log_dir.write_checkpoints({})
        log_dir.abandon()
        self.aim()
        LogDir.open(ports.disk, "/d", ports.clock, NO_STEPS)
        self.ended = True

    async def second_life(self, ports: Ports) -> None:
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, NO_STEPS)
        assert not log_dir.offline
        assert once(log_dir.logs[TP])


@pytest.mark.parametrize("seed", range(4))
def test_89_a_start_takes_nothing_that_the_page_cache_alone_tells_of(seed: int) -> None:
    """The snapshot at the log start is on the disk before the segments below it go."""
    assert any(StruckAtItsStart(seed, operations, power=True).run() for operations in range(1, 200))


def test_segments_stay_where_there_is_no_room_for_that(disk: FailingDisk, tmp_path: Path) -> None:
    """A full disk is no reason to refuse the log."""

    class Full(FailingDisk):
        def open(self, path: str, *, create: bool = False) -> RealFile:
            if path.endswith(".snapshot.tmp"):
                raise DiskFull(28, "No space left on device", path)
            return super().open(path, create=create)

    log = open_test_log(disk, tmp_path)
    once(log)
    log.roll()
    fill(log, 1)
    log.sync_now()
    log.close_files()
    life = LastLife(same_boot=True, log_start_offset=2)
    for room, bases in ((Full(), [0, 2]), (disk, [2])):
        rewriting = Rewriting(room)
        opened = open_log(room, str(tmp_path), TP, clock=ManualClock(), last_life=life, rewriting=rewriting)
        assert (opened.bases, opened.log_start_offset) == (bases, 2)
        assert once(opened)
        opened.close_files()


def test_recovery_without_room_for_snapshots(disk: FailingDisk, tmp_path: Path) -> None:
    log = open_test_log(disk, tmp_path)
    once(log)
    log.roll()
    segments = log.segments
    snapshots = Snapshots(disk, str(tmp_path), [])
    disk.bytes_left = 10
    assert snapshots.fill(segments, 0) == []
    log.close_files()


def told(producer_id: int) -> ProducerStates:
    """What the object store tells a log that begins behind four records of a producer."""
    states = ProducerStates()
    header = parse_header(client_batch(4, producer_id=producer_id, producer_epoch=3, sequence=0))
    states.update(header, 0, 1000)
    return states


def begins_behind_them(disk: FailingDisk, directory: Path) -> PartitionLog:
    log = open_test_log(disk, directory)
    assert not log.lacks_producers()
    log.truncate_fully_and_start_at(4)
    return log


def test_a_log_that_begins_behind_records_is_told_who_wrote_them(disk: FailingDisk, tmp_path: Path) -> None:
    """Rule B24: before its first record, and once."""
    log = begins_behind_them(disk, tmp_path)
    assert log.lacks_producers()
    assert asyncio.run(log.begin_with(4, told(9)))
    assert not log.lacks_producers()
    assert not asyncio.run(log.begin_with(4, told(8)))
    log.close()
    for last_life in (LastLife(clean=True, log_start_offset=4), LastLife(log_start_offset=4)):
        log = open_test_log(disk, tmp_path, last_life=last_life)
        assert not log.lacks_producers()
        assert [entry.producer_id for entry in log.producers.entries()] == [9]
        log.close_files()


@pytest.mark.parametrize("offset", [3, 5])
def test_what_is_told_of_another_beginning_is_not_taken(disk: FailingDisk, tmp_path: Path, offset: int) -> None:
    """The log was cut meanwhile."""
    log = begins_behind_them(disk, tmp_path)
    assert not asyncio.run(log.begin_with(offset, told(9)))
    assert log.lacks_producers()
    log.close()
    assert open_test_log(disk, tmp_path, last_life=LastLife(clean=True, log_start_offset=4)).lacks_producers()


@pytest.mark.parametrize("seed", range(4))
def test_what_a_log_is_told_is_durable_before_its_first_record(seed: int) -> None:
    async def life(world: World, ports: Ports) -> None:
        log = open_log(ports.disk, "/t-0", TP, clock=ports.clock, config=NO_STEPS)
        ports.disk.sync_dir("/")
        log.sync_now()
        log.truncate_fully_and_start_at(4)
        assert await log.begin_with(4, told(9))
        disk = world.machines["n1"].disk
        disk.crash()
        assert disk.files()[f"/t-0/{4:020d}.snapshot"] == told(9).encode_snapshot()

    in_a_world(life, seed)


def test_a_log_that_begins_inside_a_batch_keeps_what_it_was_told(disk: FailingDisk, tmp_path: Path) -> None:
    """The leader's log start lies inside of a batch, which comes whole: rule B24 holds for what lies before that."""
    log = begins_behind_them(disk, tmp_path)
    assert asyncio.run(log.begin_with(4, told(9)))
    of_another = client_batch(3, producer_id=8, producer_epoch=0, sequence=0)
    patch_base_offset_and_epoch(of_another, 0, 3, 0)
    log.append_as_follower(of_another)
    assert (log.log_start_offset, log.log_end_offset) == (4, 6)
    assert [entry.producer_id for entry in log.producers.entries()] == [8, 9]
    log.close_files()
    opened = open_test_log(disk, tmp_path, last_life=LastLife(log_start_offset=4))
    known = {entry.producer_id: [batch.first_offset for batch in entry.batches] for entry in opened.producers.entries()}
    assert known == {8: [3], 9: [0]}
