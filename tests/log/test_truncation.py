"""Cutting the end, the start and the whole of a log."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.config import LogConfig
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import FailingDisk, all_records, client_batch, fill, open_test_log

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=300, preallocate_bytes=0)


def state_of(log: PartitionLog) -> object:
    """What must be the same however the log came to hold its records."""
    producers = [(e.producer_id, e.epoch, list(e.batches)) for e in log.producers.entries()]
    return all_records(log), log.epochs.entries(), producers


def write(log: PartitionLog, first: int, batches: list[tuple[int, int, int]]) -> None:
    """Batches of (count, producer id, epoch step), sequences following on; one batch has the number of its position."""
    sequences: dict[int, int] = {}
    epoch = 0
    for i, (count, producer, step) in enumerate(batches):
        epoch += step
        sequence = sequences.get(producer, 0)
        sequences[producer] = sequence + count
        if i >= first:
            batch = client_batch(
                count, first=i, size=60, producer_id=producer, producer_epoch=0, sequence=sequence, timestamp_ms=i
            )
            log.append_as_leader(batch, epoch, 1000)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 0, 0, 1, 2])), min_size=1, max_size=30
    ),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_truncated_log_is_as_one_that_never_had_more(
    batches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """KAFKA-12153, schedules 1 to 5: records, epochs and producer state after a cut are those of the shorter log; the
    cut is whole batches; and so after a restart, clean or not.
    """
    keep = data.draw(st.integers(0, len(batches)))
    with tempfile.TemporaryDirectory(prefix="strandline-cut-") as directory:
        disk = RealDisk()
        log = open_test_log(disk, f"{directory}/long", config=SMALL)
        write(log, 0, batches)
        ends = [0]
        for count, _, _ in batches:
            ends.append(ends[-1] + count)
        into = data.draw(st.integers(0, batches[keep][0] - 1)) if keep < len(batches) else 0
        assert log.truncate_to(ends[keep] + into) == ends[keep]
        short = open_test_log(disk, f"{directory}/short", config=SMALL)
        write(short, 0, batches[:keep])
        assert state_of(log) == state_of(short)
        log.sync_now()
        log.close_files()
        log = open_test_log(disk, f"{directory}/long", config=SMALL)
        assert state_of(log) == state_of(short)
        write(log, keep, batches)
        write(short, keep, batches)
        assert state_of(log) == state_of(short)
        log.close()
        log = open_test_log(disk, f"{directory}/long", config=SMALL, last_life=LastLife(clean=True))
        assert state_of(log) == state_of(short)
        disk.close()


def test_offsets_after_a_cut(disk: FailingDisk, tmp_path: Path) -> None:
    """Above the end nothing happens; durable offset and size follow the end down."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    fill(log, 10, count=2, size=50)
    log.sync_now()
    assert log.durable_offset == 20
    assert log.truncate_to(25) == 20
    assert log.truncate_to(20) == 20
    assert log.truncate_to(5) == 4, "offset 5 is in the middle of a batch"
    assert (log.log_end_offset, log.durable_offset) == (4, 4)
    assert log.size_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.log"))
    assert log.recovery_point == 4


def test_a_cut_at_the_end_cleans_the_epochs(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 5 (KAFKA-10706): elected, written nothing, deposed: its epoch must not stay to conflict with the
    leader's."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    fill(log, 4, epoch=1)
    log.assign_epoch_start(5, 4)
    assert log.latest_epoch == 5
    assert log.truncate_to(4) == 4
    assert log.epochs.entries() == [(1, 0)]
    log.assign_epoch_start(6, 4)
    assert log.truncate_to(9) == 4
    assert log.latest_epoch == 1


def test_a_cut_takes_the_epochs_of_what_is_cut(disk: FailingDisk, tmp_path: Path) -> None:
    """Schedule 2: epochs that begin at the cut or beyond go with their records."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    for epoch in (1, 3, 7):
        fill(log, 4, epoch=epoch)
    assert log.truncate_to(6) == 6
    assert log.epochs.entries() == [(1, 0), (3, 4)]
    assert log.truncate_to(4) == 4
    assert log.epochs.entries() == [(1, 0)]


def test_a_checkpoint_is_lowered_before_the_cut(disk: FailingDisk, tmp_path: Path) -> None:
    """Otherwise the next recovery takes the cut for lost data."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    fill(log, 10)
    told: list[tuple[int, int]] = []
    log.on_cut_below = lambda offset: told.append((offset, int(log.log_end_offset)))
    log.truncate_to(6)
    log.truncate_fully_and_start_at(3)
    assert told == [(6, 10), (0, 6)]


def test_starting_anew_elsewhere(disk: FailingDisk, tmp_path: Path) -> None:
    """A follower that fell behind the leader's log start, a voter that loads a snapshot."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    fill(log, 30, size=60)
    log.append_as_leader(client_batch(1, producer_id=1, producer_epoch=0, sequence=0), 2, 0)
    log.delete_records_before(20)
    log.truncate_fully_and_start_at(500)
    assert (log.log_start_offset, log.log_end_offset, log.durable_offset) == (500, 500, 500)
    assert (log.size_bytes, log.latest_epoch, len(log.producers), log.removed) == (0, -1, 0, [])
    fill(log, 3, epoch=9)
    log.sync_now()
    log.close_files()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000000000000500.log", "leader-epoch-checkpoint"]
    log = open_test_log(disk, tmp_path, config=SMALL)
    assert [record.offset for record in all_records(log)] == [500, 501, 502]
    log.truncate_to(100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100), "below the first segment: everything goes"


def test_deleting_from_the_start(disk: FailingDisk, tmp_path: Path) -> None:
    """Retention's half that belongs to the log: whole segments leave, the start moves exactly, epochs follow."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    fill(log, 20, size=100, epoch=1)
    fill(log, 20, size=100, epoch=2)
    bases = list(log.bases)
    log.delete_records_before(bases[2] + 1)
    assert log.log_start_offset == bases[2] + 1
    assert log.bases == bases[2:]
    assert log.epochs.entries() == [(1, bases[2] + 1), (2, 20)]
    assert all_records(log)[0].offset == bases[2] + 1
    log.delete_records_before(5)
    assert log.log_start_offset == bases[2] + 1, "the start never goes back"
    with pytest.raises(KafkaError) as caught:
        log.delete_records_before(41)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.delete_records_before(40)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert len(log.segments) == 1, "the active segment stays"
    on_disk = len(list(tmp_path.glob("*.log")))
    assert on_disk == len(log.removed) + 1, "files go only once the new start is durable"

    async def delete() -> None:
        while log.removed:
            await log.delete_oldest_removed()

    asyncio.run(delete())
    assert len(list(tmp_path.glob("*.log"))) == 1
    assert not list(tmp_path.glob("*.deleted"))
    fill(log, 1, epoch=2)
    log.sync_now()
    log.close_files()
    again = open_test_log(disk, tmp_path, config=SMALL, last_life=LastLife(log_start_offset=40))
    assert (again.log_start_offset, again.log_end_offset) == (40, 41)


def test_a_start_that_was_not_durable_comes_back_whole(disk: FailingDisk, tmp_path: Path) -> None:
    """A crash between the new start and its checkpoint: the old start, without a gap."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    fill(log, 40, size=100)
    log.sync_now()
    log.delete_records_before(25)
    log.close_files()
    again = open_test_log(disk, tmp_path, config=SMALL)
    assert (again.log_start_offset, again.log_end_offset, len(all_records(again))) == (0, 40, 40)


def test_segments_below_the_durable_start_are_tidied(disk: FailingDisk, tmp_path: Path) -> None:
    """A crash after the checkpoint and before the deletion."""
    log = open_test_log(disk, tmp_path, config=SMALL)
    fill(log, 40, size=100)
    log.sync_now()
    log.delete_records_before(25)
    log.close_files()
    again = open_test_log(disk, tmp_path, config=SMALL, last_life=LastLife(log_start_offset=25))
    assert again.log_start_offset == 25
    assert [record.offset for record in all_records(again)] == list(range(25, 40))
    assert len(list(tmp_path.glob("*.log"))) == len(again.segments)
    assert again.epochs.entries() == [(0, 25)]
