"""A replica's log that moves to another directory (KIP-113): whatever cuts a life short, exactly one log counts."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.chaos.sim.handles import ProcessKilled
from strandline.chaos.sim.ports import Ports
from strandline.log.config import LogConfig
from strandline.log.findings import LogCondition
from strandline.log.future import FutureLog
from strandline.log.log_dir import format_log_dir
from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import PartitionLog
from strandline.proto.ids import NodeId, TopicId, TopicPartition
from tests.log.helpers import client_batch
from tests.log.striking import OneStrike

TP = TopicPartition("t", 0)
TOPIC: TopicId = UUID(int=9)
FIRST, SECOND = "/first", "/second"
CONFIG = LogConfig(preallocate_bytes=0, segment_bytes=1000)


def open_dirs(ports: Ports, life: int) -> LogDirs:
    """A process opens both, and registers."""
    for number, path in enumerate((FIRST, SECOND), 1):
        if not ports.disk.exists(f"{path}/meta.properties"):
            format_log_dir(ports.disk, path, "c", NodeId(1), UUID(int=number))
    dirs = LogDirs.open(dict.fromkeys((FIRST, SECOND), ports.disk), ports.clock, CONFIG)
    dirs.begin_life(UUID(int=100 + life))
    return dirs


def copy(future: FutureLog, current: PartitionLog) -> None:
    """Everything that the current log has."""
    while future.lag:
        found = current.read(future.log.log_end_offset, 1 << 20, current.log_end_offset)
        assert found is not None
        future.append(found.data)


class MoveCutShort(OneStrike):
    """A replica of two epochs, of which the front was deleted, goes from one directory to the other."""

    def __init__(self, seed: int, operations: int, *, power: bool, to_first: bool) -> None:
        super().__init__(seed, operations, power=power)
        self.to_first = to_first
        self.bytes = b""
        self.where = ""

    async def first_life(self, ports: Ports) -> None:
        dirs = open_dirs(ports, 1)
        dirs.registered(UUID(int=101))
        source, target = (dirs.dirs[1], dirs.dirs[0]) if self.to_first else (dirs.dirs[0], dirs.dirs[1])
        target.full = True
        log = dirs.create(TP, TOPIC, CONFIG)
        assert log.home == source.path
        log.append_as_leader(client_batch(5, producer_id=8, producer_epoch=0, sequence=0), 1, 0)
        for i in range(1, 11):
            log.append_as_leader(client_batch(5, producer_id=7, producer_epoch=0, sequence=5 * i), 1 + i // 6, 0)
        log.sync_now()
        log.delete_records_before(23)
        for log_dir in dirs.dirs:
            log_dir.write_checkpoints({TP: 55})
        self.aim()
        future = FutureLog(target, log, ports.clock, 1)
        copy(future, log)
        await future.sync()
        log.append_as_leader(client_batch(5, producer_id=7, producer_epoch=0, sequence=55), 2, 0)
        log.assign_epoch_start(3, 60)
        log.sync_now()
        self.bytes = read_all(log)
        copy(future, log)
        new = future.finish()
        assert (new.latest_epoch, new.durable_offset) == (3, 60)
        aside = dirs.moved(new, target, future.unique)
        assert dirs.log_of(TP) is new
        assert log.failure
        await source.delete_aside(aside)
        new.append_as_leader(client_batch(5, producer_id=7, producer_epoch=0, sequence=60), 3, 0)
        new.sync_now()
        self.bytes = read_all(new)
        self.where = target.path
        target.write_checkpoints({TP: 65})
        self.ended = True

    async def second_life(self, ports: Ports) -> None:
        assert self.error is None or isinstance(self.error, ProcessKilled), self.error
        dirs = open_dirs(ports, 2)
        assert dirs.findings[TP].condition is not LogCondition.LACKING
        log = dirs.log_of(TP)
        assert log is not None
        assert not dirs.damage_of(TP)
        assert [TP in one.logs for one in dirs.dirs].count(True) == 1
        named = [path for path in (FIRST, SECOND) if ports.disk.exists(f"{path}/{TP}")]
        assert named == [log.home]
        assert not self.where or self.where == log.home
        assert not [name for path in (FIRST, SECOND) for name in ports.disk.listdir(path) if "-future" in name]
        assert (log.log_start_offset, log.epoch_at(29), log.epoch_at(30)) == (23, 1, 2)
        assert read_all(log).startswith(self.bytes)
        assert log.producers.get(7) is not None
        assert log.producers.get(8) is not None, "its records were deleted"


def read_all(log: PartitionLog) -> bytes:
    """Its batches."""
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20, log.log_end_offset)
        assert found is not None
        data, offset = data + found.data, found.next_offset
    return data


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("to_first", [False, True])
def test_a_move_may_be_cut_short_anywhere(power: bool, to_first: bool) -> None:
    """After each operation of the disk."""
    operations = 1
    while not MoveCutShort(3, operations, power=power, to_first=to_first).run():
        operations += 1
    assert operations > 60
