"""Random lives of a log directory on the simulated disk: killed and power-cut between any two disk operations.

What was told to be durable is there in the next life, nothing is there that was never written, no legal crash makes a
log be refused, and what is derived (epochs, producer state) is that of the records (rules B8, C2, E5; schedule 20).
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.log.batch import Record, build_batch, decode_records
from strandline.log.config import LogConfig
from strandline.log.findings import LogCondition
from strandline.log.log_dir import CheckpointWriter, LogDir, format_log_dir
from strandline.log.partition_log import ANY_SIZE, PartitionLog
from strandline.log.producer_state import ProducerStates, replay
from strandline.log.recovery import open_log
from strandline.log.syncer import Syncer
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId, TopicPartition
from tests.log.helpers import TOPIC_ID, all_records, decode_all

TPS = [TopicPartition("a", 0), TopicPartition("b", 1)]
LIVES = 6
RECORDS_MAX = 4
BATCH_MAX = 6


class Expectation:
    """What one partition must and may hold."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}  # the log as the last life had it
        self.epochs: dict[int, int] = {}
        self.ever: dict[int, set[tuple[bytes, int]]] = {}  # everything written at an offset in any life
        self.end = 0
        self.start = 0
        self.jump = 0  # where a log that is cut as a whole begins
        self.start_guaranteed = 0  # told durable, and not lowered since
        self.guaranteed = 0  # told durable, and not cut since: survives everything
        self.kept = 0  # completely written: survives a mere kill
        self.epoch = 0

    def wrote(self, offset: int, value: bytes, epoch: int) -> None:
        self.values[offset] = value
        self.epochs[offset] = epoch
        self.ever.setdefault(offset, set()).add((value, epoch))
        self.end = self.kept = offset + 1

    def cuts(self, offset: int) -> None:
        """Everything from `offset` on may go from now on."""
        self.guaranteed = min(self.guaranteed, offset)
        self.start_guaranteed = min(self.start_guaranteed, offset)
        self.kept = min(self.kept, offset)


class Lives:
    """The scenario of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        config = DiskConfig(sector_bytes=self.rng.choice([64, 512]), cold_probability=0.1)
        self.world = World(seed, WorldConfig(disk=config))
        self.machine = self.world.add_machine("n1")
        self.expected: dict[TopicPartition, Any] = {tp: Expectation() for tp in TPS}
        self.written = 0
        self.formatted = False
        self.problem: BaseException | None = None
        self.power_lost = False
        self.config = LogConfig(
            segment_bytes=self.rng.choice([1100, 3000]),
            index_interval_bytes=self.rng.choice([0, 200, 4096]),
            preallocate_bytes=self.rng.choice([0, 1 << 20]),
            file_delete_delay_ms=1,
        )

    async def scenario(self) -> None:
        for _ in range(LIVES):
            done = asyncio.Event()
            strike = self.cut_power if self.rng.random() < 0.7 else self.kill
            self.machine.disk.strike_after(self.rng.randint(1, 400), strike)
            self.world.spawn("n1", partial(self.life, done))
            for _ in range(400):
                if done.is_set() or self.world.process("n1") is None:
                    break
                await self.world.sleep_ms(20)
            self.machine.disk.strike_after(0, None)
            if self.world.process("n1") is not None:
                strike()
            if self.problem is not None:
                raise self.problem

    def cut_power(self) -> None:
        self.power_lost = True
        self.world.power_cut("n1")

    def kill(self) -> None:
        self.world.kill("n1")

    async def life(self, done: asyncio.Event, ports: Ports) -> None:
        try:
            await self.live(ports)
        except Exception as problem:
            if self.world.process("n1") is not None:
                self.problem = problem
        done.set()

    async def live(self, ports: Ports) -> None:
        if not self.formatted:
            await self.format(ports)
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, self.config)
        assert log_dir.offline == {}, f"refused: {log_dir.offline}"
        lacking = [tp for tp, found in log_dir.findings.all.items() if found.condition is LogCondition.LACKING]
        assert not lacking, f"checkpoints promise more than is there: {lacking}"
        log_dir.findings.committed()
        logs = {tp: self.check(tp, log_dir) for tp in TPS}
        self.power_lost = False
        failed: list[Any] = []
        syncer = Syncer(ports.disk, self.synced, lambda *what: failed.append(what), failed.append)
        await self.use(log_dir, logs, syncer, failed)
        assert failed == []
        if self.rng.random() < 0.5:
            await syncer.drain()
            await self.stop(log_dir)

    async def use(
        self, log_dir: LogDir, logs: dict[TopicPartition, PartitionLog], syncer: Syncer, failed: list[Any]
    ) -> None:
        """Some steps with each log, until a sync fails."""
        self.writer = CheckpointWriter(log_dir, lambda: self.started(logs), lambda: None, failed.append)
        for _ in range(self.rng.randint(0, 40)):
            for tp in TPS:
                self.step(self.expected[tp], logs[tp], log_dir)
                if self.rng.random() < 0.8:
                    syncer.mark(logs[tp])
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.random() * 0.01)
            if failed:
                return

    async def stop(self, log_dir: LogDir) -> None:
        """Cleanly, a second later: what was written is durable."""
        await asyncio.sleep(1)
        writing = self.writer.stop()
        if writing is not None:
            await asyncio.wait([writing])
        log_dir.close(3)
        for tp in TPS:
            self.expected[tp].guaranteed = self.expected[tp].end

    async def format(self, ports: Ports) -> None:
        """Once."""
        if not ports.disk.exists("/d/meta.properties"):
            format_log_dir(ports.disk, "/d", "c", NodeId(1), UUID(int=1))
        self.formatted = True

    def synced(self, logs: list[PartitionLog]) -> None:
        for log in logs:
            expected = self.expected[log.topic_partition]
            assert log.durable_offset <= log.log_end_offset
            expected.guaranteed = max(expected.guaranteed, int(log.durable_offset))

    def started(self, logs: dict[TopicPartition, PartitionLog]) -> None:
        for tp, log in logs.items():
            self.expected[tp].start_guaranteed = int(log.durable_log_start_offset)

    def check(self, tp: TopicPartition, log_dir: LogDir) -> PartitionLog:
        """The log of a new life against what may be left of the old one; it becomes what is expected from now on."""
        expected = self.expected[tp]
        least = expected.guaranteed if self.power_lost else max(expected.guaranteed, expected.kept)
        log = log_dir.logs.get(tp)
        if log is None:
            assert least == 0, f"{tp} is gone with {least} records"
            log = log_dir.create(tp, TOPIC_ID, self.config)
        assert log.log_end_offset >= least, (log, least)
        assert log.log_start_offset >= min(expected.start_guaranteed, log.log_end_offset), "deleted records are back"
        if expected.guaranteed > expected.start:
            assert log.log_start_offset <= max(expected.start, expected.jump), f"{log} hides what is durable"
        assert log.durable_offset == log.log_end_offset
        found: dict[int, tuple[bytes, int]] = {}
        offset: int = log.log_start_offset
        while offset < log.log_end_offset:
            try:
                read = log._read(offset, 500, log.log_end_offset, ANY_SIZE, lambda f, s, p: f.pread(s, p))
            except KafkaError as error:
                raise AssertionError(f"{tp}: {error}") from error
            for record in decode_all(read.data):
                assert record.value is not None
                found[record.offset] = (record.value, log.epoch_at(record.offset))
            offset = int(read.next_offset)
        for at, (value, epoch) in found.items():
            if log.log_start_offset <= at:
                assert (value, epoch) in expected.ever[at], f"{tp}: offset {at} holds what was never written there"
            if at < least:
                assert value == expected.values[at], f"{tp}: durable offset {at} has changed"
        self.check_producers(log, found)
        self.check_found(expected, log, {at: value for at, (value, _) in found.items()}, least)
        expected.values = {at: value for at, (value, _) in found.items()}
        expected.epochs = {at: epoch for at, (_, epoch) in found.items()}
        expected.end = expected.guaranteed = expected.kept = int(log.log_end_offset)
        expected.start = expected.start_guaranteed = int(log.log_start_offset)
        expected.jump = 0
        expected.epoch = max(expected.epoch, int(log.latest_epoch)) + 1
        return log

    def check_found(self, expected: Expectation, log: PartitionLog, found: dict[int, bytes], least: int) -> None:
        """What is durable is there: all of it, from the log start on."""
        missing = [at for at in expected.values if log.log_start_offset <= at < least and at not in found]
        assert not missing, f"durable offsets {missing} are gone"

    def check_producers(self, log: PartitionLog, found: dict[int, tuple[bytes, int]]) -> None:
        """What is remembered of the producer is what a replay of the whole log gives."""
        entry = log.producers.get(1)
        replayed = ProducerStates()
        replay(replayed, log.segments, log.bases[0], log.log_end_offset, 0)
        expected = replayed.get(1)
        assert (entry is None) <= (expected is None)
        if expected is not None and entry is not None:
            both = [[batch[:4] for batch in one.batches] for one in (entry, expected)]  # without their times
            assert both[0][-len(both[1]) :] == both[1]
            assert not found or entry.batches[-1].last_offset == max(found)

    def step(self, expected: Expectation, log: PartitionLog, log_dir: LogDir) -> None:
        """One thing that happens to a log."""
        dice = self.rng.random()
        if dice < 0.75:
            self.append(expected, log)
        elif dice < 0.85:
            offset = self.cut_at(expected)
            told = expected.guaranteed
            expected.cuts(max(0, offset - BATCH_MAX))  # a batch that reaches over the cut goes as a whole
            assert log.truncate_to(offset) <= offset
            expected.end = int(log.log_end_offset)
            expected.guaranteed = min(told, expected.end)
            expected.start = int(log.log_start_offset)
            expected.kept = expected.end
            expected.epoch += 1
        elif dice < 0.88:
            log.roll()
        elif dice < 0.92:
            expected.start = self.rng.randint(expected.start, max(expected.start, expected.guaranteed))
            log.delete_records_before(expected.start)
            self.writer.log_start_raised()
        elif dice < 0.94:
            expected.cuts(0)
            offset = expected.end + self.rng.randint(0, 20)
            expected.jump = offset
            log.truncate_fully_and_start_at(offset)
            expected.values.clear()
            expected.start = expected.end = expected.kept = offset
            if self.rng.random() < 0.5:
                self.begin_inside(expected, log)
        elif dice < 0.97:
            log.assign_epoch_start(expected.epoch + 1, log.log_end_offset)
            expected.epoch += 1
        else:
            log_dir.tell({log.topic_partition: expected.end})
            self.writer.write_all()
            log_dir.sweep()

    def cut_at(self, expected: Expectation) -> int:
        """Where a truncation cuts."""
        return self.rng.randint(max(expected.start, expected.end - 12), expected.end)

    def records(self, expected: Expectation, first: int, values: list[bytes]) -> list[Record]:
        """Records of these values, from offset `first` on."""
        return [Record(i, 1000 + i, None, value) for i, value in enumerate(values)]

    def begin_inside(self, expected: Expectation, log: PartitionLog) -> None:
        """The leader's log begins inside a batch, and so does this one, which is empty."""
        before, after = self.rng.randint(1, 3), self.rng.randint(1, 3)
        base = expected.start - before
        if base < 0:
            return
        self.written += 1
        values = [b"%d-%d" % (self.written, i) for i in range(before + after)]
        items = self.records(expected, base, values)
        for i, value in enumerate(values):
            expected.ever.setdefault(base + i, set()).add((value, expected.epoch))
        batch = build_batch(items, base_offset=base, leader_epoch=expected.epoch)
        expected.cuts(0)
        assert log.append_as_follower(memoryview(batch)) == base + len(values)
        assert (log.log_start_offset, log.bases) == (expected.start, [base])
        expected.end = base
        for i, value in enumerate(values):
            expected.wrote(base + i, value, expected.epoch)

    def append(self, expected: Expectation, log: PartitionLog) -> None:
        values = []
        for _ in range(self.rng.randint(1, RECORDS_MAX)):
            self.written += 1
            values.append(b"%d-" % self.written + bytes(self.rng.randint(0, 200)))
        entry = log.producers.get(1)
        # A producer that was forgotten starts above all that it ever sent: a deletion that a power cut undoes brings
        # its batches back.
        fresh = self.written - len(values)
        sequence = entry.batches[-1].last_sequence + 1 if entry is not None and entry.batches else fresh
        items = self.records(expected, expected.end, values)
        batch = build_batch(items, producer_id=1, producer_epoch=0, base_sequence=sequence)
        for i, value in enumerate(values):
            expected.ever.setdefault(expected.end + i, set()).add((value, expected.epoch))
        result = log.append_as_leader(memoryview(batch), expected.epoch, self.machine.clock.wall_ms())
        assert [record.value for record in decode_records(batch)] == values
        assert result.base_offset == expected.end
        for i, value in enumerate(values):
            expected.wrote(int(result.base_offset) + i, value, expected.epoch)


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_lives_of_a_log_directory(first_seed: int) -> None:
    """Ten seeds of six lives each."""
    for seed in range(first_seed, first_seed + 10):
        lives = Lives(seed)
        try:
            lives.world.run(lives.scenario())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", range(6))
def test_76_expired_segments_are_synced_until_the_log_start_is_durable(seed: int) -> None:
    """Schedule 76: a follower gets records and, before it has synced them, a log start behind most of them. What it
    acknowledges then survives a power cut, whether the log start does or not."""
    world = World(seed, WorldConfig(disk=DiskConfig(sync_max_us=300)))
    world.add_machine("n1")
    config = LogConfig(segment_bytes=300, preallocate_bytes=0)

    async def first(ports: Ports) -> None:
        format_log_dir(ports.disk, "/d", "c", NodeId(1), UUID(int=1))
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, config)
        log = log_dir.create(TPS[0], TOPIC_ID, config)
        log.sync_now()
        for _ in range(12):
            batch = build_batch([Record(0, 1000, None, b"x" * 60)])
            log.append_as_leader(memoryview(batch), 0, 1000)
        log.delete_records_before(9)
        while log.needs_sync:
            files, directories = log.begin_sync()
            await ports.disk.sync(files, directories)
            log.end_sync()
        assert log.durable_offset == 12

    async def second(ports: Ports) -> None:
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, config)
        assert log_dir.offline == {}
        log = log_dir.logs[TPS[0]]
        assert log.log_end_offset == 12
        assert {0, *range(12)} >= {record.offset for record in all_records(log)} >= {9, 10, 11}

    async def scenario() -> None:
        process = world.spawn("n1", first)
        assert process.main is not None
        await process.main
        world.power_cut("n1")
        process = world.spawn("n1", second)
        assert process.main is not None
        await process.main

    world.run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_cut_segments_do_not_come_back(seed: int) -> None:
    """A segment that was cut off, and of which other replicas have other data by now, is gone for good: its name does
    not wait for the next sync."""
    world = World(seed, WorldConfig(disk=DiskConfig(sync_max_us=300)))
    machine = world.add_machine("n1")

    async def life(ports: Ports) -> None:
        ports.disk.mkdir("/d")
        ports.disk.sync_dir("/")
        config = LogConfig(segment_bytes=300, preallocate_bytes=0)
        log = open_log(ports.disk, "/d/t-0", TPS[0], clock=ports.clock, config=config)
        ports.disk.sync_dir("/d")
        for _ in range(12):
            batch = build_batch([Record(0, 1000, None, b"x" * 60)])
            log.append_as_leader(memoryview(batch), 0, 1000)
        log.sync_now()
        assert len(log.segments) == 6
        log.snapshots.delete_above(-1)  # with one that goes too, the directory would be synced for that
        ports.disk.sync_dir(log.directory)
        log.truncate_to(3)
        machine.disk.crash()
        assert sorted(name for name in machine.disk.files() if name.endswith(".log")) == [
            f"/d/t-0/{base:020d}.log" for base in (0, 2)
        ]

    async def scenario() -> None:
        process = world.spawn("n1", life)
        assert process.main is not None
        await process.main

    world.run(scenario())
