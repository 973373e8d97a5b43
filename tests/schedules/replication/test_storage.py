"""What a log holds when the disk fails, is read from in between, or is cut from the front: schedules 16, 17, 19."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.process import Ports
from strandline.chaos.sim.world import World
from strandline.log.config import LogConfig
from strandline.log.disk import DiskError
from strandline.log.partition_log import PartitionLog
from strandline.log.recovery import LastLife, open_log
from strandline.log.segment import INDEX_FLUSH_ENTRIES
from strandline.proto.errors import KafkaError, StorageError
from tests.log.helpers import TP, all_records, client_batch
from tests.schedules.helpers import schedule


def index_write_fails(disk: SimDisk) -> None:
    disk.faults.writes, disk.faults.where = 1, ".index"


def no_room_for_an_index(disk: SimDisk) -> None:
    """The log's own bytes are preallocated, so that the index is what meets the end of the disk."""
    disk.config.capacity_bytes = disk.used_bytes


@pytest.mark.parametrize("trouble", [index_write_fails, no_room_for_an_index], ids=["EIO", "ENOSPC"])
@schedule(19, rule="C: an append moves the end before anything else is written", mutant="index-before-the-end-moves")
def test_19_an_index_write_fails_after_the_append(trouble: Callable[[SimDisk], None]) -> None:
    """KAFKA-7866: the records are in the log and their index entries cannot be written: the next append must not get
    the same offsets. (The transaction index comes with transactions; these are the indexes by offset and by time.)"""
    world = World(1)
    machine = world.add_machine("n1")
    config = LogConfig(index_interval_bytes=0, preallocate_bytes=1 << 20)
    written: dict[int, int] = {}

    def append(log: PartitionLog, number: int) -> None:
        end = int(log.log_end_offset)
        try:
            assert log.append_as_leader(client_batch(1, first=number, size=20), 0, 0).base_offset == end
        except (KafkaError, StorageError, DiskError):
            if log.log_end_offset == end:
                return
        assert end not in written
        written[end] = number

    async def life(ports: Ports) -> None:
        log = open_log(ports.disk, "/t-0", TP, clock=ports.clock, config=config)
        for number in range(INDEX_FLUSH_ENTRIES - 10):
            append(log, number)
        trouble(machine.disk)
        for number in range(INDEX_FLUSH_ENTRIES - 10, INDEX_FLUSH_ENTRIES + 10):
            append(log, number)
        machine.disk.config.capacity_bytes = 1 << 30
        append(log, 9_999)
        log.close_files()
        again = open_log(ports.disk, "/t-0", TP, clock=ports.clock, config=config, last_life=LastLife(same_boot=True))
        found = [(record.offset, (record.value or b"").partition(b"-")[0]) for record in all_records(again)]
        assert found == [(offset, b"v%d" % number) for offset, number in written.items()]
        assert len(written) > INDEX_FLUSH_ENTRIES

    async def scenario() -> None:
        process = world.spawn("n1", life)
        assert process.main is not None
        await process.main

    world.run(scenario())
