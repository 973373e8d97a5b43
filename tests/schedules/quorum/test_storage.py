"""Logs on disks that fail and lose power: schedules 18 and 20."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.log.batch import Record, build_batch
from strandline.log.disk import DiskError
from strandline.log.partition_log import PartitionLog
from strandline.log.recovery import open_log
from strandline.log.syncer import Syncer
from strandline.proto.errors import KafkaError, StorageError
from strandline.proto.ids import LeaderEpoch, TopicPartition
from tests.log.helpers import FailingDisk, all_records, fill, open_test_log
from tests.schedules.helpers import schedule
from tests.stage import OneMachine

TP = TopicPartition("orders", 0)
DIRECTORY = "/data/orders-0"


@schedule(18, rule="B18: a log is fenced after an I/O error", mutant="append-after-an-io-error")
def test_18_append_after_an_io_error(tmp_path: Path) -> None:
    """KAFKA-10778: a write fails, nobody knows what of it is there; what is appended after it is not to be trusted."""
    disk = FailingDisk()
    log = open_test_log(disk, tmp_path)
    fill(log, 2)
    disk.write_error = DiskError(5, "Input/output error", "x")
    with pytest.raises(StorageError):
        fill(log, 1)
    disk.write_error = None
    accepted = 0
    for _ in range(3):
        try:
            fill(log, 1)
        except KafkaError:
            continue
        accepted += 1
    assert accepted == 0, "appended behind a hole of unknown size"
    assert len(all_records(log)) == 2, "and what is certain can be read"
    log.close_files()
    disk.close()


@schedule(
    20,
    rule="B8: the epoch checkpoint is synced before it has its name, and made anew from the batches if it is damaged",
    mutant="epoch-checkpoint-damaged-by-a-crash",
)
def test_20_the_machine_crashes_after_an_election() -> None:
    """KAFKA-16541: the checkpoint of leader epochs was written and not synced; the machine crashes, and the file is
    damaged: a node that cannot start, or one that truncates by epochs it never had."""
    for seed in range(12):
        durable: list[list[tuple[int, int]]] = [[]]
        found: list[list[tuple[int, int]]] = []

        async def write(ports: Ports, durable: list[list[tuple[int, int]]] = durable) -> None:
            log = opened(ports)
            syncer = Syncer(ports.disk, lambda _: None, lambda _, error: pytest.fail(str(error)), pytest.fail)
            for epoch in range(1, 40):
                log.assign_epoch_start(LeaderEpoch(epoch), log.log_end_offset)
                await synced(log, syncer)
                batch = build_batch([Record(0, 0, None, b"x" * 30)], base_offset=log.log_end_offset, leader_epoch=epoch)
                log.append_batch(batch, LeaderEpoch(epoch))
                await synced(log, syncer)
                durable.append(list(log.epochs.entries()))
            await asyncio.sleep(60)

        async def look(ports: Ports, found: list[list[tuple[int, int]]] = found) -> None:
            found.append(list(opened(ports).epochs.entries()))

        async def scenario(machine: OneMachine) -> None:
            await machine.live(write, 60 + 3.7 * machine.world.seed)
            machine.power_cut("n1")
            await machine.live(look)

        OneMachine(seed).play(scenario)
        assert found, "the log could not be opened"
        assert found[0][: len(durable[-1])] == durable[-1]
        assert len(durable) > 5


async def synced(log: PartitionLog, syncer: Syncer) -> None:
    syncer.mark(log)
    await syncer.drain()
    assert not log.needs_sync


def opened(ports: Ports) -> PartitionLog:
    """The log on a simulated machine."""
    if not ports.disk.exists("/data"):
        ports.disk.mkdir("/data")
        ports.disk.sync_dir("/")
    if not ports.disk.exists(DIRECTORY):
        ports.disk.mkdir(DIRECTORY)
        ports.disk.sync_dir("/data")
    return open_log(ports.disk, DIRECTORY, TP, clock=ports.clock)
