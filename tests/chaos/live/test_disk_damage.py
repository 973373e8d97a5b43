"""What rots in a live run is what a start takes for a torn write, and nothing else."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from strandline.chaos.live.disk_damage import NothingToDamage, lose_newest_batches, rot_newest_batch
from strandline.log.config import LogConfig
from strandline.log.findings import LogCondition
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, ManualClock, client_batch, fill

BATCHES = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    format_log_dir(FailingDisk(), str(tmp_path), "c", NodeId(1), UUID(int=1))
    return tmp_path


def opened(path: Path) -> LogDir:
    return LogDir.open(RealDisk(), str(path), ManualClock(), LogConfig())


def written(path: Path, *, checkpoint_after: int) -> None:
    """Ten batches of two records, and checkpoints that vouch for the first of them; the process is killed then."""
    log_dir = opened(path)
    log = log_dir.create(TP, TOPIC_ID)
    fill(log, checkpoint_after, count=2)
    log.sync_now()
    log_dir.write_checkpoints({TP: log.log_end_offset})
    fill(log, BATCHES - checkpoint_after, count=2)
    log.close_files()


def found(path: Path) -> PartitionLog:
    return opened(path).logs[TP]


@pytest.mark.parametrize("seed", range(8))
def test_a_start_cuts_the_newest_batch_and_no_other(path: Path, seed: int) -> None:
    """One bit of it, and it says which."""
    written(path, checkpoint_after=3)
    [segment] = (path / str(TP)).glob("*.log")
    before = segment.read_bytes()
    said = rot_newest_batch(path / str(TP), seed)
    after = segment.read_bytes()
    [changed] = [place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert (before[changed] ^ after[changed]).bit_count() == 1
    assert f"byte {changed} of {TP}/{segment.name}" in said
    assert f"offset {2 * (BATCHES - 1)}" in said
    assert found(path).log_end_offset == 2 * (BATCHES - 1)


@pytest.mark.parametrize("seed", range(8))
def test_what_a_disk_does_not_give_back_leaves_no_trace(path: Path, seed: int) -> None:
    """The newest batches are gone, none of those that checkpoints vouch for, and a start finds the log intact."""
    written(path, checkpoint_after=3)
    said = lose_newest_batches(path / str(TP), seed)
    log_dir = opened(path)
    end = log_dir.logs[TP].log_end_offset
    assert 6 <= end < 2 * BATCHES
    assert said.endswith(f"newest {BATCHES - end // 2} batches, from offset {end}")
    assert log_dir.found == {LogCondition.INTACT: 1}


def test_what_checkpoints_vouch_for_is_not_lost(path: Path) -> None:
    """A start would miss it."""
    written(path, checkpoint_after=BATCHES)
    with pytest.raises(NothingToDamage, match=f"no batch from offset {2 * BATCHES} on"):
        lose_newest_batches(path / str(TP), 1)


def test_what_checkpoints_vouch_for_is_left_alone(path: Path) -> None:
    """Damage there is refused by a start, and waits for an operator: another fault."""
    written(path, checkpoint_after=BATCHES)
    with pytest.raises(NothingToDamage, match=f"no batch from offset {2 * BATCHES} on"):
        rot_newest_batch(path / str(TP), 1)
    assert found(path).log_end_offset == 2 * BATCHES


def test_a_torn_write_behind_it_is_no_batch(path: Path) -> None:
    """The process was killed in the middle of a write: the newest batch is the last whole one."""
    written(path, checkpoint_after=3)
    [segment] = (path / str(TP)).glob("*.log")
    end = len(segment.read_bytes().rstrip(b"\0"))
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(bytes(client_batch(2))[:70])
    assert f"offset {2 * (BATCHES - 1)}" in rot_newest_batch(path / str(TP), 1)
