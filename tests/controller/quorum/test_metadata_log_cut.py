"""The metadata log is cut at its start after a snapshot, whatever the disk does meanwhile."""

from __future__ import annotations

import pytest
from tests.stage import OneMachine

from strandline.chaos.sim.ports import Ports
from strandline.controller.quorum.api import QuorumConfig
from strandline.controller.quorum.metadata_log import MetadataLog, build_data_batch
from strandline.controller.raft.messages import Batch, OffsetAndEpoch
from strandline.log.disk import DiskError
from strandline.log.rewriting import Rewriting

DIRECTORY = "/data/__cluster_metadata-0"
CONFIG = QuorumConfig(log_segment_bytes=1_000)
RECORDS = 40


def open_log(ports: Ports) -> MetadataLog:
    ports.disk.mkdir("/data")
    log = MetadataLog.open(ports.disk, DIRECTORY, ports.clock, CONFIG, rewriting=Rewriting(ports.disk))
    for directory in ("/", "/data"):
        ports.disk.sync_dir(directory)
    return log


def fill(log: MetadataLog) -> None:
    """Eight segments and more, all of it durable, and known to be."""
    for offset in range(RECORDS):
        data = build_data_batch([b"x" * 120], base_offset=offset, epoch=1, timestamp_ms=0)
        assert log.write(Batch(offset, offset + 1, 1, data), 0)
    log.partition_log.sync_now()
    log.note_recovery_point()


def cut_under_a_power_cut(seed: int, strike: int) -> tuple[int, int]:
    """The power fails at the `strike`-th disk operation of cutting the start; (start, end) in the next life."""
    machine = OneMachine(seed)
    found: list[tuple[int, int]] = []

    async def cut(ports: Ports) -> None:
        log = open_log(ports)
        fill(log)
        assert len(log.partition_log.segments) >= 8
        machine.lose_power_at(strike)
        log.delete_before(RECORDS - 2)
        await log.delete_removed()

    async def again(ports: Ports) -> None:
        log = open_log(ports)
        found.append((log.start_offset, log.end_offset))

    async def scenario(machine: OneMachine) -> None:
        await machine.live(cut)
        if machine.world.machines["n1"].powered:
            machine.power_cut("n1")
        assert await machine.live(again)

    machine.play(scenario)
    return found[0]


@pytest.mark.parametrize("strike", range(1, 50, 2))
def test_a_start_that_is_cut_leaves_no_gap_whenever_the_power_fails(strike: int) -> None:
    """Rule E5: of the segments below a snapshot some may come back, but the youngest of them and those next to it: a
    log with a gap would be damage, and its node would not start (seeds 5215, 6831, 7237)."""
    for seed in range(6):
        start, end = cut_under_a_power_cut(seed, strike)
        assert end == RECORDS
        assert start <= RECORDS - 2


def test_a_full_disk_lets_the_log_be_cut() -> None:
    """Where the recovery point cannot be lowered for want of room, its file is given up: it promises nothing then, and
    the node goes on, today and after a restart (seeds 4566, 7864)."""
    machine = OneMachine()
    ends: list[int] = []

    async def full(ports: Ports) -> None:
        log = open_log(ports)
        fill(log)
        machine.disk.config.capacity_bytes = machine.disk.used_bytes
        log.truncate_to(30)
        log.reset_to(OffsetAndEpoch(50, 2))
        ends.append(log.end_offset)

    async def again(ports: Ports) -> None:
        log = open_log(ports)
        ends.append(log.end_offset)
        machine.disk.config.capacity_bytes = 1 << 30
        log.note_recovery_point()

    async def scenario(machine: OneMachine) -> None:
        await machine.live(full)
        machine.power_cut("n1")
        for _ in range(2):
            await machine.live(again)

    machine.play(scenario)
    assert ends == [50, 50, 50]


def test_a_disk_that_does_not_take_the_log_again_is_refused() -> None:
    """Schedule 47: what the process before left is written again and synced, or the node does not start; the next start
    may find a disk that does."""
    refused: list[DiskError] = []
    ends: list[int] = []

    async def write(ports: Ports) -> None:
        fill(open_log(ports))

    async def look(ports: Ports) -> None:
        try:
            ends.append(open_log(ports).end_offset)
        except DiskError as error:
            refused.append(error)

    async def scenario(machine: OneMachine) -> None:
        await machine.live(write)
        for failures in (1, 0):
            machine.kill("n1")
            machine.disk.faults.syncs, machine.disk.faults.where = failures, ".log"
            await machine.live(look)

    OneMachine().play(scenario)
    assert [error.filename for error in refused] == [DIRECTORY]
    assert "cannot be written again and synced" in str(refused[0])
    assert ends == [RECORDS]


def test_what_is_held_since_the_start() -> None:
    """Rule B38: what the disk had when the log was opened, less what was cut since; a snapshot ahead of it counts."""
    machine = OneMachine()
    held: list[int] = []

    async def first(ports: Ports) -> None:
        log = open_log(ports)
        fill(log)
        held.append(log.held)

    async def second(ports: Ports) -> None:
        log = open_log(ports)
        held.append(log.held)
        log.truncate_to(RECORDS - 3)
        fresh = build_data_batch([b"y"] * 9, base_offset=RECORDS - 3, epoch=2, timestamp_ms=0)
        assert log.write(Batch(RECORDS - 3, RECORDS + 6, 2, fresh), 0)
        held.append(log.held)
        log.summary([OffsetAndEpoch(RECORDS + 100, 3)])
        held.append(log.held)
        log.reset_to(OffsetAndEpoch(RECORDS + 200, 3))
        held.append(log.held)

    async def scenario(machine: OneMachine) -> None:
        assert await machine.live(first)
        assert await machine.live(second)

    machine.play(scenario)
    assert held == [0, RECORDS, RECORDS - 3, RECORDS + 100, 0]
