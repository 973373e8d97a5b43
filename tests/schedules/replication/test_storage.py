"""What a log holds when the disk fails, is read from in between, or is cut from the front: schedules 16, 17, 19, 55."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.ports import Ports
from strandline.log.batch import Record, build_batch
from strandline.log.config import LogConfig
from strandline.log.disk import DiskError
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.recovery import open_log
from strandline.log.segment import INDEX_FLUSH_ENTRIES
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StorageError
from strandline.proto.ids import NodeId
from strandline.replica import frames
from strandline.replica.states import ReadOutcome
from tests.log.helpers import all_records, client_batch
from tests.replica.helpers import TP, batch, running, until
from tests.replica.simulated import decoded
from tests.replica.test_follower_streams import RawLeader
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import Bench
from tests.stage import Stage


def index_write_fails(disk: SimDisk) -> None:
    disk.faults.writes, disk.faults.where = 1, ".index"


def no_room_for_an_index(disk: SimDisk) -> None:
    """The log's own bytes are preallocated, so that the index is what meets the end of the disk."""
    disk.config.capacity_bytes = disk.used_bytes


@pytest.mark.parametrize("trouble", [index_write_fails, no_room_for_an_index], ids=["EIO", "ENOSPC"])
@schedule(19, rule="C1: an append moves the end before anything else is written", mutant="index-before-the-end-moves")
def test_19_an_index_write_fails_after_the_append(trouble: Callable[[SimDisk], None]) -> None:
    """KAFKA-7866: the records are in the log and their index entries cannot be written: the next append must not get
    the same offsets. (The transaction index comes with transactions; these are the indexes by offset and by time.)"""
    stage = Stage(1, ["n1"])
    machine = stage.world.machines["n1"]
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

    stage.play(lambda stage: stage.process("n1", life))


@schedule(16, rule="B15: nothing is deleted above the high watermark", mutant="log-start-not-clamped")
async def test_16_the_leaders_log_start_is_ahead_of_a_follower(tmp_path: Path) -> None:
    """KAFKA-5634: retention has moved the leader's log start while data for a lagging follower were on their way: the
    follower deletes nothing that it does not know to be committed, nor what it does not have."""
    async with running(tmp_path, nodes=2) as cluster:
        leader = RawLeader(cluster)
        await leader.start()
        stream, first = await leader.accept()
        await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0))
        for offset, high_watermark in ((0, 0), (1, 0), (2, 1)):
            batch = bytes(build_batch([Record(0, 1, None, b"x", ())], base_offset=offset, leader_epoch=0))
            header = frames.pack_data_header(
                5, 0, offset, high_watermark=high_watermark, log_start_offset=6, size=len(batch)
            )
            assert not stream._ended, "the follower has given the stream up"
            await stream.write(header + batch)
            end = offset + 1
            await until(lambda end=end: cluster[2].log_dir.logs[TP].log_end_offset == end, timeout_s=3.0)  # type: ignore[misc]
            assert cluster[2].log_dir.logs[TP].log_start_offset <= high_watermark
        await stream.write(frames.pack_watermark(5, 3, 6))
        await until(lambda: cluster[2].log_dir.logs[TP].log_start_offset == 3, timeout_s=3.0)
        assert cluster[2].fatal == []


@schedule(16, rule="B15: nothing is deleted above the high watermark", mutant="deletes-uncommitted-records")
def test_16_a_leader_is_asked_to_delete_what_is_not_committed() -> None:
    """KAFKA-5634, on the leader: what its followers do not have yet is not deleted, whoever asks for it."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"a")
        for node in (2, 3):
            bench.world.partition(f"n{node}", "n1", one_way=True)
        for value in (b"b", b"c"):
            await bench.append(1, value, acks=1)
        told: list[ErrorCode] = []
        bench.broker(1).run(lambda manager: ignore(manager.delete_records(TP, 3, lambda *what: told.append(what[0]))))
        await bench.world.sleep_ms(100)
        assert told == [ErrorCode.OFFSET_OUT_OF_RANGE]
        assert bench.status(1).log_start_offset == 0
        bench.world.heal()
        await bench.whole()

    bench.play(scenario)


def ignore(_: object) -> None:
    """For the sake of the callbacks' type."""


@schedule(17, rule="B14: a read has one snapshot of its bounds", mutant="bounds-taken-anew-in-mid-read")
def test_17_appends_and_commits_in_mid_read() -> None:
    """KAFKA-9835, KAFKA-9807: a read waits for the disk; meanwhile more is appended, and more is committed: nothing
    beyond the high watermark that it was asked under."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        for value in (b"a", b"b", b"c"):
            await bench.append(1, value)
        for node in (2, 3):
            bench.world.partition(f"n{node}", "n1", one_way=True)
        bench.world.machines["n1"].disk.config.cold_probability = 1.0
        reads: list[asyncio.Future[ReadOutcome]] = []
        bench.broker(1).run(lambda manager: reads.append(asyncio.ensure_future(manager.read_cold(TP, 0, 1 << 20))))
        await bench.world.sleep_ms(0.05)
        for value in (b"d", b"e"):
            await bench.append(1, value, acks=1)
        assert not reads[0].done(), "the disk was to be slow"
        bench.world.heal()
        outcome = await reads[0]
        assert (outcome.high_watermark, outcome.next_offset) == (3, 3)
        assert decoded(outcome.data) == [b"a", b"b", b"c"]

    bench.play(scenario)


@schedule(55, rule="B16: a log may begin inside its first batch", mutant="a-log-begins-with-a-batch")
def test_55_records_deleted_up_to_the_middle_of_a_batch() -> None:
    """KAFKA-6975: the leader's log begins inside a batch; a replica that has nothing begins there, is sent the whole
    batch, and takes it: it joins, leads, and shows nothing that was deleted."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        assert (await bench.send(1, batch(b"ten", count=10))).base_offset == 0
        assert (await bench.send(1, batch(b"ten", count=10))).base_offset == 10
        told: list[tuple[ErrorCode, int]] = []
        bench.broker(1).run(
            lambda manager: ignore(manager.delete_records(TP, 15, lambda error, _, low: told.append((error, low))))
        )
        await bench.until(lambda: bool(told))
        assert told == [(ErrorCode.NONE, 15)]
        await bench.leave_out(3)
        bench.world.machines["n3"].disk.wipe()
        await bench.append(1, b"after")
        bench.broker(3).start()
        await bench.until(lambda: len(bench.isr) == 3)
        assert (bench.status(3).log_start_offset, bench.status(3).log_end_offset) == (15, 21)
        controller = bench.controller
        controller.elect(TP, NodeId(3))
        await bench.until(lambda: bench.leads(3))
        await bench.append(3, b"after that")
        await bench.whole()
        assert bench.log(3).epochs.entries() == bench.log(1).epochs.entries()
        assert bench.read(3, 14).error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert decoded(bench.read(3, 15).data)[-2:] == [b"after", b"after that"]
        await bench.leave_out(3)
        bench.broker(3).start()
        await bench.until(lambda: len(bench.isr) == 3)
        assert bench.status(3).log_start_offset == 15, "it came back with what was deleted"

    bench.play(scenario)
